"""Training one classifier: a plan, a model, examples; the same numbers however often the process
was killed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.store import Stages, fingerprint, flatten, gather, in_the_way, versions
from attsvm.store.code import code_fingerprint
from attsvm.training.augmentation import cropped_and_flipped, draw_shifts
from attsvm.training.evaluation import (
    Forward,
    correct,
    logits_of,
    matrix_products,
    scores,
    summed_loss,
)
from attsvm.training.history import CURVES, Curves, History
from attsvm.training.labelled import Examples, Placed, Schedule, shuffled
from attsvm.training.plan import TrainingPlan, build_optimizer, frozen_tensors
from attsvm.training.processes import Processes, local_device, processes

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the steps done and the steps in all."""


def train_classifier(
    model: nn.Module,
    train: Examples,
    held: Mapping[str, Examples],
    plan: TrainingPlan,
    *,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
    checkpoint_seconds: float = 300.0,
    tensorboard: bool = False,
) -> History:
    """Train ``model`` in place, on all its parameters.

    The model maps inputs (and their mask, where there is one) to logits ``(n,)`` of two classes, or
    to scores ``(n, classes)``.

    In float32 on a CPU, with one number of threads, a run that was killed and called again ends
    with the bits of a run that was not: weights, optimiser and sums are in the checkpoint, and all
    randomness is a function of the plan's seed, the epoch and the step.

    Under ``torchrun`` every process takes its share of each batch and gradients are summed; the
    first process writes the folder.

    Args:
        model: the classifier, with the weights to start from.
        train: training examples.
        held: held-out sets by name, all looked at after every epoch and none used for a decision.
        plan: what decides the numbers.
        folder: where ``history.jsonl``, the checkpoint (after every epoch, and within one after so
            many seconds) and TensorBoard's files go. Called again with the same start, data and
            plan, an interrupted run goes on and a finished one is read back, weights included. None
            keeps nothing.
        progress: called after every step.
        device: where to train; where the model is when left out. ``cuda`` is the device of this
            process under torchrun.
        checkpoint_seconds: within an epoch, save the state when this many seconds have passed since
            the last time; of one process alone.
        tensorboard: write TensorBoard's files too.

    Returns:
        The learning curves, and why training ended.

    Raises:
        InputError: sets or a model that do not go together, a folder that holds another run or
            learning curves of somebody else, a processor without bfloat16 or the like.
        MissingExtraError: TensorBoard is asked for and not installed.
    """
    for name in held:
        if not name.isidentifier() or name == "train":
            raise InputError(
                f"a held-out set is called {name!r}; use a word other than train, such as test or"
                " validation"
            )
    place = local_device(next(model.parameters()).device if device is None else device)
    model.to(place)
    with (
        processes(place) as group,
        matrix_products(plan.precision),
        torch.random.fork_rng([place] if place.type == "cuda" else []),
    ):
        group.share([tensor.detach() for tensor in (*model.parameters(), *model.buffers())])
        path = None if folder is None else Path(folder)
        key = "" if path is None else _key(model, train, held, plan)
        if path is not None and group.rank == 0:
            path.mkdir(parents=True, exist_ok=True)
        checkpoint = path and path / "checkpoint"
        stages = Stages(checkpoint, key) if group.rank == 0 else None  # it claims the folder
        group.wait()
        stages = Stages(checkpoint, key) if stages is None else stages
        group.wait()
        run = _Run(model, train, held, plan, group, stages, checkpoint_seconds)
        kept, _ = run.stages.load("training")
        if kept is not None:
            run.state.load(kept)
        elif path is not None and group.rank == 0 and (path / CURVES).exists():
            raise in_the_way(path / CURVES)
        group.wait()
        first = group.rank == 0
        with closing(
            Curves(path if first else None, tensorboard=tensorboard and first, done=run.state.epoch)
        ) as curves:
            return run.train(curves, progress)


