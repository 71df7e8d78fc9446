r"""Polyak's step: as far as a linear model of the loss reaches its infimum, over a factor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attsvm.errors import InputError


def polyak_step(
    loss: Any,
    floor: float | Tensor,
    factor: float,
    lengths: list[Tensor],
    runs: list[int],
    normalize: bool,
) -> Tensor:
    r""":math:`(L-L^\star)/(c\,\|g\|_*)` for unit directions, :math:`(L-L^\star)/(c\,\|g\|_*^2)` for
    directions of length :math:`\|g\|_*`.

    Several matrices are one point: unit directions belong to the largest of their norms, whose dual
    is the sum of dual norms; the others to the root of the sum of squares, which is its own dual.

    Args:
        loss: the loss at the point of the gradient, one number or one per run.
        floor: its infimum :math:`L^\star`, likewise.
        factor: :math:`c`, 2 in Vasudeva et al.
        lengths: the dual norms ``(k,)`` of the matrices of each batch, runs first.
        runs: how many runs each batch counts.
        normalize: whether directions have unit norm.

    Returns:
        ``()`` or ``(runs,)``: zero where the gradient vanishes or the loss is at or below its
        floor.

    Raises:
        InputError: what :func:`check_loss` refuses.
    """
    check_loss(loss, floor, runs)
    value, lowest = (
        torch.as_tensor(loss).detach().to(lengths[0]),
        torch.as_tensor(floor).to(lengths[0]),
    )
    gap = (value - lowest).clamp(min=0.0)
    rows = len(gap) if gap.ndim else 1
    per_run = torch.cat([length.reshape(rows, -1) for length in lengths], dim=1)
    total = per_run.sum(dim=1) if normalize else torch.linalg.vector_norm(per_run, dim=1)
    safe = torch.where(total > 0, total, torch.ones_like(total))
    step = gap.reshape(rows) / (factor * safe)
    step = torch.where(total > 0, step if normalize else step / safe, torch.zeros_like(step))
    return step if gap.ndim else step[0]


def check_loss(loss: Any, floor: float | Tensor, runs: list[int]) -> None:
    """Raise :class:`~attsvm.errors.InputError` for no loss, and for one loss or floor per run of
    another number of runs than the parameters have.
    """
    if loss is None:
        raise InputError(
            "step_size='polyak' needs the loss: give step() a closure that returns it, or loss="
        )
    for name, number in (("loss", torch.as_tensor(loss)), ("loss_floor", torch.as_tensor(floor))):
        if number.ndim > 1 or (number.ndim == 1 and any(count != len(number) for count in runs)):
            raise InputError(
                f"the {name} has shape {tuple(number.shape)} for parameters with {runs} runs; give"
                " one number, or one per run"
            )
