"""Steepest directions of parameters that are spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.geometry import Norm
from attsvm.geometry.lifts import Entrywise
from attsvm.optim.reductions import like, norms, part, whole

TensorList = list[Tensor]
Directions = tuple[TensorList, Tensor | None]


def sharded_directions(
    group: dict[str, Any],
    vectors: TensorList,
    parameters: TensorList,
    directions: Callable[[dict[str, Any], TensorList], Directions],
) -> Directions:
    """This process's part of the directions, and Polyak's step for them.

    An entrywise direction needs one number from the other processes, the norm. Singular values, a
    largest entry, blocks and Polyak's step need the whole gradient: it is gathered, every process
    computes the same direction and keeps its part.

    Args:
        group: the parameter group.
        vectors: this process's part of what the directions are of.
        parameters: where they belong.
        directions: the directions of whole tensors.
    """
    placed = [
        like(vector, parameter) for vector, parameter in zip(vectors, parameters, strict=True)
    ]
    norm: Norm = group["norm"]
    if (
        not isinstance(norm, Entrywise)
        or norm.p == 1
        or group["blocks"] is not None
        or group["step_size"] == "polyak"
    ):
        found, steps = directions(group, [whole(vector) for vector in placed])
        return [
            part(direction, parameter)
            for direction, parameter in zip(found, parameters, strict=True)
        ], steps
    q = norm.gauge.q
    results: list[Tensor | None] = [None] * len(vectors)
    for runs in {
        max(vector.ndim - 2, 0) for vector in vectors
    }:  # one message per number of leading axes
        members = [index for index, vector in enumerate(vectors) if max(vector.ndim - 2, 0) == runs]
        for index, length in zip(
            members,
            norms([placed[index] for index in members], q, keep=runs),
            strict=True,
        ):
            unit = vectors[index] / torch.where(length > 0, length, torch.ones_like(length))
            direction = (
                torch.sign(unit) if q == 1.0 else torch.copysign(unit.abs() ** (q - 1.0), unit)
            )
            results[index] = direction if group["normalize"] else direction * length
    return [result for result in results if result is not None], None
