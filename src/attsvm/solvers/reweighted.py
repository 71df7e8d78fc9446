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
methods of :mod:`attsvm.solvers.pivoting` and :mod:`attsvm.solvers.active_set`, which know what to
do with rows that nearly depend on each other, or in integers. From :math:`p=2` on steps are taken
in the weights; below, where :math:`H` has poles, in the multipliers, whose energy has the Hessian
:math:`H^{-1}`. Both lead down a convex function, which is least somewhere along the step.

Models are good where entries change by less than a share :math:`1/p`. So a large exponent, of the
norm or of its dual, is reached over smaller ones, each from the solution of the one before.

For singular values the Hessian is of this form in a frame: the entries of :math:`U^\top WV` on the
diagonal, the halves of the others that are symmetric and those that are not (Lewis and Sendov,
*Nonsmooth analysis of singular values II*, 2005; see :mod:`attsvm.solvers.newton`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.norms import Norm
from attsvm.norms.lifts import Entrywise, Lifted, SingularValues
from attsvm.solvers import integers
from attsvm.solvers.active_set import active_set
from attsvm.solvers.newton import Proximal, pair_rates
from attsvm.solvers.pivoting import PivotOptions, pivot
from attsvm.solvers.programme import Programme, explicit_rows

LARGEST = 1 << 20
"""Entries of the written-out rows."""


@dataclass(frozen=True)
class ReweightedOptions:
    """Numbers of the method.

    Attributes:
        steps: at most, for one exponent.
        idle: steps without a smaller error after which rounding has the better of it.
        pivots: systems of one model.
        flats: curvatures where a gauge has less, at vectors of size one, one tried after the other.
            Small ones make models that may lose their last digits, large ones take more steps.
        halvings: of an interval of steps.
        factor: from the exponent two to the first one tried.
        largest_factor: from one exponent to the next; 1.5 to 2 never failed, 3 did.
        least_factor: at which exponents are given up.
        near: error at which the solution of one exponent is a start for the next.
    """

    steps: int = 100
    idle: int = 8
    pivots: int = 12
    flats: tuple[float, ...] = (1e-12, 1e-6)
    halvings: int = 40
    factor: float = 10.0
    largest_factor: float = 2.0
    least_factor: float = 1.05
    near: float = 1e-3


OPTIONS = ReweightedOptions()


def curved(norm: Norm) -> bool:
    """Whether a norm is one for which this method is meant."""
    return isinstance(norm, Entrywise | SingularValues) and norm.strictly_convex


def finish(
    p: Programme,
    norm: Lifted,
    start: Weighted,
    error: Callable[[Norm, FloatArray, FloatArray], float],
    consider: Callable[[FloatArray, FloatArray], float],
    stop: tuple[float, float],
    options: ReweightedOptions = OPTIONS,
) -> None:
    """Newton steps while they help.

    1. Try an exponent between two and that of the norm, or of its dual.
    2. Go on from its solution, or nearer to the exponent before where there is none.

    Args:
        p: the programme, its solution of norm about one.
        norm: a gauge of entries or of singular values, ``1 < p < inf``.
        start: weights that meet the margins, and multipliers of half the squared norm; good ones in
            the Frobenius norm.
        error: of weights and multipliers in another norm.
        consider: certifies weights and multipliers and keeps the best; their error.
        stop: the error that is aimed at, and the time.
        options: numbers of the method.
    """
    aim, deadline = stop
    rows = explicit_rows(p, np.arange(p.m)).reshape(p.m, *start[0].shape)
    # Rows of zeros move no weights: soft ones are missed whatever these are.
    missed = 0.0 if p.hard else np.where(p.b > 0.0, p.cap, 0.0)
    point = start[0], np.asarray(np.where(p.diagonal > 0.0, start[1], missed))
    in_weights = norm.p >= 2.0
    last = norm.p if in_weights else norm.p / (norm.p - 1.0)
    reached, factor = 2.0, options.factor
    while factor >= options.least_factor:
        # 1. Try an exponent.
        exponent = min(last, reached * factor)
        way = _Way(p, rows, norm if exponent == last else _at(norm, exponent), in_weights)
        judge = consider if exponent == last else partial(error, way.norm)
        enough = aim if exponent == last else options.near
        found, least = point, math.inf
        for flat in options.flats:
            after, size = way.down(found, judge, enough, deadline, flat, options)
            found, least = (after, size) if size < least else (found, least)
            if least <= enough:
                break
            if time.monotonic() > deadline:
                return
        # 2. Go on from its solution, or nearer to the exponent before.
        if not least <= options.near:
            factor = math.sqrt(factor)
        elif exponent == last:
            return
        else:
            point, reached, factor = found, exponent, options.largest_factor


def _at(norm: Lifted, exponent: float) -> Lifted:
    """The norm of the same kind, of this exponent, or whose dual is."""
    other = type(norm)(exponent)
    found = other if norm.p >= 2.0 else other.dual
    assert isinstance(found, Lifted)
    return found


Weighted = tuple[FloatArray, FloatArray]
"""Weights and multipliers."""


class _Way(NamedTuple):
    """Newton steps in one norm, in the weights or in the multipliers."""

    p: Programme
    rows: FloatArray
    norm: Lifted
    in_weights: bool

    def down(
        self,
        start: Weighted,
        judge: Callable[[FloatArray, FloatArray], float],
        aim: float,
        deadline: float,
        flat: float,
        options: ReweightedOptions,
    ) -> tuple[Weighted, float]:
        """The best weights and multipliers, and their error."""
        p, norm, other, (W, dual) = self.p, self.norm, self.norm.dual, start
        assert isinstance(other, Lifted)
        best, least, idle = start, math.inf, 0
        for _ in range(options.steps):
            pulled = p.adjoint(dual)
            point = W if self.in_weights else pulled
            if not (point.any() and np.isfinite(point).all()):
                break
            at = frame(norm if self.in_weights else other, point)
            found = _model(p, self.rows, at, self.in_weights, dual, deadline, flat, options)
            if found is None:
                break
            error = judge(*found)
            best, least, idle = (found, error, 0) if error < least else (best, least, idle + 1)
            if least <= aim or idle == options.idle or time.monotonic() > deadline:
                break
            if self.in_weights:
                step, dual = found[0] - W, found[1]
                W = W + _length(norm, W, step, _hinges(p, W, step), options) * step
            else:
                step = found[1] - dual
                rest = partial(_constant, -float(p.b @ step))
                length = _length(other, pulled, p.adjoint(step), rest, options)
                dual = np.asarray(dual + length * step)
        return best, least


def _model(
    p: Programme,
    rows: FloatArray,
    at: Frame,
    in_weights: bool,
    dual: FloatArray,
    deadline: float,
    flat: float,
    options: ReweightedOptions,
) -> tuple[FloatArray, FloatArray] | None:
    """Weights and multipliers where the quadratic model is least, at a point of the weights or of
    their gradients; ``None`` where they are not found.
    """
    # The root of the Hessian's inverse, or of the Hessian of the conjugate: a diagonal, and then a
    # multiple of one direction.
    root = np.sqrt(np.maximum(at.curvature, flat))
    along = at.gradient / (root * at.size)
    square = float(along @ along)
    # positive but for rounding: the square is at most one where the share is near minus one
    curvature = max(1.0 + at.share * square, float(np.finfo(np.float64).eps))
    factor = curvature ** (-0.5 if in_weights else 0.5) - 1.0
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
    found = pivot(model, dual * length, deadline, PivotOptions(systems=options.pivots))
    if not found.settled:
        found = active_set(model, found.dual, deadline)
    if not found.settled:
        found = integers.settled(model, deadline) or found
    W, dual = at.back(centre + spread(found.W[:, 0])), found.dual / length
    if found.contradiction or not (np.isfinite(W).all() and np.isfinite(dual).all()):
        return None
    return W, dual


def _length(
    norm: Lifted,
    X: FloatArray,
    step: FloatArray,
    rest: Callable[[float], float],
    options: ReweightedOptions,
) -> float:
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
    for _ in range(options.halvings):
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
