"""The normalised Frobenius step of small parameters on the CPU: norms, division and update in one
pass while a matrix is in the cache.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attsvm.jit import kernel, summing_kernel
from attsvm.optim.base import TensorList

FloatArray = npt.NDArray[Any]

_LEAST = 1e-270  # sums of squares below it may have lost squares that underflowed


def normalized_step(parameters: TensorList, vectors: TensorList, keep: float, lr: float) -> None:
    r""":math:`W\leftarrow\rho W-\eta\,M/\|M\|_F` for every matrix of contiguous float32 or float64
    tensors, on one core.

    Args:
        parameters: what moves, in place; the last two axes are one matrix, the axes in front count
            independent ones.
        vectors: :math:`M`, shaped and typed like them. Zero moves nothing, and an entry that is not
            finite makes NaN, as in
            :func:`attsvm.optim.directions.steepest_direction`.
        keep: :math:`\rho`.
        lr: :math:`\eta`.
    """
    for parameter, vector in zip(parameters, vectors, strict=True):
        count = parameter.numel()
        if count:
            matrices = math.prod(parameter.shape[:-2])
            flat = (matrices, count // matrices)
            _descend(
                parameter.detach().view(flat).numpy(),
                vector.detach().contiguous().view(flat).numpy(),
                keep,
                lr,
            )
    torch.autograd.graph.increment_version(parameters)  # torch does not see these writes


@summing_kernel
def _square(g: FloatArray, row: int) -> float:
    """Sum of squares in float64."""
    total = 0.0
    for j in range(g.shape[1]):
        wide = np.float64(g[row, j])
        total += wide * wide
    return total


@kernel
def _scale(g: FloatArray, row: int) -> float:
    """What makes the largest entry one; 1 where there is none, because all are zero or one is not a
    number.
    """
    largest = 0.0
    for j in range(g.shape[1]):
        size = abs(np.float64(g[row, j]))
        if math.isnan(size):
            return 1.0
        largest = max(largest, size)
    return largest if largest > 0.0 else 1.0


@kernel
def _descend(w: FloatArray, g: FloatArray, keep: float, lr: float) -> None:
    """Everything in float64, rounded once to the precision of ``w``."""
    for row in range(w.shape[0]):
        square = _square(g, row)
        if _LEAST < square < math.inf:
            norm = math.sqrt(square)
            for j in range(w.shape[1]):
                w[row, j] = keep * w[row, j] - lr * (g[row, j] / norm)
            continue
        scale, square = _scale(g, row), 0.0
        for j in range(w.shape[1]):
            part = g[row, j] / scale
            square += part * part
        norm = math.sqrt(square) if square > 0.0 else 1.0
        for j in range(w.shape[1]):
            w[row, j] = keep * w[row, j] - lr * (g[row, j] / scale / norm)
