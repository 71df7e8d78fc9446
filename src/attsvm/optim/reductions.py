r"""Norms over whole parameters, also where a parameter is spread over processes as a ``DTensor``.

An elementwise update needs no communication, a norm needs one number per parameter from every
process. All parameters of a call share their reductions: one all-reduce of maxima, one of sums,
however many parameters there are.

.. math:: \|g\|_q=c\,\Big(\sum_i(|g_i|/c)^q\Big)^{1/q},\qquad c=\max_i|g_i|

neither overflows nor underflows; the textbook sum in float32 at :math:`q=11` (:math:`p=1.1`) is 0
below entries of 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attsvm.base.errors import InputError

TensorList = list[Tensor]


def norms(
    tensors: Sequence[Tensor], q: float, run_axes: int = 0, multi_tensor: bool | None = None
) -> list[Tensor]:
    r"""Return the entrywise :math:`\|g\|_q` of each tensor, the same on every process that holds a
    shard of it.

    1. The largest modulus :math:`c` of each run, over all processes.
    2. The sum of :math:`(|g_i|/c)^q`, over all processes.
    3. :math:`c` times its root.

    Args:
        tensors: plain tensors or ``DTensor`` shards; float16 and bfloat16 are summed in float32.
        q: exponent, :math:`1\le q\le\infty`.
        run_axes: number of leading axes that count independent runs, each with its own norm.
        multi_tensor: reduce many vectors in one call; None takes such calls on a GPU, where a
            launch takes longer than what it does. On a CPU the values of one vector stay in the
            cache, and a compiler joins calls itself.

    Returns:
        Plain tensors that broadcast against :func:`local_tensor` of the argument: 0-d without runs,
        otherwise ``(..., 1, ..., 1)``. Exactly 0 for a gradient of zeros and for an empty tensor.
    """
    rows = [
        (
            _at_least_float32(local_tensor(tensor)).flatten(run_axes)
            if tensor.ndim > run_axes
            else _at_least_float32(local_tensor(tensor))[..., None]
        )
        for tensor in tensors
    ]
    if multi_tensor is None:
        multi_tensor = not torch.compiler.is_compiling() and all(
            row.device.type == "cuda" for row in rows
        )
    joint = multi_tensor and all(row.ndim == 1 and row.numel() for row in rows)
    # 1: maxima
    largest = _reduce_over_processes(_maxima(rows, joint), tensors, run_axes, "MAX")
    if q != math.inf:
        # 2: sums of powers of ratios that are at most one
        scales = replace_zeros_by_ones(largest)
        sums = _sums_of_powers(rows, scales, q, joint)
        sums = _reduce_over_processes(sums, tensors, run_axes, "SUM")
        # 3: c times the root
        largest = list(torch._foreach_mul(scales, torch._foreach_pow(sums, 1.0 / q)))
    return [
        value.reshape(value.shape + (1,) * (tensor.ndim - run_axes if run_axes else 0))
        for value, tensor in zip(largest, tensors, strict=True)
    ]


def replace_zeros_by_ones(lengths: list[Tensor]) -> list[Tensor]:
    """Return numbers that are not negative, with 1 for every 0, as new tensors: divisors."""
    ones_at_zeros = torch._foreach_neg(torch._foreach_sign(lengths))
    torch._foreach_add_(ones_at_zeros, 1.0)
    return list(torch._foreach_add(ones_at_zeros, lengths))


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the tensor is a ``DTensor``. Its module is not imported for the question."""
    return hasattr(tensor, "device_mesh")


def local_tensor(tensor: Tensor, parameter: Tensor | None = None) -> Tensor:
    """Return the shard of the tensor that this process holds, a plain tensor that shares its
    memory; a plain tensor itself.

    Args:
        tensor: a gradient, a state tensor or a parameter.
        parameter: if not None, the tensor is first brought to the placement of this parameter.
    """
    distributed: Any = tensor
    if not is_sharded(distributed):
        return tensor
    placements = getattr(parameter, "placements", distributed.placements)
    if distributed.placements != placements:
        distributed = distributed.redistribute(placements=placements)
    return distributed.to_local()


