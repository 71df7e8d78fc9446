"""Which matrices a parameter consists of: runs in front, heads inside, equal shapes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attsvm.base.errors import InputError

Blocks = int | Sequence[int] | None

_CPU_PORTION = 1 << 18  # elements
_DEVICE_PORTION = 1 << 25


def matrices(tensor: Tensor, blocks: Blocks = None, axis: int = -2) -> list[Tensor]:
    """Views of ``tensor`` as batches of matrices ``(k, m, n)``: every index of the leading axes is
    a run, every block a matrix.

    A vector or a scalar is one column.

    Args:
        tensor: any number of axes.
        blocks: None, the number of equal blocks along ``axis``, or the size of each.
        axis: -2 for blocks of rows, as in a fused query-key-value matrix
            ``(3 * heads * width, d)``; -1 for blocks of columns, as in an output projection
            ``(d, heads * width)``.
    """
    matrix = tensor if tensor.ndim >= 2 else tensor.reshape(-1, 1)
    m, n = matrix.shape[-2:]
    batch = matrix.reshape(-1, m, n)
    if blocks is None:
        return [batch]
    if isinstance(blocks, int):
        length = (m if axis == -2 else n) // blocks
        if axis == -2:
            return [batch.reshape(-1, length, n)]
        return list(torch.split(batch, length, dim=-1))
    return list(torch.split(batch, list(blocks), dim=axis))


def assembled(parts: list[Tensor], like: Tensor, axis: int = -2) -> Tensor:
    """The inverse of :func:`matrices`: one tensor of the shape of ``like``."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=axis)).reshape(like.shape)


def check_blocks(blocks: Blocks, axis: int, parameter: Tensor) -> None:
    """Raise :class:`~attsvm.InputError` unless the blocks make up the parameter."""
    if axis not in (-2, -1):
        raise InputError(
            f"blocks_axis is {axis!r}; give -2 for blocks of rows or -1 for blocks of columns"
        )
    if blocks is None:
        return
    sizes = [blocks] if isinstance(blocks, int) else list(blocks)
    if not sizes or any(
        isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes
    ):
        raise InputError(
            f"blocks is {blocks!r}; give a number of equal blocks or a list of their sizes"
        )
    shape = tuple(parameter.shape)
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


def portions(rows: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Parameters (each with what belongs to it), equal shapes next to each other, in portions that
    one call should update.

    On a CPU what a portion makes on the way stays in the cache; on an accelerator a portion is as
    large as its launch is worth.
    """
    if len(rows) == 1:
        return [rows]
    found: list[list[tuple[Any, ...]]] = []
    room = 0
    for row in sorted(rows, key=lambda row: (str(row[0].dtype), tuple(row[0].shape))):
        size = row[0].numel()
        if size > room:
            found.append([])
            room = _CPU_PORTION if row[0].device.type == "cpu" else _DEVICE_PORTION
        found[-1].append(row)
        room -= size
    return found


def together(batches: list[Tensor], function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """``function`` of every ``(k, m, n)``, called once for all of equal shape, dtype and device."""
    if len(batches) == 1:
        return [function(batches[0])]
    results: list[Tensor | None] = [None] * len(batches)
    kinds: dict[tuple[int, int, torch.dtype, torch.device], list[int]] = {}
    for index, batch in enumerate(batches):
        kinds.setdefault((batch.shape[1], batch.shape[2], batch.dtype, batch.device), []).append(
            index
        )
    for members in kinds.values():
        if len(members) == 1:
            results[members[0]] = function(batches[members[0]])
            continue
        joint = function(torch.cat([batches[index] for index in members]))
        for index, part in zip(
            members, torch.split(joint, [batches[index].shape[0] for index in members]), strict=True
        ):
            results[index] = part
    return [result for result in results if result is not None]
