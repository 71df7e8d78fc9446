"""The fused mirror step: hands a list of CPU tensors to the compiled kernel as addresses and blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch

from attsvm.optim import kernels
from attsvm.optim.base import TensorList
from attsvm.optim.mirror_maps import PowerMap
from attsvm.optim.powers import Exponent

_KINDS = {
    Exponent(1, 0.0): kernels.PRODUCT1,
    Exponent(2, 0.0): kernels.PRODUCT2,
    Exponent(3, 0.0): kernels.PRODUCT3,
    Exponent(4, 0.0): kernels.PRODUCT4,
    Exponent(10, 0.0): kernels.PRODUCT10,
    Exponent(0, 0.5): kernels.ROOT2,
    Exponent(0, 0.25): kernels.ROOT4,
}


def fused_step(potential: PowerMap, weights: TensorList, gradients: TensorList, duals: TensorList, shrink: float, lr: float) -> None:
    r""":math:`Y\leftarrow\rho Y-\eta g`, :math:`W\leftarrow\mathrm{sp}(Y,\frac1{p-1})` for contiguous tensors of one precision each.

    Takes as many threads as torch takes, one where the list is short.
    """
    inverse = potential.inverse
    for dtype in sorted({weight.dtype for weight in weights}, key=str):
        members = [index for index, weight in enumerate(weights) if weight.dtype == dtype and weight.numel()]
        if not members:
            continue
        wide = dtype == torch.float64
        kind = kernels.POWER if wide and inverse.whole > 4 else _KINDS.get(inverse, kernels.POWER)
        sizes, starts, owners = _blocks(tuple(weights[index].numel() for index in members))
        g, y, w = (np.array([tensors[index].data_ptr() for index in members]) for tensors in (gradients, duals, weights))
        torch_threads = torch.get_num_threads()  # numba's first parallel section sets OpenMP's default for the whole process
        numba_threads = numba.get_num_threads()
        numba.set_num_threads(max(1, min(torch_threads, numba_threads, len(starts))))
        try:
            if wide:
                kernels.step64(g, y, w, sizes, starts, owners, shrink, lr, kind, float(inverse.whole), inverse.rest)
            else:
                kernels.step32(g, y, w, sizes, starts, owners, shrink, lr, kind, float(inverse))
        finally:
            numba.set_num_threads(numba_threads)
            if torch.get_num_threads() != torch_threads:
                torch.set_num_threads(torch_threads)
    torch.autograd.graph.increment_version(weights)  # torch does not see these writes
    torch.autograd.graph.increment_version(duals)


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Sizes, and for every block where it starts and in which tensor."""
    counts = [-(-size // kernels.BLOCK) for size in sizes]
    starts = np.concatenate([np.arange(count) * kernels.BLOCK for count in counts])
    return np.array(sizes), starts, np.repeat(np.arange(len(sizes)), counts)
