r"""A matrix and a vector trained side by side, and the norm in which their steps are steepest.

Weights are :math:`\theta=[W\,b]`, the vector is the last column. Muon on the matrix and signs on
the vector, with one length for both, are steepest descent in
:math:`\max(\|W\|_{\mathrm{op}},\|b\|_\infty)`, the hybrid norm of Gronich and Vardi (2026).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm import Lp, Nuclear, Spectral
from attsvm.datasets.attention_data import FloatArray
from attsvm.norms import Norm
from attsvm.theory.scale_free_descent import Direction


class Hybrid(Norm):
    r"""The larger of the spectral norm of all columns but the last and the largest entry of that;
    dual: the sum of their nuclear and :math:`\ell_1` norm.
    """

    @property
    def name(self) -> str:
        """``hybrid``; no command knows it."""
        return "hybrid"

    @property
    def tolerance(self) -> float:
        """The tolerance of the spectral norm."""
        return Spectral().tolerance

    def value(self, W: Any) -> Any:
        """See :meth:`Norm.value`."""
        return np.maximum(Spectral().value(W[..., :-1]), Lp(np.inf).value(W[..., -1:]))

    def dual_value(self, G: Any) -> Any:
        """See :meth:`Norm.dual_value`."""
        return Nuclear().value(G[..., :-1]) + Lp(1).value(G[..., -1:])

    def steepest(self, G: Any) -> Any:
        """See :meth:`Norm.steepest`."""
        directions = Spectral().steepest(G[..., :-1]), Lp(np.inf).steepest(G[..., -1:])
        return np.concatenate(directions, axis=-1)

    def subgradient(self, W: Any) -> Any:
        """See :meth:`Norm.subgradient`: of the larger part."""
        matrix, vector = W[..., :-1], W[..., -1:]
        matrix_is_larger = Spectral().value(matrix) >= Lp(np.inf).value(vector)
        return np.concatenate(
            [
                np.where(matrix_is_larger[..., None, None], Nuclear().steepest(matrix), 0.0),
                np.where(matrix_is_larger[..., None, None], 0.0, Lp(1).steepest(vector)),
            ],
            axis=-1,
        )

    def prox(self, W: Any, t: Any) -> Any:
        """See :meth:`Norm.prox`: that of the largest of singular values and entries together."""
        U, values, V = np.linalg.svd(W[..., :-1], full_matrices=False)
        sizes = np.concatenate([values, np.abs(W[..., -1])], axis=-1)
        shrunk = Lp(np.inf).prox(sizes[..., None], t)[..., 0]
        count = values.shape[-1]
        return np.concatenate(
            [
                (U * shrunk[..., None, :count]) @ V,
                (np.sign(W[..., -1]) * shrunk[..., count:])[..., None],
            ],
            axis=-1,
        )


class MatrixAndVector:
    """A direction of the matrix, and another one of the vector.

    Args:
        matrix: of all columns but the last.
        vector: of the last one.
    """

    def __init__(self, matrix: Direction, vector: Direction) -> None:
        self.matrix, self.vector = matrix, vector

    def __call__(self, G: FloatArray, log_scale: FloatArray) -> FloatArray:
        """See :class:`Direction`."""
        return np.concatenate(
            [self.matrix(G[..., :-1], log_scale), self.vector(G[..., -1:], log_scale)], axis=-1
        )
