r"""Steepest descent with Polyak's step length, for experiments on rates.

Not one of the optimisers of :mod:`attsvm.optim`: it needs the infimum of the loss. It is here, and
not in the laboratory, because the compiled loop of :func:`attsvm.train` takes its steps from losses
that are closer to their infimum than floats can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.base.errors import InputError
from attsvm.norms import Norm, as_norm
from attsvm.optim.base import (
    DescentOptimizer,
    GroupTensors,
    check_number,
    is_known_zero,
    read_scalar,
)
from attsvm.optim.directions import aligned_length, join_directions, unit_directions
from attsvm.optim.matrices import Blocks, split_matrices
from attsvm.optim.polar import Polar
from attsvm.optim.reductions import full_tensor, local_tensor, shard_of
from attsvm.optim.steepest import Portion, SteepestDescent, descent_gradients


class PolyakDescent(SteepestDescent):
    r"""Steepest descent with steps of length :math:`\eta\,(L-L^\star)/(c\,\|\nabla L\|_*)`.

    The matrices of its one parameter group count as one point, and runs have steps of their own
    where the loss is one number per run. :meth:`step` needs a closure that returns the loss.

    Args:
        params: parameters, named parameters or one group.
        lr: factor :math:`\eta\ge0`, usually 1.
        norm: see :class:`SteepestDescent`.
        normalize: directions of norm one, so the length is in the norm; otherwise directions as
            long as :math:`\|\nabla L\|_*`, and steps of :math:`\eta\,(L-L^\star)/(c\,\|\nabla
            L\|_*^2)` times them.
        loss_floor: :math:`L^\star`, the infimum of the loss, one number or a tensor of one per run.
        polyak_factor: :math:`c`, 2 in Vasudeva et al.
        weight_decay: see :class:`SteepestDescent`, like all that follow.

    Raises:
        InputError: a hyper-parameter outside its range, momentum, a second group; at :meth:`step`,
            no loss, or one per run of another number of runs than the parameters have.

    Source: Vasudeva, Deora and Thrampoulidis, *Implicit Bias and Fast Convergence Rates for
    Self-attention*.

    Example:
        >>> import torch
        >>> from attsvm.optim.polyak import PolyakDescent
        >>> W = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
        >>> optimizer = PolyakDescent([W], normalize=False)
        >>> loss = (W**2).sum()  # its floor is 0
        >>> loss.backward()
        >>> optimizer.step(lambda: loss).item()
        25.0
        >>> W.tolist()  # 25 / (2 * 10**2) of the gradient nearer
        [[2.25, 3.0]]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        norm: Norm | str | None = None,
        normalize: bool = True,
        *,
        loss_floor: float | Tensor = 0.0,
        polyak_factor: float = 2.0,
        weight_decay: float = 0.0,
        polar: Polar = "exact",
        ns_steps: int = 5,
        blocks: Blocks = None,
        blocks_axis: int = -2,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "norm": as_norm(norm),
            "normalize": normalize,
            "momentum": 0.0,
            "dampening": 0.0,
            "nesterov": False,
            "weight_decay": weight_decay,
            "polar": polar,
            "ns_steps": ns_steps,
            "blocks": blocks,
            "blocks_axis": blocks_axis,
            "maximize": maximize,
            "foreach": foreach,
            "fused": None,
            "adjust_lr_fn": None,
            "flatten": False,
            "loss_floor": loss_floor,
            "polyak_factor": polyak_factor,
        }
        # past the constructor of SteepestDescent, which would write its own defaults
        DescentOptimizer.__init__(self, params, defaults)

    def _compute_group(self, tensors: GroupTensors, loss: Any) -> list[Portion]:
        """Return one portion, with the directions of the group times Polyak's step.

        1. The unit direction of every matrix, and the dual norm of its gradient.
        2. The step length, one for all matrices, per run where the loss is.
        3. The directions times that, in the shapes of the parameters.
        """
        group, floor = tensors.group, tensors.group["loss_floor"]
        # empty parameters have no runs
        pairs = zip(tensors.parameters, tensors.gradients, strict=True)
        moving = [(parameter, gradient) for parameter, gradient in pairs if parameter.numel()]
        if not moving:
            return []
        parameters = [parameter for parameter, _ in moving]
        check_loss(loss, floor, [math.prod(parameter.shape[:-2]) for parameter in parameters])
        if is_known_zero(read_scalar(group, "lr")):
            return []
        # 1
        vectors = descent_gradients(group, [full_tensor(gradient) for _, gradient in moving])
        axis, normalize = group["blocks_axis"], group["normalize"]
        batches_of = [split_matrices(vector, group["blocks"], axis) for vector in vectors]
        batches = [batch for matrices in batches_of for batch in matrices]
        units = unit_directions(group, batches)
        lengths = [aligned_length(batch, unit) for batch, unit in zip(batches, units, strict=True)]
        # 2
        steps = polyak_step(loss, floor, group["polyak_factor"], lengths, normalize)
        # 3
        if not normalize:
            units = [n[:, None, None] * unit for n, unit in zip(lengths, units, strict=True)]
        directions = [
            shard_of(direction * _broadcast(steps, direction), parameter)
            for direction, parameter in zip(
                join_directions(units, batches_of, vectors, axis), parameters, strict=True
            )
        ]
        weights = [local_tensor(parameter) for parameter in parameters]
        no_momentum: list[Tensor | None] = [None] * len(weights)
        return [Portion(weights, directions, no_momentum, no_momentum)]

    def check_step(self) -> None:
        """See :meth:`DescentOptimizer.check_step`."""
        super().check_step()
        for group in self.param_groups:
            _check_no_momentum(group)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["fused"]:
            raise InputError("fused is True, and Polyak's step has no kernel; leave fused out")
        check_number(
            group, "polyak_factor", lambda number: 0 < number < math.inf, "a positive number"
        )
        floor = group["loss_floor"]
        if not isinstance(floor, (int, float, Tensor)) or not bool(
            torch.isfinite(torch.as_tensor(floor)).all()
        ):
            raise InputError(
                f"loss_floor is {floor!r}; give the infimum of the loss, a finite number or a"
                " tensor of one per run"
            )
        _check_no_momentum(group)
        if len(self.param_groups) > 1:
            raise InputError(
                "PolyakDescent has two groups, and the loss cannot be shared out; put their"
                " parameters into one group"
            )


