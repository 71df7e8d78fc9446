r"""Norms over whole parameters, also where a parameter is spread over processes as a ``DTensor``.

An elementwise update needs no communication, a norm needs one number per parameter from every
process. All parameters of a call share their reductions: one all-reduce of maxima, one of sums,
however many parameters there are.

.. math:: \|g\|_q=c\,\Big(\sum_i(|g_i|/c)^q\Big)^{1/q},\qquad c=\max_i|g_i|

neither overflows nor underflows; the textbook sum in float32 at :math:`q=11` (:math:`p=1.1`) is 0
below entries of 1e-5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attsvm.base.errors import InputError

_BLOCK = 1 << 17  # entries that stay in cache between the passes over them


def norms(tensors: Sequence[Tensor], q: float, keep: int = 0) -> list[Tensor]:
    r"""The entrywise :math:`\|g\|_q` of each tensor, the same on every process that holds a part of
    it.

    Args:
        tensors: plain tensors or ``DTensor`` shards; float16 and bfloat16 are summed in float32.
        q: exponent, :math:`1\le q\le\infty`.
        keep: number of leading axes that count independent runs, each with its own norm.

    Returns:
        Plain tensors that broadcast against :func:`local` of the argument: 0-d for ``keep=0``,
        otherwise ``(..., 1, ..., 1)``. Exactly 0 for a gradient of zeros and for an empty tensor.
    """
    parts = [
        (
            _wide(local(tensor)).flatten(keep)
            if tensor.ndim > keep
            else _wide(local(tensor))[..., None]
        )
        for tensor in tensors
    ]
    largest = _reduced(_maxima(parts), tensors, keep, "MAX")
    if q != float("inf"):
        safe = positive(largest)
        sums = _reduced(_power_sums(parts, safe, q), tensors, keep, "SUM")
        largest = list(torch._foreach_mul(safe, torch._foreach_pow(sums, 1.0 / q)))
    return [
        value.reshape(value.shape + (1,) * (t.ndim - keep if keep else 0))
        for value, t in zip(largest, tensors, strict=True)
    ]


def positive(lengths: list[Tensor]) -> list[Tensor]:
    """Numbers that are not negative, with 1 for every 0."""
    ones_for_zeros = torch._foreach_neg(torch._foreach_sign(lengths))
    torch._foreach_add_(ones_for_zeros, 1.0)
    return list(torch._foreach_add(ones_for_zeros, lengths))


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a ``DTensor``. Its module is not imported for the question."""
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor, parameter: Tensor | None = None) -> Tensor:
    """What this process holds of the tensor: a plain tensor that shares its memory.

    Args:
        tensor: a gradient, a state tensor or a parameter.
        parameter: when given, the tensor is first brought to the placement of this parameter.
    """
    mine: Any = tensor
    if not is_sharded(mine):
        return tensor
    wanted = getattr(parameter, "placements", mine.placements)
    if mine.placements != wanted:
        mine = mine.redistribute(placements=wanted)
    return mine.to_local()


