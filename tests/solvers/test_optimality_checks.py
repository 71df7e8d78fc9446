"""Residuals of the optimality conditions in every norm: zero exactly at a solution, and what they
are made of; bounds of the rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from extended import Long, dual_value, rows, value
from instances import sphere

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, relax, selection_margins
from attsvm.norms import parse_norm
from attsvm.solvers import max_margin
from attsvm.solvers.optimality_checks import check_rank_and_uniqueness, numerical_rank, rank_bound
from attsvm.solvers.proofs import certify_hard

NORMS = [
    "fro",
    "l1",
    "linf",
    "lp:1.5",
    "lp:3",
    "lp:200",
    "nuc",
    "spec",
    "schatten:1.5",
    "schatten:3",
    "rows",
    "maxrow",
]


@pytest.mark.parametrize("name", NORMS)
def test_all_vanish_at_the_solution(name: str) -> None:
    for margins in (sphere(6, 8, 10, 0), relax(sphere(5, 5, 4, 2), [0, 2])):
        solution = max_margin(margins, parse_norm(name))
        assert solution.geometry == parse_norm(name)
        # The gap splits into stationarity and complementarity, so it bounds both; the violation is
        # the primal residual.
        kkt = solution.kkt()
        # Frobenius: a distance, the square root of what a gap is
        limit = 1e-7 if name == "fro" else 2.0 * solution.gap + 1e-12
        assert kkt.stationarity <= limit
        assert kkt.complementarity <= 2.0 * solution.gap + 1e-12
        assert kkt.primal == pytest.approx(solution.violation, abs=1e-15)
        assert kkt.dual == 0.0


@pytest.mark.parametrize("name", NORMS[1:])
def test_stationarity_is_what_hoelder_leaves(name: str) -> None:
    """Against extended precision, away from the solution, and free of the scale of weights and
    multipliers.
    """
    solution = max_margin(sphere(4, 5, 4, 1), parse_norm(name))
    rng = np.random.default_rng(0)
    W, dual = (
        solution.W + 0.1 * rng.standard_normal(solution.W.shape),
        solution.dual + 0.1 * rng.random(len(solution.dual)),
    )
    away = replace(solution, W=W, norm=float(solution.geometry.value(W)), dual=dual)
    V = np.einsum("c,cab->ab", dual.astype(Long), rows(solution.margins))
    expected = float(
        1
        - (V * W).sum()
        / (value(solution.geometry, W.astype(Long)) * dual_value(solution.geometry, V))
    )
    assert away.kkt().stationarity == pytest.approx(expected, rel=1e-9)
    assert expected > 1e-3
    larger = replace(away, W=4.0 * W, norm=4.0 * away.norm, dual=0.5 * dual)
    assert larger.kkt().stationarity == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NORMS[1:])
def test_stationarity_sees_multipliers_that_point_elsewhere(name: str) -> None:
    """A subgradient of other weights, and no subgradient at all."""
    solution = max_margin(sphere(4, 5, 4, 1), parse_norm(name))
    turned = replace(solution, dual=np.roll(solution.dual, 1))
    assert turned.kkt().stationarity > 1e-2
    assert replace(solution, dual=np.zeros_like(solution.dual)).kkt().stationarity == 1.0


def test_the_frobenius_residual_is_a_distance() -> None:
    solution = max_margin(sphere(6, 8, 10, 0))
    longer = replace(solution, dual=1.01 * solution.dual)
    assert longer.kkt().stationarity == pytest.approx(0.01, rel=1e-9)


def test_a_negative_multiplier_and_a_missed_margin_show() -> None:
    solution = max_margin(sphere(4, 5, 4, 1), parse_norm("l1"))
    dual = solution.dual.copy()
    dual[int(np.argmin(dual))] = -0.25 * dual.max()
    assert replace(solution, dual=dual).kkt().dual == pytest.approx(0.25)
    assert replace(
        solution, W=0.5 * solution.W, norm=0.5 * solution.norm
    ).kkt().primal == pytest.approx(0.5)


def test_rank_inequality() -> None:
    assert rank_bound(np.array([1.0, 1.0 - 1e-10, 0.5, 0.1]), 1e-9) == 2
    assert rank_bound(np.array([1.0, 1.0 - 1e-10, 0.5, 0.1]), 0.0) == 2
    assert rank_bound(np.array([1.0, 0.999, 0.5]), 1e-7) == 1
    assert rank_bound(np.array([1.0, 0.999, 0.5]), 1e-5) == 2
    assert rank_bound(np.array([1.0, 1.0]), 1.0) is None
    assert numerical_rank(np.diag([1e200, 2e197, 1e196])) == 2


@pytest.mark.parametrize("small", [0.5, 1.001e-3])
def test_the_only_solution_of_least_nuclear_norm(small: float) -> None:
    """Rows v_c v_c^T of three vectors at 120 degrees, which sum to a multiple of the identity:
    solution ``diag(1, small)``, and they determine symmetric matrices.
    """
    angles = 2.0 * np.pi * np.arange(3) / 3.0 + 0.1
    V = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    ones = np.ones(3, dtype=np.int64)
    margins = Margins(V, V, np.arange(4), V**2 @ np.array([1.0, small]), ones, 0 * ones)
    solution = max_margin(margins, parse_norm("nuc"), tol=1e-9)
    assert solution.rank == solution.rank_bound == 2
    assert solution.unique is True
    np.testing.assert_allclose(solution.W, np.diag([1.0, small]), atol=1e-7)


def test_one_of_many_solutions_is_not_called_the_only_one() -> None:
    """Every [[1, c], [c, 1]] with |c| <= 1 has nuclear norm 2."""
    ones = np.ones(2, dtype=np.int64)
    margins = Margins(np.eye(2), np.eye(2), np.arange(3), np.ones(2), ones, 0 * ones)
    solution = max_margin(margins, parse_norm("nuc"), tol=1e-9)
    assert solution.norm == pytest.approx(2.0, rel=1e-8)
    assert solution.unique is None
    assert solution.rank_bound == 2
    assert max_margin(margins, parse_norm("spec")).unique is None
    assert max_margin(margins, parse_norm("schatten:3")).unique is True


@pytest.mark.parametrize("norm", ["nuc", "l1", "rows", "fro", "linf", "lp:3"])
@pytest.mark.parametrize("size", [1e-103, 1e-150])
def test_soft_margins_of_tiny_norms_have_residuals(norm: str, size: float) -> None:
    data = AttentionData([[[size, 0.0], [0.0, 0.0]]], labels=[1], queries=[[1.0]])
    solution = max_margin(selection_margins(data, [0]), norm, slack=1e6)
    assert solution.status == "optimal"
    assert solution.norm > 0.0
    assert max(solution.kkt()) < 1e-12  # W is C times the row, but for rounding


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.9, 1.1, 2.0, 20.0])
def test_no_solution_with_this_gap_has_a_larger_rank_than_the_bound(k: int, share: float) -> None:
    """``k`` equal singular values and one of ``share`` thousandths of them: with ``M`` of the same
    singular vectors the gap is what the last one loses, and any bound must count it where it
    counts.
    """
    sizes = np.array([1.0] * k + [share * 1e-3, 0.0])
    mu = np.array([1.0] * k + [0.5, 0.1])
    gap = 1.0 - float(mu @ sizes) / float(sizes.sum())
    bound = rank_bound(mu, gap)
    assert bound is not None
    assert bound >= numerical_rank(np.diag(sizes)) == k + (share > 1.0)
    # And it is no weaker than the inequality: a tail of a tenth of what counts is left out.
    assert bound == k if share <= 0.3 else bound >= k


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
def test_facts_do_not_depend_on_the_unit_of_multipliers(factor: float) -> None:
    """How far another solution can be is a share of them."""
    angles = 2.0 * np.pi * np.arange(3) / 3.0 + 0.1
    V = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    ones = np.ones(3, dtype=np.int64)
    margins = Margins(V, V, np.arange(4), V**2 @ np.array([1.0, 0.9e-3]), ones, 0 * ones)
    solution = max_margin(margins, parse_norm("nuc"), tol=1e-9)
    proof = certify_hard(margins, solution.geometry, solution.W, solution.dual)
    for gap in (1e-12, 1e-9, 1e-7, 1e-5):
        wider = proof._replace(gap=gap)
        moved = wider._replace(dual=factor * wider.dual)
        assert check_rank_and_uniqueness(margins, moved, 1.0) == check_rank_and_uniqueness(
            margins, wider, 1.0
        )
    tight = proof._replace(gap=1e-12)
    assert check_rank_and_uniqueness(margins, tight, 1.0).rank_bound == 1
    sizes = np.array([2.0**-10, 1.0, 2.0])  # and of the rows, each with its right-hand side
    rows = replace(margins, differences=sizes[:, None] * V, rhs=sizes * margins.rhs)
    assert check_rank_and_uniqueness(
        rows, tight._replace(dual=tight.dual / sizes), 1.0
    ) == check_rank_and_uniqueness(margins, tight, 1.0)


@pytest.mark.parametrize("name", ["lp:1.0001", "lp:1.5", "lp:2", "lp:3"])
def test_in_a_strictly_convex_norm_the_solution_is_the_only_one(name: str) -> None:
    """Also where an entry is free of every row."""
    one = np.ones(1, dtype=np.int64)
    margins = Margins(np.array([[1.0, 0.0]]), np.ones((1, 1)), np.arange(2), np.ones(1), one, one)
    assert max_margin(margins, name).unique is True


@pytest.mark.parametrize("name", ["l1", "linf", "lp:1.5", "spec", "rows"])
def test_the_soft_residual_is_what_fenchel_leaves(name: str) -> None:
    solution = max_margin(sphere(6, 5, 3, 1), parse_norm(name), slack=0.5)
    assert solution.kkt().stationarity <= 10.0 * solution.tol
    for factor in (0.5, 2.0):  # (1 + f^2) / 2 - f of the square
        turned = replace(solution, dual=factor * solution.dual, slack=1.0)
        assert turned.kkt().stationarity == pytest.approx(0.5 * (factor - 1.0) ** 2, rel=1e-3)


def test_complementarity_has_no_unit() -> None:
    """Tokens a thousand times as large, and so weights and multipliers smaller."""
    margins = sphere(4, 5, 4, 1)
    large = replace(margins, differences=1024.0 * margins.differences)
    found = []
    for one in (margins, large):
        solution = max_margin(one)
        dual = solution.dual.copy()
        dual[int(np.argmin(dual))] = 0.5 * dual.max()  # of a row that is not met with equality
        found.append(replace(solution, dual=dual).kkt().complementarity)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] > 1e-2


def test_a_multiplier_above_the_penalty_shows() -> None:
    solution = max_margin(sphere(6, 5, 3, 1), slack=0.5)
    assert solution.kkt().dual == 0.0
    dual = solution.dual.copy()
    dual[0] = 2.0
    assert replace(solution, dual=dual).kkt().dual == pytest.approx(0.75)  # 1.5 of 2
