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
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lu_factor, lu_solve, qr

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.norms.lifts import RowLengths
from attsvm.solvers.programme import Programme, explicit_rows


@dataclass(frozen=True)
class ConicOptions:
    """Numbers of the method.

    Attributes:
        steps: at most; the programmes of the tests take 10 to 40.
        idle: steps without a smaller error after which rounding has the better of it,
        near: once the error is below this; before, the path may lead away for a while.
        short: share of the way to the boundary that a step goes at most; the customary one.
        apart: least distance of the start from the boundary, in units of the largest right-hand
            side and of the longest row; .01 to 1 take as many steps.
        dependent: pivot, over the largest, below which an equality depends on the others.
        entries: of the rows written out, and
        unknowns: of one system, up to which the method is worth its time: about a second a step.
    """

    steps: int = 80
    idle: int = 8
    near: float = 1e-3
    short: float = 0.99
    apart: float = 0.1
    dependent: float = 1e-10
    entries: int = 1 << 20
    unknowns: int = 2000


OPTIONS = ConicOptions()


def fits(p: Programme, options: ConicOptions = OPTIONS) -> bool:
    """Whether a programme is small enough for this method."""
    height = p.D.shape[1]
    return p.m * p.dof <= options.entries and p.dof + height <= options.unknowns


def finish(
    p: Programme,
    norm: RowLengths,
    W: FloatArray,
    error: Callable[[FloatArray, FloatArray], float],
    stop: tuple[float, float],
    options: ConicOptions = OPTIONS,
) -> tuple[FloatArray, FloatArray]:
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
        stop: the error that is aimed at, and the time.
        options: numbers of the method.
    """
    aim, deadline = stop
    # 1. Rows that say nothing, and equalities that follow from others.
    rows = _Rows.of(p, options)
    # 2. Start.
    point = _start(p, rows, norm.p == 1.0, W, options)
    best, least, idle = (W, rows.multipliers(point)), math.inf, 0
    for _ in range(options.steps):
        found = point.x[: p.dof].reshape(W.shape), rows.multipliers(point)
        size = error(*found)
        idle = 0 if size < least or least > options.near else idle + 1
        best, least = (found, size) if size < least else (best, least)
        if least <= aim or idle == options.idle or time.monotonic() > deadline:
            break
        following = _step(rows, point, options)
        if following is None:
            break
        point = following
    return best


class _Rows(NamedTuple):
    """The rows of a programme written out: inequalities ``A x + xi - s = b`` with multipliers up to
    ``cap``, and equalities ``E x = f``.
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
    def of(p: Programme, options: ConicOptions) -> _Rows:
        """The rows that say something."""
        every, some = np.arange(p.m), p.diagonal > 0.0
        other = -np.ones(p.m, np.int64) if p.opposite is None else p.opposite
        first = (p.b > 0.0) | ((p.b == 0.0) & (every < other))
        unequal = np.flatnonzero(some & (other < 0))
        equal = np.flatnonzero(some & (other >= 0) & first)
        E = explicit_rows(p, equal)
        if len(equal):
            length = np.sqrt(p.diagonal[equal])
            R, order = qr((E / length[:, None]).T, mode="r", pivoting=True)
            pivots = np.abs(np.diag(R))
            count = int((pivots > options.dependent * pivots[0]).sum())
            chosen = np.sort(order[:count])
            equal, E = equal[chosen], E[chosen]
        A, b, cap = explicit_rows(p, unequal), p.b[unequal], p.cap[unequal]
        return _Rows(A, b, cap, E, p.b[equal], unequal, equal, p)

    def multipliers(self, at: _Point) -> FloatArray:
        """Those of the rows of the programme; of a pair of opposite rows on the one that the sign
        says. Rows of zeros are missed whatever the weights are.
        """
        p = self.p
        dual = np.zeros(p.m) if p.hard else np.where(p.b > 0.0, p.cap, 0.0)
        dual[self.unequal] = at.lam
        if p.opposite is not None:
            dual[self.equal] = np.maximum(at.free, 0.0)
            dual[p.opposite[self.equal]] = np.maximum(-at.free, 0.0)
        return dual


class _Point(NamedTuple):
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


def _start(p: Programme, rows: _Rows, total: bool, W: FloatArray, options: ConicOptions) -> _Point:
    """Weights ``W`` with heights, slacks and multipliers at the same complementarity."""
    (d, e), count = W.shape, p.dof
    heights = np.arange(d) if total else np.zeros(d, np.int64)
    index = np.column_stack([count + heights, np.arange(count).reshape(d, e)])
    length = np.linalg.norm(W, axis=1)
    top = float(length.max()) or 1.0
    x = np.concatenate([W.reshape(-1), length + top if total else [2.0 * top]])
    cost = np.zeros(len(x))
    cost[count:] = 1.0
    soft = np.isfinite(rows.cap)
    values = rows.A @ x[:count] - rows.b
    far = options.apart * float(np.abs(p.b).max())
    xi = np.where(soft, np.maximum(far, -values), 0.0)
    s = np.maximum(values + xi, far)
    size = float(cost @ x)
    mu = size * (1.0 if p.hard else size) / (len(s) + int(soft.sum()) + d)
    lam = np.minimum(mu / s, 0.5 * rows.cap)
    cones = x[index]
    z = mu * _mirrored(cones) / _square(cones)[:, None]
    return _Point(index, cost, x, s, xi, lam, np.zeros(len(rows.f)), z)


