r"""The compiled steps of the CPU on lists of tensors: the mirror step, and the normalised steps of
Frobenius's norm and of the largest entry.

Tensors are handed over as addresses, in parts that the threads of torch share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.base.cores import shared_out, threads
from attsvm.base.errors import InputError
from attsvm.native import library
from attsvm.optim.base import StateList, TensorList, fused_obstacle
from attsvm.optim.powers import Exponent

_PART = 1 << 17  # numbers that one thread takes at a time
_KINDS = {torch.float32: "f32", torch.float64: "f64"}


def mirror_step(
    weights: TensorList,
    gradients: TensorList,
    duals: StateList,
    shrink: float,
    lr: float,
    inverse: Exponent,
) -> bool:
    r""":math:`Y\leftarrow\rho Y-\eta G`, :math:`W\leftarrow\mathrm{sp}(Y,r)` for contiguous tensors
    of one precision each.

    Args:
        weights: written.
        gradients: :math:`G`.
        duals: :math:`Y`, written.
        shrink: :math:`\rho`.
        lr: :math:`\eta`.
        inverse: :math:`r`.

    Returns:
        False, with nothing done, where a tensor is none that the compiled step can walk through.

    Raises:
        InputError: a gradient or a dual of another size than its weights, or without memory.
    """
    gradients = [gradient.contiguous() for gradient in gradients]
    rows = [row for row in zip(gradients, duals, weights, strict=True) if row[2].numel()]
    if not all(_walks(weight, gradient, dual) for gradient, dual, weight in rows):
        return False
    parts = []
    for row in rows:
        weight = row[2]
        step = getattr(library, f"mirror_step_{_KINDS[weight.dtype]}")
        at = [_address(each) for each in row]
        for first in range(0, weight.numel(), _PART):
            places = [each + first * weight.itemsize for each in at]
            parts.append((step, *places, min(_PART, weight.numel() - first)))
    power = float(shrink), float(lr), float(inverse.whole), inverse.rest

    def work(part: tuple[Any, ...]) -> None:
        step, *arguments = part
        step(*arguments, *power)

    _share(work, parts)
    # torch does not see these writes
    torch.autograd.graph.increment_version(
        [*weights, *(each for each in duals if each is not None)]
    )
    return True


def normalized_step(
    kernel: str, parameters: TensorList, vectors: TensorList, keep: float, lr: float
) -> None:
    r"""A normalised step of every matrix of contiguous float32 or float64 tensors.

    Args:
        kernel: ``normalized_step`` for :math:`W\leftarrow\rho W-\eta\,M/\|M\|_F`, in float64 and
            rounded once, or ``sign_step`` for
            :math:`W\leftarrow\rho W-\eta\,\mathrm{sign}(M)`.
        parameters: what moves, in place; the last two axes are one matrix, the axes in front count
            independent ones.
        vectors: :math:`M`, shaped and typed like them. Zero moves nothing, and an entry that is not
            finite makes NaN, as in :func:`attsvm.optim.directions.steepest_direction`.
        keep: :math:`\rho`.
        lr: :math:`\eta`.
    """
    vectors = [vector.contiguous() for vector in vectors]
    rows = [row for row in zip(parameters, vectors, strict=True) if row[0].numel()]
    for parameter, vector in rows:
        if not _walks(parameter, vector):
            raise TypeError(f"a compiled step of {parameter.dtype} along {vector.dtype}")

    def work(row: tuple[Tensor, Tensor]) -> None:
        parameter, vector = row
        matrices = math.prod(parameter.shape[:-2])
        step = getattr(library, f"{kernel}_{_KINDS[parameter.dtype]}")
        size = parameter.numel() // matrices
        step(_address(parameter), _address(vector), matrices, size, keep, lr)

    _share(work, rows)
    torch.autograd.graph.increment_version(parameters)


def _share(work: Callable[[Any], None], parts: list[Any]) -> None:
    shared_out(work, parts, min(torch.get_num_threads(), threads()))


def _walks(weight: Tensor, *others: Tensor | None) -> bool:
    """Whether the numbers of all these lie one after the other, as many and of the same kind: an
    address says nothing of that.
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
    """Where the numbers of a tensor lie."""
    address: int = tensor.data_ptr()
    if address == 0:
        raise InputError(
            f"the memory of a tensor of shape {tuple(tensor.shape)} was given away; bring it back"
            " before the step"
        )
    return address
