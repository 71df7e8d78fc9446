r"""Soft margins in the norms whose balls are polyhedra, :math:`\ell_1` and :math:`\ell_\infty`.

.. math:: \min_{W,\xi\ge0}\ \tfrac12 t^2+C\sum_c\xi_c \ \text{ s.t. }\ \langle A_c,W\rangle\ge
   b_c-\xi_c,\qquad t=\sum_e g_e|W_e| \ \text{ or }\ g_e|W_e|\le t,

with :math:`g_e` what an entry counts once columns have one size (:mod:`attsvm.solvers.columns`):
quadratic programmes of one square. Interior points (S. Mehrotra, *On the implementation of a
primal-dual interior point method*, 1992) come near the solution and say which rows are met with
equality and which entries move; these give one linear system, whose solution is exact. With
:math:`x=A^\top\lambda`, :math:`h_e=1/g_e` and multipliers :math:`\zeta=C-\lambda` of the slacks, the
norms mirror each other:

.. math:: \ell_\infty:\ u=th-w,\ v=th+w,\ z_u-z_v=x,\ t=h^\top(z_u+z_v);\qquad
   \ell_1:\ z_u=tg-x,\ z_v=tg+x,\ u-v=w,\ t=g^\top(u+v).

Programmes that are too large for dense factors are left to :mod:`attsvm.solvers.splitting`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.geometry import Lp, Norm
from attsvm.margins import Margins
from attsvm.solvers import splitting
from attsvm.solvers.columns import Even, cancelled, evened
from attsvm.solvers.facts import unique_weights
from attsvm.solvers.outcomes import Request, solved, zero_solution
from attsvm.solvers.programme import Programme, equilibrate, explicit_rows
from attsvm.solvers.proofs import Certificate, certify_soft
from attsvm.solvers.solution import MarginSolution

SOLVER = "interior points"
_EPS = float(np.finfo(np.float64).eps)

Saddle = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True)
class HingedOptions:
    """Numbers of the method of this module.

    Attributes:
        largest: entries of the written-out rows up to which the method is tried; 256 MB.
        widest: equations of a factor.
        careful: equations up to which systems are solved by orthogonal factors, which keep the
            digits of small rows beside large ones.
        iterations: at most; thirty are usual.
        patience: iterations without half the gap that end it.
        boundary: share of the way to the boundary that a step takes.
        aim: relative gap at which nothing is left to do.
        clear: relative gap from which rows and entries are told apart, and every iteration tries
            the exact system.
    """

    largest: int = 1 << 25
    widest: int = 1600
    careful: int = 160
    iterations: int = 100
    patience: int = 15
    boundary: float = 0.995
    aim: float = 1e-12
    clear: float = 1e-3


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what comes of it is certified
def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    assert isinstance(norm, Lp)
    assert request.slack is not None
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    options = HingedOptions()
    k = margins.shape[0] * margins.shape[1]
    if margins.m * k > options.largest or min(margins.m, k) > options.widest:
        return splitting.solve(margins, norm, request)
    search = _Search(margins, norm, request, options)
    search.run()
    found = search.best
    if found is not None and (found.gap <= request.tol or request.late):
        solution = solved(margins, found, request, SOLVER, search.iterations)
        return replace(solution, geometry=norm, unique=unique_weights(solution, norm.p))
    left = None if request.max_seconds is None else max(request.left, 1e-9)
    other = splitting.solve(margins, norm, replace(request, max_seconds=left))
    if found is None or other.gap <= found.gap:
        return other
    solution = solved(margins, found, request, SOLVER, search.iterations)
    return replace(solution, geometry=norm)


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

    def pairs(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """Those whose products go to zero."""
        return (self.u, self.zu), (self.v, self.zv), (self.s, self.lam), (self.xi, self.zeta)

    def mean(self) -> float:
        """The mean of these products."""
        return float(np.mean(np.concatenate([a * b for a, b in self.pairs()])))


class _Search:
    """One solve: the programme with columns and rows of one size, and the best certificate."""

    def __init__(
        self, margins: Margins, norm: Lp, request: Request, options: HingedOptions
    ) -> None:
        self.margins, self.norm, self.request, self.options = margins, norm, request, options
        self.box = norm.p != 1.0
        self.even: Even = evened(margins)
        self.best: Certificate | None = None
        self.iterations = 0
        p: Programme = equilibrate(self.even.margins, request.slack)
        self.p, self.A = p, explicit_rows(p, np.arange(p.m))
        # right-hand sides in units of one, and costs of which the largest is one
        self.g, self.b, self.C = self.even.costs(), p.b, p.cap
        self.tried: bytes = b""

    def run(self) -> None:
        """Interior points, and the exact system of every new guess of the solution's rows and
        entries.
        """
        at = self._begin()
        idle = 0
        for self.iterations in range(1, self.options.iterations + 1):
            before = np.inf if self.best is None else self.best.gap
            self._consider(at.w, at.lam)
            assert self.best is not None
            if self.best.gap < self.options.clear:
                self._exact(at)
            gap = self.best.gap
            coming = gap < (0.99 if before > self.options.clear else 0.5) * before
            idle = 0 if coming else idle + 1
            done = gap <= min(self.options.aim, self.request.tol)
            late = idle > self.options.patience or self.request.late
            enough = gap <= self.request.tol and idle > 2
            if done or late or enough:
                return
            following = self._step(at)
            if following is None:
                return
            at = following

    def _begin(self) -> _Point:
        """Products of one size, at a norm that is of the size of the solution's: that of all
        multipliers at their bound, or what the rows together ask for at least.
        """
        A, g, b, C = self.A, self.g, self.b, self.C
        k = A.shape[1]
        every = np.abs(C @ A) / g
        together = np.abs((b > 0.0).astype(float) @ A) / g
        dual = (np.sum, np.max)[not self.box]
        t = min(float(dual(every)), float(b.sum() / dual(together)))
        t = t if 0.0 < t < np.inf else 1.0
        s = np.full(len(b), max(float(b.max()), 1.0))
        lam = np.minimum(0.5 * C, t * t / float(b.sum()))
        zeta = C - lam
        mu = float(np.mean(lam * s))
        wide = t / g if self.box else t * g
        u, z = (wide, mu / wide) if self.box else (mu / wide, wide)
        w = np.zeros(k)
        return _Point(w, u, u.copy(), z, z.copy(), s, lam, mu / zeta, zeta, t)

    def _step(self, at: _Point) -> _Point | None:
        """One predictor and corrector; ``None`` where the matrix has no factor."""
        A, g = self.A, self.g
        x = at.lam @ A
        alpha, beta = at.zu / at.u, at.zv / at.v
        if self.box:
            inverse, sign = alpha + beta, -1.0
        else:
            inverse, sign = 1.0 / (1.0 / alpha + 1.0 / beta), 1.0
        E = at.s / at.lam + at.xi / at.zeta
        saddle = self._saddle(inverse, E)
        if saddle is None:
            return None
        missing = self.b - A @ at.w - at.xi + at.s
        short = self.C - at.lam - at.zeta
        h = 1.0 / g
        mu = at.mean()
        products = [-a * b for a, b in at.pairs()]
        direction: _Point | None = None
        one = two = 1.0
        for corrected in (False, True):
            ru, rv, rs, rx = products
            p = missing + rs / at.lam - (rx - at.xi * short) / at.zeta
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
            dt = (side - sign * float(kappa @ w1)) / (total + sign * float(kappa @ w2))
            dw, dlam = w1 + dt * w2, l1 + dt * l2
            if self.box:
                du, dv = h * dt - dw, h * dt + dw
                dzu, dzv = ru / at.u - alpha * du, rv / at.v - beta * dv
            else:
                dx = dlam @ A
                dzu, dzv = g * dt - dx + pu, g * dt + dx + pv
                du, dv = (ru - at.u * dzu) / at.zu, (rv - at.v * dzv) / at.zv
            ds = (rs - at.s * dlam) / at.lam
            dzeta = short - dlam
            dxi = (rx - at.xi * dzeta) / at.zeta
            direction = _Point(dw, du, dv, dzu, dzv, ds, dlam, dxi, dzeta, dt)
            one = _reach((at.u, du), (at.v, dv), (at.s, ds), (at.xi, dxi))
            two = _reach((at.zu, dzu), (at.zv, dzv), (at.lam, dlam), (at.zeta, dzeta))
            one = two = min(one, two)  # the norm is in both
            if not np.isfinite(dt) or corrected:
                break
            then = at_plus(at, direction, one).mean()
            target = mu * max(then / mu, 0.0) ** 3
            products = [
                target - a * b - da * db
                for (a, b), (da, db) in zip(at.pairs(), direction.pairs(), strict=True)
            ]
        assert direction is not None
        if not np.isfinite(direction.t):
            return None
        found = at_plus(at, direction, min(1.0, self.options.boundary * one))
        if not self.box:
            found = found._replace(w=found.u - found.v)
        return found

    def _saddle(self, inverse: FloatArray, E: FloatArray) -> Saddle | None:
        """Solutions of ``inverse dw - A^T dlam = q``, ``A dw + E dlam = p``."""
        from scipy.linalg import LinAlgError, cho_factor, cho_solve, qr, solve_triangular

        A = self.A
        m, k = A.shape
        if not (np.isfinite(inverse).all() and np.isfinite(E).all()):
            return None
        if m + k <= self.options.careful:
            # rows in falling order, and columns exchanged: small ones keep their digits
            root, rest = np.sqrt(inverse), np.sqrt(E)
            M = np.vstack([A.T / root[:, None], np.diag(rest)])
            order = np.argsort(-np.abs(M).max(axis=1), kind="stable")
            Q, R, columns = qr(M[order], mode="economic", pivoting=True, check_finite=False)

            def careful(q: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
                right = np.concatenate([-q / root, p / rest])[order]
                dlam = np.empty(m)
                dlam[columns] = solve_triangular(R, Q.T @ right, check_finite=False)
                return (q + dlam @ A) / inverse, dlam

            return careful if (np.diag(R) != 0.0).all() else None
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
        upper = at.xi * at.lam.max() > at.zeta * max(float(at.s.max()), 1e-300)
        upper = at.xi > at.zeta * (at.t / max(float(C.max()), 1e-300)) if not upper.any() else upper
        tight = ~upper & (at.lam * (1.0 + np.abs(self.b)) > at.s * at.mean() ** 0.5)
        upper = (at.lam > 0.5 * C) & (at.xi / np.abs(self.b).max() > at.zeta / C)
        tight = ~upper & (at.lam / C > at.s / np.abs(self.b).max())
        guess = moving.tobytes() + upper.tobytes() + tight.tobytes()
        if guess == self.tried:
            return
        self.tried = guess
        T, M = np.flatnonzero(tight), np.flatnonzero(moving)
        size = len(T) + len(M) + 1
        if size > self.options.widest:
            return
        sign = np.sign(at.w)
        held = np.where(moving, 0.0, sign / g) if self.box else np.zeros(len(g))
        cost = np.zeros(len(M)) if self.box else sign[M] * g[M]
        fixed = np.where(upper, C, 0.0)
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
        lam[T] = np.clip(y[m + 1 :], 0.0, C[T])
        self._consider(w, lam)
        if self.even.uneven and not self._good():
            self._digits(w, lam)

    def _digits(self, w: FloatArray, lam: FloatArray) -> None:
        """Multipliers that cancel where cheap entries ask for more digits than they have."""
        shape = self.even.powers.shape
        g, size = self.g.reshape(shape), np.abs(w).reshape(shape)
        noise = (_EPS * (lam @ np.abs(self.A))).reshape(shape)
        t = float((g * size).max() if self.box else (g * size).sum())
        if not t > 0.0:
            return
        reach = t * g
        if self.box:
            entries: BoolArray = g * size < (1.0 - 1e-9) * t
            fine = entries & (noise > 1e-13 * reach)
            aim = np.zeros(shape)
        else:
            fine = noise > 1e-11 * reach
            entries = (g * size > 1e-9 * t) | fine
            aim = reach * (1.0 - np.minimum(0.5, 16.0 * noise / reach))
            aim = np.clip((lam @ self.A).reshape(shape), -aim, aim)
        if not fine.any():
            return
        room = np.maximum(self.A @ w - self.b, 0.0)
        value = 0.5 * t * t + float(self.C @ np.maximum(self.b - self.A @ w, 0.0))
        least = 0.05 * self.request.tol * value / (float(room.sum()) + value / float(self.C.min()))
        better = cancelled(self.p, lam, aim, entries, fine, np.full(len(lam), least))
        self._consider(w, better)

    def _consider(self, w: FloatArray, lam: FloatArray) -> None:
        """Keep a point if it is better certified than what is there."""
        W, dual = self.p.restored(w.reshape(self.even.powers.shape), np.clip(lam, 0.0, self.C))
        W = self.even.restored(W)
        if not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return
        slack = self.request.slack
        assert slack is not None
        found = certify_soft(self.margins, self.norm, W, np.minimum(dual, slack), slack)
        if self.best is None or found.gap < self.best.gap:
            self.best = found

    def _good(self) -> bool:
        return self.best is not None and self.best.gap <= self.request.tol


def at_plus(at: _Point, direction: _Point, share: float) -> _Point:
    """The point a share of the way along a direction."""
    return _Point(*(a + share * d for a, d in zip(at, direction, strict=True)))


def _reach(*pairs: tuple[FloatArray, FloatArray]) -> float:
    """The step, at most 1, that leaves positive numbers positive."""
    most = max(float((-d / a).max(initial=0.0)) for a, d in pairs)
    return 1.0 / max(most, 1.0)
