r"""The convex functions whose minimisers under margins are the least norms, with proximal maps and
their derivatives: of the entries, of the singular values (as one row), and of any other norm.

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

The first three are the gauges of :mod:`attsvm.geometry.gauge` once more, compiled and with their
derivatives: splittings and Newton steps take a proximal point at every iteration, in which the
passes over memory of the array API would cost more than everything else. Every other norm is asked
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from attsvm.cores import shared_out
from attsvm.data import FloatArray, IntArray
from attsvm.geometry import Norm
from attsvm.jit import kernel
from attsvm.solvers.methods.weighted_gram import WeightedGram
from attsvm.solvers.programme.programme import Programme, explicit_rows

_STEPS = 200
_WORTH_SHARING, _SHARES = 1 << 13, 8  # entries whose roots take longer than threads to start


class Proximal(NamedTuple):
    r"""A proximal point with an element of its generalised derivative.

    Attributes:
        W: the point, ``(d_x, d_z)``.
        rate: diagonal of the derivative, in [0, 1].
        joint: ``None``, or a matrix ``(d_x, d_z)`` whose outer square is added to the diagonal,
            ``sign`` times.
        sign: 1, or -1 where entries that move together move less.
        threshold: the size that separates two kinds of entries, 0 where there is none.
    """

    W: FloatArray
    rate: FloatArray
    joint: FloatArray | None
    sign: float = 1.0
    threshold: float = 0.0

    def form(self, p: Programme, rows: IntArray, scale: float) -> FloatArray:
        """``scale`` times the derivative on these rows, ``(k, k)`` in Fortran order, only its lower
        triangle valid.
        """
        K = WeightedGram(p, rows)(scale * self.rate)
        if self.joint is not None:
            along = p.values(self.joint)[rows]
            K += self.sign * scale * np.outer(along, along)
        return K


class Tangent(NamedTuple):
    """A proximal point of a norm that is asked for its derivative itself.

    Attributes:
        W: the point, ``(d_x, d_z)``.
        along: the derivative along directions ``(k, d_x, d_z)``.
    """

    W: FloatArray
    along: Callable[[FloatArray], FloatArray]

    def form(self, p: Programme, rows: IntArray, scale: float) -> FloatArray:
        """See :meth:`Proximal.form`."""
        written = explicit_rows(p, rows)
        moved = self.along(written.reshape(-1, *self.W.shape)).reshape(len(rows), -1)
        K = scale * (moved @ written.T)
        return 0.5 * (K + K.T)


class Energy(Protocol):
    """A convex function of the weights."""

    degree: float
    """``value(s W) = s**degree * value(W)`` for ``s > 0``."""

    def value(self, W: FloatArray) -> float:
        """The energy of ``W``."""

    def slope(self, W: FloatArray) -> FloatArray:
        """A subgradient at ``W``, for scale only."""

    def proximal(self, x: FloatArray, tau: float) -> Proximal | Tangent:
        """The minimiser of ``tau * value(w) + |w - x|^2 / 2``."""


class GaugeEnergy(Energy, Protocol):
    """One of a gauge: its derivative is a diagonal and one rank-one term."""

    def sizes(self, falling: FloatArray, tau: float) -> FloatArray:
        """The proximal point alone, of non-negative numbers ``(q,)`` in falling order."""

    def proximal(self, x: FloatArray, tau: float) -> Proximal:
        """See :class:`Energy`."""


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
        if x.size < _WORTH_SHARING:
            return Proximal(*power_proximal(x, self.degree, tau), None)
        rows = np.array_split(x, _SHARES)
        found = shared_out(lambda part: power_proximal(part, self.degree, tau), rows)
        W, rate = (np.concatenate(each) for each in zip(*found, strict=True))
        return Proximal(W, rate, None)

    def sizes(self, falling: FloatArray, tau: float) -> FloatArray:
        """See :class:`GaugeEnergy`."""
        found: FloatArray = power_proximal(falling[None], self.degree, tau)[0][0]
        return found


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
        W = np.where(beyond, np.copysign(rest, x), 0.0)
        return Proximal(W, beyond.astype(np.float64), None, threshold=tau)

    def sizes(self, falling: FloatArray, tau: float) -> FloatArray:
        """See :class:`GaugeEnergy`."""
        return np.maximum(falling - tau, 0.0)


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
        rate = np.where(clipped, 0.0, 1.0)
        return Proximal(np.clip(x, -level, level), rate, joint, threshold=level)

    def sizes(self, falling: FloatArray, tau: float) -> FloatArray:
        """See :class:`GaugeEnergy`."""
        return np.minimum(falling, max(clipping_level(falling, tau), 0.0))


class Itself:
    """A norm that is known by its value and its proximal map."""

    degree = 1.0

    def __init__(self, norm: Norm) -> None:
        self.norm = norm

    def value(self, W: FloatArray) -> float:
        """See :class:`Energy`."""
        return float(self.norm.value(W))

    def slope(self, W: FloatArray) -> FloatArray:
        """See :class:`Energy`."""
        return np.asarray(self.norm.subgradient(W))

    def proximal(self, x: FloatArray, tau: float) -> Tangent:
        """See :class:`Energy`."""
        norm = self.norm
        return Tangent(
            np.asarray(norm.prox(x, tau)), lambda H: np.asarray(norm.prox_derivative(x, tau, H))
        )


def energy_of(p: float) -> GaugeEnergy:
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
