r"""Interior points over second-order cones, for the sum and for the largest of the lengths of rows.

.. math:: \min_{W,t}\ \textstyle\sum_it_i\ \text{ or }\ t
    \quad\text{s.t.}\quad \|W_i\|_2\le t_i\ (\text{or }t),\quad \langle A_c,W\rangle-s_c=b_c,
    \quad s_c\ge0 ,

with :math:`s_c=0` on equalities, and of soft margins half the square of this objective plus
:math:`\sum_cC_c\xi_c`, with :math:`\langle A_c,W\rangle+\xi_c-s_c=b_c` and :math:`\xi_c\ge0`.
Every point :math:`x_i=(t_i,W_i)` of a cone has a dual :math:`z_i` in it, every row a multiplier
:math:`\lambda_c`; the method goes along

.. math:: x_i\circ z_i=\mu e,\qquad s_c\lambda_c=\mu,\qquad \xi_c(C_c-\lambda_c)=\mu,
    \qquad \mu\to0 ,

by Mehrotra's predictor and corrector, in the scaling of Nesterov and Todd in which :math:`x_i` and
:math:`z_i` are the same vector (*Self-scaled barriers and interior-point methods for convex
programming*, 1997; formulas as in L. Vandenberghe, *The CVXOPT linear and quadratic cone program
solvers*, 2010). Slacks and multipliers of rows are eliminated, so each step is one system of the
entries of the weights, their heights, and the equalities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.norms.lifts import RowLengths
from attsvm.solvers.deadline import time_for
from attsvm.solvers.iterate import Iterate, Stop
from attsvm.solvers.programme import Programme, explicit_rows


class ConicOptions(NamedTuple):
    """Numbers of the method.

    Attributes:
        steps: at most; the programmes of the tests take 10 to 40.
        idle: steps without a smaller error after which rounding has the better of it,
        near: once the error is below this; before, the path may lead away for a while.
        boundary: share of the way to the boundary that a step goes at most; the customary one.
        distance: least distance of the start from the boundary, in units of the largest right-hand
            side and of the longest row; .01 to 1 take as many steps.
        dependent: pivot, over the largest, below which an equality depends on the others.
        entries: of the rows written out, and
        unknowns: of one system, up to which the method is worth its time: about a second a step.
    """

    steps: int = 80
    idle: int = 8
    near: float = 1e-3
    boundary: float = 0.99
    distance: float = 0.1
    dependent: float = 1e-10
    entries: int = 1 << 20
    unknowns: int = 2000


CONIC = ConicOptions()


def fits_conic(p: Programme, options: ConicOptions = CONIC) -> bool:
    """Whether a programme is small enough for this method."""
    height = p.D.shape[1]
    return p.m * p.dof <= options.entries and p.dof + height <= options.unknowns


def finish_by_cones(
    p: Programme,
    norm: RowLengths,
    W: FloatArray,
    error: Callable[[FloatArray, FloatArray], float],
    stop: Stop,
    options: ConicOptions = CONIC,
) -> Iterate:
    r"""The best weights and multipliers of an interior path.

    1. Rows that say nothing go, and equalities that follow from others.
    2. Start at the given weights, at some distance from the boundary of every cone.
    3. Scale the cones and factorise the system.
    4. Predict: towards :math:`\mu=0`.
    5. Correct: towards the :math:`\mu` that the prediction can reach, with what it neglects.
    6. Step, almost to the boundary at most; keep the point of least error.

    Args:
        p: the programme, its solution of norm about one.
        norm: the sum (exponent one) or the largest (infinity) of the lengths of rows.
        W: weights to start from.
        error: of weights and multipliers.
        stop: where it ends.
        options: numbers of the method.
    """
    # 1. Rows that say nothing, and equalities that follow from others.
    rows = _ConicRows.of(p, options)
    # 2. Start.
    point = _start(p, rows, norm.p == 1.0, W, options)
    best, least, idle = Iterate(W, rows.multipliers(point)), math.inf, 0
    for _ in range(options.steps):
        iterate = Iterate(point.x[: p.dof].reshape(W.shape), rows.multipliers(point))
        size = error(*iterate)
        # Far from the end the error may rise on the way.
        idle = 0 if size < least or least > options.near else idle + 1
        if size < least:
            best, least = iterate, size
        is_late = not time_for(_work(rows, point), stop.deadline)
        if least <= stop.aim or idle == options.idle or is_late:
            break
        following = _next_point(rows, point, options)
        if following is None:
            break
        point = following
    return best


class _ConicRows(NamedTuple):
    """The rows of a programme written out: inequalities ``A x + xi - s = b`` with multipliers up to
    ``cap``, and equalities ``E x = f``.

    Attributes:
        A: ``(k, dof)``.
        b: ``(k,)``.
        cap: ``(k,)``.
        E: ``(l, dof)``.
        f: ``(l,)``.
        unequal: ``(k,)`` positions of the inequalities in the programme.
        equal: ``(l,)`` positions of the equalities.
        p: the programme.
    """

    A: FloatArray
    b: FloatArray
    cap: FloatArray
    E: FloatArray
    f: FloatArray
    unequal: IntArray
    equal: IntArray
    p: Programme

    @staticmethod
    def of(p: Programme, options: ConicOptions) -> _ConicRows:
        """The rows that say something."""
        positions, has_entries = np.arange(p.m), p.diagonal > 0.0
        opposite = -np.ones(p.m, np.int64) if p.opposite is None else p.opposite
        # Of a pair the row with the positive right-hand side, or the first, stays.
        stands_for_pair = (p.b > 0.0) | ((p.b == 0.0) & (positions < opposite))
        unequal = np.flatnonzero(has_entries & (opposite < 0))
        equal = np.flatnonzero(has_entries & (opposite >= 0) & stands_for_pair)
        E = explicit_rows(p, equal)
        if len(equal):
            # Pivots of a QR factorisation tell equalities that follow from others.
            length = np.sqrt(p.diagonal[equal])
            R, order = scipy.linalg.qr((E / length[:, None]).T, mode="r", pivoting=True)
            pivots = np.abs(np.diag(R))
            count = int((pivots > options.dependent * pivots[0]).sum())
            independent = np.sort(order[:count])
            equal, E = equal[independent], E[independent]
        A, b, cap = explicit_rows(p, unequal), p.b[unequal], p.cap[unequal]
        return _ConicRows(A, b, cap, E, p.b[equal], unequal, equal, p)

    def multipliers(self, point: _ConePoint) -> FloatArray:
        """``(m,)``: multipliers of all rows of the programme; of a pair of opposite rows on the one
        that the sign says. Rows of zeros are missed whatever the weights are.
        """
        p = self.p
        dual = np.zeros(p.m) if p.hard else np.where(p.b > 0.0, p.cap, 0.0)
        dual[self.unequal] = point.lam
        if p.opposite is not None:
            # The sign of a multiplier says which row of the pair has it.
            dual[self.equal] = np.maximum(point.free, 0.0)
            dual[p.opposite[self.equal]] = np.maximum(-point.free, 0.0)
        return dual


class _ConePoint(NamedTuple):
    """An interior point: weights and heights ``x``, slacks, multipliers, and the duals of cones.

    Attributes:
        cones: ``(d_x, 1 + d_z)``, where in ``x`` the height and the row of each cone are.
        cost: of ``x``; its product with ``x`` is the norm.
        x: ``(n,)``.
        s: slacks of inequalities.
        xi: by how much they are missed; of hard margins zero.
        lam: their multipliers.
        free: multipliers of equalities.
        z: ``(d_x, 1 + d_z)``.
    """

    cones: IntArray
    cost: FloatArray
    x: FloatArray
    s: FloatArray
    xi: FloatArray
    lam: FloatArray
    free: FloatArray
    z: FloatArray


def _start(
    p: Programme, rows: _ConicRows, total: bool, W: FloatArray, options: ConicOptions
) -> _ConePoint:
    """The interior point of weights ``W``, with heights, slacks and multipliers at the same
    complementarity.
    """
    (d, e), count = W.shape, p.dof
    heights = np.arange(d) if total else np.zeros(d, np.int64)
    index = np.column_stack([count + heights, np.arange(count).reshape(d, e)])
    length = np.linalg.norm(W, axis=1)
    top = float(length.max()) or 1.0
    # Heights well above the lengths of rows.
    x = np.concatenate([W.reshape(-1), length + top if total else [2.0 * top]])
    cost = np.zeros(len(x))
    cost[count:] = 1.0
    soft = np.isfinite(rows.cap)
    values = rows.A @ x[:count] - rows.b
    far = options.distance * float(np.abs(p.b).max())
    xi = np.where(soft, np.maximum(far, -values), 0.0)
    s = np.maximum(values + xi, far)
    size = float(cost @ x)
    # A gap of the size of the objective, shared out equally.
    mu = size * (1.0 if p.hard else size) / (len(s) + int(soft.sum()) + d)
    lam = np.minimum(mu / s, 0.5 * rows.cap)
    cones = x[index]
    # x o z = mu e is solved by z = mu J x / (x^T J x).
    z = mu * _mirrored(cones) / _cone_squares(cones)[:, None]
    return _ConePoint(index, cost, x, s, xi, lam, np.zeros(len(rows.f)), z)


def _work(rows: _ConicRows, point: _ConePoint) -> float:
    """Multiply-adds of the factorisation of a step."""
    unknowns = len(point.x)
    size = unknowns + len(rows.E) + min(len(rows.A), unknowns) + len(point.cones)
    return float(size**3) / 3.0


def _next_point(rows: _ConicRows, point: _ConePoint, options: ConicOptions) -> _ConePoint | None:
    """The next point, by steps 3 to 6 of :func:`finish_by_cones`; ``None`` where rounding leaves
    none.
    """
    A, E, is_soft = rows.A, rows.E, np.isfinite(rows.cap)
    count, n, x_cones = A.shape[1], len(point.x), point.x[point.cones]
    room = np.where(is_soft, rows.cap - point.lam, 1.0)
    # The half square has the norm times the gradient of the norm.
    norm = 1.0 if not is_soft.any() else float(point.cost @ point.x)
    mu = float(point.s @ point.lam) + float(point.xi @ (room * is_soft))
    mu += float(np.vdot(x_cones, point.z))
    mu /= len(point.s) + int(is_soft.sum()) + len(x_cones)
    # The residuals of stationarity, and of the rows.
    pulled = _sum_by_position(point.cones, point.z, n)
    pulled[:count] += A.T @ point.lam + E.T @ point.free
    gradient = norm * point.cost - pulled
    residual = A @ point.x[:count] + point.xi - point.s - rows.b
    equality_residual = E @ point.x[:count] - rows.f
    # 3. Scale the cones and factorise the system.
    scaling = _Scaling.of(x_cones, point.z)
    if scaling is None:
        return None
    # Slacks are eliminated: what a margin gives way to a unit of its multiplier.
    give = point.s / point.lam + np.where(is_soft, point.xi / room, 0.0)
    system = _System.of(point, rows, scaling, give)
    if system is None:
        return None

    def direction(cone: FloatArray, row: FloatArray, over: FloatArray) -> _Direction:
        """The direction in which the products change by these: ``dz = cone - S^-2 dx``,
        ``s dlam + lam ds = row`` and ``room dxi - xi dlam = over``.
        """
        # What the eliminated slacks leave on the side of their rows.
        fixed = residual + np.where(is_soft, over / room, 0.0) - row / point.lam
        rhs = _sum_by_position(point.cones, cone, n) - gradient
        x, lam, free, pull = system.solve(rhs, -fixed, -equality_residual)
        xi = np.where(is_soft, (over + point.xi * lam) / room, 0.0)
        return _Direction(x, residual + A @ x[:count] + xi, xi, lam, free, cone - pull)

    def length(by: _Direction) -> float:
        """How far a direction goes, up to one, before it leaves a cone."""
        ends = [
            _reach_of_numbers(point.s, by.s),
            _reach_of_numbers(point.lam, by.lam),
            _reach_of_numbers(room[is_soft], -by.lam[is_soft]),
            _reach_of_numbers(point.xi[is_soft], by.xi[is_soft]),
            _cone_reach(x_cones, by.x[point.cones]),
            _cone_reach(point.z, by.z),
        ]
        return min(1.0, *(options.boundary * end for end in ends))

    # 4. Predict.
    predicted = direction(scaling.towards(0.0), -point.s * point.lam, -point.xi * room)
    share = 1.0 - length(predicted)
    # 5. Correct.
    # Mehrotra's rule: the further the prediction goes, the lower the aim.
    aim = share**3 * mu
    by = direction(
        scaling.towards(aim, predicted.x[point.cones], predicted.z),
        aim - point.s * point.lam - predicted.s * predicted.lam,
        np.where(is_soft, aim - point.xi * room + predicted.xi * predicted.lam, 0.0),
    )
    # 6. Step.
    t = length(by)
    if not (t > 0.0 and np.isfinite(by.x).all() and np.isfinite(by.z).all()):
        return None
    return point._replace(
        x=point.x + t * by.x,
        s=point.s + t * by.s,
        xi=point.xi + t * by.xi,
        lam=point.lam + t * by.lam,
        free=point.free + t * by.free,
        z=point.z + t * by.z,
    )


class _System(NamedTuple):
    r"""The linear system of a step, factorised.

    Large numbers belong to points near the boundary of their cone and to rows that are tight. Next
    to them small ones would be lost, so these have unknowns of their own: multipliers, and
    :math:`y_i=q_i^\top dx_i` where :math:`S_i^{-2}=q_iq_i^\top-J/\eta_i^2`.

    Attributes:
        point: the point of the step.
        rows: the rows.
        give: ``(k,)`` by how much a margin gives way to a unit of its multiplier.
        tight: ``(k,)`` which rows have unknowns, the others being eliminated.
        q: ``(d_x, 1 + d_z)`` the vectors :math:`q_i`.
        flat: ``(d_x, 1 + d_z)`` the diagonals of :math:`-J/\eta_i^2`.
        matrix: of the unknowns ``x``, multipliers of equalities and of ``tight`` rows, and ``y``.
        factor: of it.
    """

    point: _ConePoint
    rows: _ConicRows
    give: FloatArray
    tight: BoolArray
    q: FloatArray
    flat: FloatArray
    matrix: FloatArray
    factor: tuple[FloatArray, IntArray]

    @staticmethod
    def of(
        point: _ConePoint, rows: _ConicRows, scaling: _Scaling, give: FloatArray
    ) -> _System | None:
        """The system; ``None`` where it leaves float64."""
        n, cones, count = len(point.x), len(point.cones), rows.A.shape[1]
        tight = np.zeros(len(give), np.bool_)
        # Rows that hardly give way would swamp the entries of those that do.
        tight[np.argsort(give)[:n]] = True
        A, loose, equalities = rows.A[tight], rows.A[~tight], len(rows.E)
        q = math.sqrt(2.0) * _mirrored(scaling.middle) / scaling.eta[:, None]
        flat = _mirrored(np.full_like(q, -1.0)) / (scaling.eta**2)[:, None]
        # where the unknowns of tight rows begin, and those of cones
        first, second = n + equalities, n + equalities + len(A)
        M = np.zeros((second + cones, second + cones))
        np.add.at(M, (point.cones, point.cones), flat)
        if not rows.p.hard:
            M[:n, :n] += np.multiply.outer(point.cost, point.cost)
        # Loose rows are eliminated,
        M[:count, :count] += loose.T @ (loose / give[~tight][:, None])
        M[n:first, :count], M[:count, n:first] = rows.E, -rows.E.T
        # tight ones keep their multipliers,
        M[first:second, :count], M[:count, first:second] = A, -A.T
        M[range(first, second), range(first, second)] = give[tight]
        y = second + np.arange(cones)[:, None]
        # and each cone has y = q^T dx.
        M[y, point.cones], M[point.cones, y], M[y, y] = q, q, -1.0
        if not np.isfinite(M).all():
            return None
        factor = scipy.linalg.lu_factor(M, check_finite=False)
        return _System(point, rows, give, tight, q, flat, M, factor)

    def solve(
        self, rhs: FloatArray, row: FloatArray, equal: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Changes of ``x``, of multipliers, of those of equalities, and ``S^-2 dx``."""
        A, cones, give = self.rows.A, self.point.cones, self.give
        n, count, tight, loose = len(self.point.x), A.shape[1], self.tight, ~self.tight
        rhs = rhs.copy()
        rhs[:count] += A[loose].T @ (row[loose] / give[loose])
        rhs = np.concatenate([rhs, equal, row[tight], np.zeros(len(cones))])
        solution: FloatArray = scipy.linalg.lu_solve(self.factor, rhs, check_finite=False)
        # One refinement: near the end the factor has lost half of its digits.
        solution += scipy.linalg.lu_solve(
            self.factor, rhs - self.matrix @ solution, check_finite=False
        )
        ends = np.cumsum([n, len(equal), int(tight.sum())])
        x, free, multipliers, y = np.split(solution, ends)
        lam = np.empty(len(row))
        lam[tight] = multipliers
        lam[loose] = (row[loose] - A[loose] @ x[:count]) / give[loose]
        return x, lam, free, self.q * y[:, None] + self.flat * x[cones]


