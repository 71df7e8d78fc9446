"""How a model is trained: everything that decides the numbers that come out, as one JSON-ready
value.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from attsvm.errors import InputError

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
