r"""Power potentials :math:`\psi(W)=\frac1p\|W\|_p^p`: the mirror maps of :math:`\ell_p` mirror
descent.
"""

from __future__ import annotations

import numpy as np

from attsvm.base.errors import InputError
from attsvm.norms.array_api import Array, divisor, namespace
from attsvm.norms.divergence import bregman
from attsvm.norms.entrywise import Lp
from attsvm.norms.gauge import power, reciprocal_power


class PowerPotential:
    r"""The potential :math:`\psi(W)=\frac1p\sum_{ij}|W_{ij}|^p`, :math:`1<p<\infty`, of matrices on
    the last two axes.

    Its mirror map is the signed power :math:`\nabla\psi(W)=\mathrm{sp}(W,p-1)`,
    :math:`\mathrm{sp}(x,r)=\mathrm{sign}(x)|x|^r`, with inverse
    :math:`\mathrm{sp}(Y,\frac1{p-1})=\nabla\psi^*(Y)`, :math:`\psi^*(Y)=\frac1q\|Y\|_q^q`,
    :math:`\frac1p+\frac1q=1` (Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with
    Mirror Descent*).

    Args:
        p: the exponent.

    Raises:
        InputError: ``p`` is not a number with :math:`1<p<\infty`.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> potential = attsvm.PowerPotential(3)
        >>> W = np.array([[1.0, -2.0]])
        >>> potential.mirror(W).tolist()
        [[1.0, -4.0]]
        >>> potential.inverse_mirror(potential.mirror(W)).tolist()
        [[1.0, -2.0]]
    """

    def __init__(self, p: float) -> None:
        try:
            number = float(p)
        except (TypeError, ValueError):
            number = float("nan")
        if not 1.0 < number < float("inf"):
            raise InputError(
                f"PowerPotential({p!r}) has no mirror map: the exponent p must be a number with 1 <"
                " p < inf"
            )
        self.p = number

    def value(self, W: Array) -> Array:
        r""":math:`\psi(W)=\frac1p\|W\|_p^p`, over the last two axes; ``inf`` or 0 where that is out
        of range.
        """
        return _power_sum(W, self.p) / self.p

    def mirror(self, W: Array) -> Array:
        r""":math:`\nabla\psi(W)=\mathrm{sp}(W,p-1)`."""
        return _signed_power(W, self.p - 1.0)

    def inverse_mirror(self, Y: Array) -> Array:
        r""":math:`\nabla\psi^*(Y)=\mathrm{sp}(Y,\frac1{p-1})`."""
        return _signed_power(Y, reciprocal_power(self.p))

    def bregman(self, V: Array, W: Array) -> Array:
        r""":math:`D_\psi(V,W)\ge0`, over the last two axes:
        :math:`\frac1p\|V\|_p^p+\frac{p-1}p\|W\|_p^p-\langle\mathrm{sp}(W,p-1),V\rangle`.

        Entry by entry, relative to the larger of the two: nothing cancels, however close ``V`` and
        ``W`` are and however close ``p`` is to 1.
        """
        return bregman(V, W, self.p)

    def direction_divergence(self, V: Array, W: Array) -> Array:
        r""":math:`D_\psi\big(\frac V{\|V\|_p},\frac W{\|W\|_p}\big)\in[0,2]`, the directional
        Bregman divergence, over the last two axes.

        Not symmetric: the solution comes first, the iterate second, and ``p`` is that of the
        descent which made the iterate. At ``p = 2`` it is one minus the cosine. About 1 for
        unrelated directions, NaN where a matrix is zero and has none.

        Source: Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with Mirror Descent*
        ("Bregman correlation" in its code).
        """
        return Lp(self.p).direction_divergence(V, W)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerPotential) and self.p == other.p

    def __hash__(self) -> int:
        return hash(("power potential", self.p))

    def __repr__(self) -> str:
        return f"PowerPotential({self.p:.17g})"


def _signed_power(x: Array, r: float) -> Array:
    r""":math:`\mathrm{sp}(x,r)=\mathrm{sign}(x)|x|^r`."""
    xp = namespace(x)
    with np.errstate(over="ignore", under="ignore"):
        return xp.copysign(power(xp.abs(x), r), x)


def _power_sum(W: Array, p: float) -> Array:
    r""":math:`\sum_{ij}|W_{ij}|^p`, right whenever it can be represented."""
    xp = namespace(W)
    size = xp.abs(W)
    scale = xp.max(size, axis=(-2, -1))
    safe = divisor(scale)[..., None, None]
    with np.errstate(over="ignore", under="ignore"):
        return scale**p * xp.sum((size / safe) ** p, axis=(-2, -1))
