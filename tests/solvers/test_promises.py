"""What ``optimal`` and ``infeasible`` promise, on programmes where sixteen digits do not decide."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from instances import prompt, sphere, with_rhs

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, relax, selection_margins
from attsvm.norms import Frobenius, parse_norm
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.solvers.farkas import prove_infeasible
from attsvm.solvers.outcomes import Request, certified_solution, infeasible_solution
from attsvm.solvers.proofs import Certificate, certify_hard, farkas_residual, lower_bound
from attsvm.theory import order_margins


def near_contradiction(s: float = 1e-8) -> Margins:
    """Feasible: the second weight alone, as large as 1 / s^2, meets the first two margins."""
    X = np.zeros((1, 4, 3))
    X[0, 1], X[0, 2], X[0, 3] = [-s, -s * s, -s * s], [s, -s * s, -s * s], [0.0, 0.0, 1.0]
    return selection_margins(AttentionData(X, np.ones(1), np.ones((1, 1))), np.array([0]))


def fractions(margins: Margins) -> list[list[Fraction]]:
    Z = margins.queries[margins.sequence]
    return [
        [Fraction(float(x)) * Fraction(float(z)) for x in d for z in q]
        for d, q in zip(margins.differences, Z, strict=True)
    ]


def exact_margins(margins: Margins, W: np.ndarray) -> list[Fraction]:
    flat = [Fraction(float(w)) for w in W.reshape(-1)]
    return [
        sum((a * w for a, w in zip(row, flat, strict=True)), Fraction(0))
        for row in fractions(margins)
    ]


@pytest.mark.parametrize("name", ["fro", "lp:1.5", "l1", "linf", "nuc", "spec"])
def test_rows_that_nearly_contradict_each_other_are_no_contradiction(name: str) -> None:
    margins = near_contradiction()
    solution = max_margin(margins, parse_norm(name))
    assert solution.status == "optimal", solution.message
    assert min(exact_margins(margins, solution.W)) >= 1 - Fraction(1, 10**9)


def test_a_small_residual_is_not_a_proof() -> None:
    """Two opposite rows up to one unit in the last place: weights exist, though of size 1e16."""
    margins = prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, np.nextafter(-0.25, 0.0)]]], [0])
    dual = np.ones(2)
    assert farkas_residual(margins, dual) <= 1e-15
    assert prove_infeasible(margins, dual) is None
    assert max_margin(margins).status != "infeasible"
    contrary = prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, -0.25]]], [0])
    assert prove_infeasible(contrary, dual) is not None
    assert max_margin(contrary).status == "infeasible"


def test_almost_infeasible_comes_with_its_certificate() -> None:
    rng = np.random.default_rng(0)
    u, v = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    solution = max_margin(prompt([[np.zeros(2), -u - 1e-15 * v, u - 1e-15 * v]], [0]))
    assert solution.status == "almost infeasible"
    residual = solution.farkas_residual()
    assert residual <= 1e-11
    assert f"residual {residual:.0e}" in solution.message
    # What the status promises: every norm of weights that meet the margins is this large.
    lower = solution.dual.sum() / np.linalg.norm(solution.margins.adjoint(solution.dual))
    assert lower >= 1e11


def test_the_residual_is_relative_to_the_terms_of_its_own_column() -> None:
    """Beside rows of size one, columns of size 1e-12 count no less."""
    margins = prompt([[[0.0, 0.0], [-1.0, -1e-12], [1.0, -1e-12]]], [0])
    assert farkas_residual(margins, np.ones(2)) == 1.0
    solution = max_margin(margins)
    assert solution.status == "optimal", solution.message
    assert solution.norm == pytest.approx(1e12, rel=1e-9)


def test_certificates_of_random_labels_are_proved_and_sharp() -> None:
    proofs = 0
    for seed in range(20):
        solution = max_margin(sphere(6, 8, 2, seed))
        if solution.status == "infeasible":
            proofs += 1
            assert prove_infeasible(solution.margins, solution.dual) is not None
            assert solution.farkas_residual() <= 1e-15
            # No proof for fewer rows: each is needed.
            for c in np.flatnonzero(solution.dual):
                rest = solution.dual.copy()
                rest[c] = 0.0
                assert prove_infeasible(solution.margins, rest) is None
    assert proofs >= 10


@pytest.mark.parametrize("slack", [1e-6, 1.0, 1e7, 1e15])
def test_soft_gaps_hold_in_exact_arithmetic(slack: float) -> None:
    """The penalty multiplies the rounding of margins."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, Z = rng.standard_normal((4, 4, 3)), rng.standard_normal((4, 3))
        margins = selection_margins(AttentionData(X, np.ones(4), Z), rng.integers(4, size=4))
        solution = max_margin(margins, slack=slack)
        assert solution.status == "optimal", solution.message
        C = Fraction(slack)
        short = sum(
            (max(Fraction(0), 1 - v) for v in exact_margins(margins, solution.W)), Fraction(0)
        )
        primal = sum(Fraction(float(w)) ** 2 for w in solution.W.reshape(-1)) / 2 + C * short
        dual = [Fraction(float(x)) for x in solution.dual]
        assert all(0 <= x <= C for x in dual)
        rows = fractions(margins)
        pulled = [
            sum((x * row[k] for x, row in zip(dual, rows, strict=True)), Fraction(0))
            for k in range(len(rows[0]))
        ]
        gap = float((primal - sum(dual) + sum(v * v for v in pulled) / 2) / primal)
        assert gap <= 1e-9
        assert abs(gap - solution.gap) <= 1e-12


