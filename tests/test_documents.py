"""Every Python block of the README and the tour runs as written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_python_blocks_run(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)
    gap = scope["trajectory"].direction_gap(scope["solution"])  # type: ignore[attr-defined]
    assert gap[-1] < 1e-3
    assert scope["solution"].status == "optimal"  # type: ignore[attr-defined]


def test_the_norms_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/norms.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/norms.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_models_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/models.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/models.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 0.05
