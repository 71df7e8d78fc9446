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
*Nonsmooth analysis of singular values II*, 2005; see
:mod:`attsvm.solvers.singular_values`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.norms import Norm
from attsvm.norms.lifts import Entrywise, Lifted, SingularValues
from attsvm.solvers import integers
from attsvm.solvers.active_set import active_set
from attsvm.solvers.iterate import Iterate, Stop
from attsvm.solvers.pivoting import PivotOptions, pivot
from attsvm.solvers.programme import Programme, explicit_rows
from attsvm.solvers.singular_values import Proximal, pair_rates


class ReweightedOptions(NamedTuple):
    """Numbers of the method; chosen on random programmes of 20 to 600 rows, and on near-equalities.

    Attributes:
        entries: of the rows written out, at most.
        steps: Newton steps for one exponent, at most.
        idle: steps without a smaller error after which rounding has the better of it.
        systems: linear systems of pivoting on one model.
        least_curvatures: curvatures where a gauge has less, at vectors of size one, tried one after
            the other. Small ones make models that may lose their last digits, large ones take more
            steps.
        halvings: of an interval of steps.
        first_factor: from the exponent two to the first one tried.
        factor: from one exponent to the next; 1.5 to 2 never failed, 3 did.
        least_factor: at which exponents are given up.
        near: error at which the solution of one exponent is a start for the next.
    """

    entries: int = 1 << 20
    steps: int = 100
    idle: int = 8
    systems: int = 12
    least_curvatures: tuple[float, ...] = (1e-12, 1e-6)
    halvings: int = 40
    first_factor: float = 10.0
    factor: float = 2.0
    least_factor: float = 1.05
    near: float = 1e-3


REWEIGHTED = ReweightedOptions()


def is_curved(norm: Norm) -> bool:
    """Whether a norm is one for which this method is meant."""
    return isinstance(norm, Entrywise | SingularValues) and norm.strictly_convex


def fits_reweighted(p: Programme, options: ReweightedOptions = REWEIGHTED) -> bool:
    """Whether the rows of a programme may be written out."""
    return p.m * p.dof <= options.entries


