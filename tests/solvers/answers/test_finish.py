"""The last word on small programmes, and what is told where no word can be given."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from instances import prompt, ragged, sphere, with_rhs

from attsvm.geometry import parse_norm
from attsvm.margins import output_margins
from attsvm.solvers import max_margin
from attsvm.solvers.answers import finish
from attsvm.solvers.farkas import proved
from attsvm.solvers.programme.programme import equilibrate


def test_proofs_of_all_sizes_and_ranks() -> None:
    """Rows that span the space, rows in a subspace, and more rows than are written out."""
    rng = np.random.default_rng(0)
    cases = [
        sphere(6, 8, 2, 1),
        sphere(200, 64, 16, 0),
        # Differences of classes sum to zero, so that no rows span the space.
        output_margins(rng.standard_normal((60, 4)), rng.integers(6, size=60), classes=6),
        # Two queries in three dimensions.
        ragged(np.random.default_rng(4), 2, 6, 1, 3, feasible=False),
    ]
    for margins in cases:
        solution = max_margin(margins)
        assert solution.status == "infeasible", solution.message
        assert proved(margins, solution.dual) is not None
        assert solution.farkas_residual() <= 1e-14


def test_a_proof_needs_signs_and_a_positive_side() -> None:
    margins = prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, -0.25]]], [0])
    assert proved(margins, np.array([1.0, 1.0])) is not None
    assert proved(margins, np.array([-1.0, -1.0])) is None
    assert proved(margins, np.zeros(2)) is None
    assert proved(with_rhs(margins, np.zeros(2)), np.ones(2)) is None
    assert proved(prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, -0.125]]], [0]), np.ones(2)) is None
    # Multipliers that are far off lead to exact ones where there are any.
    np.testing.assert_allclose(proved(margins, np.array([1.0, 0.5])), [2 / 3, 2 / 3], rtol=1e-12)


def test_certain_finds_the_exact_multipliers_of_rough_ones() -> None:
    margins = sphere(6, 8, 2, 1)
    dual = max_margin(margins).dual
    rough = dual * (1.0 + 1e-3 * np.sin(np.arange(len(dual))))
    assert proved(margins, rough) is not None or finish.certain(margins, rough) is not None
    exact = finish.certain(margins, rough)
    assert exact is not None
    assert np.linalg.norm(margins.adjoint(exact)) <= 1e-12 * exact.sum()


def test_no_clock_decides_the_digits(monkeypatch) -> None:
    margins = ragged(np.random.default_rng(1), 4, 4, 3, 2, feasible=True)
    p = equilibrate(margins, None)
    quiet = finish.settled(margins, p, None, math.inf)[0]
    assert quiet is not None
    monkeypatch.setattr(time, "monotonic", itertools.count(0.0, 100.0).__next__)  # a busy machine
    busy = finish.settled(margins, p, None, math.inf)[0]
    assert busy is not None
    np.testing.assert_array_equal(busy.W, quiet.W)
    np.testing.assert_array_equal(
        finish.repaired(p, p.adjoint(np.ones(p.m)), math.inf)[0],
        finish.repaired(p, p.adjoint(np.ones(p.m)), math.inf)[0],
    )


def test_repaired_weights_meet_every_margin() -> None:
    margins = ragged(np.random.default_rng(1), 4, 4, 3, 2, feasible=True)
    p = equilibrate(margins, None)
    for W in finish.repaired(p, np.ones((3, 2)), math.inf):
        assert (p.values(W) >= p.b * (1.0 - 1e-15)).all()


def test_no_time_is_no_answer() -> None:
    margins = ragged(np.random.default_rng(1), 4, 4, 3, 2, feasible=True)
    assert finish.settled(margins, equilibrate(margins, None), None, time.monotonic() - 1.0) == (
        None,
        None,
    )


@pytest.mark.parametrize("name", ["fro", "lp:1.5", "l1", "spec"])
def test_what_float64_cannot_hold_is_almost_infeasible_in_every_norm(name: str) -> None:
    rng = np.random.default_rng(0)
    u, v = np.linalg.qr(rng.standard_normal((4, 4)))[0][:2]
    solution = max_margin(
        prompt([[np.zeros(4), -u - 1e-12 * v, u - 1e-12 * v]], [0]), parse_norm(name)
    )
    assert solution.status == "almost infeasible", solution.message
    assert solution.farkas_residual() <= 1e-10
    assert len(solution.conflict()) >= 2


@pytest.mark.experiment
def test_multipliers_that_vanish_on_the_way_are_replaced() -> None:
    """Newton steps may end without any; the next attempt then begins where the first did."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, 4))
    last = -(rng.uniform(0.1, 1.0, 3) @ rows) + 1e-10 * rng.standard_normal(4)
    keys = np.concatenate([np.zeros((1, 4)), -rows, -last[None]])
    for name in ("nuc", "spec", "schatten:1.5", "schatten:3"):
        solution = max_margin(prompt([keys], [0]), parse_norm(name))
        assert solution.status in ("optimal", "almost infeasible"), solution.message
