r"""Weights as a part that converges and a part that diverges, beside what theory predicts of both:
:math:`W^{fin}+R\,W^{mm}` with :math:`R\to\infty`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import FloatArray
from attsvm.solvers import MarginSolution

_CUTOFF = 1e-10  # singular values below this times the largest are taken as zero


class SplitWeights(NamedTuple):
    """Weights ``(..., rows, d)`` as their part inside the subspace and the part orthogonal to
    it.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), np.array([[3, 1, 0], [0, 0, 2]]))
        >>> inside, outside = svm.split([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        >>> inside[:, 0].round(3).tolist(), outside[:, 0].round(3).tolist()
        ([0.5, -0.5, 0.0], [0.5, 0.5, 0.0])
    """

    inside: FloatArray
    outside: FloatArray


class PartsReport(NamedTuple):
    r"""How weights compare with the prediction :math:`W^{fin}+R\,W^{mm}`; each ``(...)``, one
    number per matrix.

    Attributes:
        cosine: of W and :math:`W^{mm}`; NaN where :math:`W^{mm}=0` has no direction.
        outside: of the part of W outside the subspace and :math:`W^{mm}`; NaN likewise.
        finite: :math:`\|\Pi W-W^{fin}\|_F`, with the projection :math:`\Pi` to the subspace.
        scale: :math:`R=\arg\min\|W^{fin}+R\,W^{mm}-W\|_F`; 0 where :math:`W^{mm}=0`.
        residual: the distance that is left at that R.
        norm: :math:`\|W\|_F`.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), np.array([[3, 1, 0], [0, 0, 2]]))
        >>> report = svm.report(svm.finite + 7.0 * svm.solution.W)
        >>> round(float(report.scale), 6), round(float(report.residual), 6)
        (7.0, 0.0)
    """

    cosine: FloatArray
    outside: FloatArray
    finite: FloatArray
    scale: FloatArray
    residual: FloatArray
    norm: FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class TwoParts(Compact):
    """Prediction of theory for weights that split along a subspace; see the subclasses
    :class:`~attsvm.theory.GraphSVM` and :class:`~attsvm.theory.SoftLabelSVM`.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), np.array([[3, 1, 0], [0, 0, 2]]))
        >>> isinstance(svm, attsvm.theory.TwoParts), svm.directed
        (True, True)
        >>> svm.report(svm.finite + 50.0 * svm.solution.W).cosine.round(2).tolist()
        1.0
    """

    solution: MarginSolution
    subspace: FloatArray
    finite: FloatArray
    gradient: float
    floor: float

    @property
    def directed(self) -> bool:
        r"""Whether :math:`W^{mm}` is a direction: feasible and not 0."""
        return self.solution.has_weights and self.solution.norm > 0.0

    def split(self, W: ArrayLike) -> SplitWeights:
        """Weights ``(..., rows, d)`` along and across the subspace.

        Raises:
            InputError: weights of another shape.
        """
        trained, shape = np.asarray(W, dtype=np.float64), self.finite.shape
        if trained.shape[-2:] != shape:
            raise InputError(f"W has shape {trained.shape}; it must end in {shape}, that of W_mm")
        basis = self._rows()
        flat = trained.reshape(*trained.shape[:-2], self.finite.size)
        inside = ((flat @ basis.T) @ basis).reshape(trained.shape)
        return SplitWeights(inside, trained - inside)

    def report(self, W: ArrayLike) -> PartsReport:
        """Weights ``(..., rows, d)`` against both parts.

        Raises:
            InputError: weights of another shape.
        """
        trained = np.asarray(W, dtype=np.float64)
        inside, outside = self.split(trained)
        norm = np.linalg.norm(trained, axis=(-2, -1))
        size = self.solution.norm if self.directed else np.nan
        unit = self.solution.W / size if self.directed else np.full(self.finite.shape, np.nan)
        along = np.sum((trained - self.finite) * unit, axis=(-2, -1))
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = np.sum(trained * unit, axis=(-2, -1)) / norm
            across = np.sum(outside * unit, axis=(-2, -1)) / np.linalg.norm(outside, axis=(-2, -1))
        scale = along / size if self.directed else np.zeros_like(norm)
        predicted = self.finite + scale[..., None, None] * (
            self.solution.W if self.directed else 0.0
        )
        residual = np.linalg.norm(trained - predicted, axis=(-2, -1))
        return PartsReport(
            cosine,
            across,
            np.linalg.norm(inside - self.finite, axis=(-2, -1)),
            scale,
            residual,
            norm,
        )

    def completed(self, features: FloatArray) -> FloatArray:
        """An orthonormal basis ``(p, rows, d)`` of the subspace and these features
        ``(..., rows, d)``, the subspace first.
        """
        basis, flat = self._rows(), features.reshape(-1, self.finite.size)
        across = flat - (flat @ basis.T) @ basis
        across -= (across @ basis.T) @ basis
        sigma, V = np.linalg.svd(across, full_matrices=False)[1:]
        scale = max(float(np.abs(flat).max(initial=0.0)), np.finfo(float).tiny)
        return np.concatenate([basis, V[sigma > _CUTOFF * scale]]).reshape(-1, *self.finite.shape)

    def _rows(self) -> FloatArray:
        """The subspace, a row per direction."""
        return self.subspace.reshape(len(self.subspace), self.finite.size)
