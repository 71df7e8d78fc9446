"""Every Python block of the README and the tour runs as written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_python_blocks_run(page, capsys):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)
    gap = scope["trajectory"].direction_gap(scope["solution"])  # type: ignore[attr-defined]
    assert gap[-1] < 1e-3
    assert scope["solution"].status == "optimal"  # type: ignore[attr-defined]


def test_the_norms_page_runs(capsys):
    blocks = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs/norms.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/norms.md", "exec"), scope)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6  # one of a norm of one's own, one per norm, two of the batch
    assert lines[0].startswith("optimal: ")
    assert lines[4].startswith("1000 ")  # every instance is optimal
    assert lines[5].startswith("optimal: ")


def test_the_optimisers_page_runs(capsys):
    scope: dict[str, object] = {}
    for block in re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs/optimisers.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    ):
        exec(compile(block, "docs/optimisers.md", "exec"), scope)
    assert "attention/margin" in capsys.readouterr().out
    groups = scope["optimizer"].param_groups  # type: ignore[attr-defined]
    assert all(group["lr"] < 1e-9 for group in groups)  # the schedule has ended for both members


def test_the_training_page_runs(capsys):
    """The first block as it stands; the others need data that nobody has to have, so their names
    and arguments are looked up.
    """
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(block, "docs/training.md", "exec"), scope)
    assert capsys.readouterr().out.startswith("10 epochs; stopped because all epochs were done")
    assert scope["history"]["train_loss"][-1] < 0.7 * scope["history"]["train_loss"][0]  # type: ignore[index]
    from attsvm.training import TrainingPlan

    for others in re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL):
        compile(others, "docs/training.md", "exec")
        for line in re.findall(r"^(?:from attsvm|plan = ).*$", others, flags=re.MULTILINE):
            exec(line, {"TrainingPlan": TrainingPlan})


def test_the_models_page_runs(capsys):
    blocks = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs/models.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    for block in blocks:
        exec(compile(block, "docs/models.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 0.05