def test_right_hand_sides_of_all_sizes_are_met_relative_to_themselves() -> None:
    """A miss that is small beside the largest right-hand side may be all of the smallest."""
    rng = np.random.default_rng(3)
    X, Z = rng.standard_normal((3, 4, 4)), rng.standard_normal((3, 3))
    W = rng.standard_normal((4, 3))
    tokens = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    margins = selection_margins(AttentionData(X, np.ones(3), Z), tokens)
    margins = with_rhs(margins, 10.0 ** rng.uniform(-9, 9, margins.m))
    for name in ("fro", "lp:1.5", "nuc"):
        solution = max_margin(margins, parse_norm(name))
        assert solution.status == "optimal", solution.message
        for value, side in zip(exact_margins(margins, solution.W), margins.rhs, strict=True):
            assert value >= Fraction(float(side)) * (1 - Fraction(1, 10**9))


def test_a_neighbour_out_of_range_changes_nothing() -> None:
    good = sphere(6, 8, 10, 0)
    rng = np.random.default_rng(0)
    huge = AttentionData(1e120 * rng.standard_normal((2, 3, 4)), np.ones(2))
    far = selection_margins(huge, np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="leave the range of float64"):
        max_margin(far)
    for norm in (Frobenius(), parse_norm("lp:1.5")):
        batch = max_margin_batch([good, far, good], norm)
        assert batch.status.tolist() == ["optimal", "inaccurate", "optimal"]
        assert "leave the range of float64" in batch[1].message
        assert not batch[1].has_weights
        np.testing.assert_array_equal(batch[2].W, max_margin(good, norm).W)


def test_a_contradiction_in_a_list_is_proved_too() -> None:
    batch = max_margin_batch([near_contradiction(), sphere(6, 8, 2, 1)])
    assert batch.status.tolist() == ["optimal", "infeasible"]
    np.testing.assert_array_equal(batch[0].W, max_margin(near_contradiction()).W)
    np.testing.assert_array_equal(batch[1].dual, batch.dual[batch.rows[1] : batch.rows[2]])


