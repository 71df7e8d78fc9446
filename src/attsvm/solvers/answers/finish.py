"""The last word on a programme of the Frobenius norm: a contradiction is proved or it is none, and
where sixteen digits do not decide a small programme, more digits do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Frobenius
from attsvm.margins import Margins
from attsvm.solvers.programme.opposite_pairs import opposite_pairs
from attsvm.solvers.programme.programme import Programme, equilibrate
from attsvm.solvers.proofs import extended, farkas
from attsvm.solvers.proofs.certificates import Certificate, certify_hard, certify_soft
from attsvm.solvers.proofs.extended import Contradiction

_LARGEST = 60_000  # rows times the rows that can be active, up to which more digits are quick
_AIM = 1e-13
_MISSED = 1e-6  # share of its size by which a margin is missed on purpose
_UNIT = 2.0**-53  # of rounding to nearest
_SHARES = (1.0, 0.25)  # of the largest effect of rounding that rows are asked for in addition


def is_small(p: Programme) -> bool:
    """Whether extended precision is quick."""
    return p.m * min(p.m, p.dof) <= _LARGEST


def certain(margins: Margins, dual: FloatArray) -> FloatArray | None:
    """Multipliers near ``dual``, or on the same rows, that are proved to be a contradiction.

    First in floating point (:mod:`attsvm.solvers.proofs.farkas`), then, where the rows are few,
    with more digits (:mod:`attsvm.solvers.proofs.extended`).
    """
    proof = farkas.proved(margins, dual)
    if proof is not None:
        return proof
    rows = np.flatnonzero(dual)
    if len(rows) == 0:
        return None
    part, source, sign = margins.restricted(rows), np.arange(len(rows)), np.ones(len(rows))
    if part.equalities.any():
        part, source, sign = opposite_pairs(part)
    if not (part.rhs > 0.0).any():
        return None
    try:
        p = equilibrate(part, None)
    except InputError:
        return None
    if not is_small(p):
        return None
    _, found = extended.search(p, math.inf)
    if not isinstance(found, Contradiction):
        return None
    exact = np.zeros(len(rows))
    np.add.at(exact, source, sign * _restored(p, found.dual))
    full = np.zeros(margins.m)
    full[rows] = exact
    return full


def _restored(p: Programme, dual: FloatArray) -> FloatArray:
    """A certificate in the caller's rows, its largest entry near one."""
    mantissa, exponent = np.frexp(dual)
    power = np.where(dual != 0.0, exponent + p.dual_exponent, -(10**6))
    restored: FloatArray = np.ldexp(mantissa, np.maximum(power - power.max(), -2000))
    return restored


def settled(
    margins: Margins, p: Programme, slack: float | None, deadline: float
) -> tuple[Certificate | None, FloatArray | None]:
    """Certified weights, or the multipliers of a contradiction; neither where time ran out.

    Args:
        margins: the programme.
        p: the same with rows of one size.
        slack: the penalty of the soft margin.
        deadline: of :func:`time.monotonic`.
    """
    search, found = extended.search(p, deadline)
    if isinstance(found, Contradiction):
        return None, _restored(p, found.dual)
    if not found:
        return None, None
    W, dual = search.point()
    best = _certified(margins, p, W, dual, slack)
    effect = _effect_of_rounding(p, W)
    if slack is not None:  # the cheaper side of a tight row: to miss it, or to exceed it
        effect = np.where(dual > 0.5 * p.cap, -effect, effect)
    for share in _SHARES:
        if best.error <= _AIM or search.demand(share * effect) is not True:
            break
        other = _certified(margins, p, search.point()[0], dual, slack)
        if other.error < best.error:
            best = other
    return best, None


def _certified(
    margins: Margins, p: Programme, W: FloatArray, dual: FloatArray, slack: float | None
) -> Certificate:
    with np.errstate(over="ignore", under="ignore"):
        W, dual = p.restored(W, dual)
    if not (np.isfinite(W).all() and np.isfinite(dual).all()):
        return Certificate(W, dual, margins.rhs * 0.0, math.inf, 1.0, math.inf, 0.0)
    if slack is not None:
        return certify_soft(margins, Frobenius(), W, np.minimum(dual, slack), slack)
    return certify_hard(margins, Frobenius(), W, dual)


def repaired(p: Programme, W: FloatArray, deadline: float) -> list[FloatArray]:
    """Weights near ``W`` that meet every margin, rounded, and weights that exceed them by what that
    rounding takes away; none where that is not quick. Margins that a soft programme misses by more
    than rounding may stay as they are.
    """
    if not is_small(p) or not np.isfinite(W).all():
        return []
    if not p.hard:
        values = p.values(W)
        missed = p.b - values > _MISSED * np.maximum(p.b, np.abs(values))
        sides = np.where(missed, values - np.abs(p.b - values), p.b)
        p = replace(p, b=sides, cap=np.full(p.m, np.inf))
    search, found = extended.search(p, deadline, W)
    if found is not True:
        return []
    out = [search.point()[0]]
    effect = _effect_of_rounding(p, out[0])
    for share in _SHARES:
        if search.demand(share * effect) is not True:
            break
        out.append(search.point()[0])
    return out


def _effect_of_rounding(p: Programme, W: FloatArray) -> FloatArray:
    """How much the values of rows can lose when ``W`` is rounded; zero for equalities, which
    nothing can make up for.
    """
    moved = np.abs(p.Z) @ np.abs(W).T
    effect: FloatArray = _UNIT * np.einsum("cd,cd->c", np.abs(p.D), moved[p.sequence])
    if p.opposite is not None:
        effect[p.opposite >= 0] = 0.0
    return effect
