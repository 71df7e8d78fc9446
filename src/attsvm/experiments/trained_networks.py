"""Networks trained by different optimisers, and all that the experiments on real data read off them.

One cell is one training. Accuracy tables, weight histograms and attention scores are columns of the same rows, so the experiments that
show them share their cells (md-4, md-5 and md-6), and none trains anything twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.errors import UnavailableError
from attsvm.experiments.experiment import Cell

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attsvm.claims import Evidence
    from attsvm.training import History

DATA = ("sentences", "imdb", "digits", "mnist", "cifar10")
"""A row's column ``data`` is the position of its examples in this list."""
METHODS = ("l1.1", "l2", "l3", "adam", "spectral")
"""A row's column ``method`` is the position of its optimiser in this list."""
TUNING_SEED = 1_000_000
"""Seed of the trainings that choose a learning rate; no other training has it."""
COURSE = 1000
"""Length of the columns that hold a number per epoch, NaN after the last one."""


@dataclass(frozen=True)
class Task:
    """Examples and a network.

    Attributes:
        data: one of :data:`DATA`.
        train: number of training examples; 0 for all.
        validation: number of held-out examples that may choose an epoch. They are taken from the published test set, which leaves the
            published training set whole, and never counted as test examples.
        test: number of other held-out examples; 0 for all.
        vocabulary: word pieces, learned from the training texts.
        length: word pieces of a text that are kept.
        side: pixels that images are resized to; 0 for their own.
        patch: pixels of the side of a patch.
        width: size of a token.
        depth: number of blocks.
        heads: heads of a block.
        hidden: width of the network inside a block.
        dropout: share dropped in training.
        batch: examples of a step.
        epochs: most epochs.
        stop_accuracy: stop after an epoch with this training accuracy, measured while training; 0 for never.
        augment: whether images are cropped and flipped at random.
        tuning_epochs: epochs of each training that chooses a learning rate.
    """

    data: str
    train: int
    validation: int
    test: int
    width: int
    depth: int
    heads: int
    hidden: int
    dropout: float
    batch: int
    epochs: int
    vocabulary: int = 0
    length: int = 0
    side: int = 0
    patch: int = 0
    stop_accuracy: float = 0.995
    augment: bool = False
    tuning_epochs: int = 0


@dataclass(frozen=True)
class Method:
    """An optimiser with its learning rate for the sum of the losses of a batch (for Adam and the spectral steps a factor does not matter).

    Attributes:
        name: one of :data:`METHODS`.
        lr: learning rate.
        rest_lr: of Adam beside spectral steps.
        grid: the learning rates among which ``lr`` was chosen; empty where it is published.
    """

    name: str
    lr: float
    rest_lr: float | None = None
    grid: tuple[float, ...] = ()


def trainings(tasks: Sequence[tuple[Task, Sequence[Method]]], seeds: int, *, accelerator: bool, tuning: bool) -> Iterator[Cell]:
    """The cells of ``run``: every method with seeds from 0 on, and where asked one training for each learning rate of its grid.

    Tasks whose files are not here are left out.

    Raises:
        UnavailableError: no task's files are here, or an accelerator is needed and there is none.
    """
    here = [(task, methods, digest) for task, methods in tasks if (digest := _digest(task)) is not None]
    if not here:
        names = " and ".join(task.data for task, _ in tasks)
        raise UnavailableError(f"there are no files of {names}; set ATTSVM_DATA to a folder that holds them, or use --scale smoke")
    if accelerator:
        import torch

        if not torch.cuda.is_available():
            raise UnavailableError("the published networks need a GPU that torch can use, and there is none; use --scale small")
    for task, methods, digest in here:
        shared = {"task": asdict(task), "digest": digest, "accelerator": accelerator}
        for seed in range(seeds):
            for method in methods:
                yield {**shared, "method": _plain(method, method.lr), "seed": seed}
        for method in methods if tuning else ():
            for lr in method.grid:
                yield {**shared, "method": _plain(method, lr), "seed": TUNING_SEED}


def _plain(method: Method, lr: float) -> dict[str, Any]:
    return {"name": method.name, "lr": lr, "rest_lr": method.rest_lr}


def run(
    task: dict[str, Any], method: dict[str, Any], seed: int, digest: str, accelerator: bool = False, folder: Path | None = None
) -> dict[str, Any]:
    """One row: a network trained with one seed, which draws its first weights, the order of the data and dropout.

    ``digest`` names the files, so that other files are another cell.
    """
    import torch

    from attsvm.training import TrainingPlan, train_classifier

    spec, name = Task(**task), method["name"]
    tuning = seed == TUNING_SEED
    with one_thread(when=not accelerator):
        loaded = load(spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = network(spec, loaded)
        plan = TrainingPlan(
            optimizer="mirror" if name.startswith("l") else name,
            p=float(name[1:]) if name.startswith("l") else 2.0,
            lr=method["lr"],
            rest_lr=method["rest_lr"],
            epochs=spec.tuning_epochs if tuning else spec.epochs,
            batch=spec.batch,
            seed=seed,
            stop_accuracy=spec.stop_accuracy or None,
            augment=spec.augment,
            precision="tf32" if accelerator else "float32",
            compile=accelerator,
        )
        held = {"validation": loaded.validation, "test": loaded.test}
        device = "cuda" if accelerator else None
        history = train_classifier(model, loaded.train, held, plan, folder=folder, device=device)
        columns = {
            "data": DATA.index(spec.data),
            "method": METHODS.index(name),
            "seed": seed,
            "tuning": tuning,
            "published": accelerator,
            "depth": spec.depth,
            "lr": method["lr"],
            "held": [len(loaded.validation), len(loaded.test)],
            **_courses(history),
            **measured(model, spec, loaded),
        }
    return {key: np.asarray(value)[None] for key, value in columns.items()}


def _courses(history: History) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("train_loss", "train_accuracy", "validation_accuracy", "test_accuracy"):
        found[name] = np.full(COURSE, np.nan)
        found[name][: len(history.columns[name])] = history.columns[name]
    seconds = history.columns["seconds"]
    speed = float(np.sum(history.columns["tokens_per_second"] * seconds) / np.sum(seconds))
    return {**found, "epochs": len(seconds), "reached": history.stopped == "accuracy", "seconds": np.sum(seconds), "speed": speed}
