"""Features in different units, in l1 and linf: the gap from exact sums of the caller's numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.solvers import MarginSolution, max_margin
from attsvm.solvers.lattice import nearest_combination, shift_bits, to_scaled_integers


def drawn(seed: int, tokens: dict[int, int], queries: dict[int, int] | None = None) -> Margins:
    """Normal numbers with columns times powers of ten."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(6, 5, 4)), rng.normal(size=(6, 3))
    for column, power in tokens.items():
        X[..., column] *= 10.0**power
    for column, power in (queries or {}).items():
        Z[:, column] *= 10.0**power
    return selection_margins(AttentionData(X, np.ones(6), queries=Z), np.zeros(6, int))


def exact_gap(solution: MarginSolution, box: bool) -> float:
    """1 - lower / upper of a hard margin, without rounding."""
    margins = solution.margins
    D, Z, W, dual = (
        np.vectorize(Fraction, otypes=[object])(array)
        for array in (margins.differences, margins.queries, solution.W, solution.dual)
    )
    assert (solution.dual >= 0.0).all()
    Z = Z[margins.sequence]
    values = ((D @ W) * Z).sum(axis=1)
    sizes, pull = np.abs(W).ravel(), np.abs((D * dual[:, None]).T @ Z).ravel()
    upper, lower = (sizes.max(), pull.sum()) if box else (sizes.sum(), pull.max())
    return float(1 - sum(dual.tolist()) / lower * min(values.tolist()) / upper)


@pytest.mark.parametrize("name", ["l1", "linf"])
@pytest.mark.parametrize("power", [-12, -9, -7, 5, 7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_column_in_other_units(name: str, power: int, seed: int) -> None:
    for margins in (drawn(seed, {0: power}), drawn(seed, {}, {0: power})):
        solution = max_margin(margins, name)
        assert solution.status == "optimal", solution.message
        assert exact_gap(solution, name == "linf") <= 1e-9  # what is promised


@pytest.mark.parametrize("name", ["l1", "linf"])
def test_units_of_tokens_and_queries(name: str) -> None:
    margins = drawn(3, {0: 6, 2: -4}, {1: 5})
    solution = max_margin(margins, name)
    assert solution.status == "optimal", solution.message
    assert exact_gap(solution, name == "linf") <= 1e-9


@pytest.mark.parametrize("name", ["l1", "linf"])
@pytest.mark.parametrize("power", [-9, 7, 10])
def test_soft_margins_in_other_units(name: str, power: int) -> None:
    margins = drawn(0, {0: power})
    most = float(max_margin(margins, name).dual.max())
    for slack in (1e-3 * most, 0.3 * most, 3.0 * most):
        solution = max_margin(margins, name, slack=slack)
        assert solution.status == "optimal", solution.message


def contradicting(seed: int, easy: int = 0) -> Margins:
    """Random selections of tokens with a large feature, and tiny queries; some rows ask for next to
    nothing.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(13, 6, 3)) * [1.0, 1.0, 1e6]
    data = AttentionData(X, np.ones(13), queries=np.full((13, 1), 1e-12))
    margins = selection_margins(data, rng.integers(0, 6, 13))
    rhs = margins.rhs.copy()
    rhs[:easy] *= 1e-8
    return replace(margins, rhs=rhs)


@pytest.mark.parametrize("name", ["l1", "linf"])
@pytest.mark.parametrize("slack", [1e-8, 0.94, 1e6])
def test_a_low_penalty_puts_all_multipliers_at_it_in_any_units(name: str, slack: float) -> None:
    margins = contradicting(3)
    solution = max_margin(margins, name, slack=slack)
    assert solution.status == "optimal", solution.message
    assert (solution.dual == slack).all()
    pull = slack * np.abs(margins.adjoint(np.ones(margins.m)))
    dual_norm = pull.max() if name == "l1" else pull.sum()
    assert solution.norm == pytest.approx(dual_norm, rel=1e-9)
    pulled = float((margins.adjoint(solution.dual) * solution.W).sum())
    assert pulled == pytest.approx(dual_norm**2, rel=1e-9)


@pytest.mark.parametrize("name", ["l1", "linf"])
def test_a_low_penalty_may_leave_some_rows_met(name: str) -> None:
    solution = max_margin(contradicting(0, easy=5), name, slack=1e6)
    assert solution.status == "optimal", solution.message
    # splitting would take thousands, and other starts four times as many
    assert solution.iterations <= 15
    assert ((solution.dual < 1e6) <= (solution.slacks <= 1e-9)).all()


@pytest.mark.parametrize("name", ["l1", "linf"])
@pytest.mark.parametrize("slack", [1e-2, 1e2])
def test_contradicting_selections_have_soft_margins_in_units_far_apart(
    name: str, slack: float
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(12, 6, 3)) * [1e-5, 1e9, 1e-8]
        data = AttentionData(X, np.ones(12), queries=np.ones((12, 1)))
        margins = selection_margins(data, rng.integers(0, 6, 12))
        solution = max_margin(margins, name, slack=slack)
        assert solution.status == "optimal", solution.message


def separable(seed: int, n: int, d: int, powers: int) -> Margins:
    """Selections that some weights make, with features and queries in units up to ``10**powers``
    times larger and smaller.
    """
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, 4, d)), rng.normal(size=(n, d))
    tokens = np.argmax(np.einsum("ntd,de,ne->nt", X, rng.normal(size=(d, d)), Z), axis=1)
    X *= 10.0 ** rng.integers(-powers, powers + 1, d)
    Z *= 10.0 ** rng.integers(-powers, powers + 1, d)
    return selection_margins(AttentionData(X, np.ones(n), queries=Z), tokens)


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_entries_that_cost_next_to_nothing_cost_a_little_in_a_second_attempt(seed: int) -> None:
    solution = max_margin(separable(seed, 6, 4, 9), "linf")
    assert solution.status == "optimal", solution.message


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_features_in_different_units_with_more_entries_than_rows(seed: int) -> None:
    solution = max_margin(separable(seed, 8, 14, 6), "l1")
    assert solution.status == "optimal", solution.message


@pytest.mark.parametrize("name", ["l1", "linf"])
def test_contradictions_are_proved_in_any_units(name: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 6, 2)) * [1e9, 1.0]
    data = AttentionData(X, np.ones(30), queries=np.ones((30, 1)))
    assert max_margin(selection_margins(data, np.zeros(30, int)), name).status == "infeasible"


def test_the_nearest_point_of_a_lattice() -> None:
    """Sums of eight reals with whole coefficients come near any number: a solution of a
    simultaneous approximation, of the size that the volume of the lattice says.
    """
    rng = np.random.default_rng(0)
    basis = np.hstack([1e-5 * np.eye(8), 1e4 * rng.normal(size=(8, 1))])
    target = np.append(np.zeros(8), 1e4 * rng.normal())
    whole = (shift_bits(*to_scaled_integers(values, 64)) for values in (basis, target))
    steps = nearest_combination(*whole).astype(np.float64)
    left = target - steps @ basis
    # the volume, 1e-36 or so, to the power 1 / 8, and a little for the reduction
    assert np.abs(left).max() <= 10.0 * (1e-35 * 1e4) ** (1 / 8)