def _check_no_momentum(group: dict[str, Any]) -> None:
    if group["momentum"]:
        raise InputError(
            f"momentum is {group['momentum']!r}, and Polyak's step is that of a gradient; leave it"
            " out, and set cycle_momentum=False where a scheduler sets momentum"
        )


def polyak_step(
    loss: Any, floor: float | Tensor, factor: float, lengths: Sequence[Tensor], normalize: bool
) -> Tensor:
    r"""Return :math:`(L-L^\star)/(c\,\|g\|_*)` for unit directions,
    :math:`(L-L^\star)/(c\,\|g\|_*^2)` for directions of length :math:`\|g\|_*`.

    Several matrices are one point: unit directions belong to the largest of their norms, whose dual
    is the sum of dual norms; the others to the root of the sum of squares, which is its own dual.

    Args:
        loss: the loss at the point of the gradient, one number or one per run.
        floor: its infimum :math:`L^\star`, likewise.
        factor: :math:`c`, 2 in Vasudeva et al.
        lengths: the dual norms ``(k,)`` of the matrices of each batch, runs first.
        normalize: whether directions have unit norm.

    Returns:
        ``()`` or ``(runs,)``: zero where the gradient vanishes or the loss is at or below its
        floor, NaN where a gradient or the loss is.
    """
    value = torch.as_tensor(loss).detach().to(lengths[0])
    gap = (value - torch.as_tensor(floor).to(lengths[0])).clamp(min=0.0)
    runs = len(gap) if gap.ndim else 1
    per_run = torch.cat([length.reshape(runs, -1) for length in lengths], dim=1)
    total = per_run.sum(dim=1) if normalize else torch.linalg.vector_norm(per_run, dim=1)
    divisor = torch.where(total == 0, torch.ones_like(total), total)
    step = gap.reshape(runs) / (factor * divisor)
    step = torch.where(total == 0, torch.zeros_like(step), step if normalize else step / divisor)
    return step if gap.ndim else step[0]


def check_loss(loss: Any, floor: float | Tensor, runs: Sequence[int]) -> None:
    """Raise :class:`~attsvm.InputError` for no loss, and for one loss or floor per run of another
    number of runs than the parameters have.
    """
    if loss is None:
        raise InputError("Polyak's step needs the loss: give step() a closure that returns it")
    for name, number in (("loss", torch.as_tensor(loss)), ("loss_floor", torch.as_tensor(floor))):
        if number.ndim > 1 or (number.ndim == 1 and any(count != len(number) for count in runs)):
            raise InputError(
                f"the {name} has shape {tuple(number.shape)} for parameters with {runs} runs; give"
                " one number, or one per run"
            )


def _broadcast(steps: Tensor, vector: Tensor) -> Tensor:
    """Return ``()`` as it is, ``(runs,)`` against the leading axis of ``vector``."""
    steps = steps.to(vector.dtype)
    return steps.reshape(-1, *[1] * (vector.ndim - 1)) if steps.ndim else steps