def _step(rows: _Rows, at: _Point, options: ConicOptions) -> _Point | None:
    """The next point; ``None`` where rounding leaves none."""
    A, E, soft = rows.A, rows.E, np.isfinite(rows.cap)
    count, n, points = A.shape[1], len(at.x), at.x[at.cones]
    room = np.where(soft, rows.cap - at.lam, 1.0)
    norm = 1.0 if not soft.any() else float(at.cost @ at.x)
    mu = float(at.s @ at.lam) + float(at.xi @ (room * soft)) + float(np.vdot(points, at.z))
    mu /= len(at.s) + int(soft.sum()) + len(points)
    # What is missing of stationarity, and of the rows.
    pulled = _gathered(at.cones, at.z, n)
    pulled[:count] += A.T @ at.lam + E.T @ at.free
    gradient = norm * at.cost - pulled
    short = A @ at.x[:count] + at.xi - at.s - rows.b
    off = E @ at.x[:count] - rows.f
    # 3. Scale the cones and factorise the system.
    scaling = _Scaling.of(points, at.z)
    if scaling is None:
        return None
    give = at.s / at.lam + np.where(soft, at.xi / room, 0.0)
    system = _System.of(at, rows, scaling, give)
    if system is None:
        return None

    def direction(cone: FloatArray, row: FloatArray, over: FloatArray) -> _Direction:
        """Where the products are to change by these: ``dz = cone - S^-2 dx``,
        ``s dlam + lam ds = row`` and ``room dxi - xi dlam = over``.
        """
        fixed = short + np.where(soft, over / room, 0.0) - row / at.lam
        sides = _gathered(at.cones, cone, n) - gradient
        x, lam, free, pull = system.solved(sides, -fixed, -off)
        xi = np.where(soft, (over + at.xi * lam) / room, 0.0)
        return _Direction(x, short + A @ x[:count] + xi, xi, lam, free, cone - pull)

    def length(by: _Direction) -> float:
        """How far a direction goes, up to one, before it leaves a cone."""
        ends = [
            _reach(at.s, by.s),
            _reach(at.lam, by.lam),
            _reach(room[soft], -by.lam[soft]),
            _reach(at.xi[soft], by.xi[soft]),
            _cone_reach(points, by.x[at.cones]),
            _cone_reach(at.z, by.z),
        ]
        return min(1.0, *(options.short * end for end in ends))

    # 4. Predict.
    by = direction(scaling.towards(0.0), -at.s * at.lam, -at.xi * room)
    share = 1.0 - length(by)
    # 5. Correct.
    aim = share**3 * mu
    by = direction(
        scaling.towards(aim, by.x[at.cones], by.z),
        aim - at.s * at.lam - by.s * by.lam,
        np.where(soft, aim - at.xi * room + by.xi * by.lam, 0.0),
    )
    # 6. Step.
    t = length(by)
    if not (t > 0.0 and np.isfinite(by.x).all() and np.isfinite(by.z).all()):
        return None
    return at._replace(
        x=at.x + t * by.x,
        s=at.s + t * by.s,
        xi=at.xi + t * by.xi,
        lam=at.lam + t * by.lam,
        free=at.free + t * by.free,
        z=at.z + t * by.z,
    )


