r"""The compiled steps of the CPU on lists of tensors: the mirror step, and the normalised steps of
Frobenius's norm and of the largest entry.

Tensors are handed over as addresses, in shares for the threads of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.base.cores import map_on_threads, threads
from attsvm.base.errors import InputError
from attsvm.native import library
from attsvm.optim.base import StateList, TensorList, fused_obstacle
from attsvm.optim.powers import Exponent

_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}


def mirror_step(
    weights: TensorList,
    gradients: TensorList,
    duals: StateList,
    shrink: float,
    lr: float,
    inverse: Exponent,
    share: int = 1 << 17,
) -> bool:
    r"""Take the steps :math:`Y\leftarrow\rho Y-\eta G`, :math:`W\leftarrow\mathrm{sp}(Y,r)` of
    contiguous tensors, of one precision each; return whether they were taken.

    Args:
        weights: written.
        gradients: :math:`G`.
        duals: :math:`Y`, written.
        shrink: :math:`\rho`.
        lr: :math:`\eta`.
        inverse: :math:`r`.
        share: entries that a thread takes at a time (half a megabyte of float32; chosen by
            measurement).

    Returns:
        False, with nothing done, where a tensor is none that the compiled step can walk through.

    Raises:
        InputError: a gradient or a dual of another size than its weights, or without memory.
    """
    gradients = [gradient.contiguous() for gradient in gradients]
    rows = [row for row in zip(gradients, duals, weights, strict=True) if row[2].numel()]
    if not all(_have_same_layout(weight, gradient, dual) for gradient, dual, weight in rows):
        return False
    # 1. the calls: every tensor in shares of as many entries as stay in the cache
    shares = []
    for row in rows:
        weight = row[2]
        step = getattr(library, f"mirror_step_{_SUFFIXES[weight.dtype]}")
        addresses = [_address(tensor) for tensor in row]
        for first in range(0, weight.numel(), share):
            begins = [address + first * weight.itemsize for address in addresses]
            shares.append((step, *begins, min(share, weight.numel() - first)))
    # 2. the step of a share: addresses and size, then factors and exponent, the same for all
    factors = float(shrink), float(lr), float(inverse.integer), inverse.fraction

    def take_step(arguments: tuple[Any, ...]) -> None:
        step, *begins_and_size = arguments
        step(*begins_and_size, *factors)

    _share_out(take_step, shares)
    # torch does not see these writes
    torch.autograd.graph.increment_version(
        [*weights, *(dual for dual in duals if dual is not None)]
    )
    return True


def normalized_step(
    kernel: str, parameters: TensorList, vectors: TensorList, shrink: float, lr: float
) -> None:
    r"""Take a normalised step of every matrix of contiguous float32 or float64 tensors.

    Args:
        kernel: ``normalized_step`` for :math:`W\leftarrow\rho W-\eta\,M/\|M\|_F`, in float64 and
            rounded once, or ``sign_step`` for
            :math:`W\leftarrow\rho W-\eta\,\mathrm{sign}(M)`.
        parameters: what moves, in place; the last two axes are one matrix, the axes in front count
            independent ones.
        vectors: :math:`M`, shaped and typed like them. Zero moves nothing, and an entry that is not
            finite makes NaN, as in :func:`attsvm.optim.directions.steepest_direction`.
        shrink: :math:`\rho`.
        lr: :math:`\eta`.
    """
    vectors = [vector.contiguous() for vector in vectors]
    rows = [row for row in zip(parameters, vectors, strict=True) if row[0].numel()]
    for parameter, vector in rows:
        if not _have_same_layout(parameter, vector):
            raise TypeError(f"a compiled step of {parameter.dtype} along {vector.dtype}")

    def take_step(row: tuple[Tensor, Tensor]) -> None:
        parameter, vector = row
        matrices = math.prod(parameter.shape[:-2])
        step = getattr(library, f"{kernel}_{_SUFFIXES[parameter.dtype]}")
        size = parameter.numel() // matrices
        step(_address(parameter), _address(vector), matrices, size, shrink, lr)

    _share_out(take_step, rows)
    # torch does not see these writes
    torch.autograd.graph.increment_version(parameters)


def _share_out(work: Callable[[Any], None], shares: list[Any]) -> None:
    """Call ``work`` on every share, on the threads that torch and this package may use."""
    map_on_threads(work, shares, min(torch.get_num_threads(), threads()))


def _have_same_layout(weight: Tensor, *others: Tensor | None) -> bool:
    """Return whether the entries of all tensors lie one after the other in memory, as many and of
    the same precision: an address says nothing of that.

    Raises:
        InputError: a tensor of another size than the weight.
    """
    if fused_obstacle(weight) is not None:
        return False
    for other in others:
        if other is None:
            return False
        if other.numel() != weight.numel():
            raise InputError(
                f"the compiled step got a tensor of shape {tuple(other.shape)} for a parameter of"
                f" shape {tuple(weight.shape)}; give the gradient and the state its shape"
            )
        if other.dtype != weight.dtype or not other.is_cpu or not other.is_contiguous():
            return False
    return True


def _address(tensor: Any) -> int:
    """Return the address of the first entry of a tensor."""
    address: int = tensor.data_ptr()
    if address == 0:
        raise InputError(
            f"the memory of a tensor of shape {tuple(tensor.shape)} was given away; bring it back"
            " before the step"
        )
    return address
