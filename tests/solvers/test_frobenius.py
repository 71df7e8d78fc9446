"""The hard margin: literal toys, optimality conditions, independent solvers, invariances, hard
scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import cross, prompt, ragged, sphere, with_rhs, written_out
from scipy.optimize import linprog, nnls

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.norms import Frobenius
from attsvm.solvers import MarginSolution, frobenius, max_margin
from attsvm.solvers.ascent import AscentOptions
from attsvm.solvers.frobenius import FrobeniusOptions
from attsvm.solvers.outcomes import Request
from attsvm.solvers.pivoting import PivotOptions

E21_X = [
    [[-0.981497, 0.186395], [-1.135572, -0.049839], [-1.456831, 0.114505]],
    [[0.691717, -0.168916], [0.732313, -0.017475], [0.941347, -0.289691]],
]
E21_Z = [[0.845011, 0.534748], [-0.636264, -0.771471]]
E22_X = [
    [
        [1.0, 0.5],
        [-0.189725, -0.798354],
        [-0.797696, 0.305650],
        [-0.619805, -0.016822],
        [-1.172423, 0.246827],
    ],
    [
        [1.0, -0.5],
        [-0.757443, 0.102617],
        [-0.830786, 0.676377],
        [-0.813182, 0.006708],
        [-0.613163, -0.054622],
    ],
]
E22_Z = [[-0.539129, -0.842223], [0.952552, 0.304376]]
E13_KEYS = [
    list(zip(first, second, strict=True))
    for first, second in [
        (
            [0.7748, -1.0868, -1.0632, -1.2527, -0.4760, -0.5495, -0.3867],
            [-0.2305, 1.1697, 0.5770, 1.0700, -0.2525, -0.7705, -0.3413],
        ),
        (
            [0.6890, -0.8500, -0.9633, -0.8107, -0.4937, -0.4121, -0.4118],
            [-0.0683, 0.8829, 1.2779, 0.8313, -0.5985, -0.4775, -0.5205],
        ),
        (
            [0.9421, -0.5396, -1.1138, -0.7420, -0.5946, -0.6099, -0.7134],
            [0.0105, 0.7062, 1.1840, 0.7044, -0.2349, -0.5960, -0.2770],
        ),
    ]
]
E14_KEYS = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 1.0]]]
E15_KEYS = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 1.5]]]


def assert_optimal(solution: MarginSolution, tol: float = 1e-11) -> None:
    """The optimality conditions from tensors written out here, not from the library's own
    numbers.
    """
    assert solution.status == "optimal", solution.message
    A, b, w, lam = (
        written_out(solution.margins),
        solution.margins.rhs,
        solution.W.ravel(),
        solution.dual,
    )
    size = np.linalg.norm(w)
    assert (lam >= 0).all()
    assert (A @ w - b).min() >= -tol
    np.testing.assert_allclose(A.T @ lam, w, atol=10 * tol * max(1.0, size))
    assert np.abs(lam * (A @ w - b)).max() <= tol * max(1.0, float(b @ lam))
    assert b @ lam == pytest.approx(size**2, rel=10 * tol)
    assert b @ lam / np.linalg.norm(A.T @ lam) >= size * (1 - tol)
    assert solution.norm == pytest.approx(size, rel=1e-13)
    assert solution.gap <= 1e-12
    assert solution.violation <= 1e-12


@pytest.mark.parametrize(
    ("margins", "W", "digits"),
    [
        (prompt([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]], [0]), [[-0.0990], [0.9901]], 1e-4),
        (prompt([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]], [1]), [[1.0], [0.0]], 1e-12),
        (prompt(E13_KEYS, [0, 0, 0]), [[0.8446], [0.1711]], 2e-4),
        (prompt(E14_KEYS, [1, 1, 1]), [[4 / 3], [1 / 3]], 1e-12),
        (prompt(E15_KEYS, [1, 1, 1]), [[1.25], [0.25]], 1e-12),
        (with_rhs(prompt(E15_KEYS, [1, 1, 1]), np.array([1.0, 1.0, 0.0])), [[1.0], [0.0]], 1e-12),
        (cross(E21_X, E21_Z, [0, 2]), [[2.85369, -2.70294], [5.37124, 5.58053]], 3e-4),
        (cross(E22_X, E22_Z, [0, 0]), [[0.79255, -1.08647], [-0.63303, -0.34711]], 2e-5),
    ],
    ids=[
        "mmts-1",
        "mmts-1 token 2",
        "mmts-3",
        "mmts-4",
        "mmts-4, one not a support vector",
        "mmts-4, relaxed",
        "tfsvm-1",
        "tfsvm-1, decision lines",
    ],
)
def test_literal_toys(margins: Margins, W: list[list[float]], digits: float) -> None:
    solution = max_margin(margins)
    assert_optimal(solution)
    np.testing.assert_allclose(solution.W, W, atol=digits)


def test_multipliers_of_the_toys() -> None:
    np.testing.assert_allclose(
        max_margin(prompt([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]], [0])).dual,
        [0.0, 1 / 1.01],
        atol=1e-12,
    )
    np.testing.assert_allclose(
        max_margin(prompt(E14_KEYS, [1, 1, 1])).dual, [0.0, 7 / 9, 10 / 9], atol=1e-12
    )
    solution = max_margin(prompt(E13_KEYS, [0, 0, 0]))
    np.testing.assert_array_equal(solution.support_tokens(), [[0, 6], [1, 5]])
    # the keys are known to four digits
    np.testing.assert_allclose(solution.dual[solution.support], [0.4451, 0.2976], atol=1e-3)
    assert solution.margin == pytest.approx(1 / 0.8618, abs=2e-4)


@given(st.integers(0, 100_000), st.booleans(), st.booleans())
def test_verdict_and_conditions_over_random_ragged_programmes(
    seed: int, feasible: bool, relaxed: bool
) -> None:
    rng = np.random.default_rng(seed)
    margins = ragged(
        rng,
        int(rng.integers(1, 9)),
        int(rng.integers(2, 8)),
        int(rng.integers(1, 5)),
        int(rng.integers(1, 5)),
        feasible,
    )
    if relaxed and margins.m:
        margins = with_rhs(margins, (rng.random(margins.m) < 0.6).astype(np.float64))
    solution = max_margin(margins)
    A = written_out(margins)
    if margins.m == 0 or not margins.rhs.any():
        assert solution.status == "optimal"
        assert solution.unique
        assert not solution.W.any()
        return
    lp = linprog(
        np.zeros(A.shape[1]), A_ub=-A, b_ub=-margins.rhs, bounds=(None, None), method="highs"
    )
    assert solution.status == ("optimal" if lp.status == 0 else "infeasible"), solution.message
    if solution.status == "optimal":
        assert solution.unique, "the norm is strictly convex"
        assert_optimal(solution, 1e-9)
    else:
        assert solution.unique is None
        assert_farkas(solution)


def assert_farkas(solution: MarginSolution) -> None:
    A, lam = written_out(solution.margins), solution.dual
    assert (lam >= 0).all()
    assert solution.margins.rhs @ lam > 0
    size = np.linalg.norm(A[lam > 0], axis=1).max() if A[lam > 0].any() else 1.0
    assert np.linalg.norm(A.T @ lam) <= 1e-12 * (solution.margins.rhs @ lam) * size
    assert solution.farkas_residual() <= 1e-12
    assert solution.norm == np.inf
    assert not solution.W.any()


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_least_distance_programming(seed: int) -> None:
    """``min ||w||, A w >= 1`` from the residual of one NNLS problem (Lawson and Hanson)."""
    margins = sphere(6, 8, 10, seed)
    A = written_out(margins)
    E = np.vstack([A.T, np.ones(margins.m)])
    target = np.eye(E.shape[0])[-1]
    u, _ = nnls(E, target)
    r = E @ u - target
    np.testing.assert_allclose(max_margin(margins).W.ravel(), -r[:-1] / r[-1], atol=1e-10)


@pytest.mark.parametrize(
    "size", [(50, 32, 64), (60, 40, 18)], ids=["few active rows", "many rows per degree of freedom"]
)
def test_larger_programmes(size: tuple[int, int, int]) -> None:
    assert_optimal(max_margin(sphere(*size, 0)))


def test_a_programme_near_the_edge_of_feasibility() -> None:
    solution = max_margin(sphere(200, 64, 32, 0))
    assert solution.status == "optimal"
    assert solution.gap <= 1e-12
    assert solution.kkt().stationarity <= 1e-10
    assert solution.solver == "active set"


def solved_with(margins: Margins, **options: Any) -> MarginSolution:
    """The solution by stages of array operations, whatever its size."""
    request = Request(tol=1e-8, slack=None, warm_start=None, max_seconds=None)
    return frobenius.solve(margins, Frobenius(), request, FrobeniusOptions(few_rows=0, **options))


def test_programme_larger_than_any_factorisation() -> None:
    solution = solved_with(sphere(20, 16, 32, 0), pivoting=PivotOptions(largest_system=10))
    assert solution.solver == "block ascent"
    assert_optimal(solution)


def test_sweeps_without_stored_gram_blocks() -> None:
    with_blocks = solved_with(sphere(20, 16, 32, 0))
    without = solved_with(sphere(20, 16, 32, 0), ascent=AscentOptions(gram_entries=0))
    np.testing.assert_allclose(without.W, with_blocks.W, atol=1e-12)
    assert_optimal(without)


# Invariances


def data_and_tokens(seed: int = 0) -> tuple[AttentionData, np.ndarray]:
    rng = np.random.default_rng(seed)
    bags = [rng.standard_normal((int(k), 5)) for k in rng.integers(2, 8, 7)]
    Z, W = rng.standard_normal((7, 4)), rng.standard_normal((5, 4))
    tokens = np.array([int((bag @ W @ z).argmax()) for bag, z in zip(bags, Z, strict=True)])
    return AttentionData.from_bags(bags, np.ones(7), Z), tokens


def test_rotation_of_tokens_and_queries_rotates_the_weights() -> None:
    data, tokens = data_and_tokens()
    rng = np.random.default_rng(9)
    U, V = (
        np.linalg.qr(rng.standard_normal((5, 5)))[0],
        np.linalg.qr(rng.standard_normal((4, 4)))[0],
    )
    turned = AttentionData(data.tokens @ U.T, data.labels, data.queries @ V.T, data.mask)
    before, after = (max_margin(selection_margins(x, tokens)) for x in (data, turned))
    np.testing.assert_allclose(after.W, U @ before.W @ V.T, atol=1e-10)
    np.testing.assert_allclose(after.dual, before.dual, atol=1e-9)


def test_translation_of_the_tokens_changes_nothing() -> None:
    data, tokens = data_and_tokens()
    moved = AttentionData(data.tokens + np.arange(5.0), data.labels, data.queries, data.mask)
    before, after = (max_margin(selection_margins(x, tokens)) for x in (data, moved))
    np.testing.assert_allclose(after.W, before.W, atol=1e-10)


def test_permutations_of_sequences_and_tokens() -> None:
    data, tokens = data_and_tokens()
    rng = np.random.default_rng(4)
    sequences, places = rng.permutation(data.n), rng.permutation(data.T)
    shuffled = AttentionData(
        data.tokens[sequences][:, places],
        data.labels[sequences],
        data.queries[sequences],
        data.mask[sequences][:, places],
    )
    before = max_margin(selection_margins(data, tokens))
    after = max_margin(selection_margins(shuffled, np.argsort(places)[tokens[sequences]]))
    np.testing.assert_allclose(after.W, before.W, atol=1e-10)
    assert {(int(sequences[i]), int(places[t])) for i, t in after.support_tokens()} == {
        (int(i), int(t)) for i, t in before.support_tokens()
    }


def test_repeated_sequences_do_not_move_the_weights() -> None:
    data, tokens = data_and_tokens()
    twice = data.take(np.concatenate([np.arange(data.n)] * 2))
    solution = max_margin(selection_margins(twice, np.concatenate([tokens, tokens])))
    assert_optimal(solution, 1e-10)
    np.testing.assert_allclose(solution.W, max_margin(selection_margins(data, tokens)).W, atol=1e-9)


# Corner cases


@pytest.mark.parametrize("solve_with", [{}, {"slack": 1.0}])
def test_sequences_of_one_token_need_no_weights(solve_with: dict[str, float]) -> None:
    data = AttentionData(np.ones((3, 1, 2)), np.ones(3))
    solution = max_margin(selection_margins(data, np.zeros(3, dtype=np.int64)), **solve_with)
    assert (solution.status, solution.norm, solution.gap, solution.margin) == (
        "optimal",
        0.0,
        0.0,
        0.0,
    )
    assert (
        solution.message
        == "optimal: no sequence has a rival token, so the zero weights are the solution"
    )
    assert solution.support_tokens().shape == (0, 2)


def test_right_hand_sides_of_zero_alone() -> None:
    margins = with_rhs(sphere(3, 4, 5, 0), np.zeros(9))
    solution = max_margin(margins)
    assert solution.status == "optimal"
    assert not solution.W.any()


def test_time_limit_gives_honest_numbers() -> None:
    solution = max_margin(sphere(200, 64, 32, 0), max_seconds=0.02)
    assert solution.status == "inaccurate"
    assert solution.message.startswith("inaccurate: ")
    assert solution.gap > solution.tol or solution.violation > solution.tol
    A_w = solution.margins(solution.W)
    assert solution.violation == pytest.approx(max(0.0, float((1 - A_w).max())), abs=1e-15)


def test_warm_start_reaches_the_same_weights_sooner() -> None:
    margins = sphere(20, 16, 32, 0)
    cold = max_margin(margins)
    for start in (cold, cold.dual, 3.0 * cold.dual, np.ones(margins.m)):
        warm = max_margin(margins, warm_start=start)
        assert_optimal(warm)
        np.testing.assert_allclose(warm.W, cold.W, atol=1e-11)
    assert max_margin(margins, warm_start=cold).iterations < cold.iterations


def test_same_input_same_bits() -> None:
    first, second = max_margin(sphere(20, 16, 32, 3)), max_margin(sphere(20, 16, 32, 3))
    assert first.W.tobytes() == second.W.tobytes()
    assert first.dual.tobytes() == second.dual.tobytes()


def test_margins_that_drown_in_rounding_are_computed_with_more_digits() -> None:
    """Tokens of size 1e9 beside tokens of size 1e-9: margins of the large ones have errors above
    one in float64, which could hide a violation.
    """
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = (
            rng.standard_normal((6, 4, 3))
            * np.where(np.arange(6) % 2 == 0, 1e9, 1e-9)[:, None, None]
        )
        W, Z = rng.standard_normal((3, 3)), rng.standard_normal((6, 3))
        tokens = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
        margins = selection_margins(AttentionData(X, np.ones(6), Z), tokens)
        solution = max_margin(margins)
        found.append(solution.status)
        if solution.status == "optimal":
            exact = np.einsum(
                "ca,ab,cb->c",
                *(
                    each.astype(np.longdouble)
                    for each in (margins.differences, solution.W, Z[margins.sequence])
                ),
            )
            assert exact.min() >= 1.0 - solution.tol, solution.message
    assert set(found) == {"optimal"}
