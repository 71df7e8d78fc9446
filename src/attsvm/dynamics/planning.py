"""Which kernel trains, and why: a decision from shapes alone, so that the same call gives the same
bits on any number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from attsvm.data import AttentionData, FloatArray, spread
from attsvm.dynamics import costs
from attsvm.dynamics.engine import hooked
from attsvm.errors import InputError
from attsvm.geometry import Frobenius
from attsvm.models import Attention, FactoredAttention, FixedPromptAttention, PerRun
from attsvm.models.attention import linear_head, overridden
from attsvm.optim import MirrorDescent, SteepestDescent

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.dynamics.autograd import Schedule
    from attsvm.dynamics.engine import Engine

Backend = Literal["auto", "compiled", "autograd"]


@dataclass(frozen=True)
class Plan:
    """The engine that will train and the reason for it.

    Attributes:
        engine: ``gram`` (small instances), ``ragged`` (large ones, or a trained head), ``factored``
            (factors K and Q), ``mirror`` (mirror descent on small instances) or ``autograd``
            (everything else).
        reason: one sentence.
        gram_cost: estimated microseconds per step and run of the Gram kernel on one core; None
            where it does not apply.
        ragged_cost: the same for the ragged kernel.
    """

    engine: Literal["gram", "ragged", "factored", "mirror", "autograd"]
    reason: str
    gram_cost: float | None = None
    ragged_cost: float | None = None


def plan(
    model: Attention,
    data: AttentionData,
    optimizer: Optimizer,
    backend: Backend = "auto",
    schedule: Schedule | None = None,
) -> Plan:
    """Choose the engine.

    Raises:
        InputError: an unknown backend, an optimiser of another model's parameters, or ``compiled``
            where no kernel applies.
    """
    if backend not in ("auto", "compiled", "autograd"):
        raise InputError(f"backend is {backend!r}; use 'auto', 'compiled' or 'autograd'")
    own = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            raise InputError(
                "the optimizer holds a parameter that the model does not have; build it from this"
                " model's parameters()"
            )
    if backend == "autograd":
        return Plan("autograd", "autograd was asked for")
    mirror = type(optimizer) is MirrorDescent
    obstacle = _obstacle(model, optimizer, schedule) or (
        _mirror_obstacle(model, data, optimizer) if mirror else None
    )
    if obstacle is not None:
        if backend == "compiled":
            raise InputError(
                f"no compiled kernel applies because {obstacle}; use backend='auto' or 'autograd'"
            )
        return Plan("autograd", f"no compiled kernel applies because {obstacle}")
    if mirror:
        return Plan("mirror", "mirror descent on small instances: one thread for each run")
    gram, ragged = costs.gram_cost(data), costs.ragged_cost(data)
    if any(group["step_size"] == "polyak" for group in optimizer.param_groups):
        if gram is None:
            return Plan(
                "autograd", "the step is Polyak's, and the Gram matrices would not fit into memory"
            )
        return Plan("gram", "the step is Polyak's", gram)
    if isinstance(model, FactoredAttention):
        return Plan("factored", "the weights are factors K and Q")
    if model.reading.keys is not None:
        if gram is None:
            return Plan(
                "autograd",
                "the head reads other features than the attention, and the Gram matrices would not"
                " fit into memory",
            )
        return Plan("gram", "the head reads other features than the attention", gram)
    if trains_head(model, optimizer):
        return Plan(
            "ragged", "the head is trained, so scores change with every step", ragged_cost=ragged
        )
    if gram is None:
        return Plan("ragged", "the Gram matrices would not fit into memory", ragged_cost=ragged)
    if gram <= ragged:
        return Plan(
            "gram",
            "the instance is small: one product with its Gram matrix is the cheapest step",
            gram,
            ragged,
        )
    return Plan(
        "ragged",
        "the instance is large: a pass over its tokens is cheaper than a product with its Gram"
        " matrix",
        gram,
        ragged,
    )


def make_engine(
    chosen: Plan,
    model: Attention,
    data: AttentionData,
    optimizer: Optimizer,
    step_scale: Mapping[str, FloatArray] | None = None,
    schedule: Schedule | None = None,
) -> Engine:
    """The engine of a plan, at the model's present parameters. Imports numba only for a compiled
    one.
    """
    if chosen.engine == "autograd":
        from attsvm.dynamics.autograd import AutogradEngine

        return AutogradEngine(model, data, optimizer, step_scale, schedule)
    model.sequences(data.take([0]))  # refuses data that does not belong to the model
    from attsvm.dynamics.engine import Setup

    runs = model.runs or 1
    readout = model.head.readout.detach()[..., 0].expand(runs, -1)
    head = readout[:, :-1] if model.head.has_intercept else readout
    intercept = readout[:, -1] if model.head.has_intercept else torch.zeros_like(readout[:, 0])
    groups = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }
    weight = next(iter(model.weights.values()))
    mine: dict[str, Any] = groups[id(weight)]
    other: dict[str, Any] | None = groups.get(id(model.head.readout))
    scales = step_scale or {}

    def rates(group: dict[str, Any], parameter: str) -> FloatArray:
        lr = np.asarray(
            group["lr"].detach().cpu() if isinstance(group["lr"], torch.Tensor) else group["lr"],
            dtype=np.float64,
        )
        return np.array(np.broadcast_to(lr * scales.get(parameter, 1.0), (runs,)))

    losses = (
        model.objective.losses if isinstance(model.objective, PerRun) else [model.objective] * runs
    )
    setup = Setup(
        W=model.combined().detach().numpy().reshape(runs, *model.combined().shape[-2:]).copy(),
        head=head.numpy().copy(),
        intercept=intercept.numpy().copy(),
        lr=rates(mine, next(iter(model.weights))),
        normalize=bool(mine["normalize"]),
        loss=np.array([loss.code for loss in losses], dtype=np.int64),
        head_lr=None if other is None else rates(other, "head.readout"),
        head_normalize=other is None or bool(other["normalize"]),
        has_intercept=model.head.has_intercept,
        schedule=_function(schedule, next(iter(model.weights))),
        head_schedule=_function(schedule, "head.readout"),
        floor=(
            spread("the loss_floor", mine["loss_floor"], (runs,), 0)
            if mine.get("step_size") == "polyak"
            else None
        ),
        polyak_factor=float(mine.get("polyak_factor", 2.0)),
        keys=model.reading.keys,
        prompt=model.reading.prompt,
    )
    if isinstance(model, FactoredAttention):
        from attsvm.dynamics.factored import FactorEngine, FactorSetup

        members = [(name, groups[id(parameter)]) for name, parameter in model.weights.items()]
        K, Q = (
            np.array(part.detach().numpy().reshape(runs, *part.shape[-2:]))
            for part in model.factors()
        )
        pair = [rates(group, name) for name, group in members] * (2 // len(members))
        flags = np.array([bool(group["normalize"]) for _, group in members] * (2 // len(members)))
        penalty = np.array(np.broadcast_to(model.penalty, (runs,)))
        return FactorEngine(
            data, setup, FactorSetup(K, Q, np.stack(pair), flags, len(members) == 1, penalty)
        )
    if chosen.engine == "mirror":
        from attsvm.dynamics.mirror_engine import Mirror, MirrorEngine

        return MirrorEngine(
            data, setup, Mirror.of(mine), None if other is None else Mirror.of(other)
        )
    if chosen.engine == "gram":
        from attsvm.dynamics.gram import GramEngine

        return GramEngine(data, setup)
    from attsvm.dynamics.ragged import RaggedEngine

    return RaggedEngine(data, setup)


def _function(schedule: Schedule | None, parameter: str) -> Callable[[int], float] | None:
    """The schedule of one parameter."""
    found = schedule.get(parameter) if isinstance(schedule, Mapping) else schedule
    return None if isinstance(found, LRScheduler) else found


def trains_head(model: Attention, optimizer: Optimizer) -> bool:
    """Whether a linear head is among the optimiser's parameters."""
    readout = getattr(model.head, "readout", None)
    return readout is not None and any(
        parameter is readout for group in optimizer.param_groups for parameter in group["params"]
    )


