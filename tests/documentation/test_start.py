"""The tutorials, followed as they are written: every block of Python, and every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from attsvm.cli import main

PAGES = Path(__file__).parents[2] / "docs" / "start"
if not PAGES.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)


@pytest.mark.parametrize("page", ["data", "claim", "optimiser", "report"])
def test_a_tutorial_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    for language, block in re.findall(r"```(python|console)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            exec(compile(block, page, "exec"), scope)
            continue
        for line in block.splitlines():
            command = shlex.split(line.removeprefix("$ "))
            assert command[0] == "attsvm"
            assert main(command[1:]) in (0, None)
    printed = capsys.readouterr().out
    expected = {"data": "right", "claim": "mine holds", "optimiser": "attention", "report": ""}
    assert expected[page] in printed
    written = {
        "data": "runs/reviews/report.html",
        "claim": "runs/reproduce/mmts-2/report.html",
        "report": "explorer.html",
    }
    if page in written:
        assert (tmp_path / written[page]).exists()
