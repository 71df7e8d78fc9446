"""Which kernel trains, and why: a decision from shapes alone, so that the same call gives the same bits on any number of cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from attsvm.data import AttentionData
from attsvm.dynamics import costs
from attsvm.errors import InputError
from attsvm.geometry import Frobenius
from attsvm.models import Attention, LinearHead
from attsvm.optim import SteepestDescent

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.dynamics.engine import Engine

Backend = Literal["auto", "compiled", "autograd"]


@dataclass(frozen=True)
class Plan:
    """The engine that will train and the reason for it.

    Attributes:
        engine: ``gram`` (small instances), ``ragged`` (large ones, or a trained head) or ``autograd`` (everything else).
        reason: one sentence.
        gram_cost: estimated microseconds per step and run of the Gram kernel on one core; None where it does not apply.
        ragged_cost: the same for the ragged kernel.
    """

    engine: Literal["gram", "ragged", "autograd"]
    reason: str
    gram_cost: float | None = None
    ragged_cost: float | None = None


def plan(model: Attention, data: AttentionData, optimizer: Optimizer, backend: Backend = "auto") -> Plan:
    """Choose the engine.

    Raises:
        InputError: an unknown backend, an optimiser of another model's parameters, or ``compiled`` where no kernel applies.
    """
    if backend not in ("auto", "compiled", "autograd"):
        raise InputError(f"backend is {backend!r}; use 'auto', 'compiled' or 'autograd'")
    own = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            raise InputError("the optimizer holds a parameter that the model does not have; build it from this model's parameters()")
    if backend == "autograd":
        return Plan("autograd", "autograd was asked for")
    obstacle = _obstacle(model, optimizer)
    if obstacle is not None:
        if backend == "compiled":
            raise InputError(f"no compiled kernel applies because {obstacle}; use backend='auto' or 'autograd'")
        return Plan("autograd", f"no compiled kernel applies because {obstacle}")
    gram, ragged = costs.gram_cost(data), costs.ragged_cost(data)
    if trains_head(model, optimizer):
        return Plan("ragged", "the head is trained, so scores change with every step", ragged_cost=ragged)
    if gram is None:
        return Plan("ragged", "the Gram matrices would not fit into memory", ragged_cost=ragged)
    if gram <= ragged:
        return Plan("gram", "the instance is small: one product with its Gram matrix is the cheapest step", gram, ragged)
    return Plan("ragged", "the instance is large: a pass over its tokens is cheaper than a product with its Gram matrix", gram, ragged)


def make_engine(chosen: Plan, model: Attention, data: AttentionData, optimizer: Optimizer) -> Engine:
    """The engine of a plan, at the model's present parameters. Imports numba only for a compiled one."""
    model.sequences(data.take([0]))  # refuses data that does not belong to the model
    if chosen.engine == "autograd":
        from attsvm.dynamics.autograd import AutogradEngine

        return AutogradEngine(model, data, optimizer)
    from attsvm.dynamics.engine import Setup

    runs = model.runs or 1
    readout = model.head.readout.detach()[..., 0].expand(runs, -1)
    head = readout[:, :-1] if model.head.has_intercept else readout
    intercept = readout[:, -1] if model.head.has_intercept else torch.zeros_like(readout[:, 0])
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    mine: dict[str, Any] = groups[id(model.W)]
    other: dict[str, Any] | None = groups.get(id(model.head.readout))
    setup = Setup(
        W=model.W.detach().numpy().reshape(runs, *model.W.shape[-2:]).copy(),
        head=head.numpy().copy(),
        intercept=intercept.numpy().copy(),
        lr=float(mine["lr"]),
        normalize=bool(mine["normalize"]),
        head_lr=None if other is None else float(other["lr"]),
        head_normalize=other is None or bool(other["normalize"]),
        has_intercept=model.head.has_intercept,
    )
    if chosen.engine == "gram":
        from attsvm.dynamics.gram import GramEngine

        return GramEngine(data, setup)
    from attsvm.dynamics.ragged import RaggedEngine

    return RaggedEngine(data, setup)


def trains_head(model: Attention, optimizer: Optimizer) -> bool:
    """Whether the head is among the optimiser's parameters."""
    return any(parameter is model.head.readout for group in optimizer.param_groups for parameter in group["params"])


def _obstacle(model: Attention, optimizer: Optimizer) -> str | None:
    """Why no compiled kernel applies, or None."""
    if type(model) is not Attention or type(model.head) is not LinearHead:
        return "the model is not Attention with a LinearHead"
    if type(optimizer) is not SteepestDescent:
        return f"the optimizer is {type(optimizer).__name__}, not SteepestDescent"
    if any(type(group["norm"]) is not Frobenius for group in optimizer.param_groups):
        return "the norm is not Frobenius"
    if any(group["momentum"] or group["weight_decay"] or group["maximize"] for group in optimizer.param_groups):
        return "the optimizer has momentum or weight decay, or maximises"
    if any(group["step_size"] != "fixed" or group["blocks"] is not None for group in optimizer.param_groups):
        return "the step is Polyak's, or the weights are cut into blocks"
    if model.W.dtype != torch.float64 or model.W.device.type != "cpu":
        return f"the weights are {model.W.dtype} on {model.W.device}, not float64 on the CPU"
    if not any(parameter is model.W for group in optimizer.param_groups for parameter in group["params"]):
        return "the optimizer does not train W"
    if not all(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]):
        return "a parameter of the optimizer does not require gradients"
    return None