def finish_by_reweighting(
    p: Programme,
    norm: Lifted,
    start: Iterate,
    error: Callable[[Norm, FloatArray, FloatArray], float],
    consider: Callable[[FloatArray, FloatArray], float],
    stop: Stop,
    options: ReweightedOptions = REWEIGHTED,
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
        stop: where it ends.
        options: numbers of the method.
    """
    rows = explicit_rows(p, np.arange(p.m)).reshape(p.m, *start.W.shape)
    # Rows of zeros move no weights: soft ones are missed whatever these are.
    missed = 0.0 if p.hard else np.where(p.b > 0.0, p.cap, 0.0)
    iterate = Iterate(start.W, np.asarray(np.where(p.diagonal > 0.0, start.dual, missed)))
    in_weights = norm.p >= 2.0
    last = norm.p if in_weights else norm.p / (norm.p - 1.0)
    # The Frobenius norm has the exponent two.
    reached, factor = 2.0, options.first_factor
    while factor >= options.least_factor:
        # 1. Try an exponent.
        exponent = min(last, reached * factor)
        is_last = exponent == last
        descent = _Descent(
            p, rows, norm if is_last else _of_exponent(norm, exponent), in_weights, options
        )
        judge = consider if is_last else partial(error, descent.norm)
        # On the way a start for the next exponent is enough.
        enough = stop.aim if is_last else options.near
        best, least = iterate, math.inf
        for least_curvature in options.least_curvatures:
            end, end_error = descent.run(best, judge, enough, stop.deadline, least_curvature)
            if end_error < least:
                best, least = end, end_error
            if least <= enough:
                break
            if time.monotonic() > stop.deadline:
                return
        # 2. Go on from its solution, or nearer to the exponent before.
        if not least <= options.near:
            # Half of the way, as exponents multiply.
            factor = math.sqrt(factor)
        elif is_last:
            return
        else:
            iterate, reached, factor = best, exponent, options.factor


def _of_exponent(norm: Lifted, exponent: float) -> Lifted:
    """The norm of the same kind whose exponent, or whose dual's, is this one: the larger of both
    exponents, as in ``norm``.
    """
    flat = type(norm)(exponent)
    lifted = flat if norm.p >= 2.0 else flat.dual
    assert isinstance(lifted, Lifted)
    return lifted


class _Descent(NamedTuple):
    """Newton steps in one norm, in the weights or in the multipliers.

    Attributes:
        p: the programme.
        rows: ``(m, d_x, d_z)`` its rows written out.
        norm: the norm.
        in_weights: whether the steps are taken in the weights.
        options: numbers of the method.
    """

    p: Programme
    rows: FloatArray
    norm: Lifted
    in_weights: bool
    options: ReweightedOptions

    def run(
        self,
        start: Iterate,
        judge: Callable[[FloatArray, FloatArray], float],
        aim: float,
        deadline: float,
        least_curvature: float,
    ) -> tuple[Iterate, float]:
        """The best weights and multipliers, and their error.

        1. The Hessian at the weights, or at what the multipliers pull.
        2. The minimum of the quadratic model.
        3. Its error, certified where the norm is the caller's.
        4. A step towards it, as far as the energy falls.
        """
        p, norm, dual_norm, (W, dual) = self.p, self.norm, self.norm.dual, start
        assert isinstance(dual_norm, Lifted)
        best, least, idle = start, math.inf, 0
        for _ in range(self.options.steps):
            # 1. The Hessian.
            pulled = p.adjoint(dual)
            point = W if self.in_weights else pulled
            if not (point.any() and np.isfinite(point).all()):
                break
            hessian = hessian_frame(norm if self.in_weights else dual_norm, point)
            # 2. The minimum of the model.
            minimum = self._minimise_model(hessian, dual, deadline, least_curvature)
            if minimum is None:
                break
            # 3. Its error.
            error = judge(*minimum)
            if error < least:
                best, least, idle = minimum, error, 0
            else:
                idle += 1
            is_late = time.monotonic() > deadline
            if least <= aim or idle == self.options.idle or is_late:
                break
            # 4. The step.
            if self.in_weights:
                # Multipliers of the model are those of the weights; no step between them is needed.
                step, dual = minimum.W - W, minimum.dual
                # Hard margins are convex: both ends meet them, and so does what lies between.
                slope = _slope_of_losses(p, W, step)
                W = W + self._step_length(norm, W, step, slope) * step
            else:
                dual_step = minimum.dual - dual
                # The dual energy is half the squared dual norm less b^T dual.
                slope = partial(_constant, -float(p.b @ dual_step))
                length = self._step_length(dual_norm, pulled, p.adjoint(dual_step), slope)
                dual = np.asarray(dual + length * dual_step)
        return best, least

    def _minimise_model(
        self, hessian: HessianFrame, dual: FloatArray, deadline: float, least_curvature: float
    ) -> Iterate | None:
        r"""Weights and multipliers where the quadratic model is least, at a point of the weights or
        of their gradients; ``None`` where they are not reached.

        1. The root :math:`S` of the Hessian's inverse, or of the Hessian of the conjugate: a
           diagonal, and then a multiple of one direction.
        2. The Frobenius programme of the rows :math:`S^\top a_c`, brought to length one.
        3. Solve it: by pivoting, by active sets, in integers.
        """
        p = self.p
        # 1. The root.
        # Entries near zero have none, and the model would not bound them.
        root = np.sqrt(np.maximum(hessian.curvature, least_curvature))
        # H = R (I + share v v^T) R with R the root of the diagonal and v = a / R, here `along`.
        along = hessian.gradient / (root * hessian.size)
        square = float(along @ along)
        # positive but for rounding: the square is at most one where the share is near minus one
        curvature = max(1.0 + hessian.share * square, float(np.finfo(np.float64).eps))
        factor = curvature ** (-0.5 if self.in_weights else 0.5) - 1.0
        along, scale = along / math.sqrt(square), 1.0 / root if self.in_weights else root

        def root_times(y: FloatArray) -> FloatArray:
            """:math:`Sy`."""
            return scale * (y + factor * (along @ y) * along)

        def transposed_times(X: FloatArray) -> FloatArray:
            r""":math:`S^\top` times the vectors in the last axis of ``X``."""
            X = X * scale
            return X + factor * np.multiply.outer(X @ along, along)

        # 2. The Frobenius programme.
        weights, pull = hessian.point, hessian.gradient
        if not self.in_weights:
            weights, pull = pull, weights
        # The least value of the model without margins, W_0.
        centre = weights - root_times(transposed_times(pull))
        turned = hessian.turn(self.rows)
        D = transposed_times(turned)
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
        # 3. Its solution.
        pivoting = PivotOptions(systems=self.options.systems)
        # From the last multipliers most signs are right; near-dependent rows need the others.
        solution = pivot(model, dual * length, deadline, pivoting)
        if not solution.settled:
            solution = active_set(model, solution.dual, deadline)
        if not solution.settled:
            solution = integers.solve_in_integers(model, deadline) or solution
        W = hessian.back(centre + root_times(solution.W[:, 0]))
        dual = solution.dual / length
        if solution.contradiction or not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return None
        return Iterate(W, dual)

    def _step_length(
        self,
        norm: Lifted,
        X: FloatArray,
        step: FloatArray,
        other_slope: Callable[[float], float],
    ) -> float:
        """The multiple, at most one, of a step to the least value of half the squared norm and what
        has the slope ``other_slope``, which rises; by halving.
        """

        def rises(t: float) -> bool:
            end = X + t * step
            along = float(np.vdot(norm.subgradient(end), step))
            return float(norm.value(end)) * along + other_slope(t) > 0.0

        if not rises(1.0):
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(self.options.halvings):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if rises(middle) else (middle, high)
        return high


def _constant(slope: float, t: float) -> float:
    return slope


def _slope_of_losses(p: Programme, W: FloatArray, step: FloatArray) -> Callable[[float], float]:
    """The slope of the losses of soft margins along a step, a function of its multiple."""
    if p.hard:
        return partial(_constant, 0.0)
    missed, change = p.b - p.values(W), p.values(step)
    return lambda t: -float((p.cap * change)[missed > t * change].sum())


class HessianFrame(NamedTuple):
    """Orthonormal coordinates in which the Hessian of half a squared norm at a point is a diagonal
    and a multiple of the square of the gradient.

    Attributes:
        turn: a function from matrices ``(k, d_x, d_z)`` to coordinates ``(k, dof)``.
        back: a function from coordinates ``(dof,)`` to a matrix.
        size: norm of the point.
        point: ``(dof,)``.
        gradient: ``(dof,)`` of half the squared norm.
        curvature: ``(dof,)``, the diagonal.
        share: factor of the outer square of the gradient of the norm.
    """

    turn: Callable[[FloatArray], FloatArray]
    back: Callable[[FloatArray], FloatArray]
    size: float
    point: FloatArray
    gradient: FloatArray
    curvature: FloatArray
    share: float


def hessian_frame(norm: Lifted, X: FloatArray) -> HessianFrame:
    """The frame at a point, in a gauge of entries or of singular values of exponent at least 2."""
    if isinstance(norm, Entrywise):
        return _entry_frame(norm, X)
    return _singular_frame(norm, X)


def _entry_frame(norm: Lifted, X: FloatArray) -> HessianFrame:
    """The frame of a gauge of entries: the entries themselves."""
    p, size, shape = norm.p, float(norm.value(X)), X.shape
    point = X.reshape(-1)
    unit = np.abs(point) / size
    gradient = np.sign(point) * size * unit ** (p - 1.0)
    curvature = (p - 1.0) * unit ** (p - 2.0)

    def turn(matrices: FloatArray) -> FloatArray:
        return matrices.reshape(len(matrices), -1)

    def back(coordinates: FloatArray) -> FloatArray:
        return coordinates.reshape(shape)

    return HessianFrame(turn, back, size, point, gradient, curvature, 2.0 - p)


def _singular_frame(norm: Lifted, X: FloatArray) -> HessianFrame:
    """The frame of a gauge of singular values: entries in the singular vectors, symmetric halves
    above the diagonal and the others below.
    """
    p, size, shape = norm.p, float(norm.value(X)), X.shape
    left, s, right = np.linalg.svd(X)
    q, unit = len(s), s / size
    slopes = unit ** (p - 1.0)
    rates = pair_rates(unit, Proximal(slopes, (p - 1.0) * unit ** (p - 2.0), None))
    point, gradient, curvature = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    np.fill_diagonal(point, s)
    np.fill_diagonal(gradient, size * slopes)
    # Entries beyond the square meet no mirror image.
    curvature[:] = rates.alone if shape[0] > q else rates.alone[:, None]
    symmetric, skew = rates.same + rates.mirrored, rates.same - rates.mirrored
    curvature[:q, :q] = np.triu(symmetric) + np.tril(skew, -1)

    def turn(matrices: FloatArray) -> FloatArray:
        matrices = left.T @ matrices @ right.T
        inside = matrices[:, :q, :q]
        mirrored = inside.transpose(0, 2, 1)
        # Times the root of one half these coordinates are orthonormal.
        halves = np.triu(inside + mirrored, 1) + np.tril(inside - mirrored, -1)
        inside[:] = inside * np.eye(q) + math.sqrt(0.5) * halves
        return matrices.reshape(len(matrices), -1)

    def back(coordinates: FloatArray) -> FloatArray:
        matrix = coordinates.reshape(shape).copy()
        inside = matrix[:q, :q]
        upper, lower = np.triu(inside, 1), np.tril(inside, -1)
        halves = upper + upper.T + lower - lower.T
        inside[:] = inside * np.eye(q) + math.sqrt(0.5) * halves
        return left @ matrix @ right

    diagonals = point.reshape(-1), gradient.reshape(-1), curvature.reshape(-1)
    return HessianFrame(turn, back, size, *diagonals, 2.0 - p)