def test_relaxed_rows_of_an_order_are_told_as_what_they_are() -> None:
    """Above, not below, level: 1 cannot be above 0 where 0 must not be below 1."""
    margins = order_margins(np.eye(3), [[0, 0, 1], [0, 1, 0]])
    relaxed = relax(margins, [1])
    message = max_margin(relaxed).message
    assert "token 0 not below token 1 for query 0" in message
    assert "token 1 above token 0 for query 0" in message
    assert "level" not in message


@pytest.mark.parametrize("name", ["fro", "l1", "linf"])
@pytest.mark.parametrize("together", [False, True])
def test_optimal_holds_in_fractions_where_terms_cancel(name: str, together: bool) -> None:
    """Margins are what is left of terms a million times as large, whose rounding is more than
    the tolerance: violation and bound must be those of exact arithmetic.
    """
    rng, tol = np.random.default_rng(0), 1e-10
    norm, programmes = parse_norm(name), []
    for _ in range(40):
        u, v = rng.standard_normal((2, 4))
        X = np.zeros((1, 4, 4))
        X[0, 1], X[0, 2] = -u - 1e-6 * v, u - 1e-6 * rng.uniform(0.5, 2.0) * v
        X[0, 3] = rng.standard_normal(4) - 1e3 * v
        programmes.append(
            selection_margins(
                AttentionData(X, np.ones(1), rng.uniform(0.5, 2.0, (1, 1))), np.array([0])
            )
        )
    found = max_margin_batch(programmes, norm, tol=tol) if together else None
    optimal = 0
    for k, margins in enumerate(programmes):
        solution = max_margin(margins, norm, tol=tol) if found is None else found[k]
        if solution.status != "optimal":
            continue
        optimal += 1
        assert min(exact_margins(margins, solution.W)) >= 1 - Fraction(tol)
        dual = [Fraction(float(x)) for x in solution.dual]
        rows = fractions(margins)
        pulled = [
            float(sum(x * row[e] for x, row in zip(dual, rows, strict=True))) for e in range(4)
        ]
        lower = float(sum(dual)) / float(norm.dual_value(np.array(pulled).reshape(4, 1)))
        assert 1.0 - lower / float(norm.value(solution.W)) <= tol + 1e-15  # of this line itself
    assert name != "fro" or optimal > 10


def test_the_lower_bound_holds_in_fractions_where_multipliers_of_either_sign_cancel() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        m = 6
        rows, rhs = rng.standard_normal((m, 3)), np.full(m, 1.0 / 3.0)
        dual = rng.standard_normal(m) * 1e7
        dual[-1] = 1.0 - dual[:-1].sum()  # right-hand sides cancel to about a third
        margins = Margins(
            rows,
            np.ones((1, 1)),
            np.array([0, m]),
            rhs,
            np.arange(m),
            np.zeros(1, dtype=int),
            equality=np.ones(m, dtype=bool),
        )
        exact = [Fraction(float(x)) for x in dual]
        top = sum((x * Fraction(float(b)) for x, b in zip(exact, rhs, strict=True)), Fraction(0))
        pulled = [
            float(sum(x * row[e] for x, row in zip(exact, fractions(margins), strict=True)))
            for e in range(3)
        ]
        expected = max(0.0, float(top)) / float(np.linalg.norm(pulled))
        assert lower_bound(margins, Frobenius(), dual) == pytest.approx(
            expected, rel=1e-13, abs=0.0
        )


@pytest.mark.parametrize("name", ["fro", "l1", "lp:1.5", "nuc"])
def test_what_is_not_optimal_is_not_called_the_only_solution(name: str) -> None:
    """A tolerance that rounding cannot reach, and rows that nearly contradict each other."""
    solution = max_margin(sphere(4, 5, 6, 0), name, tol=1e-300)
    assert solution.status in ("inaccurate", "optimal")  # a gap may round to zero
    assert solution.status == "optimal" or solution.unique is None
    rng = np.random.default_rng(0)
    u, v = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    almost = max_margin(prompt([[np.zeros(2), -u - 1e-15 * v, u - 1e-15 * v]], [0]), name)
    assert almost.status == "almost infeasible"
    assert almost.unique is None


