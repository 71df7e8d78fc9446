"""Every block of Python on the page about the guard runs alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guard.md"
if not PAGE.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(("place", "expected"), [(0, "head 1: logits up to"), (1, ".")])
def test_a_block_runs_alone(place: int, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) == 2
    exec(compile(BLOCKS[place], f"guard.md, block {place}", "exec"), {})
    assert expected in capsys.readouterr().out
