r"""Entrywise :math:`\ell_p` norms: what :math:`\ell_p` mirror descent on the attention weights
minimises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attsvm.norms.array_api import INFINITY, Array
from attsvm.norms.divergence import bregman
from attsvm.norms.exponents import exponent_text
from attsvm.norms.lifts import Entrywise
from attsvm.norms.norm import Descent, MirrorMap, Norm


class Lp(Entrywise):
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

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> W = np.array([[3.0, 0.0], [0.0, -4.0]])
        >>> [float(attsvm.Lp(p).value(W)) for p in (1, 2, float("inf"))]
        [7.0, 5.0, 4.0]
        >>> attsvm.Lp(1).dual
        Lp(inf)
        >>> attsvm.Lp(1).steepest(W).tolist()
        [[0.0, 0.0], [0.0, -1.0]]
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "l1": "sum of absolute entries: what coordinate descent minimises",
        "linf": "largest absolute entry: what sign descent minimises",
        "lp:P": "entrywise p-norm, 1 <= P <= inf: what mirror descent with that p minimises",
    }

    @classmethod
    def spelled(cls, word: str, number: float | None) -> Norm:
        """See :meth:`Norm.spelled`."""
        return cls({"l1": 1.0, "linf": INFINITY}[word] if number is None else number)

    @property
    def name(self) -> str:
        """``lp:P``, and ``fro`` for ``P = 2``."""
        return "fro" if self.p == 2.0 else f"lp:{exponent_text(self.p)}"

    @property
    def title(self) -> str:
        """See :attr:`Norm.title`."""
        exponent = "∞" if self.p == INFINITY else exponent_text(self.p)
        return "Frobenius norm" if self.p == 2.0 else f"ℓ{exponent} norm"

    @property
    def descent(self) -> Descent:
        """Gradient, coordinate and sign descent at p = 2, 1 and infinity; else mirror descent."""
        if self.p == 2.0:
            return Descent("gradient", "gradient descent on W")
        if self.p == 1.0:
            return Descent("steepest", "coordinate descent", 1 / 24)
        if self.p == INFINITY:
            return Descent("steepest", "sign descent", 1 / 3)
        return Descent("mirror", f"mirror descent in the {self.title}")

    @property
    def mirror_map(self) -> MirrorMap | None:
        """See :attr:`Norm.mirror_map`."""
        return MirrorMap("power", self.p) if self.strictly_convex else None

    def _unit_divergence(self, V: Array, W: Array) -> Array:
        """Here nothing cancels."""
        return bregman(V, W, self.p)

    def __repr__(self) -> str:
        return f"Lp({exponent_text(self.p)})"
