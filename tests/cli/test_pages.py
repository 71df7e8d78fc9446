"""Every command that writes a folder writes a page into it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attsvm.cli import main, parser

TEXT = "a b x a . b a x b . a b y a . b c y b"
SHORT = ["--joint-steps", "3", "--steps", "9", "--records", "2", "--quiet"]
WORDS = {
    "fit": ["digits", *SHORT],
    "probe": ["demo", "--tokens", "40", "--norm", "fro", "--null", "permuted", "--quiet"],
    "reproduce": ["graph-4", "--quick", "--jobs", "1"],
}


def folders(of: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """The commands with an option ``--out DIR``."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, each in action.choices.items():
                yield from folders(each, f"{name} {word}".strip())
        elif "--out" in action.option_strings and action.metavar == "DIR":
            yield name


def test_every_command_with_a_folder_is_known() -> None:
    assert sorted(folders(parser())) == sorted(WORDS)


@pytest.mark.parametrize("command", WORDS)
def test_a_folder_has_a_page(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    out = tmp_path / "out"
    words = [word.format(text=text) for word in WORDS[command]]
    assert main([*command.split(), *words, "--out", str(out)]) in (0, 3)
    said = capsys.readouterr().out
    # One page for a run; a page for each experiment, and index.html over them.
    page = (out / "graph-4" if command == "reproduce" else out) / "report.html"
    content = page.read_text(encoding="utf-8")
    assert content.startswith("<!DOCTYPE html>") or "<!DOCTYPE html>" in content[:40]
    assert "Content-Security-Policy" in content
    assert "=&#34;" not in content  # an attribute that was escaped like text
    assert not re.search(r'(?:src|href)="https?:', content)
    assert str(out / "index.html" if command == "reproduce" else page) in said
