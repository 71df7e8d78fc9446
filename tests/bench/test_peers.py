"""Other people's solvers find what max_margin finds, and one formula certifies both."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from attsvm.margins import Margins
from attsvm.norms import parse_norm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    INSTANCES = runpy.run_path(str(BENCHMARKS / "programmes.py"))
    NAMES = runpy.run_path(str(BENCHMARKS / "peers.py"))
finally:
    sys.path.remove(str(BENCHMARKS))
    sys.modules.pop("programmes", None)
PAIRS = [
    (peer, norm)
    for peer, (_, kinds, _) in NAMES["PEERS"].items()
    for norm in ("fro", "l1", "linf", "lp:1.75", "nuc", "spec")
    if NAMES["kind"](parse_norm(norm)) in kinds
]


@pytest.mark.parametrize(("peer", "norm"), PAIRS)
def test_everybody_reaches_the_gap_that_is_asked_for(peer: str, norm: str) -> None:
    solve, _, packages = NAMES["PEERS"][peer]
    if missing := NAMES["missing"](packages):
        pytest.skip(f"{', '.join(missing)} is not installed")
    margins, norm = INSTANCES["random_instance"](*INSTANCES["SIZES"]["S"], 0), parse_norm(norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        W, dual = solve(margins, norm, 1e-6)
    assert INSTANCES["certified_gap"](margins, norm, np.asarray(W), np.asarray(dual)) <= 1e-6


@pytest.mark.parametrize(
    ("norm", "optimum"),
    [("fro", 2**0.5), ("l1", 2.0), ("linf", 1.0), ("lp:3", 2 ** (1 / 3)), ("nuc", 2**0.5)],
)
def test_the_certificate_of_a_case_by_hand(norm: str, optimum: float) -> None:
    # the first column of W must be at least (1, 1); multipliers (1, 0) prove |W_11| >= 1
    margins = Margins(
        np.eye(2),
        np.array([[1.0, 0.0]]),
        np.array([0, 2]),
        np.ones(2),
        np.array([1, 2]),
        np.array([0]),
    )
    W, one = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1.0, 0.0])
    gap = INSTANCES["certified_gap"]
    assert gap(margins, parse_norm(norm), 3.0 * W, one) == pytest.approx(1.0 - 1.0 / optimum)
    assert gap(margins, parse_norm(norm), -W, one) == 1.0
    assert gap(margins, parse_norm(norm), W, -one) == 1.0
    assert gap(margins, parse_norm(norm), W.T[:1], one) == 1.0
