"""Programmes that float64 does not settle, in integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from instances import cross, prompt, with_rhs, written_out
from judge.run import one

from attsvm.margins import Margins, relax
from attsvm.norms import Frobenius
from attsvm.solvers import integers, max_margin
from attsvm.solvers.equalities import opposite_pairs
from attsvm.solvers.integers import IntegerOptions
from attsvm.solvers.programme import equilibrate
from attsvm.solvers.proofs import certify_hard, certify_soft


@pytest.mark.parametrize(
    ("kind", "seed", "status"),
    [
        # three rows nearly contradict each other, and five exactly do
        ("near-equalities", 70002333, "infeasible"),
        ("near-equalities", 910000140, "infeasible"),
        ("near-equalities", 910000340, "optimal"),
        ("near-equalities", 910000900, "optimal"),
        # features of sizes from 1e-4 to 1e8
        ("feature-scales", 70002031, "optimal"),
        ("feature-scales", 910000991, "infeasible"),
        ("near-contradictory", 910000264, "optimal"),
        ("nearly-infeasible", 910000413, "optimal"),
        ("nearly-infeasible", 920000004, "infeasible"),
        ("targeted", 81000327, "optimal"),
        ("joined", 910000276, "infeasible"),
        ("joined", 910000916, "optimal"),
        ("unimodular", 911000106, "infeasible"),
        # penalties of 1e14 and more
        ("soft-hostile", 910001177, "optimal"),
        ("soft-hostile", 910000707, "optimal"),
    ],
)
def test_what_float64_leaves_open_is_answered(kind: str, seed: int, status: str) -> None:
    """Judged in exact arithmetic."""
    line = one(kind, "fro", seed)
    assert line.status == status, line.message
    assert not line.wrong
    assert not line.misreported


@pytest.mark.parametrize("norm", ["nuc", "l1", "lp:1.75", "linf"])
def test_contradictions_found_in_integers_are_told_in_every_norm(norm: str) -> None:
    line = one("near-equalities", norm, 70002333)
    assert line.status == "infeasible", line.message
    assert not line.wrong


def random(seed: int, n: int = 5, T: int = 5, d: int = 3) -> Margins:
    """Feasible or not, by the seed."""
    rng = np.random.default_rng(seed)
    selected = rng.integers(T, size=n).tolist()
    return cross(rng.standard_normal((n, T, d)), rng.standard_normal((n, 2)), selected)


@pytest.mark.parametrize("slack", [None, 0.05, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(6))
def test_solutions_agree_with_those_in_float64(seed: int, slack: float | None) -> None:
    margins = random(seed)
    expected, p = max_margin(margins, slack=slack), equilibrate(margins, slack)
    found = integers.solve_in_integers(p, math.inf)
    assert found is not None
    assert found.contradiction == (expected.status == "infeasible")
    if found.contradiction:
        np.testing.assert_allclose(p.adjoint(found.dual), 0.0, atol=1e-15)
        assert (found.dual >= 0.0).all()
        assert found.dual.max() == 1.0
        return
    W, dual = p.restored(found.W, found.dual)
    np.testing.assert_allclose(W, expected.W, rtol=0.0, atol=1e-9 * np.abs(W).max())
    if slack is None:
        proof = certify_hard(margins, Frobenius(), W, dual)
    else:
        proof = certify_soft(margins, Frobenius(), W, np.minimum(dual, slack), slack)
    assert proof.error <= 1e-12


def test_equalities_have_multipliers_of_any_sign() -> None:
    keys = np.random.default_rng(3).standard_normal((2, 4, 4))
    margins = relax(cross(keys, np.ones((2, 1)), [0, 0]), [])
    margins = with_rhs(margins, np.array([1.0, -2.0, 0.5, 0.0, 1.0, -1.0]))
    equal = np.zeros(6, np.bool_)
    equal[[0, 1, 4]] = True
    margins = Margins(
        margins.differences,
        margins.queries,
        margins.offsets,
        np.where(equal, margins.rhs, np.abs(margins.rhs)),
        margins.token,
        margins.selected,
        equality=equal,
    )
    pairs, source, sign = opposite_pairs(margins)
    opposite = np.full(pairs.m, -1)
    second = np.flatnonzero(sign < 0)
    opposite[second] = first = np.flatnonzero((sign > 0) & equal[source])
    opposite[first] = second
    p = equilibrate(pairs, None, opposite)
    found = integers.solve_in_integers(p, math.inf)
    assert found is not None
    assert not found.contradiction
    W, dual = p.restored(found.W, found.dual)
    values = written_out(margins) @ W.reshape(-1)
    np.testing.assert_allclose(values[equal], margins.rhs[equal], atol=1e-12)
    assert (values >= margins.rhs - 1e-12).all()
    assert (dual >= 0.0).all()
    assert not (dual * np.where(opposite >= 0, dual[opposite], 0.0)).any()
    assert certify_hard(pairs, Frobenius(), W, dual).error <= 1e-12


def test_what_takes_too_long_is_left_open() -> None:
    p = equilibrate(random(1), None)
    assert integers.solve_in_integers(p, -math.inf) is None
    assert integers.solve_in_integers(p, math.inf, IntegerOptions(work=1e3)) is None
    assert integers.solve_in_integers(p, math.inf, IntegerOptions(rows=p.m - 1)) is None
    assert integers.solve_in_integers(p, math.inf, IntegerOptions(rows=p.m)) is not None


def test_solutions_beyond_float64_are_left_open() -> None:
    margins = prompt([[[0.0, 0.0], [1.0, -(2.0**-400)], [-1.0, -(2.0**-400)]]], [0])
    p = equilibrate(margins, None)
    assert integers.solve_in_integers(p, math.inf) is not None
    margins = prompt([[[0.0, 0.0], [1.0, -(2.0**-600)], [-1.0, -(2.0**-600)]]], [0])
    assert integers.solve_in_integers(equilibrate(margins, None), math.inf) is None


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0], [1.0, -0.75], [2.0**-300, 2.0**300], [0.1, -1e-30, 3.0], [5e-324, 1.0], [6.0]],
)
def test_numbers_are_integers_times_a_power_of_two(values: list[float]) -> None:
    found, power = integers.to_integers(np.array(values))
    assert [int(x) for x in found] == [_times(x, -power) for x in values]
    assert any(int(x) % 2 for x in found) or not any(values)


def _times(x: float, power: int) -> int:
    """``x * 2**power`` without rounding."""
    top, bottom = x.as_integer_ratio()
    assert (top << max(power, 0)) % (bottom << max(-power, 0)) == 0
    return (top << max(power, 0)) // (bottom << max(-power, 0))


def nearly_contradictory(seed: int) -> Margins:
    """Integer rows of up to 31 bits of which a positive combination is one unit from zero."""
    rng = np.random.default_rng([9, seed])
    d, top = int(rng.integers(2, 5)), 2 ** int(rng.integers(18, 31))
    rows = rng.integers(-top, top + 1, (d - 1, d)).astype(object)
    last = -np.sum([int(rng.integers(1, 4)) * row for row in rows], axis=0)
    last[int(rng.integers(d))] += int(rng.choice([-1, 1]))
    written = np.vstack([rows, last]).astype(float)
    return Margins(
        written, np.ones((1, 1)), np.array([0, d]), np.ones(d), np.arange(d), np.zeros(1, int)
    )


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 6, 7, 8, 9, 10, 11])
def test_weights_of_huge_terms_are_rounded_together(seed: int) -> None:
    """Their margins are what is left of terms a billion times as large, and what each entry loses
    when it is rounded alone is more than these: integers say what the margins are.
    """
    margins = nearly_contradictory(seed)
    found = max_margin(margins)
    assert found.status == "optimal", found.message
    W = [Fraction(x) for x in found.W[:, 0].tolist()]
    for row in margins.differences.tolist():
        assert sum(Fraction(a) * w for a, w in zip(row, W, strict=True)) >= 1 - Fraction(found.tol)


@pytest.mark.parametrize("seed", [4, 5, 15, 20])
def test_the_best_weights_that_float64_holds_come_back(seed: int) -> None:
    """Where no float64 numbers give the margins to the tolerance, some give them roughly."""
    margins = nearly_contradictory(seed)
    found = max_margin(margins)
    assert found.status == "almost infeasible", found.message
    assert found.has_weights
    W = [Fraction(x) for x in found.W[:, 0].tolist()]
    least = min(
        sum(Fraction(a) * w for a, w in zip(row, W, strict=True))
        for row in margins.differences.tolist()
    )
    assert float(1 - least) <= found.violation + 1e-15
    assert max(found.gap, found.violation) <= 1e-3
