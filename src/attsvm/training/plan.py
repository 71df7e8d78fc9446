"""How a model is trained: everything that decides the numbers that come out, as one JSON-ready
value.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.errors import InputError
from attsvm.geometry import Spectral
from attsvm.models.classifiers import FusedSelfAttention
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent

_FROZEN_BELOW = 1.5
OPTIMIZERS = ("mirror", "mirror-normalized", "sgd", "adam", "adamw", "spectral")
PRECISIONS = ("float32", "tf32", "bf16")


@dataclass(frozen=True)
class TrainingPlan:
    r"""One optimiser, constant step length, shuffled batches, until the training accuracy or the
    number of epochs is reached.

    The defaults are those of the sentiment experiment of *Optimizing Attention with Mirror Descent*
    with three blocks and p = 1.1.

    Attributes:
        optimizer: ``mirror`` (:class:`attsvm.optim.MirrorDescent`, all parameters in one group),
            ``mirror-normalized`` (each gradient divided by its dual norm), ``sgd``, ``adam``,
            ``adamw`` (torch's), or ``spectral``:
            :class:`attsvm.optim.SteepestDescent` in the spectral norm with Nesterov momentum .95
            for the matrices inside the blocks (queries, keys and values of a fused map each their
            own), and Adam for everything else.
        lr: step length :math:`\eta`.
        p: exponent of the potential, for the mirror optimisers.
        rest_lr: step length of Adam beside ``spectral``; ``lr`` when left out.
        momentum: of ``sgd``, below 1.
        weight_decay: of ``adamw``, decoupled.
        epochs: most passes over the training examples.
        batch: examples of one step, over all processes.
        seed: of the order of the data, of dropout and of augmentation. The weights that a model
            starts with are the caller's.
        stop_accuracy: stop after the epoch whose accuracy, on its batches as they were trained
            (with dropout), reaches this.
        loss_reduction: ``sum`` or ``mean`` over the examples of a step.
        precision: ``float32``; ``tf32``, float32 with products in TensorFloat-32 where the device
            has it; ``bf16``, float32 weights and bfloat16 products (autocast).
        compile: through :func:`torch.compile`.
        augment: images are cropped at random after a border of an eighth of their side (4 of 32
            pixels), and flipped left to right.
        parts: a batch goes through the model in this many parts of texts of similar length, each
            padded to its longest only. The gradient is that of the whole batch, and which examples
            form a batch does not depend on it.

    Raises:
        InputError: a value out of range.
    """

    optimizer: str = "mirror"
    lr: float = 8e-4
    p: float = 1.1
    rest_lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.01
    epochs: int = 1000
    batch: int = 100
    seed: int = 0
    stop_accuracy: float | None = None
    loss_reduction: str = "sum"
    precision: str = "float32"
    compile: bool = False
    augment: bool = False
    parts: int = 1

    def __post_init__(self) -> None:
        for name, allowed in (
            ("optimizer", OPTIMIZERS),
            ("loss_reduction", ("sum", "mean")),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}"
                )
        for name in ("epochs", "batch", "parts"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in ("lr", "rest_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value}; give a positive number")
        if not 1 < self.p < math.inf:
            raise InputError(f"p is {self.p}; the potential needs 1 < p < inf")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum}; give at least 0 and less than 1")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(
                f"weight_decay is {self.weight_decay}; give a finite number, 0 or more"
            )
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; give 0 or more")
        if self.stop_accuracy is not None and not 0 < self.stop_accuracy <= 1:
            raise InputError(
                f"stop_accuracy is {self.stop_accuracy}; give a share above 0, at most 1"
            )

    def to_json(self) -> dict[str, Any]:
        """The plan as a dictionary that JSON can hold;
        ``TrainingPlan(**plan.to_json()) == plan``.
        """
        return asdict(self)


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
            parent = model.get_submodule(name.rpartition(".")[0])
            joined = isinstance(parent, FusedSelfAttention) and name.endswith("qkv")
            (fused if joined else whole).append(module.weight)
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


def _fused(parameters: list[nn.Parameter]) -> bool:
    return all(
        parameter.device.type in ("cpu", "cuda") and parameter.is_floating_point()
        for parameter in parameters
    )
