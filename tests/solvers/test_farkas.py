"""Proofs of infeasibility, checked from tensors written out here and in fractions, and the
sentences that name them.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from instances import cross, prompt, ragged, sphere, with_rhs, written_out
from scipy.optimize import nnls

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, relax, selection_margins
from attsvm.norms import parse_norm
from attsvm.solvers import MarginSolution, max_margin
from attsvm.solvers.farkas import prove_infeasible
from attsvm.theory import output_margins


def check(solution: MarginSolution) -> None:
    assert solution.status == "infeasible", solution.message
    A, lam = written_out(solution.margins), solution.dual
    assert (lam >= 0).all()
    top = float(solution.margins.rhs @ lam)
    assert top > 0
    assert np.linalg.norm(A.T @ lam) <= 1e-12 * top * max(np.linalg.norm(A, axis=1).max(), 1e-300)
    assert solution.farkas_residual() <= 1e-12
    assert all(np.isinf(r) for r in solution.kkt())
    assert solution.angle_bound() == np.pi
    assert solution.margin == 0.0


def test_conflict_is_itself_infeasible_and_irreducible() -> None:
    solution = max_margin(sphere(6, 8, 2, 1))
    check(solution)
    conflict = solution.conflict()
    margins = solution.margins
    rows = [
        int(np.flatnonzero((margins.sequence == i) & (margins.token == t))[0])
        for i, _, t in conflict
    ]
    assert (margins.selected[conflict[:, 0]] == conflict[:, 1]).all()
    check(max_margin(margins.restricted(np.array(rows))))
    for left_out in rows:
        rest = np.array([c for c in rows if c != left_out])
        assert max_margin(margins.restricted(rest)).status == "optimal"


def test_message_names_every_sequence_of_a_small_conflict() -> None:
    solution = max_margin(
        prompt(
            [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 0.0]]],
            [0, 1, 0],
        )
    )
    check(solution)
    assert solution.message.startswith(
        "infeasible: no weights select token 0 of sequence 0 and token 0 of sequence 2 together"
        " (certificate over 2 constraints, residual "
    )
    assert sorted(map(tuple, solution.conflict().tolist())) == [(0, 0, 1), (2, 0, 1)]


def test_token_inside_the_hull_of_the_others() -> None:
    solution = max_margin(prompt([[[0.2, 0.2], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]], [0]))
    check(solution)
    assert solution.message.startswith(
        "infeasible: no weights select token 0 of sequence 0 (certificate over 3 constraints"
    )


def test_duplicate_of_the_selected_token() -> None:
    X = np.random.default_rng(0).standard_normal((4, 6, 8))
    X[2, 5] = X[2, 3]
    margins = selection_margins(AttentionData(X, np.ones(4)), np.array([0, 0, 3, 0]))
    solution = max_margin(margins)
    check(solution)
    assert solution.conflict().tolist() == [[2, 3, 5]]
    assert solution.farkas_residual() == 0.0
    assert (
        solution.message
        == "infeasible: token 5 of sequence 2 equals its selected token 3, so no weights can tell"
        " them apart"
    )
    relaxed = max_margin(with_rhs(margins, (margins.sequence != 2).astype(np.float64)))
    assert relaxed.status == "optimal"
    assert relaxed.gap <= 1e-12


def test_zero_query() -> None:
    solution = max_margin(
        cross(
            [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0], [0.0, 0.0]], [0, 1]
        )
    )
    check(solution)
    assert (
        solution.message
        == "infeasible: the query of sequence 1 is zero, so no weights can prefer its token 1"
    )


@pytest.mark.parametrize("size", [(200, 64, 16), (400, 64, 24)])
def test_large_certificates(size: tuple[int, int, int]) -> None:
    solution = max_margin(sphere(*size, 0))
    assert solution.status == "infeasible", solution.message
    margins, lam = solution.margins, solution.dual / solution.dual.sum()
    assert (lam >= 0).all()
    pulled = np.einsum(
        "ca,ce->ae", lam[:, None] * margins.differences, margins.queries[margins.sequence]
    )
    assert np.linalg.norm(pulled) <= 1e-12
    if size[2] == 16:
        assert len(solution.conflict()) <= 16 * 16 + 1
    assert "more sequences together" in solution.message


def test_barely_feasible_and_barely_infeasible() -> None:
    """Two opposite rivals: the selected token leaves their segment by epsilon, then touches it."""
    for epsilon in (1e-3, 1e-6, 1e-9):
        solution = max_margin(prompt([[[0.0, epsilon], [1.0, 0.0], [-1.0, 0.0]]], [0]))
        assert solution.status == "optimal", solution.message
        assert solution.norm == pytest.approx(1 / epsilon, rel=1e-6)
    check(max_margin(prompt([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]], [0])))


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
        assert prove_infeasible(margins, solution.dual) is not None
        assert solution.farkas_residual() <= 1e-14


def test_a_proof_needs_signs_and_a_positive_side() -> None:
    margins = prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, -0.25]]], [0])
    assert prove_infeasible(margins, np.array([1.0, 1.0])) is not None
    assert prove_infeasible(margins, np.array([-1.0, -1.0])) is None
    assert prove_infeasible(margins, np.zeros(2)) is None
    assert prove_infeasible(with_rhs(margins, np.zeros(2)), np.ones(2)) is None
    assert (
        prove_infeasible(prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, -0.125]]], [0]), np.ones(2))
        is None
    )
    # Multipliers that are far off lead to exact ones where there are any.
    np.testing.assert_array_equal(prove_infeasible(margins, np.array([1.0, 0.5])), [1.0, 1.0])


@pytest.mark.parametrize("name", ["fro", "lp:1.5", "l1", "spec"])
def test_what_float64_cannot_hold_is_almost_infeasible_in_every_norm(name: str) -> None:
    rng = np.random.default_rng(0)
    u, v = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    solution = max_margin(
        prompt([[np.zeros(2), -u - 1e-15 * v, u - 1e-15 * v]], [0]), parse_norm(name)
    )
    assert solution.status == "almost infeasible", solution.message
    assert solution.farkas_residual() <= 1e-10
    assert len(solution.conflict()) >= 2


def programme(A: np.ndarray) -> Margins:
    """The rows of ``A``, one query of one feature."""
    token = np.arange(len(A))
    offsets, selected = np.array([0, len(A)]), np.zeros(1, dtype=np.int64)
    return Margins(A, np.ones((1, 1)), offsets, np.ones(len(A)), token, selected)


@pytest.mark.parametrize("size", [(5, 9), (12, 30), (25, 40), (60, 70)])
def test_few_dependent_rows_are_settled_in_integers(size: tuple[int, int]) -> None:
    """Rows of random integers and minus a combination of them, in more columns than rows; and the
    same with one unit in the last place that makes them independent.
    """
    k, d = size
    rng = np.random.default_rng(k)
    A, lam = rng.integers(-9, 10, (k, d)).astype(float), rng.integers(1, 9, k).astype(float)
    A[-1], lam[-1] = -(lam[:-1] @ A[:-1]), 1.0
    rough = lam * (1.0 + 1e-9 * rng.standard_normal(k))
    found = prove_infeasible(programme(A), rough)
    assert found is not None
    np.testing.assert_allclose(found / found[-1], lam, rtol=1e-12)
    A[-1, 0] = np.nextafter(A[-1, 0], 0.0)
    assert prove_infeasible(programme(A), lam) is None


def test_more_dependent_rows_are_left_open() -> None:
    rng = np.random.default_rng(0)
    A = rng.integers(-9, 10, (70, 80)).astype(float)
    A[-1] = -A[:-1].sum(axis=0)
    assert prove_infeasible(programme(A), np.ones(70)) is None


@pytest.mark.parametrize("whole", [True, False], ids=["counts", "numbers"])
def test_many_rows_in_a_subspace_are_settled_in_columns_that_span_it(whole: bool) -> None:
    """Differences of classes sum to zero, so no rows span the space."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3, (300, 10)) if whole else rng.standard_normal((300, 10))
    solution = max_margin(
        output_margins(keys.astype(float), rng.integers(12, size=300), classes=12)
    )
    check(solution)
    assert np.count_nonzero(solution.dual) > 60


