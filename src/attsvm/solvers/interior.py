r"""Interior points for the norms whose balls are polyhedra, :math:`\ell_1` and
:math:`\ell_\infty`: soft margins, and hard ones whose features have different units.

.. math:: \min_{W,\xi\ge0}\ \tfrac12 t^2+C\sum_c\xi_c \ \text{ s.t. }\ \langle A_c,W\rangle\ge
   b_c-\xi_c,\qquad t=\sum_e g_e|W_e| \ \text{ or }\ g_e|W_e|\le t,

and hard margins without :math:`\xi`, with :math:`g_e` what an entry counts once columns have one
size (:mod:`attsvm.solvers.units`): quadratic programmes of one square. Interior points (S.
Mehrotra, *On the implementation of a primal-dual interior point method*, 1992) come near the
solution and say which rows are met with equality and which entries move; these give one linear
system, whose solution is exact. With :math:`x=A^\top\lambda`, :math:`h_e=1/g_e` and multipliers
:math:`\zeta=C-\lambda` of the slacks, the norms mirror each other:

.. math:: \ell_\infty:\ u=th-w,\ v=th+w,\ z_u-z_v=x,\ t=h^\top(z_u+z_v);\qquad
   \ell_1:\ z_u=tg-x,\ z_v=tg+x,\ u-v=w,\ t=g^\top(u+v).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.solvers.outcomes import Request
from attsvm.solvers.programme import Programme, equilibrate, explicit_rows
from attsvm.solvers.units import Even, cancelled, with_digits

SOLVER = "interior points"
"""What solutions of this method name as their solver."""

_EPS = float(np.finfo(np.float64).eps)

Saddle = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True)
class InteriorOptions:
    """Numbers of the method of this module.

    Attributes:
        largest: entries of the written-out rows up to which the method is tried; a step
            then takes some hundredths of a second.
        light: size of small multipliers, in tolerances of the objective that they cost.
        near: gap, in tolerances, from which digits of multipliers are worth their time.
        lattice: seconds that must be left for the last digits of multipliers, which take one.
        widest: equations of a factor.
        careful: equations up to which systems are solved by orthogonal factors, which keep the
            digits of small rows beside large ones.
        ridge: of equalities in these systems, as a share of what inequalities have.
        early: iterations after which the exact system is tried whatever the gap.
        free: shares of the norm that an entry costs at least in second attempts, in l1 and linf.
        smallest: products, in units of the norm's square, at which nothing is left to do.
        iterations: at most; thirty are usual.
        patience: iterations without half the gap that end it.
        boundary: share of the way to the boundary that a step takes.
        aim: relative gap at which nothing is left to do.
        clear: relative gap from which rows and entries are told apart, and every iteration tries
            the exact system.
    """

    largest: int = 1 << 18
    light: float = 0.05
    near: float = 1e4
    lattice: float = 1.0
    widest: int = 1600
    careful: int = 160
    ridge: float = 1e-12
    early: int = 20
    smallest: float = 1e-22
    free: tuple[tuple[float, ...], ...] = ((1e-12,), (1e-6, 1e-4))
    iterations: int = 200
    patience: int = 15
    boundary: float = 0.995
    aim: float = 1e-12
    clear: float = 1e-3


class _Point(NamedTuple):
    """Weights, their two parts, the reduced costs of these, rows: slack, multiplier, what is
    missed, its multiplier; and the norm.
    """

    w: FloatArray
    u: FloatArray
    v: FloatArray
    zu: FloatArray
    zv: FloatArray
    s: FloatArray
    lam: FloatArray
    xi: FloatArray
    zeta: FloatArray
    t: float

    def pairs(self, plain: BoolArray) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """Those whose products go to zero; of the rows only inequalities, which are ``plain``."""
        rows = self.s[plain], self.lam[plain]
        return (self.u, self.zu), (self.v, self.zv), rows, (self.xi, self.zeta)

    def mean(self, plain: BoolArray) -> float:
        """The mean of these products."""
        return float(np.mean(np.concatenate([a * b for a, b in self.pairs(plain)])))


class InteriorPoints:
    r"""One solve: the programme with columns and rows of one size.

    Args:
        even: the programme with columns of one size, in which rows marked in ``free`` are met with
            equality.
        box: the norm is that of :math:`\ell_\infty`.
        request: tolerance, penalty and time.
        free: ``(m,)`` equalities, of hard margins only.
        consider: takes weights and multipliers of the caller's programme, and returns their
            certified error.
        options: numbers of the method.
        start: weights of ``even`` near which to begin; they meet hard margins.
    """

    def __init__(
        self,
        even: Even,
        box: bool,
        request: Request,
        free: BoolArray,
        consider: Callable[[FloatArray, FloatArray], float],
        options: InteriorOptions,
        start: FloatArray | None = None,
    ) -> None:
        self.even, self.box, self.request, self.options = even, box, request, options
        self.free, self.consider, self.start = free, consider, start
        self.soft = request.slack is not None
        self.iterations = 0
        p: Programme = equilibrate(even.margins, request.slack)
        self.p, self.A = p, explicit_rows(p, np.arange(p.m))
        self.cost, self.b, self.C = even.costs(), p.b, p.cap
        self.g = self.cost  # or more
        self.top = 0.0  # the least norm of weights that meet hard margins
        if start is not None:
            self.start = np.ldexp(start, -p.weight_exponent).reshape(-1)
        self.error = np.inf
        self.tried: set[bytes] = set()

    def run(self) -> None:
        """Interior points; of hard margins that they do not solve again with entries that cost
        next to nothing at a little more, which hardly moves the solution and keeps its digits.
        """
        self._run()
        for share in self.options.free[self.box]:
            if self.soft or self.error <= self.request.tol or self.request.late or not self.top:
                return
            self.g = np.maximum(self.g, share * self.top)
            self.tried.clear()
            self.error = np.inf
            self._run()

    def _run(self) -> None:
        """Interior points, and the exact system of every new guess of the solution's rows and
        entries.
        """
        at, idle, least, nearest = self._begin(), 0, np.inf, np.inf
        for iteration in range(self.options.iterations):
            self.iterations = iteration
            before = self.error
            self._consider(at.w, at.lam)
            if self.error < self.options.clear or iteration > self.options.early:
                self._exact(at)
            mean, missing = at.mean(~self.free), float(np.abs(self._missing(at)).max())
            clear = before < self.options.clear
            coming = self.error < (0.5 if clear else 0.99) * before
            coming |= mean < 0.5 * least or (missing < 0.9 * nearest and not clear)
            idle = 0 if coming else idle + 1
            least, nearest = min(least, mean), min(nearest, missing)
            done = self.error <= min(self.options.aim, self.request.tol)
            late = idle > self.options.patience or self.request.late
            done |= mean < self.options.smallest * at.t * at.t
            enough = self.error <= self.request.tol and idle > 2
            following = None if done or late or enough else self._step(at)
            if following is None:
                break
            at = following
        if self.even.uneven and self.error > self.request.tol:
            self._digits(at.w, at.lam, np.zeros(len(self.b), dtype=np.bool_))

    def _missing(self, at: _Point) -> FloatArray:
        """What rows miss to their right-hand sides, slacks included."""
        missing = self.b - self.A @ at.w + at.s
        return missing - at.xi if self.soft else missing

    def _begin(self) -> _Point:
        """Products of one size: hard margins at twice the weights that are known to meet them, soft
        ones at a norm that is of the size of the solution's, that of all multipliers at their
        bound, or what the rows together ask for at least.
        """
        A, g, b, C = self.A, self.g, self.b, self.C
        w, s = np.zeros(len(g)), np.full(len(b), max(float(b.max()), 1.0))
        if self.start is not None:
            w = 2.0 * self.start
            s = np.maximum(A @ w - b, 0.1 * float(b.max()))
            t = 2.0 * self._size(w)
        else:
            together = (b > 0.0).astype(float) @ A
            every = C @ A
            least = float(b[b > 0.0].sum()) / max(self._dual_size(together), 1e-300)
            t = min(least, self._dual_size(every))
        t = t if 0.0 < t < np.inf else 1.0
        s[self.free] = 0.0
        lam = np.where(self.free, 0.0, np.minimum(0.5 * C, t * t / float(np.abs(b).sum())))
        zeta = (C - lam)[: len(b) * self.soft]
        mu = float(np.mean(lam * s)) or 1.0
        lam[~self.free] = np.minimum(mu / s[~self.free], 0.5 * C[~self.free])
        if self.box:
            u, v = t / g - w, t / g + w
            zu, zv = mu / u, mu / v
        else:
            # cheap entries would be far larger than they can be
            u = np.maximum(w, 0.0) + np.minimum(0.5 * t / (len(g) * g), 10.0 + np.abs(w).max())
            v = u - w
            zu, zv = mu / u, mu / v
        xi = mu / zeta
        if self.soft and self.start is not None:
            xi = np.maximum(b - A @ w, 0.1 * float(b.max()))
        return _Point(w, u, v, zu, zv, s, lam, xi, zeta, t)

    def _size(self, w: FloatArray) -> float:
        """The norm."""
        sizes = self.g * np.abs(w)
        return float(sizes.max() if self.box else sizes.sum())

    def _dual_size(self, x: FloatArray) -> float:
        """The dual norm."""
        sizes = np.abs(x) / self.g
        return float(sizes.sum() if self.box else sizes.max())

    def _step(self, at: _Point) -> _Point | None:
        """One predictor and corrector; ``None`` where the matrix has no factor."""
        A, g, plain = self.A, self.g, ~self.free
        x = at.lam @ A
        alpha, beta = at.zu / at.u, at.zv / at.v
        if self.box:
            inverse, sign = alpha + beta, -1.0
        else:
            inverse, sign = 1.0 / (1.0 / alpha + 1.0 / beta), 1.0
        E = np.where(plain, at.s / np.where(plain, at.lam, 1.0), 0.0)
        missing = self._missing(at)
        short = self.C - at.lam - at.zeta if self.soft else at.zeta
        if self.soft:
            E = E + at.xi / at.zeta
        E[self.free] = self.options.ridge * float(np.mean(E)) + 1e-300
        saddle = self._saddle(inverse, E)
        if saddle is None:
            return None
        h, mu = 1.0 / g, at.mean(plain)
        products = [-a * b for a, b in at.pairs(plain)]
        direction: _Point | None = None
        share = 1.0
        for corrected in (False, True):
            ru, rv, rs, rx = products
            p = missing.copy()
            p[plain] += rs / at.lam[plain]
            if self.soft:
                p -= (rx - at.xi * short) / at.zeta
            if self.box:
                q = x - (at.zu - at.zv) - ru / at.u + rv / at.v
                kappa = (alpha - beta) * h
                total = 1.0 + float((h * h) @ (alpha + beta))
                side = float(h @ (at.zu + at.zv + ru / at.u + rv / at.v)) - at.t
            else:
                pu, pv = at.t * g - x - at.zu, at.t * g + x - at.zv
                first, second = 1.0 / alpha, 1.0 / beta
                c = ru / at.zu - rv / at.zv - first * pu + second * pv
                bend = -(first - second) * g
                q, kappa = c * inverse, bend * inverse
                both = ru / at.zu + rv / at.zv - first * pu - second * pv
                total = 1.0 + float((g * g) @ (first + second)) - float(bend @ kappa)
                side = float(g @ (at.u + at.v + both)) - at.t + float(bend @ q)
            w1, l1 = saddle(q, p)
            w2, l2 = saddle(kappa, np.zeros_like(p))
            under = total + sign * float(kappa @ w2)
            if not abs(under) > 0.0:
                return None
            dt = (side - sign * float(kappa @ w1)) / under
            dw, dlam = w1 + dt * w2, l1 + dt * l2
            if self.box:
                du, dv = h * dt - dw, h * dt + dw
                dzu, dzv = ru / at.u - alpha * du, rv / at.v - beta * dv
            else:
                # without dlam, which has no digits for the reduced costs of cheap entries
                both = ru / at.u + rv / at.v - 2.0 * g * dt - pu - pv
                dv = (both - alpha * dw) / (alpha + beta)
                du = dw + dv
                dzu, dzv = (ru - at.zu * du) / at.u, (rv - at.zv * dv) / at.v
            ds = np.zeros_like(at.s)
            ds[plain] = (rs - at.s[plain] * dlam[plain]) / at.lam[plain]
            dzeta = short - dlam if self.soft else at.zeta
            dxi = (rx - at.xi * dzeta) / at.zeta
            direction = _Point(dw, du, dv, dzu, dzv, ds, dlam, dxi, dzeta, dt)
            share = min(  # the norm is in both, so both take the same step
                _reach(a, da)
                for pair, change in zip(at.pairs(plain), direction.pairs(plain), strict=True)
                for a, da in zip(pair, change, strict=True)
            )
            if not np.isfinite(dt) or corrected:
                break
            then = at_plus(at, direction, share).mean(plain)
            target = mu * max(then / mu, 0.0) ** 3
            products = [
                target - a * b - da * db
                for (a, b), (da, db) in zip(at.pairs(plain), direction.pairs(plain), strict=True)
            ]
        assert direction is not None
        if not np.isfinite(direction.t):
            return None
        found = at_plus(at, direction, min(1.0, self.options.boundary * share))
        if not self.box:
            found = found._replace(w=found.u - found.v)
        return found

    def _saddle(self, inverse: FloatArray, E: FloatArray) -> Saddle | None:
        """Solutions of ``inverse dw - A^T dlam = q``, ``A dw + E dlam = p``."""
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        A = self.A
        m, k = A.shape
        if not (np.isfinite(inverse).all() and np.isfinite(E).all()):
            return None
        if m + k <= self.options.careful:
            # each unknown by least squares of its own, so that neither is a small difference
            root, rest = np.sqrt(inverse), np.sqrt(E)
            rows = _least_squares(np.vstack([A.T / root[:, None], np.diag(rest)]))
            entries = _least_squares(np.vstack([A / rest[:, None], np.diag(root)]))
            if rows is None or entries is None:
                return None

            def careful(q: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
                dw = entries(np.concatenate([p / rest, q / root]))
                return dw, rows(np.concatenate([-q / root, p / rest]))

            return careful
        try:
            if m <= k:
                factor = cho_factor((A / inverse) @ A.T + np.diag(E), check_finite=False)

                def by_rows(q: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
                    dlam = cho_solve(factor, p - A @ (q / inverse), check_finite=False)
                    left = p - A @ ((q + dlam @ A) / inverse) - E * dlam
                    dlam = dlam + cho_solve(factor, left, check_finite=False)
                    return (q + dlam @ A) / inverse, dlam

                return by_rows
            factor = cho_factor(A.T @ (A / E[:, None]) + np.diag(inverse), check_finite=False)

            def by_entries(q: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
                dw = cho_solve(factor, q + (p / E) @ A, check_finite=False)
                left = q + ((p - A @ dw) / E) @ A - inverse * dw
                dw = dw + cho_solve(factor, left, check_finite=False)
                return dw, (p - A @ dw) / E

            return by_entries
        except LinAlgError:
            return None

    def _exact(self, at: _Point) -> None:
        """The solution of the rows and entries that the point says: of rows between their bounds
        the margin is met, and of entries that move the reduced cost is zero.
        """
        A, g, C = self.A, self.g, self.C
        if self.box:
            moving = np.minimum(at.u, at.v) * g * at.t > np.maximum(at.zu, at.zv) / g
        else:
            moving = np.maximum(at.u, at.v) * g * g > np.minimum(at.zu, at.zv)
        upper = np.zeros(len(self.b), dtype=np.bool_)
        most, largest = np.full(len(self.b), np.abs(at.lam).max()), float(np.abs(self.b).max())
        if self.soft:
            upper = (at.lam > 0.5 * C) & (at.xi / largest > at.zeta / np.minimum(C, most))
            most = np.minimum(C, most)
        tight = self.free | (~upper & (at.lam / most > at.s / largest))
        guess = moving.tobytes() + upper.tobytes() + tight.tobytes()
        if guess in self.tried:
            return
        self.tried.add(guess)
        T, M = np.flatnonzero(tight), np.flatnonzero(moving)
        size = len(T) + len(M) + 1
        if size > self.options.widest:
            return
        sign = np.sign(at.w)
        held = np.where(moving, 0.0, sign / g) if self.box else np.zeros(len(g))
        cost = np.zeros(len(M)) if self.box else sign[M] * g[M]
        fixed = np.where(upper, C, 0.0) if self.soft else np.zeros(len(self.b))
        pulled = fixed @ A
        # unknowns: entries that move, the norm, multipliers of tight rows
        S = np.zeros((size, size))
        r = np.zeros(size)
        rows, m = A[T], len(M)
        S[: len(T), :m], S[: len(T), m] = rows[:, M], rows @ held
        r[: len(T)] = self.b[T]
        S[len(T) : -1, m + 1 :], S[len(T) : -1, m] = rows[:, M].T, -cost
        r[len(T) : -1] = -pulled[M]
        if self.box:
            S[-1, m], S[-1, m + 1 :], r[-1] = 1.0, -(rows @ held), float(pulled @ held)
        else:
            S[-1, m], S[-1, :m] = 1.0, -cost
        scale = np.abs(S).max(axis=1)
        scale[scale == 0.0] = 1.0
        S, r = S / scale[:, None], r / scale
        columns = np.abs(S).max(axis=0)
        columns[columns == 0.0] = 1.0
        start = np.concatenate([at.w[M], [at.t], at.lam[T]])
        y = start.copy()
        inverse = np.linalg.pinv(S / columns, rcond=1e-14) if size <= 400 else None
        if inverse is None:
            return
        for _ in range(3):
            y = y + (inverse @ (r - S @ y)) / columns
        w = held * y[m]
        w[M] = y[:m]
        lam = fixed.copy()
        lam[T] = np.minimum(np.where(self.free[T], y[m + 1 :], np.maximum(y[m + 1 :], 0.0)), C[T])
        self._consider(w, lam)
        if self.even.uneven and self.error > self.request.tol:
            self._digits(w, lam, upper)

    def _digits(self, w: FloatArray, lam: FloatArray, held: BoolArray) -> None:
        """Multipliers that cancel where cheap entries ask for more digits than they have."""
        shape, tol = self.even.powers.shape, self.request.tol
        g, size = self.cost.reshape(shape), np.abs(w).reshape(shape)
        noise = (_EPS * (np.abs(lam) @ np.abs(self.A))).reshape(shape)
        t = float((g * size).max() if self.box else (g * size).sum())
        if not t > 0.0:
            return
        reach = t * g
        if self.box:  # the adjoint vanishes on entries that are not at their bound
            entries: BoolArray = g * size < (1.0 - 1e-9) * t
            fine = entries & (noise > 1e-13 * reach)
            aim = np.zeros(shape)
            near = 0.1 * tol / max(int(entries.sum()), 1) * reach
        else:  # and is at its bound on those that are not zero, or within it by its rounding
            fine = noise > 1e-11 * reach
            entries = (g * size > 1e-9 * t) | fine
            aim = reach * (1.0 - np.minimum(0.5, 16.0 * noise / reach))
            aim = np.clip((lam @ self.A).reshape(shape), -aim, aim)
            near = np.minimum(8.0 * noise, 0.25 * reach)
        short = self.b - self.A @ w
        value = t * t
        if self.soft:
            value = 0.5 * value + float(self.C @ np.maximum(short, 0.0))

        def gap(dual: FloatArray) -> float:
            """The gap that is left when fine entries have their digits."""
            pull = (np.abs(dual @ self.A).reshape(shape) / g)[~fine]
            size = float(pull.sum() if self.box else pull.max(initial=0.0))
            bound = float(self.b @ dual)
            if self.soft:
                return (value - bound + 0.5 * size * size) / value
            return 1.0 - bound / (t * size) if size > 0.0 else 0.0

        if not fine.any() or gap(lam) > self.options.near * tol:
            return
        weight = float(np.maximum(-short, 0.0).sum()) + float(self.b.max())
        least = np.where(self.free, 0.0, self.options.light * tol * value / weight)
        for raised in (np.minimum(least, 0.5 * self.C), np.zeros_like(least)):
            better = cancelled(self.p, lam, aim, entries, fine, raised, held)
            self._consider(w, better)
            if self.error > tol and gap(better) <= tol and self.request.left > self.options.lattice:
                share = self.options.light * tol
                self._consider(w, with_digits(self.p, better, aim, fine, near, share, held))
            if self.error <= tol:
                return

    def _consider(self, w: FloatArray, lam: FloatArray) -> None:
        """Hand a point over, to be certified; remember the best weights."""
        if not self.soft and np.isfinite(w).all():
            some = self.b > 0.0
            ratio = float(((self.A @ w)[some] / self.b[some]).min())
            sizes = self.cost * np.abs(w)
            top = float(sizes.max() if self.box else sizes.sum()) / ratio if ratio > 0.0 else 0.0
            if 0.0 < top < (self.top or np.inf):
                self.top, self.start = top, w / ratio
        W, dual = self.p.restored(w.reshape(self.even.powers.shape), lam)
        W = self.even.restored(W)
        if np.isfinite(W).all() and np.isfinite(dual).all():
            self.error = min(self.error, self.consider(W, dual))


def _least_squares(M: FloatArray) -> Callable[[FloatArray], FloatArray] | None:
    """Solutions by orthogonal factors, of rows in falling order and columns that are exchanged:
    small rows keep their digits beside large ones (A. J. Cox and N. J. Higham, *Stability of
    Householder QR factorization for weighted least squares problems*, 1998). ``None`` of dependent
    columns.
    """
    from scipy.linalg import qr, solve_triangular

    order = np.argsort(-np.abs(M).max(axis=1), kind="stable")
    Q, R, columns = qr(M[order], mode="economic", pivoting=True, check_finite=False)
    if not (np.diag(R) != 0.0).all():
        return None

    def solution(right: FloatArray) -> FloatArray:
        found = np.empty(len(columns))
        found[columns] = solve_triangular(R, Q.T @ right[order], check_finite=False)
        return found

    return solution


def at_plus(at: _Point, direction: _Point, share: float) -> _Point:
    """The point a share of the way along a direction."""
    moved: list[Any] = [a + share * d for a, d in zip(at, direction, strict=True)]  # type: ignore[operator]
    return _Point(*moved)


def _reach(numbers: FloatArray, change: FloatArray) -> float:
    """The step, at most 1, that leaves positive numbers positive."""
    return 1.0 / max(float((-change / numbers).max(initial=0.0)), 1.0)
