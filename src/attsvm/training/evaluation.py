"""Logits, losses and accuracies of classifiers, of two classes or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.errors import InputError
from attsvm.optim.callbacks import evaluating
from attsvm.training.labelled import Examples, Placed, Schedule
from attsvm.training.processes import Processes

Forward = Callable[..., Tensor]

_BATCH = 256  # examples of one forward pass without gradients


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """Products of float32 matrices in TensorFloat-32 for ``tf32``, in full otherwise, while the
    block lasts.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def logits_of(forward: Forward, inputs: tuple[Tensor, ...], precision: str, classes: int) -> Tensor:
    """The model's logits, in float32 or better; its products in bfloat16 for ``bf16``."""
    with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = forward(*inputs)
    if logits.ndim not in (1, 2) or len(logits) != len(inputs[0]):
        raise InputError(
            f"the model returned shape {tuple(logits.shape)} for {len(inputs[0])} inputs; it must"
            " return (n,) or (n, classes)"
        )
    told = logits.shape[1] if logits.ndim == 2 else 2
    if told < classes:
        raise InputError(
            f"the model tells {told} classes apart and the labels have {classes}; give it as many"
            " outputs"
        )
    return logits if logits.dtype.itemsize >= 4 else logits.float()


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The logistic loss of logits ``(n,)``, or the cross-entropy of scores ``(n, classes)``, summed
    over examples.
    """
    if logits.ndim == 1:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return F.cross_entropy(logits, labels, reduction="sum")


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many examples fall on the side, or have their largest score at the class, that is
    theirs.
    """
    found = logits > 0 if logits.ndim == 1 else logits.argmax(dim=1)
    return (found == labels).sum()


def scores(
    forward: Forward, model: nn.Module, examples: Placed, precision: str, group: Processes
) -> tuple[float, float]:
    """Mean loss and accuracy in evaluation mode, over all processes; the mode is left as it was
    found.
    """
    schedule = Schedule(
        examples, [np.arange(len(examples))], -(-len(examples) // _BATCH), group.rank, group.size
    )
    sums = torch.zeros(2, dtype=torch.float64, device=examples.labels.device)
    with evaluating(model):
        for index, longest in schedule.pieces(0):
            inputs, labels = examples.take(index, longest)
            logits = logits_of(forward, inputs, precision, examples.classes)
            sums += torch.stack(
                [summed_loss(logits, labels).double(), correct(logits, labels).double()]
            )
    group.add([sums])
    loss, accuracy = (sums / len(examples)).tolist()
    return loss, accuracy


def predict(model: nn.Module, examples: Examples, *, precision: str = "float32") -> Tensor:
    """Logits ``(n,)`` or scores ``(n, classes)`` of a model in evaluation mode, in the order of the
    examples, on the model's device.

    Raises:
        InputError: a model that returns another shape.
    """
    device = next(model.parameters()).device
    placed = Placed(examples, device)
    schedule = Schedule(placed, [np.arange(len(placed))], -(-len(placed) // _BATCH))
    with evaluating(model), matrix_products(precision):
        found = [
            (index, logits_of(model, placed.take(index, longest)[0], precision, 1))
            for index, longest in schedule.pieces(0)
        ]
    rows = torch.cat([index for index, _ in found])
    return torch.cat([logits for _, logits in found])[rows.argsort()]
