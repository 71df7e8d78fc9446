r"""The convex functions whose minimisers under margins are the least entrywise norms, with proximal
maps and their derivatives.

==================  =========================  ================================================
norm                energy :math:`f`          :math:`\operatorname{prox}_{\tau f}`
==================  =========================  ================================================
:math:`1<p<\infty`  :math:`\frac1p\|W\|_p^p`  root of :math:`w+\tau w^{p-1}=x`, entry by entry
:math:`p=1`         :math:`\|W\|_1`           soft threshold at :math:`\tau`
:math:`p=\infty`    :math:`\|W\|_\infty`      clipping at the level that removes :math:`\tau`
==================  =========================  ================================================

The generalised derivative of every proximal map is a diagonal, plus one rank-one term for
:math:`p=\infty`: entries that are clipped move together.

For :math:`p\ge2` the root is that of a function convex in :math:`w`; for :math:`p<2` of one convex
in :math:`y=w^{p-1}`, :math:`y^{1/(p-1)}+\tau y=x`. Both are :math:`\alpha t+\beta t^r=x` with
:math:`r\ge1`, and Newton's method from :math:`\min(x/\alpha,(x/\beta)^{1/r})`, which is never below
the root, descends to it without safeguards.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from attsvm.data import FloatArray
from attsvm.jit import kernel

_STEPS = 200


class Proximal(NamedTuple):
    r"""A proximal point with an element of its generalised derivative.

    Attributes:
        W: the point, ``(d_x, d_z)``.
        rate: diagonal of the derivative, in [0, 1].
        joint: ``None``, or a matrix ``(d_x, d_z)`` whose outer square is added to the diagonal,
            ``sign`` times.
        sign: 1, or -1 where entries that move together move less.
    """

    W: FloatArray
    rate: FloatArray
    joint: FloatArray | None
    sign: float = 1.0


class Energy(Protocol):
    """A convex function of the weights."""

    degree: float
    """``value(s W) = s**degree * value(W)`` for ``s > 0``."""

    def value(self, W: FloatArray) -> float:
        """The energy of ``W``."""

    def slope(self, W: FloatArray) -> FloatArray:
        """A subgradient at ``W``, for scale only."""

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """The minimiser of ``tau * value(w) + |w - x|^2 / 2``."""


class Power:
    r""":math:`\frac1p\|W\|_p^p` for :math:`1<p<\infty`."""

    def __init__(self, p: float) -> None:
        self.degree = p

    def value(self, W: FloatArray) -> float:
        """See :class:`Energy`."""
        return float((np.abs(W) ** self.degree).sum()) / self.degree

    def slope(self, W: FloatArray) -> FloatArray:
        """See :class:`Energy`."""
        return signed_power(W, self.degree - 1.0)

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`Energy`."""
        W, rate = power_proximal(x, self.degree, tau)
        return Proximal(W, rate, None)


class Sum:
    r""":math:`\|W\|_1`."""

    degree = 1.0

    def value(self, W: FloatArray) -> float:
        """See :class:`Energy`."""
        return float(np.abs(W).sum())

    def slope(self, W: FloatArray) -> FloatArray:
        """See :class:`Energy`."""
        return np.sign(W)

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`Energy`."""
        rest = np.abs(x) - tau
        beyond = rest > 0.0
        return Proximal(
            np.where(beyond, np.copysign(rest, x), 0.0), beyond.astype(np.float64), None
        )


class Largest:
    r""":math:`\|W\|_\infty`."""

    degree = 1.0

    def value(self, W: FloatArray) -> float:
        """See :class:`Energy`."""
        return float(np.abs(W).max())

    def slope(self, W: FloatArray) -> FloatArray:
        """See :class:`Energy`."""
        size = np.abs(W)
        top = size >= 0.999 * size.max()
        return np.where(top, np.sign(W), 0.0) / max(int(top.sum()), 1)

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`Energy`."""
        level = clipping_level(np.sort(np.abs(x), axis=None)[::-1], tau)
        if level <= 0.0:
            return Proximal(np.zeros_like(x), np.zeros_like(x), None)
        clipped = np.abs(x) > level
        joint = np.where(clipped, np.sign(x), 0.0) / np.sqrt(max(int(clipped.sum()), 1))
        return Proximal(np.clip(x, -level, level), np.where(clipped, 0.0, 1.0), joint)


def energy_of(p: float) -> Energy:
    """The energy whose minimisers under margins have the least p-norm, ``1 <= p <= inf``."""
    if p == 1.0:
        return Sum()
    return Largest() if np.isinf(p) else Power(p)


@kernel
def clipping_level(falling: FloatArray, total: float) -> float:
    """The level c with ``sum(max(x - c, 0)) = total`` for sorted sizes; not positive when they sum
    to less.
    """
    above = 0.0
    for k in range(len(falling)):
        above += falling[k]
        level = (above - total) / (k + 1)
        if k + 1 == len(falling) or level >= falling[k + 1]:
            return float(level)
    return 0.0


@kernel
def power_proximal(x: FloatArray, p: float, tau: float) -> tuple[FloatArray, FloatArray]:
    r"""Proximal points of :math:`\frac\tau p|w|^p` at ``x`` ``(d_x, d_z)``, and the derivatives
    :math:`1/(1+\tau(p-1)|w|^{p-2})`.
    """
    out, rate = np.empty(x.shape), np.empty(x.shape)
    steep = p < 2.0
    r = 1.0 / (p - 1.0) if steep else p - 1.0
    a, b = (tau, 1.0) if steep else (1.0, tau)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            size = abs(x[i, j])
            if size == 0.0:
                out[i, j] = x[i, j]
                rate[i, j] = 1.0 if p > 2.0 else 0.0
                continue
            t = min(size / a, (size / b) ** (1.0 / r))
            power = t ** (r - 1.0)
            for _ in range(_STEPS):
                step = (a * t + b * power * t - size) / (a + b * r * power)
                if not step > 1e-16 * t:
                    break
                t -= step
                power = t ** (r - 1.0)
                if step < 1e-9 * t / r:
                    break
            if steep:
                w = power * t if power * t < 0.5 * size else size - tau * t
                rate[i, j] = r * power / (tau + r * power)
            else:
                w = t
                rate[i, j] = 1.0 / (1.0 + tau * r * power)
            out[i, j] = w if x[i, j] > 0.0 else -w
    return out, rate


@kernel
def signed_power(x: FloatArray, r: float) -> FloatArray:
    r""":math:`\operatorname{sign}(x)|x|^r`, entry by entry."""
    out = np.empty(x.shape)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = abs(x[i, j]) ** r if x[i, j] > 0.0 else -(abs(x[i, j]) ** r)
    return out
