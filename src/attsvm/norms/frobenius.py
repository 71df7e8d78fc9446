"""The Frobenius norm: what gradient descent on the attention weights minimises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from attsvm.norms.array_api import Array, namespace
from attsvm.norms.lifts import Entrywise
from attsvm.norms.norm import Descent, MirrorMap, Norm

# Between this and its inverse no square of an entry that counts overflows or underflows.
_LEAST_SQUARES = 2.0**-800


class Frobenius(Entrywise):
    r"""The Frobenius norm :math:`\|W\|_F=(\sum_{ij} W_{ij}^2)^{1/2}`, its own dual.

    Gradient descent on ``W`` converges in direction to the max-margin solution in this norm
    (Tarzanagh et al., *Transformers as Support Vector Machines*).
    Squares are taken after division by the largest entry where they could overflow or underflow.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> norm = attsvm.Frobenius()
        >>> print(norm.value(np.array([[3.0, 0.0], [0.0, 4.0]])))
        5.0
        >>> norm.steepest(np.array([[3.0, 0.0], [0.0, 4.0]])).tolist()
        [[0.6, 0.0], [0.0, 0.8]]
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "fro": "Frobenius norm: what gradient descent on W minimises"
    }
    p = _conjugate = 2.0
    name = "fro"
    title = "Frobenius norm"
    descent = Descent("gradient", "gradient descent on W")
    mirror_map = MirrorMap("power", 2.0)
    invariant = True, True

    def __init__(self) -> None:
        """Nothing to choose."""

    @property
    def dual(self) -> Norm:
        """The norm is its own dual."""
        return self

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        if type(W) is np.ndarray and W.ndim == 2 and W.dtype == np.float64:
            squares = float(np.vdot(W, W))  # most solves and all certificates ask for one matrix
            if _LEAST_SQUARES < squares < 1.0 / _LEAST_SQUARES:
                return np.sqrt(squares)
        return super().value(W)

    def _unit_divergence(self, V: Array, W: Array) -> Array:
        r"""One minus the cosine as a difference of unit matrices, so 1e-20 is as exact as 0.1."""
        return 0.5 * namespace(V, W).sum((V - W) ** 2, axis=(-2, -1))
