"""Every code block of every page. Python runs, each block in a namespace of its own, as if it were
pasted alone; a block of text that follows one is what it prints. Commands are parsed, and those of
the tutorials run, in the folder in which the blocks of their page run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attsvm.cli import main, parser

from .conftest import PAGES, ROOT, read

NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]

NEEDS = {"docs/training.md": ("accelerate", "lightning", "transformers")}
"""Optional packages of the blocks of a page."""

FOLLOWED = ("docs/start/data.md", "docs/start/claim.md")
"""Pages whose commands run too."""

WRITTEN = {
    "docs/bags.md": "bags.html",
    "docs/start/data.md": "runs/reviews/report.html",
    "docs/start/claim.md": "runs/reproduce/mmts-1/report.html",
    "docs/my-report.md": "explorer.html",
}
"""What a reader of the page has afterwards."""


class Ran(NamedTuple):
    """The names and the output that a block of Python has left."""

    names: dict[str, Any]
    printed: str


def named_head(first: Ran, *others: Ran) -> None:
    """The head that the page looks at selects what the table says."""
    assert "previous" in first.printed


def sharp_heads(first: Ran, second: Ran, *others: Ran) -> None:
    """The guard has something to say."""
    assert "head 1: logits up to" in first.printed
    assert "." in second.printed


CHECKED = {"docs/probe.md": named_head, "docs/guard.md": sharp_heads}
"""What is asked of the blocks of a page."""


class Block(NamedTuple):
    """One fenced block."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = read(page)
    found = re.finditer(r"^(`{3,})([^\n`]*)\n(.*?)^\1[ \t]*$", text, flags=re.DOTALL | re.MULTILINE)
    inside = re.compile(r"\{(?!toctree|eval-rst)[\w-]+\}")
    every = []
    for match in found:
        line = text.count("\n", 0, match.start()) + 1
        if inside.match(match[2]) and "```" in match[3]:  # a box with blocks inside
            for part in re.finditer(r"^```(\w+)\n(.*?)^```", match[3], flags=re.DOTALL | re.M):
                every.append(Block(part[1], part[2], line + match[3].count("\n", 0, part.start())))
        else:
            every.append(Block(match[2].strip(), match[3], line))
    return every


def commands(block: str) -> Iterator[list[str]]:
    """The words of every command; what stands without ``$`` is what commands print."""
    for line in re.sub(r"\\\n", " ", block).splitlines():
        if line.startswith("$ "):
            yield shlex.split(line[2:], comments=True)


def known(words: list[str]) -> None:
    """Whether such a command exists, with these options."""
    match words:
        case ["attsvm", *rest]:
            parser().parse_args(rest)
        case ["make", target]:
            assert f"\n{target}:" in read("Makefile")
        case [".ci/run"]:
            assert (ROOT / ".ci" / "run").exists()
        case ["python", "-c", code]:
            compile(code, "python -c", "exec")
        case ["python", file, *rest]:
            path = ROOT / file
            files = sorted(path.glob("*.py")) if path.is_dir() else [path]
            source = "".join(each.read_text(encoding="utf-8") for each in files)
            assert [word for word in rest if word.startswith("--") and word not in source] == []
        case ["pip", "install", "-c", file, *_]:
            assert (ROOT / file).exists()
        case ["python3", "-m", "venv", ".venv"] | [".", ".venv/bin/activate"] | ["export", _]:
            pass
        case ["pip", "install", *_] | ["git", "worktree", "add", *_]:
            pass
        case _:
            raise AssertionError(f"{shlex.join(words)} is a command that no test knows")


def same(printed: str, shown: str) -> bool:
    """Equal words; numbers to two parts in a hundred, for another machine rounds otherwise."""
    number = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    if re.sub(number, "#", printed).split() != re.sub(number, "#", shown).split():
        return False
    pairs = zip(re.findall(number, printed), re.findall(number, shown), strict=True)
    return all(float(a) == pytest.approx(float(b), rel=0.02) for a, b in pairs)


@pytest.mark.parametrize("page", NAMES)
@pytest.mark.experiment
# lightning 2.6 asks torch 2.13 for a class that torch is about to drop, and advises against its own
# data loader defaults
@pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.*:FutureWarning",
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
)
def test_blocks_of_a_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in NEEDS.get(page, ()):
        pytest.importorskip(package)
    printed, ran = "", list[Ran]()
    for language, text, line in blocks(page):
        place = f"{page}, line {line}"
        if language == "python":
            code = compile("\n" * line + text, page, "exec")
            capsys.readouterr()
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(code, names)
            printed = capsys.readouterr().out
            ran.append(Ran(names, printed))
        elif language == "console":
            for words in commands(text):
                known(words)
                if page in FOLLOWED:
                    alone = ["--jobs", "1"] if words[1] == "reproduce" else []
                    assert main([*words[1:], *alone]) in (0, None), place
            printed = ""
        elif language == "bash":  # a script for a cluster
            lines = re.sub(r"\\\n", " ", text).splitlines()
            for words in [shlex.split(each) for each in lines if not each.startswith("#")]:
                if "attsvm" in words:
                    known(words[words.index("attsvm") :])
        elif language == "text":
            assert not printed or same(printed, text), f"{place}: it prints\n{printed}"
            printed = ""
        else:
            assert re.fullmatch(r"\{[\w-]+\}.*", language), f"{place}: a block of {language!r}"
    if page in CHECKED:
        CHECKED[page](*ran)
    if page in WRITTEN:
        assert (tmp_path / WRITTEN[page]).exists()


def test_every_command_in_a_sentence_exists() -> None:
    """``attsvm NAME --option`` between backticks, with words in capitals for what is yours."""
    seen = 0
    for page in NAMES:
        text = re.sub(r"^`{3,}.*?^`{3,}", "", read(page), flags=re.M | re.S)
        for words in re.findall(r"(?<!`)`attsvm ([a-z][^`]*)`", text):
            name, *options = shlex.split(words)
            kinds = next(a for a in parser()._actions if a.dest == "command").choices
            assert kinds is not None
            assert name in kinds, f"{page}: attsvm {words}"
            chosen = kinds[name]
            inner = next((a for a in chosen._actions if a.dest == "kind" and a.choices), None)
            if inner is not None and options:
                chosen = inner.choices[options[0]]
            flags = [word for word in options if word.startswith("-")]
            assert [flag for flag in flags if flag not in chosen._option_string_actions] == []
            seen += 1
    assert seen > 20


def test_output_that_is_not_printed_is_found() -> None:
    assert same("gap 1.00e-3 of 5", "gap 1.01e-3 of 5")
    assert not same("gap 1.00e-3 of 5", "gap 1.00e-3 of 6")
    assert not same("optimal: 5", "infeasible: 5")