class _Direction(NamedTuple):
    """A change of every part of a point."""

    x: FloatArray
    s: FloatArray
    xi: FloatArray
    lam: FloatArray
    free: FloatArray
    z: FloatArray


class _Scaling(NamedTuple):
    r"""The map :math:`S` of each cone with :math:`S z=S^{-1}x`, the vector ``both``:
    :math:`S=\eta(2vv^\top-J)` with :math:`J=\operatorname{diag}(1,-1,\dots,-1)`.

    Attributes:
        eta: ``(d_x,)``.
        v: ``(d_x, 1 + d_z)``.
        middle: ``(d_x, 1 + d_z)`` the middle of both points, brought to size one.
        both: ``(d_x, 1 + d_z)``.
    """

    eta: FloatArray
    v: FloatArray
    middle: FloatArray
    both: FloatArray

    @staticmethod
    def of(x: FloatArray, z: FloatArray) -> _Scaling | None:
        """The map of these points; ``None`` where one is on the boundary but for rounding."""
        x_size, z_size = _cone_squares(x), _cone_squares(z)
        if not (x_size.min() > 0.0 and z_size.min() > 0.0):
            return None
        x_size, z_size = np.sqrt(x_size), np.sqrt(z_size)
        x, z = x / x_size[:, None], z / z_size[:, None]
        # The Nesterov-Todd point of x and z, both brought to x^T J x = 1.
        middle = (x + _mirrored(z)) / np.sqrt(2.0 + 2.0 * _products(x, z))[:, None]
        v = middle.copy()
        v[:, 0] += 1.0
        v /= np.sqrt(2.0 * v[:, 0])[:, None]
        scaling = _Scaling(np.sqrt(x_size / z_size), v, middle, x)
        return scaling._replace(both=scaling.forth(z * z_size[:, None]))

    def forth(self, z: FloatArray) -> FloatArray:
        """:math:`Sz`."""
        turned: FloatArray = 2.0 * self.v * _products(self.v, z)[:, None] - _mirrored(z)
        return self.eta[:, None] * turned

    def back(self, x: FloatArray) -> FloatArray:
        """:math:`S^{-1}x`."""
        v = _mirrored(self.v)
        turned: FloatArray = 2.0 * v * _products(v, x)[:, None] - _mirrored(x)
        return turned / self.eta[:, None]

    def towards(
        self, mu: float, x: FloatArray | None = None, z: FloatArray | None = None
    ) -> FloatArray:
        """``r`` of ``dz = r - S^{-2} dx`` with which the product becomes ``mu``, less that of the
        changes ``x`` and ``z``.
        """
        # mu e - both o both, less the product of the changes in the scaled coordinates.
        short = -_jordan_product(self.both, self.both)
        short[:, 0] += mu
        if x is not None and z is not None:
            short -= _jordan_product(self.back(x), self.forth(z))
        return self.back(_jordan_quotient(self.both, short))