def distribute_like(values: Tensor, parameter: Tensor) -> Tensor:
    """Return ``values``, of the shape of ``local_tensor(parameter)``, as a tensor placed like the
    parameter: the form of an optimiser's state.
    """
    if not is_sharded(parameter):
        return values
    from torch.distributed.tensor import DTensor

    distributed: Any = parameter
    return DTensor.from_local(
        values,
        distributed.device_mesh,
        distributed.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of the tensor on every process (an all-gather for a shard): what a singular value
    needs.
    """
    distributed: Any = tensor
    return distributed.full_tensor() if is_sharded(tensor) else tensor


def shard_of(values: Tensor, parameter: Tensor) -> Tensor:
    """Return the shard of ``values`` that belongs to ``local_tensor(parameter)``; every process has
    all of ``values``, and nothing is sent.
    """
    if not is_sharded(parameter):
        return values
    from torch.distributed.tensor import DTensor, Replicate

    distributed: Any = parameter
    replicated: Any = DTensor.from_local(
        values,
        distributed.device_mesh,
        [Replicate()] * distributed.device_mesh.ndim,
        run_check=False,
    )
    return local_tensor(replicated, parameter)


def process_count(parameter: Tensor) -> int:
    """Return over how many processes computations on whole parameters are dealt: those that share
    the parameter, 1 for a plain tensor, and where a device mesh has several axes.
    """
    mesh: Any = getattr(parameter, "device_mesh", None)
    return int(mesh.size()) if mesh is not None and mesh.ndim == 1 else 1


def compute_in_turns(
    tensors: TensorList,
    parameters: TensorList,
    compute: Callable[[TensorList], TensorList],
    can_fail: bool,
) -> TensorList:
    """Return ``compute`` of whole tensors on every process, with each tensor computed by one of
    the processes that share its parameter, and the others waiting for it.

    1. Deal the tensors to the processes, one after the other.
    2. Compute those of this process.
    3. Gather all results, in one message, with a flag for a process that failed.

    Args:
        tensors: whole tensors, the same on every process.
        parameters: the parameter of each, whose device mesh says which processes share it.
        compute: returns one result of the same shape and dtype for each tensor.
        can_fail: whether ``compute`` may raise; the flags are read on the host then.

    Raises:
        Exception: what ``compute`` raised; ``LinAlgError`` where it did so in another process.
    """
    results = list(tensors)
    # 1. tensors that go into one message
    batches: dict[Any, list[int]] = {}
    for index, (tensor, parameter) in enumerate(zip(tensors, parameters, strict=True)):
        is_dealt = process_count(parameter) > 1 and not torch.compiler.is_compiling()
        mesh = parameter.device_mesh if is_dealt else None  # type: ignore[attr-defined]
        batches.setdefault((mesh, tensor.dtype), []).append(index)
    for (mesh, _), members in batches.items():
        if mesh is None:
            computed = compute([tensors[index] for index in members])
        else:
            computed = _compute_share(
                [tensors[index] for index in members], mesh, compute, can_fail
            )
        for index, result in zip(members, computed, strict=True):
            results[index] = result
    return results


def _compute_share(
    tensors: TensorList, mesh: Any, compute: Callable[[TensorList], TensorList], can_fail: bool
) -> TensorList:
    """Return ``compute`` of all tensors, by all processes of a mesh with one axis: steps 2 and 3 of
    :func:`compute_in_turns`.
    """
    processes, rank = mesh.size(), mesh.get_local_rank()
    sizes = [tensor.numel() for tensor in tensors]
    # the longest share, and the flag
    length = max(sum(sizes[first::processes]) for first in range(processes)) + 1
    message = tensors[0].new_zeros(length)
    failure: Exception | None = None
    # 2. this share; a process that raised at once would leave the others waiting
    mine = tensors[rank::processes]
    try:
        share = [result.reshape(-1) for result in (compute(mine) if mine else [])]
    except Exception as error:
        failure = error
        message[-1] = 1
    else:
        message = torch.cat([*share, message[sum(map(len, share)) :]])
    # 3. every share
    gathered = message.new_empty(processes * length)
    torch.distributed.all_gather_into_tensor(gathered, message, group=mesh.get_group())
    shares = gathered.view(processes, length)
    if failure is not None:
        raise failure
    if can_fail and bool(shares[:, -1].any()):
        raise torch.linalg.LinAlgError("in another process")  # type: ignore[attr-defined]
    results: list[Tensor | None] = [None] * len(tensors)
    for first in range(processes):
        pieces = torch.split(shares[first, : sum(sizes[first::processes])], sizes[first::processes])
        for index, piece in zip(range(first, len(tensors), processes), pieces, strict=True):
            results[index] = piece.view(tensors[index].shape)
    return [result for result in results if result is not None]


def refuse_flattened(parameters: Sequence[Tensor], operation: str) -> None:
    """Raise for parameters of the older ``FullyShardedDataParallel``, whose pieces do not know the
    parameter they belong to.

    Args:
        parameters: those of an optimiser.
        operation: the operation that needs whole parameters, for the sentence.

    Raises:
        InputError: one of them was flattened.
    """
    for parameter in parameters:
        if getattr(parameter, "_is_flat_param", False) or getattr(
            parameter, "_fsdp_flattened", False
        ):
            raise InputError(
                f"{operation} needs whole parameters, and a parameter of shape"
                f" {tuple(parameter.shape)} is a piece that FullyShardedDataParallel flattened;"
                " shard the model with torch.distributed.fsdp.fully_shard instead"
            )


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _maxima(rows: list[Tensor], joint: bool) -> list[Tensor]:
    """Return the largest modulus along the last axis of each tensor, 0 where that is empty; in one
    call if ``joint``.
    """
    if joint:
        return list(torch._foreach_norm(rows, math.inf))
    return [
        torch.maximum(row.amax(dim=-1), -row.amin(dim=-1))
        if row.shape[-1]
        else row.new_zeros(row.shape[:-1])
        for row in rows
    ]


def _sums_of_powers(
    rows: list[Tensor], scales: list[Tensor], q: float, joint: bool
) -> list[Tensor]:
    """Return the sums of ``|row / scale|**q`` over the last axis; torch's own norm adds float32 one
    after the other and loses three digits over 1e7 entries.
    """
    if joint:
        ratios = torch._foreach_div(rows, scales)
        torch._foreach_abs_(ratios)
        torch._foreach_pow_(ratios, q)
        return list(torch._foreach_norm(ratios, 1.0))
    return [
        _sum_of_powers(row, scale[..., None], q) for row, scale in zip(rows, scales, strict=True)
    ]


def _sum_of_powers(values: Tensor, scale: Tensor, q: float, block: int = 1 << 17) -> Tensor:
    """Return the sum of ``|values / scale|**q`` over the last axis, on a CPU in blocks of ``block``
    entries, which stay in the cache between the passes over them (half a megabyte of float32;
    chosen by measurement).
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return _powers(values / scale, q).sum(dim=-1)
    sums = [_powers(piece / scale, q).sum(dim=-1) for piece in torch.split(values, block, dim=-1)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(dim=0)


def _powers(ratio: Tensor, q: float) -> Tensor:
    """Return ``|ratio|**q``, in the memory of ``ratio``."""
    if q == 2.0:
        return ratio.square_()
    return ratio.abs_() if q == 1.0 else ratio.abs_().pow_(q)


def _reduce_over_processes(
    values: list[Tensor], tensors: Sequence[Tensor], run_axes: int, operation: str
) -> list[Tensor]:
    """Combine ``values``, one per tensor, over the processes that hold shards of the same run, in
    one message per set of processes, and return them.
    """
    # which values go into one message: those over the same processes, of one precision
    batches: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if is_sharded(tensor):
            axes = _mesh_axes_of_runs(tensor, run_axes)
            if axes:
                mesh = tensor.device_mesh  # type: ignore[attr-defined]
                batches.setdefault((mesh, axes, values[index].dtype), []).append(index)
    for (mesh, axes, _), members in batches.items():
        message = torch.cat([values[index].reshape(-1) for index in members])
        for axis in axes:
            torch.distributed.all_reduce(
                message,
                op=getattr(torch.distributed.ReduceOp, operation),
                group=mesh.get_group(axis),
            )
        sizes = [values[index].numel() for index in members]
        for index, reduced in zip(members, torch.split(message, sizes), strict=True):
            values[index] = reduced.reshape(values[index].shape)
    return values


def _mesh_axes_of_runs(tensor: Any, run_axes: int) -> tuple[int, ...]:
    """Return the axes of the device mesh over which one run is spread.

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
        if placement.is_shard() and placement.dim % tensor.ndim >= run_axes:
            axes.append(axis)
    return tuple(axes)
