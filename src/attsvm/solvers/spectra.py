r"""Functions of singular values: what the solvers of this norm family need to know about the norm.

A unitarily invariant norm is a symmetric gauge :math:`f` of the singular values :math:`s`, its
proximal map keeps the singular vectors, and its dual norm is the dual gauge (Lewis, *The convex
analysis of unitarily invariant matrix functions*, 1995):

* nuclear: :math:`f=\sum_i s_i`, proximal map of :math:`t f` is :math:`(s-t)_+`, dual norm
  :math:`\max_i s_i`.
* spectral: :math:`f=\max_i s_i`, proximal map :math:`s-(s-\theta)_+` with
  :math:`\sum_i(s_i-\theta)_+=t`, dual norm :math:`\sum_i s_i`.
* Schatten-p: :math:`f=\sum_i s_i^p/p`, proximal map the root of :math:`g+t g^{p-1}=s`, dual norm
  Schatten-q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.energies import power_proximal


class Prox(NamedTuple):
    r"""The proximal map at ``s``.

    Attributes:
        values: ``(q,)``, the new singular values, falling like ``s``.
        rates: ``(q,)``, their derivatives (for the spectral norm at a fixed :math:`\theta`).
        threshold: :math:`t` (nuclear) or :math:`\theta` (spectral), which separates two kinds of
            singular values; 0 for Schatten.
        objective: :math:`f` of ``values``.
    """

    values: FloatArray
    rates: FloatArray
    threshold: float
    objective: float


class Gauge(ABC):
    """A symmetric gauge; every method takes non-negative singular values in falling order."""

    @abstractmethod
    def norm(self, s: FloatArray) -> float:
        """The norm of a matrix with these singular values."""

    @abstractmethod
    def dual(self, s: FloatArray) -> float:
        """Its dual norm."""

    @abstractmethod
    def prox(self, s: FloatArray, t: float) -> Prox:
        """The minimiser ``g`` of ``t f(g) + |g - s|^2 / 2``."""

    @abstractmethod
    def multiplier_scale(self, dual: float, norm: float) -> float:
        r"""The factor that brings a pull :math:`A^\top\lambda` of dual norm ``dual`` into
        :math:`\partial f` at weights of this norm.
        """


class NuclearGauge(Gauge):
    """Sum of singular values."""

    def norm(self, s: FloatArray) -> float:
        """See :meth:`Gauge.norm`."""
        return float(s.sum())

    def dual(self, s: FloatArray) -> float:
        """See :meth:`Gauge.dual`."""
        return float(s.max(initial=0.0))

    def prox(self, s: FloatArray, t: float) -> Prox:
        """Soft threshold."""
        values = np.maximum(s - t, 0.0)
        return Prox(values, (values > 0.0).astype(np.float64), t, float(values.sum()))

    def multiplier_scale(self, dual: float, norm: float) -> float:
        """The subdifferential lies in the unit ball of the dual norm, whatever ``norm`` is."""
        return 1.0 / dual


class SpectralGauge(Gauge):
    """Largest singular value."""

    def norm(self, s: FloatArray) -> float:
        """See :meth:`Gauge.norm`."""
        return float(s.max(initial=0.0))

    def dual(self, s: FloatArray) -> float:
        """See :meth:`Gauge.dual`."""
        return float(s.sum())

    def prox(self, s: FloatArray, t: float) -> Prox:
        """What is left of ``s`` after projection onto the simplex-like ball ``sum <= t``
        (Moreau).
        """
        if s.sum() <= t:
            return Prox(np.zeros_like(s), np.zeros_like(s), 0.0, 0.0)
        levels = (np.cumsum(s) - t) / np.arange(1, len(s) + 1)
        count = int(np.flatnonzero(s > levels)[-1])
        theta = float(levels[count])
        return Prox(np.minimum(s, theta), (s <= theta).astype(np.float64), theta, theta)

    def multiplier_scale(self, dual: float, norm: float) -> float:
        """The subdifferential lies in the unit ball of the dual norm, whatever ``norm`` is."""
        return 1.0 / dual


class PowerGauge(Gauge):
    """Schatten norm of exponent ``p`` strictly between 1 and infinity."""

    def __init__(self, p: float) -> None:
        self.p = p

    def norm(self, s: FloatArray) -> float:
        """See :meth:`Gauge.norm`."""
        return _power_norm(s, self.p)

    def dual(self, s: FloatArray) -> float:
        """See :meth:`Gauge.dual`."""
        return _power_norm(s, self.p / (self.p - 1.0))

    def prox(self, s: FloatArray, t: float) -> Prox:
        r"""Root of :math:`g+tg^{p-1}=s`; see :func:`attsvm.solvers.energies.power_proximal`."""
        values, rates = power_proximal(s[None, :], self.p, t)
        return Prox(values[0], rates[0], 0.0, float((values**self.p).sum() / self.p))

    def multiplier_scale(self, dual: float, norm: float) -> float:
        """The gradient of ``f`` at weights of this norm has dual norm ``norm ** (p - 1)``."""
        return float(norm ** (self.p - 1.0)) / dual if dual > 0.0 else 1.0


def gauge(p: float) -> Gauge:
    """The gauge of the Schatten norm of exponent ``p``."""
    if p == 1.0:
        return NuclearGauge()
    if np.isinf(p):
        return SpectralGauge()
    return PowerGauge(p)


def _power_norm(s: FloatArray, p: float) -> float:
    top = float(s.max(initial=0.0))
    return top * float(((s / top) ** p).sum() ** (1.0 / p)) if top > 0.0 else 0.0


def singular_values(W: FloatArray) -> FloatArray:
    """``(q,)``, falling."""
    return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64)