def _sum_by_position(index: IntArray, values: FloatArray, n: int) -> FloatArray:
    """``(n,)``: the sum of the values at each position."""
    return np.asarray(np.bincount(index.reshape(-1), values.reshape(-1), n), np.float64)


def _products(a: FloatArray, b: FloatArray) -> FloatArray:
    """``(k,)``: inner products of rows."""
    products: FloatArray = np.einsum("ki,ki->k", a, b)
    return products


def _mirrored(a: FloatArray) -> FloatArray:
    """:math:`Ja`."""
    turned = -a
    turned[:, 0] = a[:, 0]
    return turned


def _cone_squares(a: FloatArray) -> FloatArray:
    r""":math:`a^\top Ja`, which is positive inside the cone."""
    length = np.linalg.norm(a[:, 1:], axis=1)
    square: FloatArray = (a[:, 0] - length) * (a[:, 0] + length)
    return square


def _jordan_product(a: FloatArray, b: FloatArray) -> FloatArray:
    """The product of the algebra of the cone."""
    product: FloatArray = a[:, :1] * b + b[:, :1] * a
    product[:, 0] = _products(a, b)
    return product


def _jordan_quotient(a: FloatArray, b: FloatArray) -> FloatArray:
    """The vector whose product with ``a`` is ``b``."""
    square, along = _cone_squares(a), _products(a[:, 1:], b[:, 1:])
    quotient = np.empty_like(b)
    quotient[:, 0] = (a[:, 0] * b[:, 0] - along) / square
    quotient[:, 1:] = (b[:, 1:] - quotient[:, :1] * a[:, 1:]) / a[:, :1]
    return quotient


def _reach_of_numbers(a: FloatArray, by: FloatArray) -> float:
    """The largest multiple of a change that keeps numbers from becoming negative."""
    falls = by < 0.0
    return float((-a[falls] / by[falls]).min(initial=math.inf))


def _cone_reach(a: FloatArray, by: FloatArray) -> float:
    """The largest multiple of a change that keeps points in their cones: the smallest positive root
    of a quadratic function that is positive at zero.
    """
    # the function is size + 2 along t + square t^2
    square, size = _products(by, _mirrored(by)), _cone_squares(a)
    along = _products(a, _mirrored(by))
    root = np.sqrt(np.maximum(along * along - square * size, 0.0))
    has_end = (along * along >= square * size) & (root > along)
    return float((size[has_end] / (root - along)[has_end]).min(initial=math.inf))
