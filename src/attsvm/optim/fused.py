r"""Compiled steps on the CPU: the normalised Frobenius step of small parameters, and the mirror
step, one pass over a list of parameters: :math:`y\leftarrow\rho y-\eta g`,
:math:`w=\mathrm{sp}(y,r)`.

The mirror step reads the gradient and the dual iterate, writes the dual iterate and the weight:
four words per number. Without a dual iterate it is made from the weight, block by block, and never
leaves the cache. The tensors are handed over as addresses, cut into blocks of equal size, so that
many small ones cost no more than one large one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba import types
from numba.np.numpy_support import carray
from torch import Tensor

from attsvm.errors import InputError
from attsvm.jit import fusing_kernel, kernel, summing_kernel
from attsvm.optim import power_kernels
from attsvm.optim.base import StateList, TensorList, fused_obstacle
from attsvm.optim.mirror_maps import PowerMap
from attsvm.optim.power_kernels import (
    FloatArray,
    Power,
    image32,
    image64,
    is_special,
    reinterpreting,
)
from attsvm.optim.powers import Exponent
from attsvm.parallel import parallel_fusing_kernel, start_threads
from attsvm.thread_limits import at_most_threads

_LEAST = 1e-270  # sums of squares below it may have lost squares that underflowed
IntArray = npt.NDArray[np.int64]

BLOCK = 1 << 11  # numbers: three blocks of float32 stay in the first cache

_float32_at, _float64_at = (
    reinterpreting(types.int64, types.CPointer(kind), "inttoptr")  # type: ignore[no-untyped-call]
    for kind in (types.float32, types.float64)
)


@parallel_fusing_kernel
def step32(
    g_at: IntArray,
    y_at: IntArray,
    w_at: IntArray,
    sizes: IntArray,
    starts: IntArray,
    owners: IntArray,
    rho: float,
    eta: float,
    inverse: Power,
    forward: Power,
) -> None:  # pragma: no cover - compiled
    """One step of float32 tensors.

    Args:
        g_at: addresses of the gradients.
        y_at: of the dual iterates, zero where a tensor keeps none.
        w_at: of the weights.
        sizes: how many numbers each of these has.
        starts: for every block, the number at which it starts in its tensor.
        owners: for every block, its tensor.
        rho: factor of the dual iterate.
        eta: step length.
        inverse: the power that takes the dual iterate to the weight: how it is computed, and its
            exponent, whole and rest.
        forward: the power that takes the weight to the dual iterate.
    """
    for block in numba.prange(starts.size):
        k = owners[block]
        first = starts[block]
        count = min(BLOCK, sizes[k] - first)
        g = carray(_float32_at(g_at[k] + 4 * first), (count,))
        w = carray(_float32_at(w_at[k] + 4 * first), (count,))
        if y_at[k] == 0:
            y = np.empty(count, np.float32)
            special = 0
            for i in range(count):
                special += is_special(w[i])
            image32(w, y, special, forward[0], forward[1], forward[2])
        else:
            y = carray(_float32_at(y_at[k] + 4 * first), (count,))
        keep, step = np.float32(rho), np.float32(eta)
        if keep != 1.0:  # a loop of its own, so that the product rounds as it does in torch
            for i in range(count):
                y[i] *= keep
        special = 0
        for i in range(count):
            moved = y[i] - step * g[i]
            y[i] = moved
            special += is_special(moved)
        image32(y, w, special, inverse[0], inverse[1], inverse[2])


@parallel_fusing_kernel
def step64(
    g_at: IntArray,
    y_at: IntArray,
    w_at: IntArray,
    sizes: IntArray,
    starts: IntArray,
    owners: IntArray,
    rho: float,
    eta: float,
    inverse: Power,
    forward: Power,
) -> None:  # pragma: no cover - compiled
    """One step of float64 tensors, as :func:`step32`."""
    for block in numba.prange(starts.size):
        k = owners[block]
        first = starts[block]
        count = min(BLOCK, sizes[k] - first)
        g = carray(_float64_at(g_at[k] + 8 * first), (count,))
        w = carray(_float64_at(w_at[k] + 8 * first), (count,))
        if y_at[k] == 0:
            y = np.empty(count, np.float64)
            image64(w, y, forward[0], forward[1], forward[2])
        else:
            y = carray(_float64_at(y_at[k] + 8 * first), (count,))
        if rho != 1.0:
            for i in range(count):
                y[i] *= rho
        for i in range(count):
            y[i] -= eta * g[i]
        image64(y, w, inverse[0], inverse[1], inverse[2])


@fusing_kernel
def written32(y: FloatArray, w: FloatArray, inverse: Power) -> None:  # pragma: no cover - compiled
    """The float32 weights that a step leaves beside the dual iterate ``y``, to the bit."""
    for first in range(0, y.size, BLOCK):
        stop = min(first + BLOCK, y.size)
        special = 0
        for i in range(first, stop):
            special += is_special(y[i])
        image32(y[first:stop], w[first:stop], special, inverse[0], inverse[1], inverse[2])


@fusing_kernel
def written64(y: FloatArray, w: FloatArray, inverse: Power) -> None:  # pragma: no cover - compiled
    """The float64 weights that a step leaves beside the dual iterate ``y``, to the bit."""
    image64(y, w, inverse[0], inverse[1], inverse[2])


_KINDS = {
    Exponent(1, 0.0): power_kernels.PRODUCT1,
    Exponent(2, 0.0): power_kernels.PRODUCT2,
    Exponent(3, 0.0): power_kernels.PRODUCT3,
    Exponent(4, 0.0): power_kernels.PRODUCT4,
    Exponent(5, 0.0): power_kernels.PRODUCT5,
    Exponent(10, 0.0): power_kernels.PRODUCT10,
    Exponent(0, 0.5): power_kernels.ROOT2,
    Exponent(0, 0.25): power_kernels.ROOT4,
    Exponent(0, 0.75): power_kernels.ROOT34,
}


def fused_step(
    potential: PowerMap,
    weights: TensorList,
    gradients: TensorList,
    duals: StateList,
    shrink: float | Tensor,
    lr: float | Tensor,
) -> bool:
    r""":math:`Y\leftarrow\rho Y-\eta g`, :math:`W\leftarrow\mathrm{sp}(Y,\frac1{p-1})` for
    contiguous tensors of one precision each.

    :math:`Y` is :math:`\mathrm{sp}(W,p-1)` where there is no dual. Takes as many threads as torch
    takes, one where the list is short.

    Returns:
        False, with nothing done, where a tensor is not what the kernel can walk through.

    Raises:
        InputError: a gradient or a dual of another size than its weights, or without memory.
    """
    gradients = [gradient.contiguous() for gradient in gradients]
    for tensors in zip(weights, gradients, duals, strict=True):
        if not _walks(*tensors):
            return False
    for dtype in sorted({weight.dtype for weight in weights}, key=str):
        members = [
            index
            for index, weight in enumerate(weights)
            if weight.dtype == dtype and weight.numel()
        ]
        if not members:
            continue
        step = step64 if dtype == torch.float64 else step32
        inverse, forward = (
            compiled_power(exponent, dtype) for exponent in (potential.inverse, potential.forward)
        )
        sizes, starts, owners = _blocks(tuple(weights[index].numel() for index in members))
        g, y, w = (
            np.array([_address(tensors[index]) for index in members])
            for tensors in (gradients, duals, weights)
        )
        start_threads()
        with at_most_threads(min(torch.get_num_threads(), len(starts)), numba):
            step(g, y, w, sizes, starts, owners, float(shrink), float(lr), inverse, forward)
    torch.autograd.graph.increment_version(weights)  # torch does not see these writes
    torch.autograd.graph.increment_version([dual for dual in duals if dual is not None])
    return True


def _walks(weight: Tensor, *others: Tensor | None) -> bool:
    """Whether the numbers of all these lie one after the other, as many and of the same kind: an
    address says nothing of that.
    """
    if fused_obstacle(weight) is not None:
        return False
    count, kind = weight.numel(), weight.dtype
    for other in others:
        if other is None:
            continue
        if other.numel() != count:
            raise InputError(
                f"the compiled step got a tensor of shape {tuple(other.shape)} for a parameter of"
                f" shape {tuple(weight.shape)}; give the gradient and the state its shape"
            )
        if not (other.dtype == kind and other.is_cpu and other.is_contiguous()):
            return False
    return True


def _address(tensor: Tensor | None) -> int:
    """Where the numbers of a tensor lie, 0 for None."""
    if tensor is None:
        return 0
    address = tensor.data_ptr()
    if address == 0:
        raise InputError(
            f"the memory of a tensor of shape {tuple(tensor.shape)} was given away; bring it back"
            " before the step"
        )
    return address


def fused_image(potential: PowerMap, dual: Tensor) -> Tensor:
    """The weights that :func:`fused_step` leaves beside a contiguous ``dual``, to the bit."""
    image = torch.empty_like(dual)
    writes = written64 if dual.dtype == torch.float64 else written32
    writes(
        dual.detach().view(-1).numpy(),
        image.view(-1).numpy(),
        compiled_power(potential.inverse, dual.dtype),
    )
    return image


def compiled_power(exponent: Exponent, dtype: torch.dtype = torch.float64) -> power_kernels.Power:
    """How the kernel computes a power, and the exponent."""
    kind = _KINDS.get(exponent, power_kernels.POWER)
    if dtype == torch.float64 and exponent.whole > 4:
        kind = power_kernels.POWER
    return kind, float(exponent.whole), exponent.rest


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Sizes, and for every block where it starts and in which tensor."""
    counts = [-(-size // BLOCK) for size in sizes]
    starts = np.concatenate([np.arange(count) * BLOCK for count in counts])
    return np.array(sizes), starts, np.repeat(np.arange(len(sizes)), counts)


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
