r"""Proximal multipliers in both variables with semismooth Newton steps on the dual: entrywise norms
to rounding level.

Around weights :math:`W_k` and multipliers :math:`\lambda_k` of
``minimise 1/p ||W||_p^p subject to <A_c, W> >= b_c``, the saddle problem

.. math:: \max_{\lambda\ge0}\min_W\;
    \tfrac1p\|W\|_p^p+\tfrac1{2\tau}\|W-W_k\|^2+\lambda^\top(b-AW)
    -\tfrac1{2\sigma}\|\lambda-\lambda_k\|^2

is solved to growing accuracy with growing :math:`\tau,\sigma` (Rockafellar, *Augmented Lagrangians
and applications of the proximal point algorithm*, 1976; Li, Sun and Toh, *A highly efficient
semismooth Newton augmented Lagrangian method*, 2018). Its inner minimiser
:math:`W(\lambda)=\operatorname{prox}_{\tau|\cdot|^p/p}(W_k+\tau A^\top\lambda)` is smooth in
:math:`\lambda` for every
:math:`1<p<\infty`, so nothing is singular where a weight or a slope vanishes, and the Newton matrix
on the free multipliers is
:math:`A_P\operatorname{diag}(\tau W')A_P^\top+I/\sigma`, a weighted Gram matrix.
"""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.solvers.methods.energies import Energy, Proximal, Tangent
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.programme.threads import all_threads

Outcome = Literal["moved", "short", "stalled", "stopped"]

LARGEST_SYSTEM = 6000
_TINY = 1e-100  # instead of zero below a fraction
_HALVINGS = 30
_MOST_POINTS = 1200  # evaluations after which a search is given up: usual ones take some dozens
_ARMIJO = 1e-4
_NOISE = 1e-14  # rounding of the saddle value, relative
_RIDGE = 1e-15  # relative to the largest diagonal entry


class _Point(NamedTuple):
    """Multipliers with everything evaluated at them."""

    dual: FloatArray
    proximal: Proximal | Tangent
    slope: FloatArray
    value: float
    residual: float


class DualNewton:
    """Weights and multipliers; :meth:`advance` makes one outer step in place.

    Attributes:
        W, dual: the iterate, ``(d_x, d_z)`` and ``(m,)``.
        tau, sigma: proximal weights.
        steps: linear systems solved so far.
    """

    def __init__(
        self,
        programme: Programme,
        energy: Energy,
        W: FloatArray,
        dual: FloatArray,
        reach: float = 10.0,
    ) -> None:
        self.programme, self.energy = programme, energy
        self.W, self.dual = W.copy(), np.clip(dual, 0.0, programme.cap)
        slope = float(np.linalg.norm(energy.slope(W)))
        self.tau = reach * float(np.linalg.norm(W)) / max(slope, _TINY)
        # soft ones may ask for much more than weights of norm one give
        margins = np.minimum(programme.b, 1.0)[self.dual > 0.0]
        self.sigma = (
            reach
            * max(float(np.linalg.norm(self.dual)), _TINY)
            / max(float(np.linalg.norm(margins)), _TINY)
        )
        self.steps = self.points = 0

    def advance(self, accuracy: float, most: int, deadline: float) -> Outcome:
        """Solve the saddle problem until its projected gradient is below ``accuracy`` (in units of
        ``b``).

        Returns:
            ``moved``; ``short`` when ``most`` steps were not enough (the point reached is kept);
            ``stalled`` when no step ascends; ``stopped`` when the system is too large or cannot be
            factored, after very many evaluations, or when the clock passed ``deadline``.
        """
        centre, old = self.W, self.dual
        now = self._point(self.dual, centre, old)
        outcome: Outcome = "short"
        for count in range(most):
            if now.residual <= accuracy and count > 0:
                outcome = "moved"
                break
            late = self.points > _MOST_POINTS or time.monotonic() > deadline
            step = None if late else self._newton_step(now)
            if step is None:
                outcome = "stopped"
                break
            self.steps += 1
            trial = self._search(now, step, centre, old)
            if trial is None:
                # Rows that the step takes to a bound and whose slope agrees go there by themselves;
                # the others are solved for again.
                leaving = (now.dual > 0.0) & (now.dual + step <= 0.0) & (now.slope < 0.0)
                leaving |= (
                    (now.dual < self.programme.cap)
                    & (now.dual + step >= self.programme.cap)
                    & (now.slope > 0.0)
                )
                again = self._newton_step(now, leaving) if leaving.any() else None
                trial = None if again is None else self._search(now, again, centre, old)
            if trial is None:
                outcome = "moved" if count > 0 and now.residual <= 10.0 * accuracy else "stalled"
                break
            now = trial
        self.W, self.dual = now.proximal.W, now.dual
        return outcome

    def change(self, factor: float) -> None:
        """Weaken (or strengthen) both proximal terms for the next outer step."""
        self.tau *= factor
        self.sigma *= factor

    def _search(
        self, now: _Point, step: FloatArray, centre: FloatArray, old: FloatArray
    ) -> _Point | None:
        """The first halving of ``step``, bent along the bounds, that ascends (or, at rounding
        level, shrinks the gradient).
        """
        t = 1.0
        for _ in range(_HALVINGS):
            trial = self._point(np.clip(now.dual + t * step, 0.0, self.programme.cap), centre, old)
            gain = float(now.slope @ (trial.dual - now.dual))
            noise = _NOISE * (abs(now.value) + abs(trial.value))
            if trial.value >= now.value + _ARMIJO * gain - noise and (
                gain > noise or trial.residual <= 0.9 * now.residual
            ):
                return trial
            t *= 0.5
        return None

    def _point(self, dual: FloatArray, centre: FloatArray, old: FloatArray) -> _Point:
        self.points += 1
        p = self.programme
        pulled = p.adjoint(dual)
        near = self.energy.proximal(centre + self.tau * pulled, self.tau)
        slope = p.b - p.values(near.W) - (dual - old) / self.sigma
        value = (
            self.energy.value(near.W)
            + float(((near.W - centre) ** 2).sum()) / (2.0 * self.tau)
            - float((near.W * pulled).sum())
        )
        value += float(p.b @ dual) - float(((dual - old) ** 2).sum()) / (2.0 * self.sigma)
        wanted = np.where(dual > 0.0, slope, np.maximum(slope, 0.0))
        residual = float(
            np.abs(np.where(dual < p.cap, wanted, np.minimum(wanted, 0.0))).max(initial=0.0)
        )
        return _Point(dual, near, slope, value, residual)

    def _newton_step(self, at: _Point, leaving: BoolArray | None = None) -> FloatArray | None:
        from scipy.linalg.lapack import dpotrf, dpotrs

        cap = self.programme.cap
        free = ((at.dual > 0.0) | (at.slope > 0.0)) & ((at.dual < cap) | (at.slope < 0.0))
        step = np.zeros(self.programme.m)
        if leaving is not None:
            free &= ~leaving
            step[leaving] = np.where(at.slope < 0.0, 0.0, cap)[leaving] - at.dual[leaving]
        rows = np.flatnonzero(free)
        if len(rows) == 0:
            return step
        if len(rows) > LARGEST_SYSTEM:
            return None
        K = at.proximal.form(self.programme, rows, self.tau)
        diagonal = np.diag_indices(len(rows))
        K[diagonal] += 1.0 / self.sigma + _RIDGE * float(K[diagonal].max(initial=0.0))
        with all_threads(len(K)):
            factor, failed = dpotrf(K, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        step[rows] = dpotrs(factor, at.slope[rows], lower=1)[0]
        return step
