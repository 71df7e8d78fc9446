"""The page about the probe: what it shows runs, from a capture to a cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "probe.md"
if not PAGE.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_capture_and_a_cache_give_the_same_margins(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for place, block in enumerate(BLOCKS[:2]):
        exec(compile(block, f"probe.md, block {place}", "exec"), names)
    assert "previous" in capsys.readouterr().out
    cached = names["from_cache"](names["cache"], names["batch"]["input_ids"])
    wanted = names["result"].head(1, 3).margin
    assert names["audit"](cached, norms=[]).heads[3].margin == pytest.approx(wanted, rel=1e-4)
