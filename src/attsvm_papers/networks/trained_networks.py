"""Networks trained by different optimisers, and all measurements of the experiments on real data.

One cell is one training. Accuracy tables, weight histograms and attention scores are columns of the
same rows, so that nothing is trained twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm import InputError
from attsvm.base.cores import at_most_threads
from attsvm.base.errors import UnavailableError
from attsvm_papers import kit
from attsvm_papers.networks.examples import Task, digest_of_data

if TYPE_CHECKING:
    from torch import nn

    from attsvm_papers.networks.examples import TaskData
    from attsvm_papers.networks.training import History

DATA = ("sentences", "imdb", "digits", "mnist", "cifar10")
"""A row's column ``data`` is the position of its examples in this list."""
METHODS = ("l1.1", "l2", "l3", "adam", "spectral")
"""Mirror descent of three potentials, Adam and spectral descent. A row's column ``method`` is the
position of its optimiser in this list.
"""
TUNING_SEED = 1_000_000  # where seeds of searches begin: the trainings need nothing of the kit
"""Seed of the trainings that choose a learning rate; no other training has it."""
COURSE = 1000
"""Length of the columns that hold a number per epoch, NaN after the last one."""
FEW = 500
"""Test examples of a training that chooses a learning rate."""


@dataclass(frozen=True)
class Method:
    """An optimiser and the learning rates from which one is chosen, for the sum of the losses of a
    batch.

    Attributes:
        name: one of :data:`METHODS`.
        lr: learning rates; a single one is used as it is. (For Adam and for spectral steps, sum or
            mean does not matter.)
        rest_lr: of Adam beside spectral steps.
    """

    name: str
    lr: tuple[float, ...]
    rest_lr: float | None = None


@dataclass(frozen=True)
class Study:
    """A task and the optimisers that are compared on it."""

    task: Task
    methods: tuple[Method, ...]


@dataclass(frozen=True)
class Networks:
    """Networks on data with their optimisers.

    Attributes:
        studies: what is trained.
        seeds: runs of every optimiser.
        sizes: numbers of blocks of the studies that take part; all of them where none is named.
        widen: whether a grid goes on by another rate, three times at most, where the best one is at
            its end.
    """

    studies: tuple[Study, ...]
    seeds: int = 3
    sizes: tuple[int, ...] = ()
    widen: bool = False

    def chosen(self) -> tuple[Study, ...]:
        """The studies that take part, in the order of the sizes.

        Raises:
            InputError: there is no network of a size.
        """
        sizes = sorted({study.task.depth for study in self.studies})
        if missing := [size for size in self.sizes if size not in sizes]:
            raise InputError(
                f"there is no network of {missing[0]} blocks at this scale; choose sizes from:"
                f" {', '.join(map(str, sizes))}"
            )
        ordered = self.sizes or sizes
        return tuple(
            study for size in ordered for study in self.studies if study.task.depth == size
        )


def cells(parameters: Networks) -> Iterator[kit.Cell]:
    """The cells of ``run`` that ask nothing of others: methods with one learning rate, with seeds
    from 0 on, and for the other methods one short training for each rate.

    Tasks whose files are not here are left out.

    Raises:
        UnavailableError: no task's files are here, or an accelerator is needed and there is none.
    """
    for study, digest in _with_files(parameters.chosen()):
        for method in study.methods:
            for seed in range(parameters.seeds) if len(method.lr) == 1 else (TUNING_SEED,):
                for lr in method.lr:
                    yield _cell(study.task, digest, method, lr, seed)


def widened_grids(parameters: Networks, evidence: kit.Evidence) -> Iterator[kit.Cell]:
    """A short training with another rate for each method whose best one is at the end of those that
    were tried, where its grid may go on.
    """
    for study, digest in _with_files(parameters.chosen()) if parameters.widen else ():
        for method in study.methods:
            if len(method.lr) > 1:
                short_trainings = _rate_search(evidence, study.task.data, method.name)["lr"]
                best = chosen_rate(evidence, study.task.data, method.name)
                ratio = method.lr[1] / method.lr[0]
                if best in (short_trainings.min(), short_trainings.max()):
                    further = best * ratio if best == short_trainings.max() else best / ratio
                    yield _cell(study.task, digest, method, float(f"{further:.3g}"), TUNING_SEED)


def chosen_rates(parameters: Networks, evidence: kit.Evidence) -> Iterator[kit.Cell]:
    """The cells of the methods with several learning rates: the rate with the highest validation
    accuracy at the end of its short training, the first of several, with seeds from 0 on: all
    methods with the first seed, then with the next.
    """
    for study, digest in _with_files(parameters.chosen()):
        methods_with_rates = [
            (method, chosen_rate(evidence, study.task.data, method.name))
            for method in study.methods
            if len(method.lr) > 1
        ]
        for seed in range(parameters.seeds):
            for method, lr in methods_with_rates:
                yield _cell(study.task, digest, method, lr, seed)


WIDER = 3
"""How often a grid may go on."""
then = (*(widened_grids,) * WIDER, chosen_rates)


def chosen_rate(evidence: kit.Evidence, data: str, method: str) -> float:
    """The learning rate whose short training ended with the highest validation accuracy.

    Raises:
        InputError: there is no such training.
    """
    short_trainings = _rate_search(evidence, data, method)
    ends = short_trainings["validation_accuracy"][
        np.arange(short_trainings.rows), short_trainings["epochs"].astype(int) - 1
    ]
    return float(short_trainings["lr"][int(np.argmax(ends))])


