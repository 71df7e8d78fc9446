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

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

import attsvm
from attsvm.claims import Claim, Evidence, Verdict, at_most
from attsvm.training import direction_gap
from attsvm.norms import Norm
from attsvm.sklearn import AttentionSVC

Floats = NDArray[np.float64]

bags = [np.ones((3, 6)), np.zeros((2, 6))]
own = attsvm.AttentionData.from_bags(bags, [1, -1])
assert_type(own.tokens, Floats)
assert_type(own.plot(), Axes)
data, head = attsvm.datasets.unit_sphere(n=4, T=4, d=6, seed=0)
assert_type(data, attsvm.AttentionData)
tokens = attsvm.optimal_tokens(data, head)
margins = attsvm.selection_margins(data, tokens)
assert_type(margins, attsvm.Margins)
solution = attsvm.max_margin(margins, attsvm.Lp(1.5))
assert_type(solution, attsvm.MarginSolution)
assert_type(attsvm.max_margin(margins, "nuc"), attsvm.MarginSolution)
assert_type(attsvm.max_margin(margins, norm="nuc", slack=1.0), attsvm.MarginSolution)
assert_type(attsvm.max_margin_batch([margins], "spec"), attsvm.SolutionBatch)
blocks = attsvm.Margins.from_blocks([margins])
assert_type(attsvm.max_margin_blocks(blocks, memory="1GB"), attsvm.MarginSolution)
assert_type(attsvm.margin_path(margins, ["fro", "nuc"]), list[attsvm.MarginSolution])
assert_type(solution.norm, float)
assert_type(solution.W, Floats)
assert_type(solution.plot(), Axes)
solution.save("solution.npz")
assert_type(attsvm.MarginSolution.load("solution.npz"), attsvm.MarginSolution)
assert_type(attsvm.parse_norm("rows"), Norm)
model = attsvm.attention.Attention.cross(data, head=head)
step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1, norm="spectral")
mirror = attsvm.optim.MirrorDescent(model.parameters(), lr=0.1, p=3.0)
course = attsvm.train(model, data, step, steps=10, progress=True)
assert_type(course, attsvm.Trajectory)
assert_type(course.plot(target=solution), Axes)
assert_type(direction_gap(course.W, solution), Floats)
path = attsvm.regularization_path(data, head, "fro", [1.0])
assert_type(path, attsvm.RegularizationPath)
fitted = AttentionSVC(penalty=0.1, progress=True).fit(bags, [0, 1])
assert_type(fitted, AttentionSVC)
assert_type(fitted.explain(bags, norm="lp:1.75").solution, attsvm.MarginSolution)
assert_type(fitted.select(bags), NDArray[np.int64])
claim = Claim("mine", "a is small", "ours", lambda e: e["a"], at_most(1.0, "a reason"))
assert_type(claim.check(Evidence({"a": np.zeros(2)})), Verdict)
attsvm.report.explore(data, tokens=[0, 0, 0, 0]).save("explorer.html")
try:
    attsvm.selection_margins(data, [9, 9, 9, 9])
except attsvm.InputError as error:
    assert_type(error.exit_code, int)
attsvm.max_margin(data)  # type: ignore[arg-type]
attsvm.max_margin([margins])  # type: ignore[arg-type]
attsvm.max_margin_batch(margins)  # type: ignore[arg-type]
attsvm.max_margin_blocks(margins)  # type: ignore[arg-type]
attsvm.train(model, data, step)  # type: ignore[call-arg]
AttentionSVC("lp:1.75")  # type: ignore[call-arg, arg-type]
solution.W = None  # type: ignore[misc, assignment]
"""


@pytest.mark.slow
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
