"""The optimiser of a plan, and the tensors that it cannot move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.errors import InputError
from attsvm.geometry import Spectral
from attsvm.models.multihead import FusedSelfAttention
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.training.plan import TrainingPlan

_FROZEN_BELOW = 1.5


def build_optimizer(model: nn.Module, plan: TrainingPlan) -> Optimizer:
    """The optimiser of ``plan`` over all trainable parameters of ``model``, in its fastest form on
    their device.

    Raises:
        InputError: a model without trainable parameters, or ``spectral`` for a model without
            blocks.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError(
            f"{type(model).__name__} has no trainable parameters; give a model that has some"
        )
    if plan.optimizer in ("mirror", "mirror-normalized"):
        return MirrorDescent(
            parameters,
            lr=plan.lr,
            p=plan.p,
            normalize="tensor" if plan.optimizer == "mirror-normalized" else None,
        )
    if plan.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=plan.lr, momentum=plan.momentum)
    if plan.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=plan.lr, fused=_fused(parameters))
    if plan.optimizer == "adamw":
        fused, decay = _fused(parameters), plan.weight_decay
        return torch.optim.AdamW(parameters, lr=plan.lr, weight_decay=decay, fused=fused)
    return _spectral(model, parameters, plan)


def frozen_tensors(model: nn.Module, plan: TrainingPlan) -> tuple[str, ...]:
    r"""Names of trainable tensors that are zero now and that mirror descent with ``plan.p`` will
    hardly move.

    From :math:`Y=0` a dual displacement :math:`\delta` makes a weight :math:`|\delta|^{1/(p-1)}`:
    at p = 1.1 and a displacement of .01,
    :math:`10^{-20}`. Listed for p below 1.5, where the power is above 2.
    """
    if not plan.optimizer.startswith("mirror") or plan.p >= _FROZEN_BELOW:
        return ()
    return tuple(
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not parameter.detach().any()
    )


def _spectral(model: nn.Module, parameters: list[nn.Parameter], plan: TrainingPlan) -> Optimizer:
    whole: list[Tensor] = []
    fused: list[Tensor] = []
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Linear)
            and ".blocks." in f".{name}."
            and module.weight.requires_grad
        ):
            (
                fused
                if isinstance(_parent(model, name), FusedSelfAttention) and name.endswith("qkv")
                else whole
            ).append(module.weight)
    if not whole and not fused:
        raise InputError(
            f"{type(model).__name__} has no matrices under the name blocks, which spectral descent"
            " moves; use another optimizer"
        )
    groups: list[dict[str, Any]] = [{"params": whole}, {"params": fused, "blocks": 3}]
    matrices = SteepestDescent(
        [group for group in groups if group["params"]],
        lr=plan.lr,
        norm=Spectral(),
        momentum=0.95,
        nesterov=True,
        polar="polar-express",
    )
    moved = {id(parameter) for parameter in (*whole, *fused)}
    rest = [parameter for parameter in parameters if id(parameter) not in moved]
    return (
        CombinedOptimizer(
            [matrices, torch.optim.Adam(rest, lr=plan.rest_lr or plan.lr, fused=_fused(rest))]
        )
        if rest
        else matrices
    )


def _parent(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _fused(parameters: list[nn.Parameter]) -> bool:
    return all(
        parameter.device.type in ("cpu", "cuda") and parameter.is_floating_point()
        for parameter in parameters
    )
