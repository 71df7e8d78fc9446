"""Programmes with equalities: the golden cycle, selected sets, random programmes against an
independent solver.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from instances import cross, written_out
from peer import least
from scipy.optimize import nnls

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import (
    Margins,
    finite_component,
    multi_token_margins,
    ratio_margins,
    recombine,
    selection_margins,
    split,
)
from attsvm.norms import Frobenius, Lp, Nuclear, Schatten, parse_norm
from attsvm.solvers import max_margin, neighbours
from attsvm.solvers.equalities import opposite_pairs
from attsvm.solvers.programme import equilibrate
from attsvm.theory import graph_margins, order_arcs


def eliminated(margins: Margins) -> np.ndarray | None:
    """The Frobenius solution by projecting the inequalities off the equalities, then one NNLS call;
    ``None`` when infeasible.
    """
    A, equal = written_out(margins), margins.equalities
    if equal.all():
        return np.zeros(margins.shape)  # and nnls crashes without columns
    _, s, V = np.linalg.svd(A[equal], full_matrices=False)
    V = V[s > 1e-11 * s.max(initial=0.0)]
    B = A[~equal] - A[~equal] @ V.T @ V
    E = np.vstack([B.T, margins.rhs[~equal]])
    f = np.zeros(len(E))
    f[-1] = 1.0
    u, _ = nnls(E, f, maxiter=200 * E.shape[1])
    r = E @ u - f
    return None if np.linalg.norm(r) < 1e-9 else (-r[:-1] / r[-1]).reshape(margins.shape)


def sets_programme(
    seed: int, n: int, T: int, d_x: int, d_z: int
) -> tuple[Margins, np.random.Generator]:
    rng = np.random.default_rng(seed)
    X, Z = rng.standard_normal((n, T, d_x)), rng.standard_normal((n, d_z))
    mask = rng.random((n, T)) < 0.8
    mask[:, 0] = True
    sets = mask & (rng.random((n, T)) < 0.3)
    sets[:, 0] = True
    return multi_token_margins(AttentionData(X, np.ones(n), Z, mask), sets), rng


@given(st.integers(0, 10_000))
@example(500)  # rows that depend on each other up to rounding, under multipliers of 1e15
@example(697)
@example(871)
@example(1134)
@example(2277)
@example(1230)  # equalities that follow from others
@example(1353)
def test_random_programmes(seed: int) -> None:
    size = np.random.default_rng(seed + 1)
    n, T, d_x, d_z = (int(k) for k in size.integers((1, 2, 2, 2), (8, 7, 8, 8)))
    margins, _ = sets_programme(seed, n, T, d_x, d_z)
    solution = max_margin(margins)
    expected = eliminated(margins)
    assert solution.status != "inaccurate"
    assert (solution.status == "infeasible") == (expected is None)
    assert solution.dual.shape == (margins.m,)
    if expected is None:
        assert solution.farkas_residual() <= 1e-12
        assert (solution.dual[~margins.equalities] >= 0).all()
        assert len(solution.conflict()) > 0
        return
    assert solution.gap <= 1e-9
    assert solution.violation <= 1e-9
    np.testing.assert_allclose(solution.W, expected, atol=1e-7 * max(1.0, solution.norm))
    if margins.m:
        assert np.abs(solution.W - margins.adjoint(solution.dual)).max() <= 1e-7 * max(
            1.0, solution.norm
        )
        assert max(solution.kkt()) <= 1e-6
        assert np.abs(split(solution.W, margins)[0]).max() <= 1e-8 * max(1.0, solution.norm)


def test_golden_cycle() -> None:
    margins = graph_margins(np.eye(4), order_arcs([[1, 2, 0], [2, 1, 0]], [1, 2]))
    solution = max_margin(margins)
    assert solution.status == "optimal"
    np.testing.assert_allclose(solution.W[:, 0], [-2 / 3, 1 / 3, 1 / 3, 0], atol=1e-12)
    assert solution.gap <= 1e-12
    assert "1 of them equalities" in solution.message
    assert [list(t) for t in neighbours(solution)] == [[0]]


def test_one_component_has_the_zero_direction() -> None:
    margins = graph_margins(np.eye(3), [(0, 0, 1), (0, 1, 2), (0, 2, 0)])
    solution = max_margin(margins)
    assert solution.status == "optimal"
    assert not solution.W.any()


def test_a_cycle_of_dependent_rows_is_infeasible() -> None:
    X = np.array([[[0.0, 0.0], [2.0, 0.0], [1.0, 0.0]]])  # 2 lies between the tied tokens
    solution = max_margin(
        multi_token_margins(
            AttentionData(X, np.ones(1), np.ones((1, 1))), np.array([[True, True, False]])
        )
    )
    assert solution.status == "infeasible"
    assert solution.farkas_residual() <= 1e-14
    assert {int(t) for t in solution.conflict()[:, 2]} == {1, 2}


def test_warm_start_keeps_signs() -> None:
    margins, _ = sets_programme(8, 6, 6, 7, 7)
    cold = max_margin(margins)
    assert (cold.dual < 0).any()
    warm = max_margin(margins, warm_start=cold)
    np.testing.assert_allclose(warm.W, cold.W, atol=1e-10)
    assert warm.iterations <= cold.iterations


def test_equalities_alone_with_right_hand_sides() -> None:
    rng = np.random.default_rng(2)
    data = AttentionData(rng.standard_normal((3, 4, 5)), np.ones(3), rng.standard_normal((3, 4)))
    sets = np.array(
        [[True, True, False, True], [True, False, False, False], [False, True, True, False]]
    )
    s = rng.dirichlet(np.ones(4), 3)
    solution = max_margin(ratio_margins(data, sets, s))
    assert solution.status == "optimal"
    assert solution.gap <= 1e-12
    np.testing.assert_allclose(solution.W, finite_component(data, sets, s).W, atol=1e-14)
    assert max(solution.kkt()) <= 1e-10
    direction = max_margin(multi_token_margins(data, sets))
    trained = solution.W + 11.0 * direction.W
    assert recombine(trained, solution.W, direction.W).scale == pytest.approx(11.0, rel=1e-10)
    assert abs(np.sum(solution.W * direction.W)) <= 1e-10


def test_contradictory_equalities_are_infeasible() -> None:
    X = np.repeat(np.array([[[0.0, 0.0], [1.0, 2.0]]]), 2, axis=0)
    solution = max_margin(
        ratio_margins(
            AttentionData(X, np.ones(2), np.ones((2, 1))),
            np.ones((2, 2), bool),
            [[0.5, 0.5], [0.9, 0.1]],
        )
    )
    assert solution.status == "infeasible"
    assert solution.farkas_residual() <= 1e-14


def test_pairs_are_opposite_rows() -> None:
    margins, rng = sets_programme(3, 4, 5, 3, 2)
    pairs, source, sign = opposite_pairs(margins)
    W = rng.standard_normal(margins.shape)
    np.testing.assert_allclose(pairs(W), sign * margins(W)[source], atol=1e-13)
    np.testing.assert_array_equal(pairs.sequence, margins.sequence[source])
    assert pairs.m == margins.m + margins.equalities.sum()
    assert pairs.equality is None
    flipped = np.flatnonzero(sign < 0)
    np.testing.assert_array_equal(source[flipped], np.flatnonzero(margins.equalities))


@pytest.mark.parametrize("seed", range(3))
def test_many_equalities_reach_rounding_level(seed: int) -> None:
    margins, _ = sets_programme(seed, 40, 15, 40, 40)
    solution = max_margin(margins)
    assert solution.status == "optimal"
    assert solution.gap <= 1e-12
    assert np.abs(margins(solution.W)[margins.equalities]).max() <= 1e-12


def test_dependent_equalities_and_silent_rows() -> None:
    margins, _ = sets_programme(2, 6, 6, 7, 7)
    twice = np.repeat(np.arange(margins.m), 1 + margins.equalities)
    offsets = np.concatenate(
        [[0], np.cumsum(np.bincount(margins.sequence[twice], minlength=margins.n))]
    )
    rows = margins.differences[twice]
    repeated = Margins(
        rows,
        margins.queries,
        offsets,
        margins.rhs[twice],
        margins.token[twice],
        margins.selected,
        margins.equalities[twice],
    )
    plain, doubled = max_margin(margins), max_margin(repeated)
    assert doubled.status == "optimal"
    np.testing.assert_allclose(doubled.W, plain.W, atol=1e-9)
    silenced = rows.copy()
    silenced[np.flatnonzero(repeated.equalities)[1::2]] = 0.0
    silent = max_margin(replace(repeated, differences=silenced))
    assert silent.status == "optimal"
    assert silent.violation <= 1e-9


def test_a_column_without_marks_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    data = AttentionData(rng.standard_normal((5, 4, 6)), np.ones(5))
    margins = selection_margins(data, np.ones(5, dtype=int))
    unmarked = replace(margins, equality=np.zeros(margins.m, dtype=bool))
    np.testing.assert_array_equal(max_margin(margins).W, max_margin(unmarked).W)


def test_refusals() -> None:
    margins, _ = sets_programme(3, 4, 5, 6, 6)
    with pytest.raises(InputError, match="the soft margin takes no equalities"):
        max_margin(margins, slack=1.0)
    with pytest.raises(InputError, match="right-hand sides must be zero or positive"):
        max_margin(replace(margins, rhs=-np.ones(margins.m)))


def test_equalities_alone_are_solved_under_every_name_of_the_frobenius_norm():
    margins = Margins(
        differences=np.array([[1.0, 0.0], [1.0, 1.0]]),
        queries=np.array([[1.0]]),
        offsets=np.array([0, 2]),
        rhs=np.array([2.0, -1.0]),
        token=np.array([0, 1]),
        selected=np.array([2]),
        equality=np.array([True, True]),
    )
    for norm in (Frobenius(), Lp(2.0), Schatten(2.0)):
        solution = max_margin(margins, norm)
        assert solution.status == "optimal"
        np.testing.assert_allclose(solution.W[:, 0], [2.0, -3.0], atol=1e-12)
    nuclear = max_margin(margins, Nuclear())  # weights of one column: the same norm
    np.testing.assert_allclose(nuclear.W[:, 0], [2.0, -3.0], atol=1e-9)


def shifted(seed: int) -> Margins:
    """Selected sets with prescribed differences of scores inside them: right-hand sides of every
    sign and size, and some of zero.
    """
    margins, rng = sets_programme(seed, 6, 6, 7, 7)
    sides = np.where(
        rng.random(margins.m) < 0.3,
        0.0,
        rng.standard_normal(margins.m) * 10.0 ** rng.integers(-3, 2),
    )
    return replace(
        margins,
        rhs=np.where(margins.equalities, sides, margins.rhs * rng.uniform(0.0, 2.0, margins.m)),
    )


# on 1 CLARABEL ends with a numerical error in the norms of singular values
@pytest.mark.parametrize("seed", [0, 2, 3])
@pytest.mark.parametrize("name", ["fro", "lp:1.5", "lp:3", "l1", "linf", "nuc", "spec"])
def test_equalities_with_right_hand_sides_next_to_inequalities(name: str, seed: int) -> None:
    margins = shifted(seed)
    solution = max_margin(margins, parse_norm(name))
    assert solution.status == "optimal", solution.message
    assert solution.norm == pytest.approx(least(margins, parse_norm(name), solution.norm), rel=1e-6)
    room = margins(solution.W) - margins.rhs
    scale = np.abs(margins.rhs).max()
    assert np.abs(room[margins.equalities]).max() <= 2.0 * solution.tol * scale
    assert room.min() >= -2.0 * solution.tol * scale
    assert (solution.dual[~margins.equalities] >= 0).all()
    assert max(solution.kkt()) <= 10.0 * solution.tol
    # The certificate again, in extended precision.
    A, b, dual = (
        np.asarray(each, dtype=np.longdouble)
        for each in (written_out(margins), margins.rhs, solution.dual)
    )
    pulled = np.asarray((dual @ A).reshape(margins.shape), dtype=np.float64)
    lower = float(b @ dual) / float(solution.geometry.dual_value(pulled))
    assert solution.norm - lower <= (solution.tol + 1e-13) * solution.norm


@given(st.integers(0, 10_000))
def test_prescribed_values_by_elimination(seed: int) -> None:
    margins = shifted(seed)
    solution = max_margin(margins)
    A, b, equal = written_out(margins), margins.rhs, margins.equalities
    offset = np.linalg.lstsq(A[equal], b[equal], rcond=1e-12)[0]
    if np.abs(A[equal] @ offset - b[equal]).max(initial=0.0) > 1e-9 * max(1.0, np.abs(b).max()):
        assert solution.status == "infeasible"
        return
    _, s, V = np.linalg.svd(A[equal], full_matrices=False)
    V = V[s > 1e-11 * s.max(initial=0.0)]
    B = A[~equal] - A[~equal] @ V.T @ V
    # Least distance programming (Lawson and Hanson, chapter 23) takes what is left of the
    # right-hand sides, of any sign.
    E = np.vstack([B.T, b[~equal] - A[~equal] @ offset])
    f = np.zeros(len(E))
    f[-1] = 1.0
    u, distance = nnls(E, f, maxiter=200 * E.shape[1]) if E.shape[1] else (np.zeros(0), 1.0)
    assert (solution.status == "infeasible") == (distance < 1e-7)
    if solution.status == "infeasible":
        assert solution.farkas_residual() <= 1e-12
        return
    r = E @ u - f
    assert solution.status == "optimal"
    np.testing.assert_allclose(
        solution.W.ravel(), offset - r[:-1] / r[-1], atol=1e-6 * max(1.0, solution.norm)
    )
    assert solution.norm == 0.0 or solution.angle_bound() <= 1e-4


def test_contradictory_right_hand_sides_next_to_inequalities() -> None:
    margins, _ = sets_programme(3, 4, 5, 6, 6)
    twice = np.repeat(np.arange(margins.m), 1 + margins.equalities)
    offsets = np.concatenate(
        [[0], np.cumsum(np.bincount(margins.sequence[twice], minlength=margins.n))]
    )
    rhs = margins.rhs[twice]
    equal = margins.equalities[twice]
    rhs[equal] = np.arange(equal.sum())  # the same row with two values
    asked = Margins(
        margins.differences[twice],
        margins.queries,
        offsets,
        rhs,
        margins.token[twice],
        margins.selected,
        equal,
    )
    for norm in (Frobenius(), Lp(1.5), Nuclear()):
        solution = max_margin(asked, norm)
        assert solution.status == "infeasible"
        assert solution.farkas_residual() <= 1e-12


def test_sequences_of_one_query_are_one_block() -> None:
    rng = np.random.default_rng(4)
    E = rng.standard_normal((12, 16))
    sentences = [rng.permutation(12)[:4].tolist() for _ in range(60)]
    margins = graph_margins(E, order_arcs(sentences, [int(rng.choice(s)) for s in sentences]))
    programme = equilibrate(margins, None)
    assert len(programme.Z) == len(np.unique(margins.queries, axis=0)) < margins.n
    order = rng.permutation(margins.n)  # apart, so that nothing is merged
    rows = np.concatenate([np.flatnonzero(margins.sequence == i) for i in order])
    offsets = np.concatenate([[0], np.cumsum(np.diff(margins.offsets)[order])])
    assert margins.equality is not None
    apart = Margins(
        margins.differences[rows],
        margins.queries[order],
        offsets,
        margins.rhs[rows],
        margins.token[rows],
        margins.selected[order],
        margins.equality[rows],
    )
    together = max_margin(margins)
    np.testing.assert_allclose(together.W, max_margin(apart).W, atol=1e-9 * together.norm)


def test_multipliers_that_vanish_are_no_contradiction() -> None:
    # its active sets end in rows that cancel to nothing
    margins, _ = sets_programme(
        500, *(int(k) for k in np.random.default_rng(501).integers((1, 2, 2, 2), (8, 7, 8, 8)))
    )
    solution = max_margin(margins)
    assert np.isfinite(solution.dual).all()
    assert eliminated(margins) is None
    assert solution.status == "infeasible"
    assert solution.farkas_residual() <= 1e-12


def test_equalities_alone_may_be_more_than_can_be_written_out() -> None:
    """3,000 of weights of 1,600 entries; every tenth row follows from others up to rounding."""
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((300, 11, 40)), rng.standard_normal((300, 40))
    X[:, -1] = 2.0 * X[:, 1] - X[:, 0]
    margins = cross(X, Z, [0] * 300)
    W = rng.standard_normal((40, 40))
    margins = replace(margins, rhs=margins(W), equality=np.ones(margins.m, np.bool_))
    solution = max_margin(margins)
    assert solution.status == "optimal", solution.message
    np.testing.assert_allclose(margins(solution.W), margins.rhs, rtol=0.0, atol=1e-9)
    assert solution.norm <= np.linalg.norm(W) * (1.0 + 1e-12)


@pytest.mark.parametrize("name", ["fro", "lp:1.5", "lp:40", "l1", "linf", "nuc", "spec", "rows"])
def test_equalities_of_negative_sides_keep_their_scale(name: str) -> None:
    """One number that is one: no row of the largest side is tight, and weights half as long would
    meet it.
    """
    margins = Margins(
        np.array([[-1.0], [4.0], [0.5]]),
        np.ones((1, 1)),
        np.array([0, 3]),
        np.array([-1.0, 2.0, 0.25]),
        np.arange(3),
        np.zeros(1, int),
        equality=np.array([True, False, False]),
    )
    found = max_margin(margins, name)
    assert found.status == "optimal", found.message
    assert found.W.item() == pytest.approx(1.0, rel=1e-12)
