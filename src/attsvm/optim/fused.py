"""The fused mirror step: hands a list of CPU tensors to the compiled kernel as addresses and
blocks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from attsvm.errors import InputError
from attsvm.optim import compiled_pass, power_kernels
from attsvm.optim.base import StateList, TensorList
from attsvm.optim.mirror_maps import PowerMap
from attsvm.optim.mirror_step import fused_obstacle
from attsvm.optim.powers import Exponent
from attsvm.parallel import start_threads
from attsvm.thread_limits import at_most_threads

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
        step = compiled_pass.step64 if dtype == torch.float64 else compiled_pass.step32
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
    writes = compiled_pass.written64 if dual.dtype == torch.float64 else compiled_pass.written32
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
    counts = [-(-size // compiled_pass.BLOCK) for size in sizes]
    starts = np.concatenate([np.arange(count) * compiled_pass.BLOCK for count in counts])
    return np.array(sizes), starts, np.repeat(np.arange(len(sizes)), counts)
