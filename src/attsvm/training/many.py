"""Several runs side by side on one device, each in a process of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from attsvm.errors import InputError
from attsvm.thread_limits import at_most_threads
from attsvm.training.classifier import Progress, train_classifier
from attsvm.training.history import History
from attsvm.training.labelled import Examples
from attsvm.training.plan import TrainingPlan
from attsvm.workers import Workers


def train_many(
    models: Sequence[nn.Module],
    train: Examples,
    held: Mapping[str, Examples],
    plans: Sequence[TrainingPlan],
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
    checkpoint_seconds: float = 300.0,
    workers: int | None = None,
    executor: Any = None,
) -> list[History]:
    """:func:`train_classifier` for every model with its plan, on the same examples, several at a
    time.

    On a CPU a run per core, each with one thread, is what is fast: products of small matrices gain
    little from a second thread, and stacking runs into one batch (``torch.func.vmap``) takes the
    same arithmetic (measured: docs/training.md). Where each run has one thread, its numbers do not
    depend on how many run at a time.

    Workers start as new interpreters: a script that calls this needs the usual
    ``if __name__ == "__main__":``, and the classes of its models must be importable.

    Args:
        models: the classifiers, each with the weights to start from; trained in place.
        train: training examples, the same for all.
        held: held-out sets by name.
        plans: one per model.
        folder: run ``k`` keeps its files in ``run-k`` of it, and goes on from there when called
            again.
        progress: called as ``progress("runs", finished, all)``.
        device: where to train; where the models are when left out.
        checkpoint_seconds: as for :func:`train_classifier`.
        workers: processes at a time; by default one per core on a CPU, one on an accelerator. With
            one, nothing is started.
        executor: trains instead of processes of this machine, see
            :func:`attsvm.reproduce`; ``folder`` is then where its workers see
            it, too.

    Raises:
        InputError: other numbers of models and plans, and what :func:`train_classifier` refuses.
        AttsvmError: a worker was killed.
    """
    if len(models) != len(plans) or not models:
        raise InputError(f"{len(models)} models and {len(plans)} plans; give one plan per model")
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; give at least 1")
    if executor is not None and folder is None:
        raise InputError("an executor needs a folder that its workers see; give folder=")
    place = str(device or next(models[0].parameters()).device)
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    workers = min(len(models), workers or (cores if place.startswith("cpu") else 1))
    options: dict[str, Any] = {"device": place, "checkpoint_seconds": checkpoint_seconds}
    folder = None if folder is None else Path(folder).resolve()
    folders = [None if folder is None else folder / f"run-{k}" for k in range(len(models))]
    if workers == 1 and executor is None:
        histories = []
        for k, (model, plan) in enumerate(zip(models, plans, strict=True)):
            histories.append(
                train_classifier(model, train, held, plan, folder=folders[k], **options)
            )
            if progress is not None:
                progress("runs", k + 1, len(models))
        return histories
    with _exchange(folder, len(models)) as exchange:
        torch.save((train, dict(held)), exchange / "examples.pt")
        for k, model in enumerate(models):
            torch.save(model, exchange / f"model-{k}.pt")
        # of each: no more than this process may take
        threads = min(torch.get_num_threads(), max(1, cores // workers))
        found: dict[int, History] = {}
        with Workers(_work, workers, threads, executor) as pool:
            work = [
                (exchange, k, plan, folders[k], options, threads) for k, plan in enumerate(plans)
            ]
            for k, history in pool.start(work):
                found[k] = history
                models[k].load_state_dict(
                    torch.load(exchange / f"trained-{k}.pt", weights_only=True)
                )
                models[k].to(place)
                if progress is not None:
                    progress("runs", len(found), len(models))
        return [found[k] for k in range(len(models))]


@contextmanager
def _exchange(folder: Path | None, count: int) -> Iterator[Path]:
    """A folder for what processes hand one another: inside ``folder``, so that a call that goes on
    there also removes what a killed one has left.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="attsvm-") as temporary:
            yield Path(temporary)
        return
    exchange = folder / ".exchange"
    exchange.mkdir(parents=True, exist_ok=True)
    lock = FileLock(exchange / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another process is training in {folder}; wait for it or choose another folder"
        ) from None
    try:
        yield exchange
    finally:
        names = [f"{kind}-{k}.pt" for kind in ("model", "trained") for k in range(count)]
        for name in ("examples.pt", *names):
            (exchange / name).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # another process is there already
            (exchange / "lock").unlink()
            exchange.rmdir()


def _work(
    exchange: Path,
    k: int,
    plan: TrainingPlan,
    folder: Path | None,
    options: dict[str, Any],
    threads: int,
) -> tuple[int, History]:
    # ours, written a moment ago
    train, held = torch.load(exchange / "examples.pt", weights_only=False, mmap=True)
    model = torch.load(exchange / f"model-{k}.pt", weights_only=False)
    with at_most_threads(sys.maxsize, torch):  # the process may be an executor's
        torch.set_num_threads(threads)
        history = train_classifier(model, train, held, plan, folder=folder, **options)
    torch.save(model.state_dict(), exchange / f"trained-{k}.pt")
    return k, history