class _Run:
    """One call of :func:`train_classifier`."""

    def __init__(
        self,
        model: nn.Module,
        train: Examples,
        held: Mapping[str, Examples],
        plan: TrainingPlan,
        group: Processes,
        stages: Stages,
        every: float,
    ) -> None:
        self.model, self.plan, self.group, self.stages, self.every = (
            model,
            plan,
            group,
            stages,
            every,
        )
        device = next(model.parameters()).device
        self.frozen = frozen_tensors(model, plan)
        self.optimizer = build_optimizer(model, plan)
        self.forward: Forward = torch.compile(model, dynamic=True) if plan.compile else model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.state = State(model, self.optimizer)
        self.examples = Placed(train, device)
        self.held = {name: Placed(examples, device) for name, examples in held.items()}
        self.tokens = _tokens(model, self.examples)

    def train(self, curves: Curves, progress: Progress | None) -> History:
        """Epochs until one of them is the last."""
        while (stopped := self._stopped()) is None:
            self._epoch(progress)
            if self.group.rank == 0:
                self.stages.save(
                    "training", self.state.to_arrays(), done=self._stopped() is not None
                )
            curves.write(self.state.columns)
        return History(
            {name: np.array(values) for name, values in self.state.columns.items()},
            stopped,
            self.frozen,
        )

    def _stopped(self) -> str | None:
        """Why training is over, or None."""
        if not self.state.epoch:
            return None
        if not np.isfinite(self.state.columns["train_loss"][-1]):
            return "diverged"
        if (
            self.plan.stop_accuracy is not None
            and self.state.columns["train_accuracy"][-1] >= self.plan.stop_accuracy
        ):
            return "accuracy"
        return "epochs" if self.state.epoch >= self.plan.epochs else None

    def _epoch(self, progress: Progress | None) -> None:
        plan, state, n = self.plan, self.state, len(self.examples)
        steps = shuffled(n, plan.batch, plan.seed, state.epoch)
        schedule = Schedule(self.examples, steps, plan.parts, self.group.rank, self.group.size)
        shifts = None
        if plan.augment:
            shifts = draw_shifts(n, self.examples.inputs.shape[-1], plan.seed, state.epoch).to(
                self.examples.inputs.device
            )
        self.model.train()
        before, began = state.seconds, _clocks()
        saved = began[0]
        while state.step < len(steps):
            self._step(schedule.pieces(state.step), len(steps[state.step]), shifts)
            state.step += 1
            now = _clocks()
            state.seconds = before + now - began
            if now[0] - saved > self.every and state.step < len(steps) and self.group.size == 1:
                self.stages.save("training", state.to_arrays(), done=False)
                saved = now[0]
            if progress is not None:
                progress(
                    "training", state.epoch * len(steps) + state.step, plan.epochs * len(steps)
                )
        totals = state.sums.clone()
        self.group.add([totals])
        loss, correct = (totals / n).tolist()
        seconds, processor = (before + _clocks() - began).tolist()
        row = {"train_loss": loss, "train_accuracy": correct}
        for name, examples in self.held.items():
            row[f"{name}_loss"], row[f"{name}_accuracy"] = scores(
                self.forward, self.model, examples, plan.precision, self.group
            )
        times = {"seconds": seconds, "cpu_seconds": processor}
        state.close_epoch({**row, **times, "tokens_per_second": self.tokens / seconds})

    def _step(self, pieces: Iterator[tuple[Tensor, int]], size: int, shifts: Tensor | None) -> None:
        plan, state = self.plan, self.state
        torch.manual_seed(_seed(plan.seed, state.epoch, state.step, self.group.rank))
        self.optimizer.zero_grad(set_to_none=True)
        for index, longest in pieces:
            inputs, labels = self.examples.take(index, longest)
            if shifts is not None:
                inputs = (cropped_and_flipped(inputs[0], shifts[:, index]),)
            logits = logits_of(self.forward, inputs, plan.precision, self.examples.classes)
            loss = summed_loss(logits, labels)
            share = loss if plan.loss_reduction == "sum" else loss / size
            share.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                state.sums += torch.stack([loss.double(), correct(logits, labels).double()])
        if self.group.size > 1:
            for parameter in self.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self.group.add(
                [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            )
        self.optimizer.step()


def _clocks() -> FloatArray:
    return np.array([time.perf_counter(), time.process_time()])


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _tokens(model: nn.Module, examples: Placed) -> int:
    """Tokens of an epoch: of texts without padding, of images as many as the model makes of one."""
    if examples.mask is None and examples.inputs.ndim > 2:
        return len(examples) * int(getattr(model, "length", 1))
    return int(examples.lengths.sum())


def _key(
    model: nn.Module, train: Examples, held: Mapping[str, Examples], plan: TrainingPlan
) -> str:
    """What a checkpoint belongs to: the start, the data, the plan."""
    start = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        start.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        start.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    sets = {name: examples.digest() for name, examples in {"train": train, **held}.items()}
    classes = {type(part) for part in model.modules()}
    return fingerprint(
        {
            "plan": plan.to_json(),
            "model": start.hexdigest(),
            "sets": sets,
            "versions": versions(),
            "code": code_fingerprint(train_classifier, *classes),
        }
    )


class State:
    """Weights, optimiser, place in the data and learning curves.

    Random generators are not part of it: what they give is a function of the plan's seed, the epoch
    and the step.

    Attributes:
        epoch: finished epochs.
        step: finished steps of the present epoch.
        sums: loss and correct answers over this process's part of the present epoch.
        seconds: spent in the present epoch, by the clock and of the processor.
        columns: the learning curves so far.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self.epoch = self.step = 0
        self.seconds = np.zeros(2)
        self.sums = torch.zeros(2, dtype=torch.float64, device=next(model.parameters()).device)
        self.columns: dict[str, list[float]] = {}

    def close_epoch(self, row: Mapping[str, float]) -> None:
        """End the present epoch with a row of the learning curves."""
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, np.zeros(2)
        self.sums.zero_()

    def to_arrays(self) -> Arrays:
        """The state by name."""
        arrays = flatten("model", _arrays(self._model.state_dict()))
        for index, entries in self._optimizer.state_dict()["state"].items():
            arrays |= flatten(f"optimizer.{index}", _arrays(entries))
        for position, (name, values) in enumerate(self.columns.items()):
            arrays[f"column.{position}.{name}"] = np.array(values)
        return {
            **arrays,
            "place": np.array([self.epoch, self.step]),
            **_arrays({"sums": self.sums}),
            "seconds": self.seconds,
        }

    def load(self, arrays: Arrays) -> None:
        """Go on where :meth:`to_arrays` was called.

        Raises:
            InputError: the arrays belong to another model.
        """
        try:
            self._model.load_state_dict(
                {name: torch.from_numpy(array) for name, array in gather("model", arrays).items()}
            )
        except RuntimeError as error:
            raise InputError(
                f"the checkpoint belongs to another model ({str(error).splitlines()[0]}); choose"
                " another folder"
            ) from None
        state: dict[int, dict[str, Tensor]] = {}
        for name, array in gather("optimizer", arrays).items():
            index, _, entry = name.partition(".")
            state.setdefault(int(index), {})[entry] = torch.from_numpy(array)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        columns = sorted(
            gather("column", arrays).items(), key=lambda column: int(column[0].partition(".")[0])
        )
        self.columns = {key.partition(".")[2]: values.tolist() for key, values in columns}
        self.epoch, self.step = (int(number) for number in arrays["place"])
        self.sums.copy_(torch.from_numpy(arrays["sums"]))
        self.seconds = arrays["seconds"]


def _arrays(values: Mapping[str, Any]) -> Arrays:
    return {
        name: value.detach().cpu().numpy() if isinstance(value, Tensor) else np.array(value)
        for name, value in values.items()
    }
