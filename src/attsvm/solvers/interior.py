r"""Interior points for the norms whose balls are polyhedra, :math:`\ell_1` and
:math:`\ell_\infty`: soft margins, and hard ones whose features have different units.

.. math:: \min_{W,\xi\ge0}\ \tfrac12 t^2+C\sum_c\xi_c \ \text{ s.t. }\ \langle A_c,W\rangle\ge
   b_c-\xi_c,\qquad t=\sum_e g_e|W_e| \ \text{ or }\ g_e|W_e|\le t,

and hard margins without :math:`\xi`, with :math:`g_e` what an entry counts once columns have one
size (:mod:`attsvm.solvers.column_sizes`): quadratic programmes of one square. Interior points (S.
Mehrotra, *On the implementation of a primal-dual interior point method*, 1992) come near the
solution and say which rows are met with equality and which entries move; these give one linear
system, whose solution is exact. With :math:`x=A^\top\lambda`, :math:`h_e=1/g_e` and multipliers
:math:`\zeta=C-\lambda` of the slacks, the norms mirror each other:

.. math:: \ell_\infty:\ u=th-w,\ v=th+w,\ z_u-z_v=x,\ t=h^\top(z_u+z_v);\qquad
   \ell_1:\ z_u=tg-x,\ z_v=tg+x,\ u-v=w,\ t=g^\top(u+v).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.solvers.cancelling import cancelled, with_digits
from attsvm.solvers.column_sizes import Even
from attsvm.solvers.outcomes import Request
from attsvm.solvers.programme import Programme, equilibrate, explicit_rows

SOLVER = "interior points"
"""What solutions of this method name as their solver."""

_EPS = float(np.finfo(np.float64).eps)
_RANK = 1e-14  # share of the largest singular value that is rounding

_SaddleSolver = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


class InteriorOptions(NamedTuple):
    """Numbers of the method of this module; chosen on random programmes with features in units up
    to 1e12 apart.

    Attributes:
        entries: of the rows written out up to which the method is tried; a step then takes some
            hundredths of a second.
        equations: of a factor, at most.
        careful: equations up to which systems are solved by orthogonal factors, which keep the
            digits of small rows beside large ones.
        vertex_equations: equations of the exact system, at most: it takes singular values.
        refinements: of the exact system, which none needs more of.
        ridge: of equalities in the systems of a step, as a share of what inequalities have.
        iterations: at most; thirty are usual.
        patience: iterations without half the gap that end it.
        early: iterations after which the exact system is tried whatever the gap.
        boundary: share of the way to the boundary that a step takes.
        aim: relative gap at which nothing is left to do.
        clear: relative gap from which rows and entries are told apart, and every iteration tries
            the exact system.
        smallest: products, in units of the norm's square, at which nothing is left to do.
        cheap_costs: shares of the norm that an entry costs at least in second attempts, in l1 and
            linf.
        light: size of small multipliers, in tolerances of the objective that they cost.
        near: gap, in tolerances, from which digits of multipliers are worth their time.
        lattice_seconds: seconds that must be left for the last digits of multipliers, which take
            one.
    """

    entries: int = 1 << 18
    equations: int = 1600
    careful: int = 160
    vertex_equations: int = 400
    refinements: int = 3
    ridge: float = 1e-12
    iterations: int = 200
    patience: int = 15
    early: int = 20
    boundary: float = 0.995
    aim: float = 1e-12
    clear: float = 1e-3
    smallest: float = 1e-22
    cheap_costs: tuple[tuple[float, ...], ...] = ((1e-12,), (1e-6, 1e-4))
    light: float = 0.05
    near: float = 1e4
    lattice_seconds: float = 1.0


INTERIOR = InteriorOptions()


def fits_interior(rows: int, entries: int, options: InteriorOptions = INTERIOR) -> bool:
    """Whether a programme of so many rows and entries of the weights is small enough."""
    return rows * entries <= options.entries and min(rows, entries) <= options.equations


class _InteriorPoint(NamedTuple):
    """A point inside all bounds.

    Attributes:
        w: ``(k,)`` weights.
        u: ``(k,)`` and
        v: ``(k,)`` their two non-negative combinations with the norm.
        zu: ``(k,)`` and
        zv: ``(k,)`` the reduced costs of these.
        s: ``(m,)`` slacks of rows.
        lam: ``(m,)`` multipliers of rows.
        xi: ``(m,)`` what soft margins miss, and
        zeta: ``(m,)`` its multipliers; empty of hard margins.
        t: the norm.
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

    def pairs(self, unequal: BoolArray) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """The pairs whose products go to zero; of the rows only inequalities, ``unequal``."""
        rows = self.s[unequal], self.lam[unequal]
        return (self.u, self.zu), (self.v, self.zv), rows, (self.xi, self.zeta)

    def mean(self, unequal: BoolArray) -> float:
        """The mean of these products."""
        return float(np.mean(np.concatenate([a * b for a, b in self.pairs(unequal)])))

    def plus(self, direction: _InteriorPoint, share: float) -> _InteriorPoint:
        """The point a share of the way along a direction."""
        pairs: Any = zip(self, direction, strict=True)
        return _InteriorPoint(*(a + share * d for a, d in pairs))