class _System(NamedTuple):
    r"""The linear system of a step, factorised.

    Large numbers belong to points near the boundary of their cone and to rows that are tight. Next
    to them small ones would be lost, so these have unknowns of their own: multipliers, and
    :math:`y_i=q_i^\top dx_i` where :math:`S_i^{-2}=q_iq_i^\top-J/\eta_i^2`.

    Attributes:
        matrix: of the unknowns ``x``, multipliers of equalities and of ``tight`` rows, and ``y``.
        factor: of it.
        tight: which rows have unknowns, the others being eliminated.
    """

    at: _Point
    rows: _Rows
    give: FloatArray
    tight: BoolArray
    q: FloatArray
    flat: FloatArray
    matrix: FloatArray
    factor: tuple[FloatArray, IntArray]

    @staticmethod
    def of(at: _Point, rows: _Rows, scaling: _Scaling, give: FloatArray) -> _System | None:
        """``None`` where it leaves float64."""
        n, cones, count = len(at.x), len(at.cones), rows.A.shape[1]
        tight = np.zeros(len(give), np.bool_)
        tight[np.argsort(give)[:n]] = True
        A, loose, equal = rows.A[tight], rows.A[~tight], len(rows.E)
        q = math.sqrt(2.0) * _mirrored(scaling.middle) / scaling.eta[:, None]
        flat = _mirrored(np.full_like(q, -1.0)) / (scaling.eta**2)[:, None]
        first, second = n + equal, n + equal + len(A)
        M = np.zeros((second + cones, second + cones))
        np.add.at(M, (at.cones, at.cones), flat)
        if not rows.p.hard:
            M[:n, :n] += np.multiply.outer(at.cost, at.cost)
        M[:count, :count] += loose.T @ (loose / give[~tight][:, None])
        M[n:first, :count], M[:count, n:first] = rows.E, -rows.E.T
        M[first:second, :count], M[:count, first:second] = A, -A.T
        M[range(first, second), range(first, second)] = give[tight]
        own = second + np.arange(cones)[:, None]
        M[own, at.cones], M[at.cones, own], M[own, own] = q, q, -1.0
        if not np.isfinite(M).all():
            return None
        return _System(at, rows, give, tight, q, flat, M, lu_factor(M, check_finite=False))

    def solved(
        self, sides: FloatArray, row: FloatArray, equal: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Changes of ``x``, of multipliers, of those of equalities, and ``S^-2 dx``."""
        A, index, give = self.rows.A, self.at.cones, self.give
        n, count, tight, loose = len(self.at.x), A.shape[1], self.tight, ~self.tight
        sides = sides.copy()
        sides[:count] += A[loose].T @ (row[loose] / give[loose])
        sides = np.concatenate([sides, equal, row[tight], np.zeros(len(index))])
        moved = lu_solve(self.factor, sides, check_finite=False)
        moved += lu_solve(self.factor, sides - self.matrix @ moved, check_finite=False)
        ends = np.cumsum([n, len(equal), int(tight.sum())])
        x, free, multipliers, y = np.split(moved, ends)
        lam = np.empty(len(row))
        lam[tight] = multipliers
        lam[loose] = (row[loose] - A[loose] @ x[:count]) / give[loose]
        return x, lam, free, self.q * y[:, None] + self.flat * x[index]


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
    """

    eta: FloatArray
    v: FloatArray
    middle: FloatArray
    both: FloatArray

    @staticmethod
    def of(x: FloatArray, z: FloatArray) -> _Scaling | None:
        """``None`` where a point is on the boundary but for rounding."""
        of_x, of_z = _square(x), _square(z)
        if not (of_x.min() > 0.0 and of_z.min() > 0.0):
            return None
        of_x, of_z = np.sqrt(of_x), np.sqrt(of_z)
        x, z = x / of_x[:, None], z / of_z[:, None]
        middle = (x + _mirrored(z)) / np.sqrt(2.0 + 2.0 * _products(x, z))[:, None]
        v = middle.copy()
        v[:, 0] += 1.0
        v /= np.sqrt(2.0 * v[:, 0])[:, None]
        made = _Scaling(np.sqrt(of_x / of_z), v, middle, x)
        return made._replace(both=made.forth(z * of_z[:, None]))

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
        short = -_jordan(self.both, self.both)
        short[:, 0] += mu
        if x is not None and z is not None:
            short -= _jordan(self.back(x), self.forth(z))
        return self.back(_divided(self.both, short))


def _gathered(index: IntArray, values: FloatArray, n: int) -> FloatArray:
    """``(n,)``, the sum of the values at each place."""
    return np.asarray(np.bincount(index.reshape(-1), values.reshape(-1), n), np.float64)


def _products(a: FloatArray, b: FloatArray) -> FloatArray:
    found: FloatArray = np.einsum("ki,ki->k", a, b)
    return found


def _mirrored(a: FloatArray) -> FloatArray:
    """:math:`Ja`."""
    turned = -a
    turned[:, 0] = a[:, 0]
    return turned


def _square(a: FloatArray) -> FloatArray:
    r""":math:`a^\top Ja`, which is positive inside the cone."""
    length = np.linalg.norm(a[:, 1:], axis=1)
    found: FloatArray = (a[:, 0] - length) * (a[:, 0] + length)
    return found


def _jordan(a: FloatArray, b: FloatArray) -> FloatArray:
    """The product of the algebra of the cone."""
    product: FloatArray = a[:, :1] * b + b[:, :1] * a
    product[:, 0] = _products(a, b)
    return product


def _divided(a: FloatArray, b: FloatArray) -> FloatArray:
    """The vector whose product with ``a`` is ``b``."""
    square, along = _square(a), _products(a[:, 1:], b[:, 1:])
    found = np.empty_like(b)
    found[:, 0] = (a[:, 0] * b[:, 0] - along) / square
    found[:, 1:] = (b[:, 1:] - found[:, :1] * a[:, 1:]) / a[:, :1]
    return found


def _reach(a: FloatArray, by: FloatArray) -> float:
    """The largest multiple of a change that keeps numbers from becoming negative."""
    falls = by < 0.0
    return float((-a[falls] / by[falls]).min(initial=math.inf))


def _cone_reach(a: FloatArray, by: FloatArray) -> float:
    """The largest multiple of a change that keeps points in their cones: the smallest positive root
    of a quadratic function that is positive at zero.
    """
    square, own = _products(by, _mirrored(by)), _square(a)
    along = _products(a, _mirrored(by))
    root = np.sqrt(np.maximum(along * along - square * own, 0.0))
    ends = (along * along >= square * own) & (root > along)
    return float((own[ends] / (root - along)[ends]).min(initial=math.inf))
