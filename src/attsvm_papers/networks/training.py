"""A classifier trained on all its parameters with one optimiser and a constant step length.

All randomness is a function of seed, epoch and step, so that in float32 on a CPU, with one number
of threads, a training is a function of its plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Spectral
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm_papers.networks.image_batches import cropped_and_flipped, draw_shifts
from attsvm_papers.networks.labelled import Examples, shuffled_steps

Columns = dict[str, list[float]]
Forward = Callable[..., Tensor]
PASS_SIZE = 256  # examples of one forward pass without gradients


@dataclass(frozen=True)
class Plan:
    """Everything that decides the numbers of a training.

    Attributes:
        optimizer: ``mirror`` (mirror descent on all parameters, as one group), ``adam``, ``adamw``
            or ``spectral``: see :func:`optimizer_of`.
        lr: step length, constant.
        p: exponent of the potential of mirror descent.
        rest_lr: step length of Adam beside spectral steps; ``lr`` when left out.
        epochs: most passes over the training examples.
        batch: examples of one step.
        seed: of the order of the data, of dropout and of augmentation.
        stop_accuracy: stop after an epoch whose accuracy, on its batches as they were trained, is
            at least this.
        mean: whether the loss of a step is the mean over its examples; their sum otherwise.
        augment: images are cropped at random after a border of an eighth of their side, and
            flipped.
        pieces: a batch goes through the model in this many pieces of texts of similar length; the
            gradient is that of the whole batch.
        device: where it trains, as torch names it.
        accelerator: compiled, with products in bfloat16.
    """

    optimizer: str
    lr: float
    epochs: int
    batch: int
    p: float = 2.0
    rest_lr: float | None = None
    seed: int = 0
    stop_accuracy: float | None = None
    mean: bool = False
    augment: bool = False
    pieces: int = 1
    device: str = "cpu"
    accelerator: bool = False


@dataclass(frozen=True, eq=False)
class History:
    """Learning curves.

    Attributes:
        columns: name to ``(epochs,)``: ``train_loss`` (mean per example) and ``train_accuracy``,
            over the batches as they were trained; ``<set>_loss`` and ``<set>_accuracy`` of every
            held-out set after the epoch; ``seconds`` and ``cpu_seconds`` of its training.
        stopped: ``accuracy``, ``epochs``, or ``diverged`` for a loss that is no number.
    """

    columns: Mapping[str, FloatArray]
    stopped: str

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return len(self.columns["train_loss"])

    def __getitem__(self, column: str) -> FloatArray:
        return self.columns[column]


def train_network(
    model: nn.Module,
    examples: Examples,
    held_out: Mapping[str, Examples],
    plan: Plan,
) -> History:
    """Train ``model`` in place and measure the held-out sets after every epoch; none is used for a
    decision.

    Args:
        model: maps inputs (and their mask, where there is one) to logits ``(n,)`` of two classes,
            or to scores ``(n, classes)``.
        examples: training examples.
        held_out: held-out sets by name.
        plan: what decides the numbers.
    """
    device = torch.device(plan.device)
    model.to(device)
    optimizer = optimizer_of(model, plan)
    forward: Forward = torch.compile(model, dynamic=True) if plan.accelerator else model
    examples = examples.to(device)
    held_out = {name: held_out_examples.to(device) for name, held_out_examples in held_out.items()}
    columns: Columns = {}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        while (reason := _stop_reason(columns, plan)) is None:
            epoch = len(columns.get("train_loss", ()))
            row = _epoch(model, forward, optimizer, examples, plan, epoch)
            for name, held_out_examples in held_out.items():
                scores = _loss_and_accuracy(forward, model, held_out_examples, plan.accelerator)
                row[f"{name}_loss"], row[f"{name}_accuracy"] = scores
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    return History({name: np.array(values) for name, values in columns.items()}, reason)


def _stop_reason(columns: Columns, plan: Plan) -> str | None:
    """Why training is over, or None."""
    if not columns:
        return None
    if not np.isfinite(columns["train_loss"][-1]):
        return "diverged"
    if plan.stop_accuracy is not None and columns["train_accuracy"][-1] >= plan.stop_accuracy:
        return "accuracy"
    return "epochs" if len(columns["train_loss"]) >= plan.epochs else None


def _epoch(
    model: nn.Module,
    forward: Forward,
    optimizer: Optimizer,
    examples: Examples,
    plan: Plan,
    epoch: int,
) -> dict[str, float]:
    """One pass over the examples, and its row of the learning curves.

    1. Everything that is random is seeded by epoch and step.
    2. Gradients of the pieces of a batch add up.
    3. The optimiser takes one step for the batch.
    """
    n, device = len(examples), examples.labels.device
    steps = shuffled_steps(n, plan.batch, plan.seed, epoch)
    pieces = examples.pieces(steps, plan.pieces)
    if plan.augment:
        shifts = draw_shifts(n, examples.inputs.shape[-1], plan.seed, epoch).to(device)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    model.train()
    began = _clocks()
    for step, rows in enumerate(steps):
        # 1. dropout of a step depends on its numbers alone
        torch.manual_seed(_seed(plan.seed, epoch, step, 0))
        optimizer.zero_grad(set_to_none=True)
        # 2. pieces are of texts of similar length: less padding
        for piece in pieces[step]:
            inputs, labels = examples.take(piece)
            if plan.augment:
                inputs = (cropped_and_flipped(inputs[0], shifts[:, piece[0]]),)
            logits = logits_of(forward, inputs, plan.accelerator)
            loss = summed_loss(logits, labels)
            (loss / len(rows) if plan.mean else loss).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                sums += torch.stack([loss.double(), _count_right(logits, labels).double()])
        optimizer.step()  # 3. one for the whole batch
    values = [*(sums / n).tolist(), *(_clocks() - began).tolist()]
    return dict(
        zip(("train_loss", "train_accuracy", "seconds", "cpu_seconds"), values, strict=True)
    )


def _clocks() -> FloatArray:
    return np.array([time.perf_counter(), time.process_time()])


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def logits_of(forward: Forward, inputs: tuple[Tensor, ...], accelerator: bool) -> Tensor:
    """The model's logits, in float32 or better; its products in bfloat16 on an accelerator."""
    with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=accelerator):
        logits = forward(*inputs)
    return logits if logits.dtype.itemsize >= 4 else logits.float()


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The logistic loss of logits ``(n,)``, or the cross-entropy of scores ``(n, classes)``, summed
    over examples.
    """
    if logits.ndim == 1:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return F.cross_entropy(logits, labels, reduction="sum")


def _count_right(logits: Tensor, labels: Tensor) -> Tensor:
    classes = logits > 0 if logits.ndim == 1 else logits.argmax(dim=1)
    return (classes == labels).sum()


def _loss_and_accuracy(
    forward: Forward, model: nn.Module, examples: Examples, accelerator: bool
) -> tuple[float, float]:
    """Mean loss and accuracy in evaluation mode."""
    sums = torch.zeros(2, dtype=torch.float64, device=examples.labels.device)
    model.eval()
    with torch.no_grad():
        for piece in _all_pieces(examples):
            inputs, labels = examples.take(piece)
            logits = logits_of(forward, inputs, accelerator)
            sums += torch.stack(
                [summed_loss(logits, labels).double(), _count_right(logits, labels).double()]
            )
    loss, accuracy = (sums / len(examples)).tolist()
    return loss, accuracy


def _all_pieces(examples: Examples) -> list[tuple[Tensor, int]]:
    return examples.pieces([np.arange(len(examples))], -(-len(examples) // PASS_SIZE))[0]


def predict(model: nn.Module, examples: Examples) -> Tensor:
    """Logits ``(n,)`` or scores ``(n, classes)`` of the model in evaluation mode, in the order of
    the examples.
    """
    examples = examples.to(next(model.parameters()).device)
    model.eval()
    with torch.no_grad():
        batches = [
            (piece[0], logits_of(model, examples.take(piece)[0], False))
            for piece in _all_pieces(examples)
        ]
    rows = torch.cat([index for index, _ in batches])
    return torch.cat([logits for _, logits in batches])[rows.argsort()]


def optimizer_of(model: nn.Module, plan: Plan) -> Optimizer:
    """The optimiser of ``plan`` over all parameters of ``model``.

    ``spectral`` is :class:`attsvm.optim.SteepestDescent` in the spectral norm with Nesterov
    momentum .95 for the matrices inside the blocks (queries, keys and values of a fused map each
    their own), and Adam for everything else.
    """
    parameters, lr = list(model.parameters()), plan.lr
    if plan.optimizer == "mirror":
        return MirrorDescent(parameters, lr=lr, p=plan.p)
    if plan.optimizer in ("adam", "adamw"):
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[plan.optimizer]
        return kind(parameters, lr=lr, fused=True)
    if plan.optimizer != "spectral":
        raise InputError(f"there is no optimiser {plan.optimizer!r}")
    unfused: list[Tensor] = []
    fused: list[Tensor] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}.":
            joined = name.endswith("qkv")  # keys, queries and values of one self-attention
            (fused if joined else unfused).append(module.weight)
    groups: list[dict[str, Any]] = [{"params": unfused}, {"params": fused, "blocks": 3}]
    options: dict[str, Any] = {"momentum": 0.95, "nesterov": True, "polar": "polar-express"}
    groups = [group for group in groups if group["params"]]
    matrices = SteepestDescent(groups, lr=lr, norm=Spectral(), **options)
    matrix_ids = {id(parameter) for parameter in (*unfused, *fused)}
    others = [parameter for parameter in parameters if id(parameter) not in matrix_ids]
    return CombinedOptimizer(
        [matrices, torch.optim.Adam(others, lr=plan.rest_lr or lr, fused=True)]
    )
