r"""Entrywise :math:`\ell_p` norms: what :math:`\ell_p` mirror descent on the attention weights
minimises.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from attsvm.errors import InputError
from attsvm.geometry import vectors
from attsvm.geometry.norm import Norm, conjugate_exponent, exponent_text, floating, per_run
from attsvm.geometry.potential import PowerPotential

Array = Any


class Lp(Norm):
    r"""The entrywise norm :math:`\|W\|_p=(\sum_{ij}|W_{ij}|^p)^{1/p}`, largest entry for
    :math:`p=\infty`; dual: :math:`\ell_q`.

    Mirror descent with the potential :math:`\frac1p\|W\|_p^p` converges in direction to the
    max-margin solution in this norm (Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention
    with Mirror Descent*).  ``Lp(2)`` equals :class:`Frobenius`.

    The steepest direction is :math:`\mathrm{sign}(G)|G|^{q-1}/\|G\|_q^{q-1}`; for :math:`p=1` the
    first largest entry of ``G`` (in row-major order), for :math:`p=\infty` :math:`\mathrm{sign}(G)`
    with zeros where ``G`` is zero.

    Args:
        p: the exponent, :math:`1\le p\le\infty`.

    Raises:
        InputError: ``p`` is below 1 or not a number.
    """

    def __init__(self, p: float) -> None:
        self.p = checked_exponent("Lp", p)
        self._conjugate = conjugate_exponent(self.p)

    @property
    def name(self) -> str:
        """``lp:P``, and ``fro`` for ``P = 2``."""
        return "fro" if self.p == 2.0 else f"lp:{exponent_text(self.p)}"

    @property
    def dual(self) -> Norm:
        r""":math:`\ell_q` with :math:`1/p+1/q=1`."""
        dual = Lp(self._conjugate)
        dual._conjugate = self.p  # the dual of the dual is the norm itself, to the bit
        return dual

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        return vectors.length(_entries(W), self.p)

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        return _like(vectors.aligned(_entries(G), self.p), G)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`."""
        entries = _entries(W)
        return _like(vectors.onto_ball(entries, self.p, per_run(radius, entries)), W)

    def direction_divergence(self, V: Array, W: Array) -> Array:
        """See :meth:`Norm.direction_divergence`; here nothing cancels
        (:meth:`PowerPotential.bregman`).
        """
        if not 1.0 < self.p < float("inf"):
            return super().direction_divergence(V, W)
        return PowerPotential(self.p).direction_divergence(V, W)

    def __repr__(self) -> str:
        return f"Lp({exponent_text(self.p)})"


def checked_exponent(name: str, p: float) -> float:
    """``p`` as a float.

    Raises:
        InputError: ``p`` is not a number that is at least 1.
    """
    try:
        number = float(p)
    except (TypeError, ValueError):
        number = float("nan")
    if not number >= 1.0:
        raise InputError(
            f"{name}({p!r}) is not a norm: the exponent p must be a number with 1 <= p <= inf"
        )
    return number


def _entries(W: Array) -> Array:
    """``(..., d_x, d_z)`` as ``(..., d_x * d_z)``."""
    return array_namespace(W).reshape(floating(W), (*W.shape[:-2], W.shape[-2] * W.shape[-1]))


def _like(entries: Array, W: Array) -> Array:
    """The inverse of :func:`_entries`."""
    return array_namespace(W).reshape(entries, W.shape)
