r"""Half the squared p-norm: the energy of soft margins, with its proximal map and the derivative of
that.

.. math:: \min_W \tfrac\tau2\|W\|_p^2+\tfrac12\|W-X\|^2

With the norm :math:`N` of the answer, :math:`W=NV` and :math:`\|V\|_p=1`, where :math:`V` is the
proximal point of
:math:`\frac\tau p\|\cdot\|_p^p` at :math:`X/N`: one number is sought, and :math:`\log\|V\|_p` falls
in :math:`\log N`. For :math:`p=1` the answer is a soft threshold at :math:`\tau N`, for
:math:`p=\infty` clipping at :math:`N`, and :math:`N` is read off sorted entries. The Hessian of the
energy is a diagonal plus :math:`(2-p)gg^\top` with the slope :math:`g` of the norm, so the
derivative of the proximal map is a diagonal and one rank-one term.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Lp, Norm
from attsvm.solvers.methods.energies import (
    Energy,
    Proximal,
    Tangent,
    energy_of,
    power_proximal,
    signed_power,
)

_STEPS = 100


class Square(ABC):
    r""":math:`\frac12\|W\|^2` of a norm whose energy is known; a class knows the proximal map."""

    degree = 2.0

    def __init__(self, norm: Norm, energy: Energy) -> None:
        self.norm, self._energy = norm, energy

    def value(self, W: FloatArray) -> float:
        """See :class:`attsvm.solvers.methods.energies.Energy`."""
        known = self._energy.degree == 1.0  # the energy is the norm itself, and quicker
        size = self._energy.value(W) if known else float(self.norm.value(W))
        return 0.5 * size * size  # infinite where a power would raise

    def slope(self, W: FloatArray) -> FloatArray:
        """See :class:`attsvm.solvers.methods.energies.Energy`."""
        size = float(self.norm.value(W))
        return size * self._energy.slope(W / size)

    @abstractmethod
    def proximal(self, x: FloatArray, tau: float) -> Proximal | Tangent:
        """See :class:`attsvm.solvers.methods.energies.Energy`."""


class SquaredNorm(Square):
    r""":math:`\frac12\|W\|_p^2` for :math:`1<p<\infty`; expects weights of norm about one, where
    its search starts.
    """

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`attsvm.solvers.methods.energies.Energy`."""
        p = self._energy.degree
        if not x.any():
            return Proximal(np.zeros_like(x), np.zeros_like(x), None)
        # With |.|_s the smaller of the norms p and q: |X|_s <= (1 + tau) N, and tau N <= |X|_q, and
        # N <= |X|_p.
        whole, dual = float(self.norm.value(x)), float(self.norm.dual_value(x))
        low, high = (
            math.log(min(whole, dual) / (1.0 + tau)) - 1e-15,
            math.log(min(whole, dual / tau)) + 1e-15,
        )
        log_size = min(max(0.0, low), high)
        for _ in range(_STEPS):
            scaled = x * math.exp(-log_size)
            V, rate = power_proximal(scaled, p, tau)
            size = float(self.norm.value(V))
            if abs(size - 1.0) <= 4e-16:
                break
            low, high = (log_size, high) if size > 1.0 else (low, log_size)
            fall = (
                float((signed_power(V / size, p - 1.0) * rate * scaled).sum()) / size
                if size > 0.0
                else 0.0
            )
            ahead = log_size + math.log(size) / fall if fall > 0.0 else math.inf
            if not low < ahead < high:
                ahead = 0.5 * (low + high)
            if abs(ahead - log_size) <= 2e-16:
                break
            log_size = ahead
        direction = rate * signed_power(V, p - 1.0)
        bend = 1.0 + tau * (2.0 - p) * float((direction * signed_power(V, p - 1.0)).sum())
        factor = tau * (2.0 - p) / max(bend, 1e-300)
        return Proximal(
            V * math.exp(log_size),
            rate,
            direction * math.sqrt(abs(factor)),
            -1.0 if factor > 0.0 else 1.0,
        )


class SquaredSum(Square):
    r""":math:`\frac12\|W\|_1^2`."""

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`attsvm.solvers.methods.energies.Energy`: the threshold is ``tau`` times the
        sum of what is left.
        """
        size = np.abs(x)
        falling = np.sort(size, axis=None)[::-1]
        kept = np.arange(1, len(falling) + 1)
        thresholds = tau * np.cumsum(falling) / (1.0 + kept * tau)
        count = int(np.count_nonzero(falling > thresholds))
        rest = size - (thresholds[count - 1] if count else math.inf)
        beyond = rest > 0.0
        W = np.where(beyond, np.copysign(rest, x), 0.0)
        joint = np.where(beyond, np.sign(x), 0.0) * math.sqrt(tau / (1.0 + count * tau))
        return Proximal(W, beyond.astype(np.float64), joint, -1.0)


class SquaredLargest(Square):
    r""":math:`\frac12\|W\|_\infty^2`."""

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`attsvm.solvers.methods.energies.Energy`: clipping removes ``tau`` times the
        level in all.
        """
        falling = np.sort(np.abs(x), axis=None)[::-1]
        levels = np.cumsum(falling) / (tau + np.arange(1, len(falling) + 1))
        level = float(levels.max(initial=0.0))
        clipped = np.abs(x) > level
        joint = np.where(clipped, np.sign(x), 0.0) / math.sqrt(tau + int(clipped.sum()))
        return Proximal(np.clip(x, -level, level), np.where(clipped, 0.0, 1.0), joint)


class HalfSquare(Square):
    r""":math:`\frac12\|W\|^2` of a norm that is known by its value and its proximal map.

    :math:`W=\operatorname{prox}_{\tau N\|\cdot\|}(X)` with :math:`N=\|W\|`, the root of a falling
    function. With :math:`g=(X-W)/(\tau N)` and the derivative :math:`P` of that map, the derivative
    is :math:`P-\tau Pg\,(Pg)^\top/(1+\tau\langle g,Pg\rangle)`.
    """

    def proximal(self, x: FloatArray, tau: float) -> Tangent:
        """See :class:`attsvm.solvers.methods.energies.Energy`."""
        from scipy.optimize import brentq

        norm, top = self.norm, float(self.norm.value(x))
        if top == 0.0:
            return Tangent(np.zeros_like(x), np.zeros_like)
        size = brentq(
            lambda N: float(norm.value(norm.prox(x, tau * N))) - N,
            0.0,
            top,
            xtol=1e-300,
            rtol=1e-15,
        )
        W = np.asarray(norm.prox(x, tau * size))
        if size == 0.0:
            return Tangent(W, np.zeros_like)

        def plain(H: FloatArray) -> FloatArray:
            return np.asarray(norm.prox_derivative(x, tau * size, H))

        g = (x - W) / (tau * size)
        turned = plain(g[None])[0]
        weight = tau / (1.0 + tau * float(np.sum(g * turned)))

        def along(H: FloatArray) -> FloatArray:
            shared: FloatArray = weight * np.einsum("kij,ij->k", H, turned)[:, None, None] * turned
            return plain(H) - shared

        return Tangent(W, along)


def squared_norm(p: float) -> Energy:
    """The energy of soft margins in the p-norm, ``1 <= p <= inf``."""
    kind = {1.0: SquaredSum, math.inf: SquaredLargest}.get(p, SquaredNorm)
    return kind(Lp(p), energy_of(p))
