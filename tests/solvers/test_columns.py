"""Columns in other units: features, queries or both times powers of ten, beside each other."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from instances import with_rhs
from judge.exact import Claim, Question, judge
from judge.least import least
from judge.lengths import as_float

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.norms import Spectral
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.solvers.lattice import nearest_combination
from attsvm.solvers.proofs import lower_bound

NORMS = ["fro", "nuc", "spec", "lp:1.5"]

# singular values take longer, and the judge takes its time
QUICK_FIRST = [
    "fro",
    "lp:1.5",
    pytest.param("nuc", marks=pytest.mark.slow),
    pytest.param("spec", marks=pytest.mark.slow),
]


class Case(NamedTuple):
    margins: Margins
    slack: float | None
    power: int


def programme(seed: int, small: bool | None = None) -> Case:
    """Normal tokens, of which random weights or chance select, with columns of the tokens, of the
    queries or of both times ``10**power``, -12 to 12; a fifth with soft margins.
    """
    rng = np.random.default_rng([1749, seed])
    few = rng.random() < 0.6 if small is None else small
    sizes = (rng.integers(2, 21), rng.integers(2, 7), rng.integers(2, 9))
    n, T, d = (6, 5, 4) if few else (int(each) for each in sizes)
    X, Z = rng.normal(size=(n, T, d)), rng.normal(size=(n, d))
    where, power = rng.choice(["tokens", "queries", "both", "self"]), int(rng.integers(-12, 13))
    if where == "self":
        Z = X[:, 0].copy()
    count = 1 if rng.random() < 0.6 else int(rng.integers(1, d))
    columns = rng.choice(d, size=count, replace=False)
    W = rng.normal(size=(d, d))
    taught = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    tokens = taught if rng.random() < 0.8 else rng.integers(T, size=n)
    if where in ("tokens", "both", "self"):
        X[..., columns] *= 10.0**power
    if where == "queries":
        Z[:, columns] *= 10.0**power
    if where == "both":
        Z[:, rng.choice(d)] *= 10.0**power
    data = AttentionData(X, np.ones(n), None if where == "self" else Z)
    slack = None if rng.random() < 0.8 else float(10.0 ** rng.uniform(-2, 3))
    return Case(selection_margins(data, tokens), slack, power)


def spread(seed: int) -> Margins:
    """Features of sizes 1e-6 to 1e6 beside each other."""
    rng = np.random.default_rng([1750, seed])
    X = rng.normal(size=(6, 5, 4)) * 10.0 ** rng.uniform(-6, 6, 4)
    Z = rng.normal(size=(6, 4)) * 10.0 ** rng.uniform(-6, 6, 4)
    return selection_margins(AttentionData(X, np.ones(6), Z), rng.integers(5, size=6))


@pytest.mark.parametrize("power", [-12, -9, 7, 8, 10, 12])
def test_a_column_of_self_attention_in_other_units_has_the_exact_least_norm(power: int) -> None:
    for seed in range(2):
        X = np.random.default_rng(seed).normal(size=(6, 5, 4))
        X[..., 0] *= 10.0**power
        solution = max_margin(selection_margins(AttentionData(X, np.ones(6)), [0] * 6))
        exact = least(Question(solution.margins, "fro"))
        assert exact is not None
        assert exact.W is not None
        assert solution.status == "optimal", solution.message
        size = math.sqrt(as_float(sum((w * w for w in exact.W), Fraction(0))))
        assert solution.norm == pytest.approx(size, rel=1e-9)  # the tolerance of the norm


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("first", [0, 3])
def test_columns_in_other_units_are_answered_and_the_answers_are_true(
    norm: str, first: int
) -> None:
    for seed in range(first, first + 3):
        case = programme(seed, small=True)
        solution = max_margin(case.margins, norm, slack=case.slack)
        assert solution.status in ("optimal", "infeasible"), (seed, case.power, solution.message)
        verdict = judge(case.margins, norm, case.slack, Claim.of(solution))
        assert not verdict.wrong
        assert not verdict.misreported


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_two_hundred_programmes_with_columns_in_other_units(norm: str) -> None:
    found = Counter()
    for seed in range(200):
        case = programme(seed)
        solution = max_margin(case.margins, norm, slack=case.slack)
        found[solution.status] += 1
        if math.prod(case.margins.shape) * case.margins.m <= 1000:  # the judge takes its time
            verdict = judge(case.margins, norm, case.slack, Claim.of(solution))
            assert not verdict.wrong, seed
            assert not verdict.misreported, seed
    assert found["optimal"] + found["infeasible"] >= 196, found


@pytest.mark.parametrize("norm", QUICK_FIRST)
def test_features_of_sizes_far_apart(norm: str) -> None:
    for seed in range(3):
        solution = max_margin(spread(seed), norm)
        assert solution.status in ("optimal", "infeasible"), (seed, solution.message)
        verdict = judge(solution.margins, norm, None, Claim.of(solution))
        assert not verdict.wrong


@pytest.mark.parametrize("norm", QUICK_FIRST)
def test_equalities_with_columns_in_other_units(norm: str) -> None:
    for seed in (0, 3):
        margins = programme(seed, small=True).margins
        equal = np.arange(margins.m) % 6 == 0
        margins = replace(with_rhs(margins, np.where(equal, 0.5, 1.0)), equality=equal)
        solution = max_margin(margins, norm)
        assert solution.status in ("optimal", "infeasible"), (seed, solution.message)
        verdict = judge(margins, norm, None, Claim.of(solution))
        assert not verdict.wrong


def test_contradictions_are_proved_whatever_the_units() -> None:
    for power in (-12, -8, 8, 12):
        rng = np.random.default_rng(abs(power))
        X, Z = rng.normal(size=(12, 6, 3)), rng.normal(size=(12, 3))
        X[..., 1] *= 10.0**power
        margins = selection_margins(AttentionData(X, np.ones(12), Z), rng.integers(6, size=12))
        for norm in ("fro", "nuc"):
            assert max_margin(margins, norm).status == "infeasible"


def test_lists_and_warm_starts_are_answered_too() -> None:
    cases = [programme(seed, small=True).margins for seed in range(30, 45)]
    batch = max_margin_batch(cases)
    assert set(batch.status.tolist()) <= {"optimal", "infeasible"}
    for margins, solution in zip(cases, batch, strict=True):
        again = max_margin(margins, warm_start=solution)
        assert again.status == solution.status
        assert again.norm == pytest.approx(solution.norm, rel=1e-9)


def test_a_larger_programme_with_columns_in_large_units() -> None:
    rng = np.random.default_rng(5)
    X, Z, W = rng.normal(size=(60, 6, 12)), rng.normal(size=(60, 12)), rng.normal(size=(12, 12))
    tokens = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    X[..., :2] *= 1e9
    solution = max_margin(selection_margins(AttentionData(X, np.ones(60), Z), tokens))
    assert solution.status == "optimal", solution.message


def test_integers_near_a_point_of_a_lattice_are_better_than_rounding_alone() -> None:
    rng = np.random.default_rng(0)
    basis = np.array([[int(x) for x in row] for row in rng.integers(-(2**40), 2**40, (12, 3))])
    basis = np.concatenate([basis, np.eye(12, dtype=np.int64)], axis=1).astype(object)
    target = np.append(rng.integers(-(2**40), 2**40, 3), np.zeros(12, np.int64)).astype(object)
    heavy = np.array([40] * 3 + [1] * 12)
    found = nearest_combination(basis, target, heavy=heavy)
    missed = found @ basis - target
    # twelve integers for three equations of 40 bits: 2**10 each, up to the factor of the method
    assert max(abs(int(x)) for x in missed) < 2**14
    assert nearest_combination(basis, target, -math.inf, heavy) is None


def test_the_bound_is_right_where_terms_cancel_to_more_than_twice_the_digits() -> None:
    """Columns of 1e24 and 1: two rows cancel in the first one but for the 50th digit."""
    rows = np.array([[1e24, 1.0], [-1e24, 1.0], [3e-26, 0.0]])
    m, zero = len(rows), np.zeros(1, dtype=np.int64)
    offsets, token = np.array([0, m]), np.zeros(m, dtype=np.int64)
    margins = Margins(rows, np.ones((1, 1)), offsets, np.ones(m), token, zero)
    dual = np.array([1.0, 1.0 + 2.0**-52, 0.0])
    pulled = [
        sum(Fraction(float(x)) * Fraction(float(a)) for x, a in zip(dual, column, strict=True))
        for column in rows.T
    ]
    length = math.sqrt(as_float(pulled[0] ** 2 + pulled[1] ** 2))
    assert lower_bound(margins, Spectral(), dual) == pytest.approx(2.0 / length, rel=1e-14)
