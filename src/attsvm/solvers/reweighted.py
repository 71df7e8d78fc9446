r"""Newton's method for gauges of entries and of singular values with :math:`1<p<\infty`, where
splitting crawls.

Of a vector :math:`x` half the squared norm has the gradient :math:`na` and the Hessian

.. math:: H=(p-1)\operatorname{diag}\big((|x|/n)^{p-2}\big)+(2-p)\,aa^\top,\qquad
          n=\|x\|_p,\quad a=\operatorname{sign}(x)(|x|/n)^{p-1},

and its conjugate, half the squared dual norm, the inverse of it. So the quadratic model around
weights :math:`W` with gradient :math:`R` is least, over weights that meet the margins, at

.. math:: W'=W_0+Sy,\qquad \min_y\tfrac12\|y\|^2\ \text{ s.t. }\ \langle S^\top a_c,y\rangle\ge
    b_c-\langle a_c,W_0\rangle,\qquad SS^\top=H^{-1},\quad W_0=W-H^{-1}R :

a Frobenius programme of other rows (iteratively reweighted least squares; Adil, Peng and Sachdeva,
*Fast, provably convergent IRLS algorithm for p-norm linear regression*, 2019), solved by the
methods of :mod:`attsvm.solvers.frobenius`, which know what to do with rows that nearly depend on
each other, or in integers. From :math:`p=2` on steps are taken in the weights; below, where
:math:`H` has poles, in the multipliers, whose energy has the Hessian :math:`H^{-1}`. Both lead down
a convex function, which is least somewhere along the step.

For singular values the Hessian is of this form in a frame: the entries of :math:`U^\top WV` on the
diagonal, the halves of the others that are symmetric and those that are not (Lewis and Sendov,
*Nonsmooth analysis of singular values II*, 2005; see :mod:`attsvm.solvers.newton`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Norm
from attsvm.geometry.lifts import Entrywise, Lifted, SingularValues
from attsvm.solvers import frobenius, integers
from attsvm.solvers.newton import Proximal, pair_rates
from attsvm.solvers.programme import Programme, explicit_rows

LARGEST = 1 << 20
"""Entries of the written-out rows."""

# exponent, of the norm or of its dual, from which on models are good for short steps only
_STEEPEST = 21.5
_STEPS, _MOST_WORSE = 100, 8  # and steps without progress
_PIVOTS = 12  # systems of one model
_FLAT = 1e-12  # curvature where a gauge has none, at vectors of size one
_HALVINGS = 40  # of an interval of steps


def curved(norm: Norm) -> bool:
    """Whether a norm is one for which this method is meant."""
    if not isinstance(norm, Entrywise | SingularValues) or not norm.strictly_convex:
        return False
    return max(norm.p, norm.p / (norm.p - 1.0)) <= _STEEPEST


def finish(
    p: Programme,
    norm: Lifted,
    start: tuple[FloatArray, FloatArray],
    consider: Callable[[FloatArray, FloatArray], float],
    stop: tuple[float, float],
) -> None:
    """Newton steps while they help.

    Args:
        p: the programme, its solution of norm about one.
        norm: a gauge of entries or of singular values, ``1 < p < inf``.
        start: weights that meet the margins, and multipliers of half the squared norm.
        consider: certifies weights and multipliers and keeps the best; their error.
        stop: the error that is aimed at, and the time.
    """
    (W, dual), (aim, deadline), other = start, stop, norm.dual
    assert isinstance(other, Lifted)
    rows = explicit_rows(p, np.arange(p.m)).reshape(p.m, *W.shape)
    # Rows of zeros move no weights: soft ones are missed whatever these are.
    missed = 0.0 if p.hard else np.where(p.b > 0.0, p.cap, 0.0)
    dual = np.where(p.diagonal > 0.0, dual, missed)
    in_weights, best, worse = norm.p >= 2.0, math.inf, 0
    for _ in range(_STEPS):
        pulled = p.adjoint(dual)
        point = W if in_weights else pulled
        if not (point.any() and np.isfinite(point).all()):
            return
        at = frame(norm if in_weights else other, point)
        found = _model(p, rows, at, in_weights, dual, deadline)
        if found is None:
            return
        error = consider(*found)
        best, worse = (error, 0) if error < best else (best, worse + 1)
        if best <= aim or worse == _MOST_WORSE or time.monotonic() > deadline:
            return
        if in_weights:
            step, dual = found[0] - W, found[1]
            W = W + _length(norm, W, step, _hinges(p, W, step)) * step
        else:
            step = found[1] - dual
            rest = partial(_constant, -float(p.b @ step))
            dual = np.asarray(dual + _length(other, pulled, p.adjoint(step), rest) * step)


def _model(
    p: Programme, rows: FloatArray, at: Frame, in_weights: bool, dual: FloatArray, deadline: float
) -> tuple[FloatArray, FloatArray] | None:
    """Weights and multipliers where the quadratic model is least, at a point of the weights or of
    their gradients; ``None`` where they are not found.
    """
    # The root of the Hessian's inverse, or of the Hessian of the conjugate: a diagonal, and then a
    # multiple of one direction.
    root = np.sqrt(np.maximum(at.curvature, _FLAT))
    along = at.gradient / (root * at.size)
    square = float(along @ along)
    factor = (1.0 + at.share * square) ** (-0.5 if in_weights else 0.5) - 1.0
    along, scale = along / math.sqrt(square), 1.0 / root if in_weights else root

    def spread(y: FloatArray) -> FloatArray:
        return scale * (y + factor * (along @ y) * along)

    def gathered(X: FloatArray) -> FloatArray:
        X = X * scale
        return X + factor * np.multiply.outer(X @ along, along)

    weights, pull = (at.point, at.gradient) if in_weights else (at.gradient, at.point)
    centre = weights - spread(gathered(pull))
    turned = at.turn(rows)
    D = gathered(turned)
    length = np.linalg.norm(D, axis=1)
    length[length == 0.0] = 1.0
    model = replace(
        p,
        D=D / length[:, None],
        Z=np.ones((1, 1)),
        offsets=np.array([0, p.m]),
        sequence=np.zeros(p.m, dtype=np.int64),
        b=(p.b - turned @ centre) / length,
        cap=p.cap * length,
    )
    found = frobenius.pivot(model, dual * length, _PIVOTS, deadline)
    if not found.settled:
        found = frobenius.active_set(model, found.dual, deadline)
    if not found.settled:
        found = integers.settled(model, deadline) or found
    W, dual = at.back(centre + spread(found.W[:, 0])), found.dual / length
    if found.contradiction or not (np.isfinite(W).all() and np.isfinite(dual).all()):
        return None
    return W, dual


def _length(norm: Lifted, X: FloatArray, step: FloatArray, rest: Callable[[float], float]) -> float:
    """The multiple, at most one, of a step to the least value of half the squared norm and what
    has the slope ``rest``, which rises.
    """

    def rises(t: float) -> bool:
        at = X + t * step
        along = float(np.vdot(norm.subgradient(at), step))
        return float(norm.value(at)) * along + rest(t) > 0.0

    if not rises(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rises(middle) else (middle, high)
    return high


def _constant(slope: float, t: float) -> float:
    return slope


def _hinges(p: Programme, W: FloatArray, step: FloatArray) -> Callable[[float], float]:
    """The slope of the loss of soft margins along a step."""
    if p.hard:
        return partial(_constant, 0.0)
    missed, moved = p.b - p.values(W), p.values(step)
    return lambda t: -float((p.cap * moved)[missed > t * moved].sum())


class Frame(NamedTuple):
    """Orthonormal coordinates in which the Hessian of half a squared norm at a point is a diagonal
    and a multiple of the square of the gradient.

    Attributes:
        turn: coordinates ``(k, dof)`` of matrices ``(k, d_x, d_z)``.
        back: the matrix of coordinates ``(dof,)``.
        size: norm of the point.
        point: ``(dof,)``.
        gradient: ``(dof,)`` of half the squared norm.
        curvature: ``(dof,)``, the diagonal.
        share: of the square of the gradient of the norm.
    """

    turn: Callable[[FloatArray], FloatArray]
    back: Callable[[FloatArray], FloatArray]
    size: float
    point: FloatArray
    gradient: FloatArray
    curvature: FloatArray
    share: float


def frame(norm: Lifted, X: FloatArray) -> Frame:
    """The frame at a point, in a gauge of exponent at least 2."""
    p, size, shape = norm.p, float(norm.value(X)), X.shape
    if isinstance(norm, Entrywise):
        point = X.reshape(-1)
        unit = np.abs(point) / size
        gradient = np.sign(point) * size * unit ** (p - 1.0)
        curvature = (p - 1.0) * unit ** (p - 2.0)
        flat = (lambda M: M.reshape(len(M), -1)), (lambda v: v.reshape(shape))
        return Frame(*flat, size, point, gradient, curvature, 2.0 - p)
    left, s, right = np.linalg.svd(X)
    q, unit = len(s), s / size
    slopes = unit ** (p - 1.0)
    rates = pair_rates(unit, Proximal(slopes, (p - 1.0) * unit ** (p - 2.0), None))
    point, gradient, curvature = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    np.fill_diagonal(point, s)
    np.fill_diagonal(gradient, size * slopes)
    curvature[:] = rates.alone if shape[0] > q else rates.alone[:, None]
    even, odd = rates.same + rates.mirrored, rates.same - rates.mirrored
    curvature[:q, :q] = np.triu(even) + np.tril(odd, -1)

    def turn(M: FloatArray) -> FloatArray:
        M = left.T @ M @ right.T
        inside = M[:, :q, :q]
        other = inside.transpose(0, 2, 1)
        halves = np.triu(inside + other, 1) + np.tril(inside - other, -1)
        inside[:] = inside * np.eye(q) + math.sqrt(0.5) * halves
        return M.reshape(len(M), -1)

    def back(v: FloatArray) -> FloatArray:
        M = v.reshape(shape).copy()
        inside = M[:q, :q]
        even, odd = np.triu(inside, 1), np.tril(inside, -1)
        inside[:] = inside * np.eye(q) + math.sqrt(0.5) * (even + even.T + odd - odd.T)
        return left @ M @ right

    point, gradient, curvature = (each.reshape(-1) for each in (point, gradient, curvature))
    return Frame(turn, back, size, point, gradient, curvature, 2.0 - p)
