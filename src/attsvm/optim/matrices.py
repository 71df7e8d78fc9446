"""The matrices of which a parameter consists, and which parameters and matrices one call takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attsvm.base.errors import InputError

Blocks = int | Sequence[int] | None


def matrix_shape(parameter: Tensor, flatten: bool) -> tuple[int, ...]:
    """Return the shape in which a parameter is read as matrices: its own, or with ``flatten`` the
    first axis by all others, as for the kernels of a convolution.
    """
    if flatten and parameter.ndim > 2:
        return (parameter.shape[0], math.prod(parameter.shape[1:]))
    return tuple(parameter.shape)


def split_matrices(
    tensor: Tensor, blocks: Blocks = None, axis: int = -2, flatten: bool = False
) -> list[Tensor]:
    """Return views of ``tensor`` as batches of matrices ``(k, m, n)``: every index of the leading
    axes is a run, every block a matrix. A vector or a scalar is one column.

    Args:
        tensor: any number of axes.
        blocks: None, the number of equal blocks along ``axis``, or the size of each.
        axis: -2 for blocks of rows, as in a fused query-key-value matrix
            ``(3 * heads * width, d)``; -1 for blocks of columns, as in an output projection
            ``(d, heads * width)``.
        flatten: one matrix of every tensor, see :func:`matrix_shape`.
    """
    tensor = tensor.reshape(matrix_shape(tensor, flatten))
    matrix = tensor if tensor.ndim >= 2 else tensor.reshape(-1, 1)
    m, n = matrix.shape[-2:]
    batch = matrix.reshape(-1, m, n)
    if blocks is None:
        return [batch]
    if isinstance(blocks, int):
        length = (m if axis == -2 else n) // blocks
        # rows are next to each other, so equal blocks of them are one batch
        if axis == -2:
            return [batch.reshape(-1, length, n)]
        return list(torch.split(batch, length, dim=-1))
    return list(torch.split(batch, list(blocks), dim=axis))


def join_matrices(batches: list[Tensor], shape: torch.Size, axis: int = -2) -> Tensor:
    """Return one tensor of this shape: the inverse of :func:`split_matrices`."""
    return (batches[0] if len(batches) == 1 else torch.cat(batches, dim=axis)).reshape(shape)


def check_blocks(blocks: int | Sequence[int], axis: int, shape: tuple[int, ...]) -> None:
    """Raise :class:`~attsvm.InputError` unless the blocks make up a matrix of this shape."""
    sizes = [blocks] if isinstance(blocks, int) else list(blocks)
    if not sizes or any(
        isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes
    ):
        raise InputError(
            f"blocks is {blocks!r}; give a number of equal blocks or a list of their sizes"
        )
    if len(shape) < 2:
        raise InputError(
            f"blocks is {blocks!r} for a parameter of shape {shape}; only matrices have blocks"
        )
    length = shape[axis]
    if length % blocks if isinstance(blocks, int) else sum(sizes) != length:
        raise InputError(
            f"blocks is {blocks!r}, which does not divide the {length}"
            f" {'rows' if axis == -2 else 'columns'} of shape {shape}"
        )


def group_into_portions(
    rows: list[tuple[Any, ...]],
    cpu_entries: int = 1 << 18,
    device_entries: int = 1 << 25,
    processes: int = 1,
) -> list[list[tuple[Any, ...]]]:
    """Return the rows, equal shapes next to each other, in the portions that one call should take.

    Args:
        rows: a parameter and what belongs to it.
        cpu_entries: entries of a portion on a CPU, so that intermediate results stay in the cache
            (one megabyte of float32; chosen by measurement).
        device_entries: entries of a portion on an accelerator, so many that its launches do not
            count (untuned).
        processes: how many processes a portion is dealt to, each of which takes as many entries,
            and a row at least.
    """
    if len(rows) == 1:
        return [rows]
    portions: list[list[tuple[Any, ...]]] = []
    # entries that the last portion still takes
    space = 0
    for row in sorted(rows, key=lambda row: (str(row[0].dtype), tuple(row[0].shape))):
        size = row[0].numel()
        if not portions or (size > space and len(portions[-1]) >= processes):
            portions.append([])
            entries = cpu_entries if row[0].device.type == "cpu" else device_entries
            space = entries * processes
        portions[-1].append(row)
        space -= size
    return portions


def call_per_shape(batches: list[Tensor], function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Return ``function`` of every ``(k, m, n)``, called once for all of one shape, dtype and
    device.
    """
    if len(batches) == 1:
        return [function(batches[0])]
    # 1. which batches go into one call
    indices_by_kind: dict[tuple[int, int, torch.dtype, torch.device], list[int]] = {}
    for index, batch in enumerate(batches):
        kind = batch.shape[1], batch.shape[2], batch.dtype, batch.device
        indices_by_kind.setdefault(kind, []).append(index)
    # 2. the calls, and their results taken apart
    results: list[Tensor | None] = [None] * len(batches)
    for indices in indices_by_kind.values():
        if len(indices) == 1:
            results[indices[0]] = function(batches[indices[0]])
            continue
        joint = function(torch.cat([batches[index] for index in indices]))
        sizes = [batches[index].shape[0] for index in indices]
        for index, result in zip(indices, torch.split(joint, sizes), strict=True):
            results[index] = result
    return [result for result in results if result is not None]