def test_rows_with_noise_as_multipliers_do_not_cost_the_proof() -> None:
    """Two opposite rows, and a third that has nothing to do with them."""
    A = np.array([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [0.3, 0.7, 0.9]])
    found = prove_infeasible(programme(A), np.array([1.0, 1.0, 1e-15]))
    assert found is not None
    np.testing.assert_array_equal(found, [1.0, 1.0, 0.0])


def test_signs_of_inequalities_count_and_those_of_equalities_do_not() -> None:
    A = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    dual = np.array([-2.0, 1.0])
    equal = relax(programme(A), [])
    assert prove_infeasible(equal, dual) is None
    margins = with_rhs(programme(A), np.array([1.0, 3.0]))
    both = Margins(
        margins.differences,
        margins.queries,
        margins.offsets,
        margins.rhs,
        margins.token,
        margins.selected,
        equality=np.array([True, True]),
    )
    found = prove_infeasible(both, dual)
    assert found is not None
    np.testing.assert_array_equal(found, dual)


def test_what_has_weights_is_never_proved_infeasible() -> None:
    """Whatever the multipliers: rows that some weights meet, next to a contradiction, and
    multipliers whose sum is small beside its terms.
    """
    rng = np.random.default_rng(0)
    for _ in range(200):
        d = int(rng.integers(1, 4))
        m = int(rng.integers(d + 1, 4 * d + 3))
        A = rng.standard_normal((m, d))
        W = rng.standard_normal(d)
        off = 10.0 ** rng.uniform(-12, 0, m)
        # rows at right angles to W but for what meets their margins
        A += (off - A @ W)[:, None] * W / (W @ W)
        if not (A @ W > 0.0).all():
            continue
        lam = np.exp(2.0 * rng.standard_normal(m)) * 10.0 ** (-rng.integers(0, 2, m) * 6.0)
        # towards those of least sum, as a solver hands them over
        small, _ = nnls(np.vstack([A.T, np.ones(m)]), np.append(np.zeros(d), 1.0))
        for multipliers in (lam, small, small + 1e-9 * lam, small + 1e-14 * lam):
            assert prove_infeasible(programme(A), multipliers) is None