def like(values: Tensor, parameter: Tensor) -> Tensor:
    """``values``, of the shape of ``local(parameter)``, as a tensor placed like the parameter: what
    an optimiser keeps as state.
    """
    if not is_sharded(parameter):
        return values
    from torch.distributed.tensor import DTensor

    place: Any = parameter
    return DTensor.from_local(
        values,
        place.device_mesh,
        place.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every process (an all-gather for a shard): what a singular value
    needs.
    """
    full: Any = tensor
    return full.full_tensor() if is_sharded(tensor) else tensor


def part(values: Tensor, parameter: Tensor) -> Tensor:
    """What ``local(parameter)`` would hold of ``values``, which are whole on every process; nothing
    is sent.
    """
    if not is_sharded(parameter):
        return values
    from torch.distributed.tensor import DTensor, Replicate

    place: Any = parameter
    everywhere: Any = DTensor.from_local(
        values, place.device_mesh, [Replicate()] * place.device_mesh.ndim, run_check=False
    )
    return local(everywhere, parameter)


def refuse_flat(parameters: Sequence[Tensor], what: str) -> None:
    """Raise for parameters of the older ``FullyShardedDataParallel``, whose pieces do not know the
    parameter they belong to.

    Args:
        parameters: what an optimiser is given.
        what: the operation that needs whole parameters, for the sentence.

    Raises:
        InputError: one of them was flattened.
    """
    for parameter in parameters:
        if getattr(parameter, "_is_flat_param", False) or getattr(
            parameter, "_fsdp_flattened", False
        ):
            raise InputError(
                f"{what} needs whole parameters, and a parameter of shape {tuple(parameter.shape)}"
                " is a piece that FullyShardedDataParallel flattened; shard the model with"
                " torch.distributed.fsdp.fully_shard instead"
            )


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _maxima(parts: list[Tensor]) -> list[Tensor]:
    """The largest modulus along the last axis of each."""
    if _launches_count(parts):
        return list(torch._foreach_norm(parts, float("inf")))
    return [
        torch.maximum(part.amax(dim=-1), -part.amin(dim=-1))
        if part.shape[-1]
        else part.new_zeros(part.shape[:-1])
        for part in parts
    ]


def _power_sums(parts: list[Tensor], scales: list[Tensor], q: float) -> list[Tensor]:
    """Sums over the last axis; torch's own norm adds float32 one after the other and loses three
    digits over 1e7 entries.
    """
    if _launches_count(parts):
        ratios = torch._foreach_div(parts, scales)
        torch._foreach_abs_(ratios)
        torch._foreach_pow_(ratios, q)
        return list(torch._foreach_norm(ratios, 1.0))
    return [
        _power_sum(part, scale[..., None], q) for part, scale in zip(parts, scales, strict=True)
    ]


def _launches_count(parts: list[Tensor]) -> bool:
    """Whether a call for many vectors is faster than one for each: on a GPU, where a launch takes
    longer than what it does. On a CPU what is made for one vector stays in the cache, and a
    compiler joins calls itself.
    """
    return not torch.compiler.is_compiling() and all(
        part.device.type == "cuda" and part.ndim == 1 and part.numel() for part in parts
    )


def _power_sum(values: Tensor, scale: Tensor, q: float) -> Tensor:
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return _powers(values / scale, q).sum(dim=-1)
    blocks = [
        _powers(block / scale, q).sum(dim=-1) for block in torch.split(values, _BLOCK, dim=-1)
    ]
    return blocks[0] if len(blocks) == 1 else torch.stack(blocks).sum(dim=0)


def _powers(ratio: Tensor, q: float) -> Tensor:
    """``|ratio|**q`` in the memory of ``ratio``."""
    if q == 2.0:
        return ratio.square_()
    return ratio.abs_() if q == 1.0 else ratio.abs_().pow_(q)


def _reduced(
    values: list[Tensor], tensors: Sequence[Tensor], keep: int, operation: str
) -> list[Tensor]:
    """``values``, one per tensor, combined over the processes that hold pieces of the same run; one
    message per set of processes.
    """
    batches: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if is_sharded(tensor):
            axes = _split_over(tensor, keep)
            if axes:
                mesh = tensor.device_mesh  # type: ignore[attr-defined]
                batches.setdefault((mesh, axes, values[index].dtype), []).append(index)
    for (mesh, axes, _), members in batches.items():
        flat = torch.cat([values[index].reshape(-1) for index in members])
        for axis in axes:
            torch.distributed.all_reduce(
                flat, op=getattr(torch.distributed.ReduceOp, operation), group=mesh.get_group(axis)
            )
        for index, piece in zip(
            members, torch.split(flat, [values[index].numel() for index in members]), strict=True
        ):
            values[index] = piece.reshape(values[index].shape)
    return values


def _split_over(tensor: Any, keep: int) -> tuple[int, ...]:
    """The axes of the device mesh over which one run is spread.

    Raises:
        InputError: a placement that is neither a shard nor a replica.
    """
    axes = []
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise InputError(
                f"a gradient of shape {tuple(tensor.shape)} is placed as {placement}; redistribute"
                " it like its parameter before the step"
            )
        if placement.is_shard() and placement.dim % tensor.ndim >= keep:
            axes.append(axis)
    return tuple(axes)
