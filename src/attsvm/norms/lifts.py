r"""How a gauge of vectors becomes a norm of matrices: of the entries, of the singular values, or of
the lengths of the rows.

The three lifts share one :class:`~attsvm.norms.gauge.Gauge`. Value, steepest direction and
projection are those of the vector, put back where the vector came from.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from attsvm.norms.array_api import Array, divisor, floating, namespace
from attsvm.norms.exponents import checked_exponent, conjugate_exponent, per_run
from attsvm.norms.gauge import Gauge, gauge
from attsvm.norms.norm import Norm

EUCLIDEAN = gauge(2.0, 2.0)


class Lifted(Norm):
    r"""The :math:`\ell_p` gauge of a vector of numbers of the matrix, :math:`1\le p\le\infty`; its
    dual is the gauge of the conjugate exponent of the same numbers.

    Args:
        p: the exponent.

    Raises:
        InputError: ``p`` is below 1 or not a number.
    """

    def __init__(self, p: float) -> None:
        self.p = checked_exponent(type(self).__name__, p)
        self._conjugate = conjugate_exponent(self.p)

    @property
    def gauge(self) -> Gauge:
        """The gauge of the vector."""
        return gauge(self.p, self._conjugate)

    @property
    def dual(self) -> Norm:
        """See :attr:`Norm.dual`."""
        dual = type(self)(self._conjugate)
        dual._conjugate = self.p  # the dual of the dual is the norm itself, to the bit
        return dual

    @property
    def strictly_convex(self) -> bool:
        """See :attr:`Norm.strictly_convex`."""
        return 1.0 < self.p < float("inf")

    @abstractmethod
    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`."""


class Entrywise(Lifted):
    """A gauge of the entries."""

    acts_on: ClassVar[Literal["entries"]] = "entries"

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        return self.gauge.length(_entries(W))

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        return _like(self.gauge.aligned(_entries(G)), G)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`."""
        entries = _entries(W)
        return _like(self.gauge.onto_ball(entries, per_run(radius, entries)), W)

    def logit_reach(self, tokens: Array, queries: Array) -> float:
        """See :meth:`Norm.logit_reach`."""
        dual = self.gauge.dual
        return float(dual.length(tokens).max() * dual.length(queries).max())


class SingularValues(Lifted):
    r"""A gauge of the singular values. Those below :math:`\max(d_x,d_z)\,\epsilon\,\sigma_1` are
    rounding and take no part in a steepest direction.
    """

    acts_on: ClassVar[Literal["singular values"]] = "singular values"

    @property
    def invariant(self) -> tuple[bool, bool]:
        """No rotation changes a singular value."""
        return True, True

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        xp = namespace(W)
        scaled, scale = _scaled(W)
        return xp.astype(scale * self.gauge.length(xp.linalg.svdvals(scaled)), floating(W).dtype)

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        xp = namespace(G)
        G = floating(G)
        U, sigma, Vt = xp.linalg.svd(_scaled(G)[0], full_matrices=False)
        noise = max(G.shape[-2:]) * float(xp.finfo(sigma.dtype).eps) * sigma[..., :1]
        sigma = xp.where(sigma > noise, sigma, xp.zeros_like(sigma))
        return xp.astype((U * self.gauge.aligned(sigma)[..., None, :]) @ Vt, G.dtype)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`: the singular values move onto the ball, the singular vectors
        stay.
        """
        xp = namespace(W)
        W = floating(W)
        scaled, scale = _scaled(W)
        U, sigma, Vt = xp.linalg.svd(scaled, full_matrices=False)
        sigma = sigma * scale[..., None]
        moved = self.gauge.onto_ball(sigma, per_run(radius, sigma))
        inside = xp.all(moved == sigma, axis=-1)[..., None, None]
        return xp.where(inside, W, xp.astype((U * moved[..., None, :]) @ Vt, W.dtype))

    def logit_reach(self, tokens: Array, queries: Array) -> float:
        """See :meth:`Norm.logit_reach`: a product of rank one has one singular value."""
        return float(EUCLIDEAN.length(tokens).max() * EUCLIDEAN.length(queries).max())


class RowLengths(Lifted):
    """A gauge of the Euclidean lengths of the rows."""

    @property
    def invariant(self) -> tuple[bool, bool]:
        """A rotation of all rows changes no length."""
        return False, True

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        return self.gauge.length(EUCLIDEAN.length(floating(W)))

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        G = floating(G)
        return self.gauge.aligned(EUCLIDEAN.length(G))[..., None] * EUCLIDEAN.aligned(G)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`: the lengths move onto the ball, the directions stay."""
        xp, W = namespace(W), floating(W)
        lengths = EUCLIDEAN.length(W)
        moved = self.gauge.onto_ball(lengths, per_run(radius, lengths))
        still = (moved == lengths)[..., None]
        return xp.where(still, W, moved[..., None] * EUCLIDEAN.aligned(W))

    def logit_reach(self, tokens: Array, queries: Array) -> float:
        """See :meth:`Norm.logit_reach`."""
        rows = self.gauge.dual.length(tokens).max()
        return float(rows * EUCLIDEAN.length(queries).max())


def _entries(W: Array) -> Array:
    """``(..., d_x, d_z)`` as ``(..., d_x * d_z)``."""
    return namespace(W).reshape(floating(W), (*W.shape[:-2], W.shape[-2] * W.shape[-1]))


def _like(entries: Array, W: Array) -> Array:
    """The inverse of :func:`_entries`."""
    return namespace(W).reshape(entries, W.shape)


def _scaled(W: Array) -> tuple[Array, Array]:
    """``W`` divided by its largest entry, and that entry; at least in single precision, which a
    decomposition needs.
    """
    xp, W = namespace(W), floating(W)
    W = xp.astype(W, xp.float32) if xp.finfo(W.dtype).bits < 32 else W
    scale = xp.max(xp.abs(W), axis=(-2, -1))
    safe = divisor(scale)
    return W / safe[..., None, None], scale