def test_products_of_a_proof_are_summed_with_twice_the_digits() -> None:
    """Rows ``-p``, three times, and ``q > 3 p`` where products rounded to float64 say the
    opposite; a row with a multiplier of one unit in the last place closes the rounded sum.
    """
    u, rng, tried = 2.0**-53, np.random.default_rng(0), 0
    while tried < 5:
        z, other = np.round(rng.uniform(1.0, 2.0, 2) * 2.0**48) / 2.0**48  # three of it is exact
        p, q = 0.5 / z, 1.5 / other
        p, q = (x + rng.integers(-4, 5) * np.spacing(x) for x in (p, q))
        exact = Fraction(q) * Fraction(other) - 3 * Fraction(p) * Fraction(z)
        rounded = q * other - 3 * (p * z)
        if not (exact > 0 and rounded <= -0.5 * u):
            continue
        tried += 1
        rows = np.array([[other, -p]] * 3 + [[-3.0 * z, q], [0.0, 1.0]])
        queries = np.array([[z], [other], [1.0]])
        margins = Margins(
            rows, queries, np.array([0, 3, 4, 5]), np.ones(5), np.arange(5), np.zeros(3, dtype=int)
        )
        for factor in (0.5, 1.0, 2.0):
            dual = np.array([1.0, 1.0, 1.0, 1.0, -rounded * factor])
            assert prove_infeasible(margins, dual) is None


def test_the_sizes_of_right_hand_sides_count() -> None:
    """One weight at 8 meets a margin of 1.5: with this sign of the equality nothing is proved."""
    A, token = np.ones((2, 1)), np.arange(2)
    for rhs, contradiction in (([1.5, 8.0], False), ([8.0, 1.5], True), ([3e40, 1.5], True)):
        for scale in (1.0, 2.0**60):
            margins = Margins(
                A,
                np.ones((1, 1)),
                np.array([0, 2]),
                np.array(rhs) * scale,
                token,
                np.zeros(1, dtype=int),
                equality=np.array([False, True]),
            )
            assert (prove_infeasible(margins, np.array([1.0, -1.0])) is not None) == contradiction


def test_rows_of_zeros_are_a_proof_when_one_of_them_asks_for_a_margin() -> None:
    zero = with_rhs(programme(np.zeros((2, 2))), np.array([0.0, 1.0]))
    np.testing.assert_array_equal(prove_infeasible(zero, np.ones(2)), [1.0, 1.0])
    assert prove_infeasible(with_rhs(zero, np.zeros(2)), np.ones(2)) is None