def _obstacle(model: Attention, optimizer: Optimizer, schedule: Schedule | None) -> str | None:
    """Why no compiled kernel applies, or None."""
    if changed := overridden(model):
        return f"{type(model).__name__} overrides {', '.join(sorted(changed))}"
    if isinstance(model, FixedPromptAttention) or linear_head(model) is None:
        return "the parameters are not W, K and Q, or one prompt under a LinearHead"
    factored = isinstance(model, FactoredAttention)
    if factored and trains_head(model, optimizer):
        return "the head is trained beside factors"
    if model.reading.labels is not None:
        return "every position is a query"
    if model.reading.keys is not None and trains_head(model, optimizer):
        return "the head reads other features than the attention"
    if model.penalty.any() and not factored:
        return "the weights are penalised"
    if model.objective.codes is None:
        return "the kernels do not know the loss"
    if isinstance(schedule, LRScheduler):
        return "the schedule is a torch scheduler and not a function of the step"
    if type(optimizer) not in (SteepestDescent, MirrorDescent):
        return (
            f"the optimizer is {type(optimizer).__name__}, neither SteepestDescent nor"
            " MirrorDescent"
        )
    if hooked(optimizer):
        return "the optimizer or a parameter has hooks"
    if any(
        group["momentum"] or group["weight_decay"] or group["maximize"]
        for group in optimizer.param_groups
    ):
        return "the optimizer has momentum or weight decay, or maximises"
    if type(optimizer) is SteepestDescent:
        if any(group["norm"] != Frobenius() for group in optimizer.param_groups):
            return "the norm is not Frobenius"
        if any(group["blocks"] is not None for group in optimizer.param_groups):
            return "the weights are cut into blocks"
        if any(group["step_size"] != "fixed" for group in optimizer.param_groups) and (
            factored or trains_head(model, optimizer)
        ):
            return "the step is Polyak's, and W under a fixed head is not all that is trained"
    elif isinstance(schedule, Mapping):
        return "head and weights have schedules of their own"
    if factored and isinstance(schedule, Mapping):
        return "the factors have schedules of their own"
    weights = list(model.weights.values())
    if weights[0].dtype != torch.float64 or weights[0].device.type != "cpu":
        return f"the weights are {weights[0].dtype} on {weights[0].device}, not float64 on the CPU"
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if any(id(weight) not in trained for weight in weights):
        return f"the optimizer does not train {' and '.join(model.weights)}"
    if not all(
        parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]
    ):
        return "a parameter of the optimizer does not require gradients"
    return None


# microseconds of a step of one run from which it is better shared among all cores, as torch does
_LONG = 500.0


def _mirror_obstacle(model: Attention, data: AttentionData, optimizer: Optimizer) -> str | None:
    """Why the kernel of mirror descent does not apply where :func:`_obstacle` sees none, or
    None.
    """
    groups = optimizer.param_groups
    if isinstance(model, FactoredAttention) or model.reading.keys is not None:
        return "mirror descent is compiled for W, or a prompt without a key map"
    if any(
        group["potential"] != "power" or group["state_dtype"] not in (None, torch.float64)
        for group in groups
    ):
        return "the potential is Schatten's, or the dual is kept in float32"
    shared = ("global",) if model.runs is None else ("global", "tensor", True)
    if any(group["normalize"] in shared for group in groups):
        return "one norm is shared by several parameters or runs"
    if any(optimizer.state.get(parameter) for group in groups for parameter in group["params"]):
        return "the optimizer has dual iterates from earlier steps"
    if costs.mirror_cost(data) > _LONG:
        return "the instance is large: torch shares a step among all cores"
    return None
