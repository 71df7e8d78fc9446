"""The judge says yes to what is true and no to planted lies, in every norm; its parts are exact."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.norms import parse_norm
from judge.dyadic import Dyadic, dyadic
from judge.exact import Claim, Question, judge
from judge.farkas import decide, meets, refutes, solve_integers
from judge.kinds import KINDS, hard
from judge.least import Least, answerable, least
from judge.lengths import gauge, root_bounds
from judge.run import NORMS, Line, Summary, plan

LOOSE = ("nuc", "spec")  # their default tolerance is 1e-6


def tolerance(norm: str) -> float:
    return 1e-6 if norm in LOOSE else 1e-9


def rows(D: Any, rhs: Any = None, equality: Any = None, queries: Any = None) -> Margins:
    """One sequence with these differences."""
    D = np.array(D, dtype=float)
    m = len(D)
    return Margins(
        D,
        np.ones((1, 1)) if queries is None else np.array(queries, dtype=float),
        np.array([0, m]),
        np.ones(m) if rhs is None else np.array(rhs, dtype=float),
        np.arange(1, m + 1),
        np.zeros(1, dtype=int),
        None if equality is None else np.array(equality),
    )


DIAGONAL = np.array([0.5, 2.0, 1.0, 0.25])


def diagonal(norm: str) -> tuple[Margins, Claim]:
    """Row i asks entry (i, i) for one, at a power of two. The weights are diagonal in every norm,
    and the multipliers pull towards the gradient of the norm of the diagonal.
    """
    d = len(DIAGONAL)
    X = np.zeros((d, 2, d))
    X[np.arange(d), 0, np.arange(d)] = 1.0 / DIAGONAL
    margins = selection_margins(AttentionData(X, np.ones(d), np.eye(d)), np.zeros(d, dtype=int))
    p = gauge(norm).p
    pull = (DIAGONAL.max() == DIAGONAL) * 1.0 if math.isinf(p) else DIAGONAL ** (p - 1.0)
    size = float(np.linalg.norm(DIAGONAL, p))
    return margins, Claim("optimal", np.diag(DIAGONAL), pull * DIAGONAL, size, 0.0, tolerance(norm))


def one_short(claim: Claim, by: float) -> Claim:
    W = claim.W.copy()
    W[0, 0] *= 1.0 - by
    return replace(claim, W=W)


def without_last(claim: Claim) -> Claim:
    dual = claim.dual.copy()
    dual[1] = 0.0  # of the largest entry, which counts in every norm
    return replace(claim, dual=dual)


LIES = {
    "too short by 1e-6": lambda c: replace(c, W=c.W * (1 - 2e-6), norm=c.norm * (1 - 2e-6)),
    "one row short by 2e-6": lambda c: one_short(c, 2e-6),
    "too long by 1e-5": lambda c: replace(c, W=c.W * (1 + 1e-5), norm=c.norm * (1 + 1e-5)),
    "a sign of the dual": lambda c: replace(c, dual=-c.dual),
    "a multiplier missing": without_last,
    "multipliers of no effect": lambda c: replace(c, dual=0.0 * c.dual),
    "infeasible": lambda c: replace(c, status="infeasible"),
    "weights of zero": lambda c: replace(c, W=0.0 * c.W, norm=0.0),
    "not a number": lambda c: replace(c, W=c.W * np.nan),
    "no norm": lambda c: replace(c, norm=math.inf),
    "another shape": lambda c: replace(c, W=c.W[:1]),
}


@pytest.mark.parametrize("norm", NORMS)
def test_a_true_claim_passes_in_every_norm(norm: str) -> None:
    margins, claim = diagonal(norm)
    verdict = judge(margins, norm, None, claim)
    assert verdict.wrong == []
    assert verdict.misreported == []
    assert verdict.feasible is True
    assert verdict.gap is not None
    assert abs(verdict.gap) < 1e-13
    assert verdict.short == 0.0


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("norm", NORMS)
def test_a_planted_lie_is_caught_in_every_norm(norm: str, lie: str) -> None:
    margins, claim = diagonal(norm)
    assert judge(margins, norm, None, LIES[lie](claim)).wrong


@pytest.mark.parametrize("norm", NORMS)
def test_a_number_that_is_not_true_is_named_though_the_status_holds(norm: str) -> None:
    margins, claim = diagonal(norm)
    longer = replace(claim, W=claim.W * (1 + 5e-10), norm=claim.norm * (1 + 5e-10))
    verdict = judge(margins, norm, None, longer)
    assert verdict.wrong == []
    assert "reported 0.00e+00" in verdict.misreported[0]
    assert judge(margins, norm, None, replace(longer, gap=6e-10)).misreported == []
    other = judge(margins, norm, None, replace(claim, norm=claim.norm * (1 + 1e-9)))
    assert other.wrong == []
    assert len(other.misreported) == 1


def test_a_gap_below_one_is_a_proof_whatever_the_status() -> None:
    margins, claim = diagonal("fro")
    longer = replace(claim, status="inaccurate", W=claim.W * 1.5, norm=claim.norm * 1.5)
    verdict = judge(margins, "fro", None, longer)
    assert verdict.wrong == []
    assert verdict.misreported == ["the gap is 3.33e-01, reported 0.00e+00"]
    assert judge(margins, "fro", None, replace(longer, gap=0.34)).misreported == []
    unknown = judge(margins, "fro", None, replace(longer, W=claim.W * np.nan, gap=1.0))
    assert unknown.misreported == []
    assert unknown.feasible is True


def test_the_tolerance_is_that_of_the_claim() -> None:
    margins, claim = diagonal("fro")
    longer = replace(claim, W=claim.W * (1 + 1e-5), norm=claim.norm * (1 + 1e-5), gap=1e-5)
    assert judge(margins, "fro", None, longer).wrong
    assert judge(margins, "fro", None, replace(longer, tol=1e-4)).wrong == []


def test_a_small_side_is_judged_in_its_own_scale() -> None:
    """The row of side 1e-12 is missed altogether, which the documented unit does not see."""
    margins = rows([[1.0, 0.0], [0.0, 1.0]], rhs=[1.0, 1e-12])
    claim = Claim("optimal", np.array([[1.0], [0.0]]), np.array([1.0, 0.0]), 1.0, 0.0, 1e-9)
    verdict = judge(margins, "fro", None, claim)
    assert verdict.short is not None
    assert verdict.short < 1e-11
    assert verdict.own == 1.0
    assert len(verdict.wrong) == 1


CONTRADICTION = rows([[1.0, 0.5], [-0.5, 0.25], [0.0, -1.0]])
PROOF = np.array([0.5, 1.0, 0.5])


def said(status: str, margins: Margins, dual: Any) -> Claim:
    return Claim(status, np.zeros(margins.shape), np.array(dual), math.inf, 1.0, 1e-9)


def test_a_contradiction_is_infeasible() -> None:
    verdict = judge(CONTRADICTION, "fro", None, said("infeasible", CONTRADICTION, PROOF))
    assert verdict.wrong == []
    assert verdict.feasible is False
    assert verdict.residual == 0.0


@pytest.mark.parametrize(
    "dual",
    [-PROOF, PROOF * [1.0, 1.0, -1.0], PROOF * [1.0, 1.0 + 1e-9, 1.0], 0.0 * PROOF, PROOF * np.nan],
    ids=["all signs", "one sign", "off by 1e-9", "zero", "nan"],
)
def test_a_broken_certificate_is_caught(dual: Any) -> None:
    assert judge(CONTRADICTION, "fro", None, said("infeasible", CONTRADICTION, dual)).wrong


@pytest.mark.parametrize("norm", NORMS)
def test_a_contradiction_is_never_optimal(norm: str) -> None:
    W = np.array([[1.0], [2.0]])
    claim = Claim("optimal", W, PROOF, 1.0, 0.0, 1e-9)
    verdict = judge(CONTRADICTION, norm, None, claim)
    assert verdict.wrong
    assert verdict.feasible is False


@pytest.mark.parametrize("s", [1e-3, 1e-5, 1e-8, 2.0**-30, 1e-12, 1e-60])
def test_rows_that_nearly_contradict_each_other_are_feasible(s: float) -> None:
    """The third row leaves room for the sum of the first two, however small it is."""
    margins = rows([[s, s * s, s * s], [-s, s * s, s * s], [0.0, 0.0, -1.0]])
    claim = said("infeasible", margins, [1.0, 1.0, 2 * s * s])
    verdict = judge(margins, "fro", None, claim)
    assert verdict.feasible is True
    assert "weights that meet every margin exist" in verdict.wrong
    assert verdict.residual is not None
    assert judge(margins, "fro", None, replace(claim, status="inaccurate")).feasible is True


def test_a_bit_decides() -> None:
    """Rows u and -u + e: feasible exactly when e is not zero, at the smallest float64 number."""
    for e, feasible in ((0.0, False), (5e-324, True), (-5e-324, False)):
        margins = rows([[1.0, 0.0], [-1.0, e], [0.0, 1.0]])
        assert Question(margins, "fro").feasibility().feasible is feasible


def equality(W: float, dual: float) -> Claim:
    return Claim("optimal", np.array([[W], [0.0]]), np.array([dual]), 2.0, 0.0, 1e-9)


def test_equalities_are_met_from_both_sides_with_multipliers_of_any_sign() -> None:
    margins = rows([[1.0, 0.0]], rhs=[-2.0], equality=[True])
    assert judge(margins, "fro", None, equality(-2.0, -1.0)).wrong == []
    for W in (-2.0 - 1e-8, -2.0 + 1e-8):
        verdict = judge(margins, "fro", None, equality(W, -1.0))
        assert any("short" in each for each in verdict.wrong)
        assert verdict.feasible is True
    assert judge(margins, "fro", None, equality(-2.0, 1.0)).wrong
    twice = rows([[1.0, 0.0], [2.0, 0.0]], rhs=[1.0, 2.0], equality=[True, True])
    assert Question(twice, "fro").feasibility().feasible is True
    found = least(Question(twice, "fro"))
    assert found == Least([Fraction(1), Fraction(0)], [Fraction(1), Fraction(0)])
    apart = rows([[1.0, 0.0], [2.0, 0.0]], rhs=[1.0, 2.0 + 2.0**-51], equality=[True, True])
    assert Question(apart, "fro").feasibility().feasible is False
    assert least(Question(apart, "fro")) == Least(None)


def soft(C: float) -> tuple[Margins, Claim]:
    """One entry: ``w^2/2 + C (1 - w)_+`` is least at ``min(1, C)``."""
    margins = rows([[1.0, 0.0]])
    w = min(1.0, C)
    return margins, Claim("optimal", np.array([[w], [0.0]]), np.array([w]), w, 0.0, 1e-9)


@pytest.mark.parametrize("C", [1e-6, 0.5, 1.0, 7.0, 1e15])
@pytest.mark.parametrize("norm", [each for each in NORMS if each not in LOOSE])
def test_soft_margins(norm: str, C: float) -> None:
    margins, claim = soft(C)
    assert judge(margins, norm, C, claim).wrong == []
    lies = [
        replace(claim, dual=claim.dual * 1.01),
        replace(claim, dual=-claim.dual),
        replace(claim, W=claim.W * 1.2, norm=claim.norm * 1.2),
        replace(claim, W=claim.W * 0.8, norm=claim.norm * 0.8),
        replace(claim, status="infeasible"),
    ]
    for lie in lies:
        assert judge(margins, norm, C, lie).wrong


def test_a_shortness_that_a_large_penalty_multiplies_is_caught() -> None:
    """At C = 1e15 a margin short by one rounding costs .11, beside an objective of one half."""
    margins, claim = soft(1e15)
    verdict = judge(margins, "fro", 1e15, replace(claim, W=claim.W * (1 - 2.0**-53)))
    assert "the gap is 1.82e-01" in verdict.wrong


def test_a_margin_that_asks_for_nothing_is_solved_by_zero() -> None:
    margins = rows([[1.0, 0.0]], rhs=[0.0])
    claim = Claim("optimal", np.zeros((2, 1)), np.zeros(1), 0.0, 0.0, 1e-9)
    assert judge(margins, "nuc", None, claim).wrong == []


# the parts


def test_floats_are_read_exactly() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(400) * 10.0 ** rng.uniform(-300, 300, 400)
    values = np.concatenate([values, [0.0, -0.0, 5e-324, -2.5e-310, 1.7e308, 3.0]])
    assert dyadic(values).fractions() == [Fraction(float(each)) for each in values]
    assert dyadic(np.array([3.0, -12.0])).exponent == 0
    with pytest.raises(ValueError, match="finite"):
        dyadic(np.array([math.inf]))


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_of_norms_hold_and_are_close(norm: str) -> None:
    """Against mpmath in 60 digits, at any scale and any spread of the entries."""
    rng = np.random.default_rng(1)
    for _ in range(8):
        shape = tuple(rng.integers(1, 6, 2))
        spread = rng.choice([0.0, 3.0, 60.0])
        W = rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape)
        W *= 10.0 ** rng.uniform(-100, 100)
        p = gauge(norm).p
        q = 1.0 if math.isinf(p) else math.inf if p == 1.0 else None
        with mpmath.workdps(60):
            M = mpmath.matrix([[mpmath.mpf(float(x)) for x in row] for row in W])
            numbers = list(mpmath.svd_r(M, compute_uv=False)) if gauge(norm).spectral else list(M)
            conjugate = mpmath.mpf(p) / (mpmath.mpf(p) - 1) if q is None else q
            for exponent, (low, high) in (
                (mpmath.mpf(p), gauge(norm).bounds(dyadic(W))),
                (conjugate, gauge(norm).dual_bounds(dyadic(W))),
            ):
                inner = max(map(abs, numbers))
                size = (
                    inner
                    if exponent == math.inf
                    else inner
                    * mpmath.fsum((abs(x) / inner) ** exponent for x in numbers) ** (1 / exponent)
                )
                below, above = (
                    mpmath.mpf(each.numerator) / each.denominator for each in (low, high)
                )
                near = mpmath.mpf(10) ** -50
                assert below <= size * (1 + near)
                assert size * (1 - near) <= above
                assert above - below <= size * (1e-13 if gauge(norm).spectral else 1e-28)


def test_norms_agree_with_the_library() -> None:
    W = np.random.default_rng(2).standard_normal((4, 3))
    for norm in NORMS:
        theirs = parse_norm(norm)
        for size, (low, high) in (
            (theirs.value(W), gauge(norm).bounds(dyadic(W))),
            (theirs.dual_value(W), gauge(norm).dual_bounds(dyadic(W))),
        ):
            assert float(low) == pytest.approx(float(size), rel=1e-12)
            assert float(high) == pytest.approx(float(size), rel=1e-12)


def test_norms_of_vectors_in_matrix_clothes() -> None:
    """A matrix of one row or column has one singular value: its length."""
    for norm in ("nuc", "spec", "schatten:1.5"):
        for shape in ((2, 1), (1, 2)):
            low, high = gauge(norm).bounds(dyadic(np.array([3.0, 4.0]).reshape(shape)))
            assert low <= 5 <= high
            assert high - low < Fraction(1, 10**40)


def test_roots() -> None:
    for number in (Fraction(2), Fraction(1, 3), Fraction(10**300), Fraction(1, 10**300)):
        low, high = root_bounds(number)
        assert low * low <= number <= high * high
        assert high - low <= low / 10**40


def test_linear_systems() -> None:
    assert solve_integers([[0, 2, 4], [3, 1, 5]]) == [Fraction(1), Fraction(2)]
    assert solve_integers([[1, 2, 1], [2, 4, 1]]) is None


def test_wrong_proofs_are_refused() -> None:
    system, sides, strict = [[1, 0], [-1, 1]], [1, 1], [False, False]
    found = decide(system, sides, strict)
    assert found.feasible is True
    assert found.W is not None
    assert meets(system, sides, strict, found.W)
    shorter = [w * (1 - Fraction(1, 10**30)) for w in found.W]
    assert not meets(system, sides, strict, shorter)
    assert not refutes(system, sides, strict, [1, 1])
    assert not refutes([[1], [-1]], sides, strict, [1, 0])
    assert not refutes([[1], [-1]], [1, -1], strict, [1, 1])
    assert refutes([[1], [-1]], sides, strict, [1, 1])
    assert not refutes([[1], [1]], sides, strict, [1, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_two_exact_methods_agree_about_feasibility(kind: str) -> None:
    """The simplex method in integers and non-negative least squares in fractions, which share
    nothing but the elimination that solves a linear system; every decision is proved.
    """
    for seed in range(4):
        programme = hard(kind, seed)
        question = Question(programme.margins, "fro")
        decision = question.feasibility()
        assert decision.feasible is not None
        system = [list(row) for row in question.written]
        scale = question.D.exponent + question.Z.exponent
        unit = Fraction(2) ** scale
        sides = [each / unit for each in question.sides]
        if decision.W is not None:
            assert meets(system, sides, list(question.equal), decision.W)
        else:
            assert decision.dual is not None
            assert refutes(system, sides, list(question.equal), decision.dual)
        found = least(question)
        assert found is not None
        assert decision.feasible is (found.W is not None)
        if found.W is not None:
            assert meets(system, sides, list(question.equal), found.W)
            pulled = [x * unit for x in found.dual] @ question.written
            assert list(pulled) == found.W
            assert all(x >= 0 for x in np.array(found.dual)[~question.equal])


def test_the_exact_solution_of_two_rows() -> None:
    margins = rows([[1.0, 1.0], [1.0, -1.0], [0.5, 0.0]])
    found = least(Question(margins, "fro"))
    assert found is not None
    assert found == Least([Fraction(2), Fraction(0)], [Fraction(0), Fraction(0), Fraction(4)])
    assert least(Question(CONTRADICTION, "fro")).W is None  # type: ignore[union-attr]


def test_float64_cannot_hold_weights_that_are_too_large_for_their_margins() -> None:
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    for gap, holds in ((1e-3, True), (1e-12, False)):
        margins = rows(np.array([[1.0, gap], [-1.0, gap]]) @ turn)
        question = Question(margins, "fro")
        found = least(question)
        assert found is not None
        assert found.W is not None
        assert answerable(question, found, 1e-9) is holds
    far = least(Question(rows([[1e-160, 0.0]]), "fro"))  # its multiplier is 1e320
    assert far is not None
    assert not answerable(Question(rows([[1e-160, 0.0]]), "fro"), far, 1e-9)


def test_float64_cannot_hold_multipliers_whose_sum_drowns_in_its_terms() -> None:
    """A feature of size 1e40 in which two rows cancel; the weights are those of the other one."""
    for size, holds in ((1.0, True), (1e40, False)):
        question = Question(rows([[0.7 * size, 1.0], [-0.3 * size, 1.0]]), "fro")
        found = least(question)
        assert found is not None
        assert answerable(question, found, 1e-9) is holds


# the programmes and the count


def test_programmes_are_the_same_for_the_same_seed() -> None:
    assert len(KINDS) >= 15
    for kind in KINDS:
        one, again, other = hard(kind, 3), hard(kind, 3), hard(kind, 4)
        np.testing.assert_array_equal(one.margins.differences, again.margins.differences)
        np.testing.assert_array_equal(one.margins.queries, again.margins.queries)
        assert one.slack == again.slack
        assert (
            one.margins.differences.shape != other.margins.differences.shape
            or (one.margins.differences != other.margins.differences).any()
            or (one.margins.queries != other.margins.queries).any()
        )


def test_the_thirteen_norms_are_thirteen() -> None:
    assert len({parse_norm(each).name for each in NORMS}) == 13
    for name in NORMS:
        theirs = parse_norm(name)
        assert gauge(name).p == getattr(theirs, "p", 2.0)


def test_the_plan_covers_every_kind_in_every_norm() -> None:
    pairs = {(kind, norm) for kind, norm, _ in plan(0, len(KINDS) * len(NORMS))}
    assert pairs == {(kind, norm) for kind in KINDS for norm in NORMS}


def test_the_answers_that_are_known_are_those_of_the_judge() -> None:
    for seed in range(10):
        programme = hard("powers-of-two", seed)
        assert programme.optimum is not None
        found = least(Question(programme.margins, "fro"))
        assert found is not None
        assert found.W is not None
        low, high = gauge("fro").bounds(dyadic(np.array([float(w) for w in found.W])))
        assert float(low) == pytest.approx(programme.optimum(2.0), rel=1e-12)
        assert float(high) == pytest.approx(programme.optimum(2.0), rel=1e-12)


def test_the_summary_counts_what_is_wrong_and_what_is_open() -> None:
    lines = [
        Line("a", "fro", 0, "single", "optimal", feasible=True),
        Line("a", "fro", 1, "single", "optimal", ["x"], feasible=True),
        Line("a", "fro", 2, "single", "infeasible", ["x"], feasible=True),
        Line("a", "fro", 3, "single", "infeasible", feasible=False),
        Line("a", "fro", 4, "single", "inaccurate", feasible=True, seconds=6.0),
        Line("a", "fro", 5, "single", "inaccurate", feasible=False),
        Line("a", "fro", 6, "single", "refused", feasible=True),
        Line("a", "fro", 7, "single", "almost so", feasible=True, answerable=True),
        Line("a", "fro", 8, "single", "almost so", feasible=True, answerable=False),
        Line("a", "fro", 9, "single", "almost so", feasible=False),
    ]
    summary = Summary(lines)
    assert len(summary.wrong("optimal")) == 1
    assert len(summary.wrong("infeasible")) == 1
    assert len(summary.open) == 1
    assert [each.seed for each in summary.dodged] == [6, 7]
    assert len(summary.between) == 3
    assert summary.feasible == 7
    assert len(summary.slow) == 1
    assert "| a | 10 | 1 | 1 | 0 | 1 | 1 | 3 | 1 | 2 | 0 | 1 |" in summary.table()


def test_units_of_dyadic_numbers() -> None:
    small, large = dyadic(np.array([2.0**-40])), dyadic(np.array([2.0**40]))
    assert (large - small).fraction(0) == Fraction(2) ** 40 - Fraction(1, 2**40)
    assert (small * large).fraction(0) == 1
    assert Dyadic(np.array([[3]], dtype=object), 2).fraction(0, 0) == 12