class InteriorPoints:
    r"""One solve: the programme with columns and rows of one size.

    Args:
        even: the programme with columns of one size.
        box: the norm is that of :math:`\ell_\infty`.
        request: tolerance, penalty and time.
        is_equality: ``(m,)`` rows that are met with equality, of hard margins only.
        consider: takes weights and multipliers of the caller's programme, and returns their
            certified error.
        options: numbers of the method.
        start: weights of ``even`` near which to begin; they meet hard margins.
        all_missed: begin where soft rows are all missed and multipliers near the penalty.

    Attributes:
        iterations: iterations of the last run.
        error: the least certified error.
    """

    def __init__(
        self,
        even: Even,
        box: bool,
        request: Request,
        is_equality: BoolArray,
        consider: Callable[[FloatArray, FloatArray], float],
        options: InteriorOptions = INTERIOR,
        start: FloatArray | None = None,
        all_missed: bool = False,
    ) -> None:
        self.even, self.box, self.request, self.options = even, box, request, options
        self.is_equality, self.consider, self.all_missed = is_equality, consider, all_missed
        self.soft = request.slack is not None
        self.iterations = 0
        p: Programme = equilibrate(even.margins, request.slack)
        self.p, self.A = p, explicit_rows(p, np.arange(p.m))
        self.cost, self.b, self.C = even.costs(), p.b, p.cap
        self.g = self.cost  # or more, in second attempts
        self.error = np.inf
        # The shortest weights that are known to meet hard margins, and their norm.
        self.start = None if start is None else np.ldexp(start, -p.weight_exponent).reshape(-1)
        self.least_norm = 0.0
        self._tried: set[bytes] = set()  # rows and entries whose exact system was solved

    def run(self) -> None:
        """Interior points; of hard margins that they do not solve again with entries that cost
        next to nothing at a little more, which hardly moves the solution and keeps its digits.
        """
        self._run_once()
        for share in self.options.cheap_costs[self.box]:
            is_solved = self.error <= self.request.tol
            if self.soft or is_solved or self.request.late or not self.least_norm:
                return
            self.g = np.maximum(self.g, share * self.least_norm)
            self._tried.clear()
            self.error = np.inf
            self._run_once()

    def _run_once(self) -> None:
        """Go along the path of interior points.

        1. Certify the point.
        2. Near the end, solve the exact system of the rows and entries that it points to, if these
           are new.
        3. End where the error is small enough, or nothing comes nearer.
        4. One predictor and corrector.
        5. At last, where features have different units, multipliers get more digits.
        """
        options, tol = self.options, self.request.tol
        point, idle, least_mean, least_missing = self._begin(), 0, np.inf, np.inf
        for iteration in range(options.iterations):
            self.iterations = iteration
            # 1. Certify.
            before = self.error
            if point.w.any():  # weights of zero say nothing, however low the penalty is
                self._consider(point.w, point.lam)
            # 2. The exact system.
            if self.error < options.clear or iteration > options.early:
                self._solve_exactly(point)
            # 3. Is there progress? Of the error, of the products, or far from the end of the rows.
            mean = point.mean(~self.is_equality)
            missing = float(np.abs(self._missing(point)).max())
            is_clear = before < options.clear
            progress = self.error < (0.5 if is_clear else 0.99) * before
            progress |= mean < 0.5 * least_mean
            progress |= missing < 0.9 * least_missing and not is_clear
            idle = 0 if progress else idle + 1
            least_mean, least_missing = min(least_mean, mean), min(least_missing, missing)
            is_done = self.error <= min(options.aim, tol)
            is_done |= mean < options.smallest * point.t * point.t
            is_enough = self.error <= tol and idle > 2
            if is_done or is_enough or idle > options.patience or self.request.late:
                break
            # 4. The step.
            following = self._step(point)
            if following is None:
                break
            point = following
        # 5. Digits.
        if self.even.uneven and self.error > tol:
            self._add_digits(point.w, point.lam, np.zeros(len(self.b), dtype=np.bool_))

    def _missing(self, at: _InteriorPoint) -> FloatArray:
        """``(m,)``: what rows miss to their right-hand sides, slacks included."""
        missing = self.b - self.A @ at.w + at.s
        return missing - at.xi if self.soft else missing

    def _begin(self) -> _InteriorPoint:
        """The point to begin with, its products of one size: hard margins at twice the weights that
        are known to meet them, soft ones at a norm that is of the size of the solution's, that of
        all multipliers at their bound, or what the rows together ask for at least. A bound so low
        that its norm is the smaller one leaves most rows missed: these begin there, and those that
        the caller says.
        """
        A, g, b, C = self.A, self.g, self.b, self.C
        w, s = np.zeros(len(g)), np.full(len(b), max(float(b.max()), 1.0))
        begins_missed = False
        if self.start is not None:
            # Twice weights that meet the margins meet them with room.
            w = 2.0 * self.start
            s = np.maximum(A @ w - b, 0.1 * float(b.max()))
            t = 2.0 * self._size(w)
        else:
            # By Hoelder's inequality weights have at least the norm b^T 1 / |A^T 1|_*.
            sum_of_rows = (b > 0.0).astype(float) @ A
            least = float(b[b > 0.0].sum()) / max(self._dual_size(sum_of_rows), 1e-300)
            most = self._dual_size(C @ A)
            begins_missed = self.all_missed or most < least
            t = most if begins_missed else least
        t = t if 0.0 < t < np.inf else 1.0
        s[self.is_equality] = 0.0
        # At the solution b^T lam is the square of the norm.
        lam = np.where(self.is_equality, 0.0, np.minimum(0.5 * C, t * t / float(np.abs(b).sum())))
        # Empty without a penalty.
        zeta = (C - lam)[: len(b) * self.soft]
        # Products of one size are what the path is made of.
        mu = float(np.mean(lam * s)) or 1.0
        lam[~self.is_equality] = np.minimum(mu / s[~self.is_equality], 0.5 * C[~self.is_equality])
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
        elif begins_missed:
            # All rows missed, products mu: the root of (C - mu / s) (b + s) = mu, without a
            # difference of like numbers.
            gain = C * b - 2.0 * mu
            root = np.hypot(C * b, 2.0 * mu)
            s = np.where(
                gain > 0.0, 2.0 * mu * b / (root + np.abs(gain)), (root + np.abs(gain)) / (2.0 * C)
            )
            xi = b + s
            lam, zeta = mu / s, mu / xi
        return _InteriorPoint(w, u, v, zu, zv, s, lam, xi, zeta, t)

    def _size(self, w: FloatArray) -> float:
        """The norm."""
        sizes = self.g * np.abs(w)
        return float(sizes.max() if self.box else sizes.sum())

    def _dual_size(self, x: FloatArray) -> float:
        """The dual norm."""
        sizes = np.abs(x) / self.g
        return float(sizes.sum() if self.box else sizes.max())

    def _step(self, at: _InteriorPoint) -> _InteriorPoint | None:
        """The next point by one predictor and corrector; ``None`` where the matrix has no factor.

        1. Eliminate all unknowns but weights, multipliers and the norm, and factorise.
        2. Predict: the direction in which all products go to zero.
        3. Correct: the direction to the products that the prediction can reach, with what it
           neglects.
        4. Step, almost to the boundary at most.
        """
        A, g, unequal = self.A, self.g, ~self.is_equality
        # 1. The system.
        x = at.lam @ A
        alpha, beta = at.zu / at.u, at.zv / at.v
        if self.box:
            # In linf u and v move by h dt -+ dw, in l1 their difference moves by dw.
            inverse, sign = alpha + beta, -1.0
        else:
            inverse, sign = 1.0 / (1.0 / alpha + 1.0 / beta), 1.0
        E = np.where(unequal, at.s / np.where(unequal, at.lam, 1.0), 0.0)
        missing = self._missing(at)
        dual_residual = self.C - at.lam - at.zeta if self.soft else at.zeta
        if self.soft:
            E = E + at.xi / at.zeta
        # Equalities have no slack to give way, and may depend on each other.
        E[self.is_equality] = self.options.ridge * float(np.mean(E)) + 1e-300
        saddle = self._saddle(inverse, E)
        if saddle is None:
            return None
        h, mu = 1.0 / g, at.mean(unequal)
        # The prediction takes all products to zero; the correction replaces this list.
        products = [-a * b for a, b in at.pairs(unequal)]
        direction: _InteriorPoint | None = None
        share = 1.0
        for is_corrector in (False, True):
            # 2. and 3. The right-hand sides of the rows, of the entries and of the norm.
            ru, rv, rs, rx = products
            # Slacks, and what soft rows miss, leave the equation of their row.
            p = missing.copy()
            p[unequal] += rs / at.lam[unequal]
            if self.soft:
                p -= (rx - at.xi * dual_residual) / at.zeta
            if self.box:
                q = x - (at.zu - at.zv) - ru / at.u + rv / at.v
                kappa = (alpha - beta) * h
                total = 1.0 + float((h * h) @ (alpha + beta))
                norm_rhs = float(h @ (at.zu + at.zv + ru / at.u + rv / at.v)) - at.t
            else:
                pu, pv = at.t * g - x - at.zu, at.t * g + x - at.zv
                first, second = 1.0 / alpha, 1.0 / beta
                c = ru / at.zu - rv / at.zv - first * pu + second * pv
                bend = -(first - second) * g
                q, kappa = c * inverse, bend * inverse
                both = ru / at.zu + rv / at.zv - first * pu - second * pv
                total = 1.0 + float((g * g) @ (first + second)) - float(bend @ kappa)
                norm_rhs = float(g @ (at.u + at.v + both)) - at.t + float(bend @ q)
            # The norm is eliminated last: a solution without it, and one of its column.
            w1, l1 = saddle(q, p)
            w2, l2 = saddle(kappa, np.zeros_like(p))
            denominator = total + sign * float(kappa @ w2)
            if not abs(denominator) > 0.0:
                return None
            dt = (norm_rhs - sign * float(kappa @ w1)) / denominator
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
            ds[unequal] = (rs - at.s[unequal] * dlam[unequal]) / at.lam[unequal]
            dzeta = dual_residual - dlam if self.soft else at.zeta
            dxi = (rx - at.xi * dzeta) / at.zeta
            direction = _InteriorPoint(dw, du, dv, dzu, dzv, ds, dlam, dxi, dzeta, dt)
            share = min(  # the norm is in both, so both take the same step
                _step_within(a, da)
                for pair, change in zip(at.pairs(unequal), direction.pairs(unequal), strict=True)
                for a, da in zip(pair, change, strict=True)
            )
            if not np.isfinite(dt) or is_corrector:
                break
            mean_ahead = at.plus(direction, share).mean(unequal)
            # Mehrotra's rule: what the prediction reaches, to the third power.
            target = mu * max(mean_ahead / mu, 0.0) ** 3
            products = [
                target - a * b - da * db
                for (a, b), (da, db) in zip(
                    at.pairs(unequal), direction.pairs(unequal), strict=True
                )
            ]
        assert direction is not None
        if not np.isfinite(direction.t):
            return None
        # 4. The step.
        following = at.plus(direction, min(1.0, self.options.boundary * share))
        if not self.box:
            # Rounding would let w and u - v drift apart.
            following = following._replace(w=following.u - following.v)
        return following

    def _saddle(self, inverse: FloatArray, E: FloatArray) -> _SaddleSolver | None:
        """A function from ``(q, p)`` to the solution of ``inverse dw - A^T dlam = q``,
        ``A dw + E dlam = p``; ``None`` where there is no factor.
        """
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        A = self.A
        m, k = A.shape
        if not (np.isfinite(inverse).all() and np.isfinite(E).all()):
            return None
        if m + k <= self.options.careful:
            # each unknown by least squares of its own, so that neither is a small difference
            # |root dw|^2 + |A dw|^2 / E, and its mirror image in the multipliers.
            root, rest = np.sqrt(inverse), np.sqrt(E)
            rows = _orthogonal_solver(np.vstack([A.T / root[:, None], np.diag(rest)]))
            entries = _orthogonal_solver(np.vstack([A / rest[:, None], np.diag(root)]))
            if rows is None or entries is None:
                return None

            def careful(q: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
                dw = entries(np.concatenate([p / rest, q / root]))
                return dw, rows(np.concatenate([-q / root, p / rest]))

            return careful
        try:
            if m <= k:
                # The smaller Schur complement; one refinement returns the digits that it loses.
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

    def _solve_exactly(self, at: _InteriorPoint) -> None:
        """Consider the solution of the rows and entries that the point says: of rows between their
        bounds the margin is met, and of entries that move the reduced cost is zero.

        1. Which entries move, which multipliers are at their bound, and which rows are tight.
        2. The square system of entries that move, the norm, and multipliers of tight rows.
        3. Brought to one size, solved by singular values, refined.
        4. Certify, with more digits where features have different units.
        """
        A, g, C = self.A, self.g, self.C
        # 1. The guess.
        if self.box:
            # In units of the norm: an entry moves where it is off both of its bounds.
            is_moving = np.minimum(at.u, at.v) * g * at.t > np.maximum(at.zu, at.zv) / g
        else:
            is_moving = np.maximum(at.u, at.v) * g * g > np.minimum(at.zu, at.zv)
        is_capped = np.zeros(len(self.b), dtype=np.bool_)
        most, largest = np.full(len(self.b), np.abs(at.lam).max()), float(np.abs(self.b).max())
        if self.soft:
            is_capped = (at.lam > 0.5 * C) & (at.xi / largest > at.zeta / np.minimum(C, most))
            most = np.minimum(C, most)
        is_tight = self.is_equality | (~is_capped & (at.lam / most > at.s / largest))
        # The same rows and entries have the same solution.
        guess = is_moving.tobytes() + is_capped.tobytes() + is_tight.tobytes()
        if guess in self._tried:
            return
        self._tried.add(guess)
        tight, moving = np.flatnonzero(is_tight), np.flatnonzero(is_moving)
        size = len(tight) + len(moving) + 1
        if size > self.options.vertex_equations:
            return
        # 2. The system.
        sign = np.sign(at.w)
        fixed_w = np.where(is_moving, 0.0, sign / g) if self.box else np.zeros(len(g))
        cost = np.zeros(len(moving)) if self.box else sign[moving] * g[moving]
        fixed_lam = np.where(is_capped, C, 0.0) if self.soft else np.zeros(len(self.b))
        pulled = fixed_lam @ A
        S = np.zeros((size, size))
        r = np.zeros(size)
        rows, count, m = A[tight], len(tight), len(moving)  # column m is the norm
        # Tight rows meet their right-hand sides;
        S[:count, :m], S[:count, m] = rows[:, moving], rows @ fixed_w
        r[:count] = self.b[tight]
        # entries that move have no reduced cost;
        S[count:-1, m + 1 :], S[count:-1, m] = rows[:, moving].T, -cost
        r[count:-1] = -pulled[moving]
        if self.box:
            # and t is the dual norm of what multipliers pull,
            S[-1, m], S[-1, m + 1 :], r[-1] = 1.0, -(rows @ fixed_w), float(pulled @ fixed_w)
        else:
            # or the norm of the weights.
            S[-1, m], S[-1, :m] = 1.0, -cost
        # 3. Its solution.
        # Small rows must count in the singular values as large ones do.
        scale = np.abs(S).max(axis=1)
        scale[scale == 0.0] = 1.0
        S, r = S / scale[:, None], r / scale
        columns = np.abs(S).max(axis=0)
        columns[columns == 0.0] = 1.0
        inverse = np.linalg.pinv(S / columns, rcond=_RANK)
        # From the point on: where solutions are many, the least change of it is the one.
        y = np.concatenate([at.w[moving], [at.t], at.lam[tight]])
        for _ in range(self.options.refinements):
            y = y + (inverse @ (r - S @ y)) / columns
        # 4. Certify.
        w = fixed_w * y[m]
        w[moving] = y[:m]
        multipliers = y[m + 1 :]
        non_negative = np.where(self.is_equality[tight], multipliers, np.maximum(multipliers, 0.0))
        lam = fixed_lam.copy()
        lam[tight] = np.minimum(non_negative, C[tight])
        self._consider(w, lam)
        if self.even.uneven and self.error > self.request.tol:
            self._add_digits(w, lam, is_capped)

    def _add_digits(self, w: FloatArray, lam: FloatArray, is_held: BoolArray) -> None:
        """Consider multipliers that cancel where cheap entries ask for more digits than they have.

        1. Which entries matter, what the adjoint should be there, and how near is near enough.
        2. The gap that would be left: too large a one is not a matter of digits.
        3. Small multipliers take up what is left over, with and without being raised first; if that
           is not enough, the last digits of all are chosen together.
        """
        shape, tol, options = self.even.powers.shape, self.request.tol, self.options
        g, size = self.cost.reshape(shape), np.abs(w).reshape(shape)
        noise = (_EPS * (np.abs(lam) @ np.abs(self.A))).reshape(shape)
        t = float((g * size).max() if self.box else (g * size).sum())
        if not t > 0.0:
            return
        # 1. Entries and aims.
        reach = t * g
        if self.box:  # the adjoint vanishes on entries that are not at their bound
            matters: BoolArray = g * size < (1.0 - 1e-9) * t
            is_fine = matters & (noise > 1e-13 * reach)
            aim = np.zeros(shape)
            near = 0.1 * tol / max(int(matters.sum()), 1) * reach
        else:  # and is at its bound on those that are not zero, or within it by its rounding
            is_fine = noise > 1e-11 * reach
            matters = (g * size > 1e-9 * t) | is_fine
            aim = reach * (1.0 - np.minimum(0.5, 16.0 * noise / reach))
            aim = np.clip((lam @ self.A).reshape(shape), -aim, aim)
            near = np.minimum(8.0 * noise, 0.25 * reach)
        # 2. The gap.
        short = self.b - self.A @ w
        value = t * t
        if self.soft:
            value = 0.5 * value + float(self.C @ np.maximum(short, 0.0))

        def gap(dual: FloatArray) -> float:
            """The gap that is left when fine entries have their digits."""
            pull = (np.abs(dual @ self.A).reshape(shape) / g)[~is_fine]
            dual_norm = float(pull.sum() if self.box else pull.max(initial=0.0))
            bound = float(self.b @ dual)
            if self.soft:
                return (value - bound + 0.5 * dual_norm * dual_norm) / value
            return 1.0 - bound / (t * dual_norm) if dual_norm > 0.0 else 0.0

        if not is_fine.any() or gap(lam) > options.near * tol:
            return
        # 3. Digits.
        weight = float(np.maximum(-short, 0.0).sum()) + float(self.b.max())
        least = np.where(self.is_equality, 0.0, options.light * tol * value / weight)
        for raised in (np.minimum(least, 0.5 * self.C), np.zeros_like(least)):
            better = cancelled(self.p, lam, aim, matters, is_fine, raised, is_held)
            self._consider(w, better)
            is_short_of_digits = self.error > tol and gap(better) <= tol
            if is_short_of_digits and self.request.left > options.lattice_seconds:
                share = options.light * tol
                last = with_digits(self.p, better, aim, is_fine, near, share, is_held)
                self._consider(w, last)
            if self.error <= tol:
                return

    def _consider(self, w: FloatArray, lam: FloatArray) -> None:
        """Have a point certified; remember the shortest weights that meet hard margins."""
        if not self.soft and np.isfinite(w).all():
            positive = self.b > 0.0
            # Scaled to its margins a point has a norm that second attempts can rely on.
            ratio = float(((self.A @ w)[positive] / self.b[positive]).min())
            sizes = self.cost * np.abs(w)
            norm = float(sizes.max() if self.box else sizes.sum()) / ratio if ratio > 0.0 else 0.0
            if 0.0 < norm < (self.least_norm or np.inf):
                self.least_norm, self.start = norm, w / ratio
        W, dual = self.p.restored(w.reshape(self.even.powers.shape), lam)
        W = self.even.restored(W)
        if np.isfinite(W).all() and np.isfinite(dual).all():
            self.error = min(self.error, self.consider(W, dual))


def _orthogonal_solver(M: FloatArray) -> Callable[[FloatArray], FloatArray] | None:
    """A function that solves least squares by orthogonal factors, of rows in falling order and
    columns that are exchanged: small rows keep their digits beside large ones (A. J. Cox and N. J.
    Higham, *Stability of Householder QR factorization for weighted least squares problems*, 1998).
    ``None`` of dependent columns.
    """
    from scipy.linalg import qr, solve_triangular

    # Large rows first: else their rounding would cover the small ones.
    order = np.argsort(-np.abs(M).max(axis=1), kind="stable")
    Q, R, columns = qr(M[order], mode="economic", pivoting=True, check_finite=False)
    if not (np.diag(R) != 0.0).all():
        return None

    def solve(right: FloatArray) -> FloatArray:
        solution = np.empty(len(columns))
        solution[columns] = solve_triangular(R, Q.T @ right[order], check_finite=False)
        return solution

    return solve


def _step_within(numbers: FloatArray, change: FloatArray) -> float:
    """The step, at most 1, that leaves positive numbers positive."""
    return 1.0 / max(float((-change / numbers).max(initial=0.0)), 1.0)
