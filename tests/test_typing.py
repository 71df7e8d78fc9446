"""The library's types, as a program of somebody else sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import attsvm

CONSUMER = """
from typing import assert_type

import attsvm

data, head = attsvm.datasets.unit_sphere(n=4, T=4, d=6, seed=0)
margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
solution = attsvm.max_margin(margins, attsvm.Lp(1.5))
assert_type(solution, attsvm.MarginSolution)
assert_type(solution.norm, float)
assert_type(attsvm.max_margin([margins]), attsvm.SolutionBatch)
model = attsvm.models.Attention.cross(data, head=head)
step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
course = attsvm.train(model, data, step, steps=10)
assert_type(course, attsvm.Trajectory)
course.plot(target=solution)
attsvm.report.explore(data, tokens=[0, 0, 0, 0]).save("explorer.html")
attsvm.max_margin(3)  # type: ignore[call-overload]
solution.W = None  # type: ignore[misc, assignment]
"""


def test_a_consumer_passes_the_strictest_check(tmp_path: Path) -> None:
    """Wrong uses are among the lines: their ``ignore`` would be reported if types were missing."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    assert files(attsvm).joinpath("py.typed").is_file()
    (tmp_path / "consumer.py").write_text(CONSUMER, encoding="utf-8")
    source = str(Path(attsvm.__file__).parents[1])
    # In an installed package mypy reads the types itself; a path of sources has to be named.
    path = {} if "site-packages" in source else {"MYPYPATH": source}
    cache = Path(__file__).parents[1] / ".mypy_cache" / "consumer"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
         f"--cache-dir={cache}", "consumer.py"],
        cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
