r"""Schatten norms, the :math:`\ell_p` norms of singular values; the nuclear and the spectral norm
are its ends.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from attsvm.geometry import vectors
from attsvm.geometry.entrywise import checked_exponent
from attsvm.geometry.frobenius import Frobenius
from attsvm.geometry.norm import Norm, conjugate_exponent, exponent_text, floating, per_run

Array = Any


_NAMES = {1.0: "nuc", 2.0: "fro", float("inf"): "spec"}


class Schatten(Norm):
    r"""The Schatten norm :math:`\|W\|_{S_p}=(\sum_i\sigma_i(W)^p)^{1/p}`, largest singular value
    for :math:`p=\infty`; dual: :math:`S_q`.

    ``Schatten(1)`` equals :class:`Nuclear`, ``Schatten(inf)`` equals :class:`Spectral`,
    ``Schatten(2)`` equals :class:`Frobenius` and takes no singular value decomposition.

    With :math:`G=U\,\mathrm{diag}(\sigma)V^\top` the steepest direction is
    :math:`U\,\mathrm{diag}(\sigma^{q-1})V^\top/\|\sigma\|_q^{q-1}`:
    :math:`u_1v_1^\top` for :math:`p=1`, :math:`UV^\top` for :math:`p=\infty` (Fan, Schmidt and
    Thrampoulidis, *Spectral Descent and Muon*). Singular values below
    :math:`\max(d_x,d_z)\,\epsilon\,\sigma_1` are rounding and take no part.

    Args:
        p: the exponent, :math:`1\le p\le\infty`.

    Raises:
        InputError: ``p`` is below 1 or not a number.
    """

    def __init__(self, p: float) -> None:
        self.p = checked_exponent("Schatten", p)
        self._conjugate = conjugate_exponent(self.p)

    @property
    def name(self) -> str:
        """``schatten:P``, and ``nuc``, ``fro`` and ``spec`` for ``P`` = 1, 2 and infinity."""
        return _NAMES.get(self.p) or f"schatten:{exponent_text(self.p)}"

    @property
    def dual(self) -> Norm:
        r""":math:`S_q` with :math:`1/p+1/q=1`."""
        if self.p == 1.0:
            return Spectral()
        if self.p == float("inf"):
            return Nuclear()
        dual = Schatten(self._conjugate)
        dual._conjugate = self.p  # the dual of the dual is the norm itself, to the bit
        return dual

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        if self.p == 2.0:
            return Frobenius().value(W)
        xp = array_namespace(W)
        scaled, scale = _scaled(W)
        return xp.astype(
            scale * vectors.length(xp.linalg.svdvals(scaled), self.p), floating(W).dtype
        )

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        if self.p == 2.0:
            return Frobenius().steepest(G)
        xp = array_namespace(G)
        G = floating(G)
        U, sigma, Vt = xp.linalg.svd(_scaled(G)[0], full_matrices=False)
        noise = max(G.shape[-2:]) * float(xp.finfo(sigma.dtype).eps) * sigma[..., :1]
        sigma = xp.where(sigma > noise, sigma, xp.zeros_like(sigma))
        return xp.astype((U * vectors.aligned(sigma, self.p)[..., None, :]) @ Vt, G.dtype)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`: the singular values move onto the ball, the singular vectors
        stay.
        """
        if self.p == 2.0:
            return Frobenius().project(W, radius)
        xp = array_namespace(W)
        W = floating(W)
        scaled, scale = _scaled(W)
        U, sigma, Vt = xp.linalg.svd(scaled, full_matrices=False)
        sigma = sigma * scale[..., None]
        moved = vectors.onto_ball(sigma, self.p, per_run(radius, sigma))
        inside = xp.all(moved == sigma, axis=-1)[..., None, None]
        return xp.where(inside, W, xp.astype((U * moved[..., None, :]) @ Vt, W.dtype))

    def __repr__(self) -> str:
        return f"Schatten({exponent_text(self.p)})"


class Nuclear(Schatten):
    r"""The nuclear norm :math:`\|W\|_\star=\sum_i\sigma_i(W)`; dual: :class:`Spectral`.

    Gradient descent on the factors :math:`W=KQ^\top` converges in direction to the max-margin
    solution in this norm (Tarzanagh et al., *Transformers as Support Vector Machines*).
    """

    def __init__(self) -> None:
        super().__init__(1.0)

    def __repr__(self) -> str:
        return "Nuclear()"


class Spectral(Schatten):
    r"""The spectral norm :math:`\sigma_1(W)`; dual: :class:`Nuclear`.

    Spectral descent, the idealised Muon, converges in direction to the max-margin solution in this
    norm (Fan, Schmidt and Thrampoulidis, *Spectral Descent and Muon*).
    """

    def __init__(self) -> None:
        super().__init__(float("inf"))

    def __repr__(self) -> str:
        return "Spectral()"


def _scaled(W: Array) -> tuple[Array, Array]:
    """``W`` divided by its largest entry, and that entry; at least in single precision, which a
    decomposition needs.
    """
    xp, W = array_namespace(W), floating(W)
    W = xp.astype(W, xp.float32) if xp.finfo(W.dtype).bits < 32 else W
    scale = xp.max(xp.abs(W), axis=(-2, -1))
    safe = xp.where(scale > 0, scale, xp.ones_like(scale))
    return W / safe[..., None, None], scale
