"""Whether weights are still those that a step of mirror descent has written beside a dual iterate.

In one process torch's version counter tells. A checkpoint has none: it holds a digest of the
weights' bits instead. Only where both say that somebody else has written, single entries are
compared with what the step would have written, by the very operations of that step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attsvm.optim.mirror_maps import PowerMap
from attsvm.optim.mirror_step import LONG, fused_obstacle
from attsvm.optim.reductions import is_sharded

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK = 1 << 20  # numbers: what a digest needs beside the weights is a few times this
_PLACE, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


def digest(weight: Tensor) -> Tensor:
    """64 bits, ``()``, that change with any bit of any entry and with its place; the same on every
    device.

    0 for a parameter that is spread over processes, or was flattened with others: no process sees
    the whole of it.
    """
    if is_sharded(weight) or any(
        getattr(weight, name, False) for name in ("_is_flat_param", "_fsdp_flattened")
    ):
        return torch.zeros((), dtype=torch.int64, device=weight.device)
    bits = weight.detach().view(_BITS[weight.dtype.itemsize]).reshape(-1)
    total = torch.ones((), dtype=torch.int64, device=weight.device)
    for start in range(0, bits.numel(), _BLOCK):
        block = bits[start : start + _BLOCK].to(torch.int64)
        places = torch.arange(start, start + block.numel(), device=block.device)
        mixed = (block ^ places.mul_(_PLACE)).mul_(_FIRST)  # never in the weights' own memory
        mixed = mixed.bitwise_xor_(mixed >> 32).mul_(_SECOND)
        total += (mixed ^ (mixed >> 29)).sum()
    return total


def written_images(
    group: dict[str, Any], potential: PowerMap, dual: Tensor, weight: Tensor, fused: bool | None
) -> list[Tensor]:
    """The weights that a step may have left beside ``dual``, in the precision of ``weight``.

    Args:
        group: the parameter group.
        potential: its mirror map.
        dual: whole, as the potential needs it.
        weight: likewise.
        fused: whether the compiled kernel wrote them; None where nobody knows, and then both ways
            count.
    """
    images = [] if fused else [potential.image(dual).to(weight.dtype)]
    if fused is None:
        possible = group["fused"] or (
            not group["foreach"] and sum(p.numel() for p in group["params"]) >= LONG
        )
        fused = (
            possible
            and group["potential"] == "power"
            and dual.dtype == weight.dtype
            and fused_obstacle(dual) is None
        )
    if fused:
        from attsvm.optim.fused import fused_image  # and with it numba

        images.append(fused_image(potential, dual))
    return images
