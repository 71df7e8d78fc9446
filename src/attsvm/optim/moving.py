"""The tensors that a step of mirror descent changes: weights, directions and duals of one group, as
this process holds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attsvm.optim.base import StateList, TensorList
from attsvm.optim.mirror_maps import MAPS, PowerMap
from attsvm.optim.reductions import is_sharded, like, local, max_dtype, norms, part, whole


class Moving:
    """The tensors of one group that move in this step, as this process holds them.

    The entries that a sparse gradient names stand in for their parameter.
    """

    def __init__(
        self, group: dict[str, Any], parameters: TensorList, gradients: TensorList, duals: StateList
    ) -> None:
        self.group = group
        self.weights: TensorList = []
        self.gradients: TensorList = []
        self.duals: StateList = []
        self._parameters = parameters
        self._targets: list[tuple[Tensor, tuple[Tensor, ...], Tensor]] = []
        self._shards: list[tuple[Tensor, Tensor, Tensor]] = []
        for parameter, gradient, dual in zip(parameters, gradients, duals, strict=True):
            weight, mine = local(parameter), None if dual is None else local(dual)
            if gradient.is_sparse:
                weight, gradient, mine = self._gathered(weight, gradient.coalesce(), mine)
            else:
                gradient = local(gradient, parameter)
            self.weights.append(weight)
            self.gradients.append(gradient.to(state_dtype(group, parameter)))
            self.duals.append(mine)

    def _gathered(
        self, weight: Tensor, gradient: Tensor, dual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        entries = tuple(gradient.indices())
        rows = weight[entries]
        self._targets.append((weight, entries, rows))
        if dual is None:
            return rows, gradient.values(), None
        images = dual[entries]
        self._targets.append((dual, entries, images))
        return rows, gradient.values(), images

    def gather(self) -> None:
        """Bring shards together, for what needs whole matrices: every process takes the same step
        and keeps its part.
        """
        for index, parameter in enumerate(self._parameters):
            if not is_sharded(parameter):
                continue
            self.gradients[index] = whole(like(self.gradients[index], parameter))
            for column in (self.weights, self.duals):
                mine = column[index]
                if mine is not None:
                    gathered = whole(like(mine, parameter))
                    self._shards.append((mine, gathered, parameter))
                    column[index] = gathered

    def placed(self) -> TensorList:
        """The directions, placed like their parameters, so that norms are those of whole
        parameters.
        """
        if self._targets or self._shards:
            return self.gradients
        return [like(g, w) for g, w in zip(self.gradients, self._parameters, strict=True)]

    def divide(self, dual_norms: TensorList) -> None:
        """Divide every direction by its norm; what is exactly zero stays zero."""
        eps = self.group["eps"]
        divisors = [
            torch.where(norm == 0, torch.ones_like(norm), norm + eps) for norm in dual_norms
        ]
        self.gradients = [g / d.to(g.dtype) for g, d in zip(self.gradients, divisors, strict=True)]

    def write_back(self) -> None:
        """Put gathered entries, and this process's part of gathered shards, where they came
        from.
        """
        for shard, gathered, parameter in self._shards:
            shard.copy_(part(gathered, parameter))
        for target, entries, values in self._targets:
            target[entries] = values


def normalize(works: list[Moving]) -> None:
    """Divide the directions by their dual norms: of a tensor, of each run, or of all groups
    together, as each group asks.
    """
    shared = [work for work in works if work.group["normalize"] == "global"]
    for work in works:
        if work.group["normalize"] in (True, "tensor", "run"):
            work.divide(
                mirror_map(work.group).dual_norms(
                    work.placed(), runs=work.group["normalize"] == "run"
                )
            )
    if shared:
        potential = mirror_map(shared[0].group)
        each = potential.dual_norms([g for work in shared for g in work.placed()], runs=False)
        norm = norms(
            [torch.stack([value.to(each[0].device, max_dtype(each)) for value in each])],
            potential.q,
        )[0]
        for work in shared:
            work.divide([norm.to(g.device) for g in work.gradients])


def mirror_map(group: dict[str, Any]) -> PowerMap:
    """The mirror map of a group."""
    return MAPS[group["potential"]](float(group["p"]))


def state_dtype(group: dict[str, Any], parameter: Tensor) -> torch.dtype:
    """The precision of the dual of a parameter, and of its steps."""
    if group["state_dtype"] is not None:
        return group["state_dtype"]
    if group["p"] == 2 and group["potential"] == "power":
        return parameter.dtype
    return parameter.dtype if parameter.dtype.itemsize >= 4 else torch.float32
