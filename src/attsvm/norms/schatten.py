r"""Schatten norms, the :math:`\ell_p` norms of singular values; the nuclear and the spectral norm
are its ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attsvm.norms.array_api import INFINITY, Array
from attsvm.norms.exponents import exponent_text
from attsvm.norms.frobenius import Frobenius
from attsvm.norms.lifts import SingularValues
from attsvm.norms.norm import Descent, MirrorMap, Norm

_NAMES = {1.0: "nuc", 2.0: "fro", INFINITY: "spec"}
_TITLES = {1.0: "nuclear norm", 2.0: "Frobenius norm", INFINITY: "spectral norm"}


class Schatten(SingularValues):
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

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> W = np.diag([3.0, 4.0])
        >>> [round(float(attsvm.Schatten(p).value(W)), 3) for p in (1, 2, 3, float("inf"))]
        [7.0, 5.0, 4.498, 4.0]
        >>> attsvm.Schatten(1) == attsvm.Nuclear(), attsvm.Schatten(4).dual.name
        (True, 'schatten:1.3333333333333333')
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "schatten:P": "p-norm of the singular values, 1 <= P <= inf"
    }

    @property
    def name(self) -> str:
        """``schatten:P``, and ``nuc``, ``fro`` and ``spec`` for ``P`` = 1, 2 and infinity."""
        return _NAMES.get(self.p) or f"schatten:{exponent_text(self.p)}"

    @property
    def dual(self) -> Norm:
        r""":math:`S_q` with :math:`1/p+1/q=1`."""
        if self.p == 1.0:
            return Spectral()
        return Nuclear() if self.p == INFINITY else super().dual

    @property
    def title(self) -> str:
        """See :attr:`Norm.title`."""
        return _TITLES.get(self.p) or f"Schatten-{exponent_text(self.p)} norm"

    @property
    def descent(self) -> Descent:
        """Gradient descent on factors for the nuclear norm, on ``W`` at p = 2, spectral descent at
        infinity, mirror descent between.
        """
        if self.p == 1.0:
            return Descent("factored", "gradient descent on the factors K and Q")
        if self.p == 2.0:
            return Frobenius().descent
        if self.p == INFINITY:
            return Descent("steepest", "spectral descent", 1 / 8)
        return Descent("mirror", f"mirror descent in the {self.title}")

    @property
    def mirror_map(self) -> MirrorMap | None:
        """See :attr:`Norm.mirror_map`."""
        return MirrorMap("schatten", self.p) if self.strictly_convex else None

    @property
    def tolerance(self) -> float:
        """1e-6 of the nuclear and the spectral norm, which solvers reach slowly near their end."""
        return 1e-9 if self.strictly_convex else 1e-6

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        return Frobenius().value(W) if self.p == 2.0 else super().value(W)

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        return Frobenius().steepest(G) if self.p == 2.0 else super().steepest(G)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """See :meth:`Norm.project`."""
        return Frobenius().project(W, radius) if self.p == 2.0 else super().project(W, radius)

    def __repr__(self) -> str:
        return f"Schatten({exponent_text(self.p)})"


class Nuclear(Schatten):
    r"""The nuclear norm :math:`\|W\|_\star=\sum_i\sigma_i(W)`; dual: :class:`Spectral`.

    Gradient descent on the factors :math:`W=KQ^\top` converges in direction to the max-margin
    solution in this norm (Tarzanagh et al., *Transformers as Support Vector Machines*).

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> W = np.ones((2, 2))
        >>> round(float(attsvm.Nuclear().value(W)), 6)
        2.0
        >>> attsvm.Nuclear().subgradient(W).round(6).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "nuc": "nuclear norm: what gradient descent on the factors K, Q minimises"
    }

    def __init__(self) -> None:
        super().__init__(1.0)

    __repr__ = Norm.__repr__


class Spectral(Schatten):
    r"""The spectral norm :math:`\sigma_1(W)`; dual: :class:`Nuclear`.

    Spectral descent, the idealised Muon, converges in direction to the max-margin solution in this
    norm (Fan, Schmidt and Thrampoulidis, *Spectral Descent and Muon*).

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> G = np.array([[0.0, 2.0], [-1.0, 0.0]])
        >>> round(float(attsvm.Spectral().value(G)), 6)
        2.0
        >>> (attsvm.Spectral().steepest(G).round(6) + 0.0).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "spec": "spectral norm: what spectral descent (Muon) minimises"
    }

    def __init__(self) -> None:
        super().__init__(INFINITY)

    __repr__ = Norm.__repr__