def test_a_certificate_is_in_units_of_its_largest_multiplier() -> None:
    """Whether it is a proof or not."""
    margins = prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, np.nextafter(-0.25, 0.0)]]], [0])
    request = Request(1e-9, None, None, None)
    for factor in (1e-6, 1.0, 1e6):
        found = infeasible_solution(margins, np.full(2, factor), request, "test", 0)
        assert found.status == "almost infeasible"
        np.testing.assert_array_equal(found.dual, [1.0, 1.0])


def test_a_soft_margin_is_never_called_almost_infeasible() -> None:
    """It has a solution, also where its multipliers contradict the hard one and its gap is wide."""
    margins = prompt([[[0.0], [-1.0], [1.0]]], [0])
    proof = Certificate(np.ones((1, 1)), np.ones(2), np.array([1.0, -1.0]), 1.0, 0.5, 0.0, 0.0)
    for slack, status in ((2.0, "inaccurate"), (None, "almost infeasible")):
        request = Request(1e-9, slack, None, None)
        assert certified_solution(margins, proof, request, "test", 1).status == status


@pytest.mark.parametrize(
    ("tol", "residual", "status"),
    [
        (1e-9, 1e-7, "almost infeasible"),
        (1e-9, 1e-5, "inaccurate"),
        (1e-6, 1e-7, "inaccurate"),
        (1e-6, 1e-10, "almost infeasible"),
        (1e-14, 1e-5, "inaccurate"),
        (1e-14, 5e-7, "almost infeasible"),
    ],
)
def test_what_is_almost_infeasible_depends_on_the_tolerance(
    tol: float, residual: float, status: str
) -> None:
    """Terms 1 / residual times as large as a margin, of which rounding (2e-16 each) takes more than
    about ``tol``; and never more than 1e-6.
    """
    A = np.array([[1.0, 1.0], [residual - 1.0, residual - 1.0]])
    margins = prompt([[[0.0, 0.0], *(-A).tolist()]], [0])
    dual = np.ones(2)
    assert 0.4 * residual <= farkas_residual(margins, dual) <= 0.6 * residual
    proof = Certificate(np.ones((2, 1)), dual, A.sum(axis=1), 1.0, 0.5, 1.0, 0.0)
    request = Request(tol, None, None, None)
    assert certified_solution(margins, proof, request, "test", 1).status == status


def test_weights_that_cannot_be_scaled_prove_nothing() -> None:
    margins = prompt([[[0.0, 0.0], [-1.0, 0.25], [1.0, 0.5]]], [0])
    for W in (np.zeros((2, 1)), np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])):
        assert certify_hard(margins, Frobenius(), W, np.ones(2)).gap == 1.0
        assert certify_hard(margins, Frobenius(), 1e15 * W, np.ones(2)).gap == 1.0


def test_margins_of_zero_that_are_missed_are_violations_where_terms_cancel() -> None:
    """Of weights a million times as large as what is left of them."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        u = rng.standard_normal(3)
        W = 1e6 * rng.standard_normal((3, 1))
        A = np.stack([u, rng.standard_normal(3)])
        A[0] += (1.0 - A[0] @ W[:, 0]) * W[:, 0] / float(W[:, 0] @ W[:, 0])
        A[1] -= (0.25 + A[1] @ W[:, 0]) * W[:, 0] / float(W[:, 0] @ W[:, 0])
        margins = with_rhs(prompt([[np.zeros(3), *(-A)]], [0]), np.array([1.0, 0.0]))
        found = certify_hard(margins, Frobenius(), W, np.array([1.0, 0.0]))
        assert found.violation == pytest.approx(
            float(-exact_margins(margins, found.W)[1]), rel=1e-9
        )
        assert found.violation > 0.2