def _rate_search(evidence: kit.Evidence, data: str, method: str) -> kit.Evidence:
    """The trainings of a method on these data that choose its learning rate."""
    return evidence.where(tuning=1, data=DATA.index(data), method=METHODS.index(method))


def _with_files(studies: Sequence[Study]) -> list[tuple[Study, str]]:
    available, missing = [], []
    for study in studies:
        try:
            available.append((study, digest_of_data(study.task.data)))
        except UnavailableError as error:
            missing.append(str(error))
    if not available:
        raise UnavailableError(missing[0])
    if any(study.task.accelerator for study, _ in available):
        import torch

        if not torch.cuda.is_available():
            raise UnavailableError(
                "the published networks need a GPU that torch can use, and there is none; choose"
                " the scale small"
            )
    return available


def _cell(task: Task, digest: str, method: Method, lr: float, seed: int) -> kit.Cell:
    plain = {"name": method.name, "lr": lr, "rest_lr": method.rest_lr}
    return {"task": asdict(task), "digest": digest, "method": plain, "seed": seed}


def run(task: dict[str, Any], method: dict[str, Any], seed: int, digest: str) -> dict[str, Any]:
    """One row: a network trained with one seed, which draws its first weights, the order of the
    data and dropout.

    ``digest`` names the files, so that other files are another cell.
    """
    import torch

    spec, name = Task(**task), method["name"]
    # trainings run side by side on a CPU, and their bits do not depend on how many do
    with at_most_threads(sys.maxsize if spec.accelerator else 1, torch):
        model, task_data, history = _train_with_method(spec, method, seed)
        columns = {
            "data": DATA.index(spec.data),
            "method": METHODS.index(name),
            "seed": seed,
            "tuning": seed == TUNING_SEED,
            "published": spec.accelerator,
            "depth": spec.depth,
            "lr": method["lr"],
            "held": [len(task_data.validation), len(task_data.test)],
            "stopped": ("accuracy", "epochs", "diverged").index(history.stopped),
            **_trajectories(history, spec.timed, device_of(spec)),
            **_measure_attention(model, spec, task_data),
        }
    return {key: np.asarray(value)[None] for key, value in columns.items()}


def device_of(task: Task) -> str:
    """The device on which a task trains: a GPU for what needs one, and for rows with times where
    there is one.
    """
    import torch

    return "cuda" if task.accelerator or (task.timed and torch.cuda.is_available()) else "cpu"


def _train_with_method(
    task: Task, method: dict[str, Any], seed: int
) -> tuple[nn.Module, TaskData, History]:
    """The trained network, its examples and its learning curves."""
    import torch

    from attsvm_papers.networks.examples import examples, network
    from attsvm_papers.networks.training import Plan, train_network

    name, tuning = method["name"], seed == TUNING_SEED
    task_data = examples(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(task, task_data)
    mirror = name.startswith("l")
    plan = Plan(
        optimizer="mirror" if mirror else name,
        p=float(name[1:]) if mirror else 2.0,
        lr=method["lr"],
        rest_lr=method["rest_lr"],
        epochs=task.tuning_epochs if tuning else task.epochs,
        batch=task.batch,
        seed=seed,
        stop_accuracy=task.stop_accuracy or None,
        augment=task.augment,
        pieces=task.parts,
        device=device_of(task),
        accelerator=task.accelerator,
    )
    test = task_data.test[:FEW] if tuning else task_data.test  # of which no rate depends
    held_out = {"validation": task_data.validation, "test": test}
    return model, task_data, train_network(model, task_data.train, held_out, plan)


def _trajectories(history: History, timed: bool, device: str) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in ("train_accuracy", "validation_accuracy", "test_accuracy"):
        columns[name] = np.full(COURSE, np.nan)
        columns[name][: history.epochs] = history[name]
    columns["epochs"] = history.epochs
    if timed:
        # of the processor where it trains, since trainings share it with one another
        seconds = history["cpu_seconds" if device == "cpu" else "seconds"]
        columns["elapsed"] = np.full(COURSE, np.nan)
        columns["elapsed"][: history.epochs] = np.cumsum(seconds)
    return columns


def _measure_attention(model: nn.Module, task: Task, task_data: TaskData) -> dict[str, Any]:
    """The columns that are measured on the network at the end of training."""
    import torch

    from attsvm_papers.networks.selectivity import attention_weights, opinion_scores, weight_sizes
    from attsvm_papers.networks.training import predict

    logits = predict(model, task_data.test).cpu()
    right = (logits > 0 if logits.ndim == 1 else logits.argmax(dim=1)) == task_data.test.labels
    network: Any = getattr(model, "network", model)
    columns = {
        f"right_{task.data}": right.double().numpy(),
        **weight_sizes(attention_weights(network), task.width),
    }
    if task_data.sentences:
        model.eval()
        device = next(model.parameters()).device
        with torch.no_grad():
            inputs = (torch.tensor([ids], device=device) for ids in task_data.sentences)
            rows = [network.cls_rows(ids)[0, -1].mean(dim=0) for ids in inputs]
        columns |= opinion_scores(
            [row.double().cpu().numpy() for row in rows], task_data.opinion_positions
        )
    return columns
