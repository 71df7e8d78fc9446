"""Training: many runs at once, by the compiled loop where it knows all that is asked and by torch
everywhere else.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.base.progress import reporter
from attsvm.datasets.attention_data import AttentionData, FloatArray, floats, require_data
from attsvm.training.autograd import AutogradEngine, Schedule
from attsvm.training.native_loop import NativeLoop, unsupported
from attsvm.training.trajectory import AtSteps, LogSpaced, Record, TrainState, Trajectory

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch.optim import Optimizer

    from attsvm.training.engine import Engine

_log = logging.getLogger(__name__)

Observe = Callable[[int, FloatArray, FloatArray, FloatArray], Mapping[str, Any]]
Progress = Callable[[int, int, Mapping[str, Any]], None]
Backend = Literal["auto", "compiled", "autograd"]


@dataclass(frozen=True)
class ClockOptions:
    """How often training looks up from its steps.

    Attributes:
        block_seconds: of steps between two readings of the clock, for which an interrupt waits.
        progress_seconds: shortest time between two calls of ``progress``.
    """

    block_seconds: float = 0.1
    progress_seconds: float = 0.2


CLOCKS = ClockOptions()


def train(
    model: Attention,
    data: AttentionData,
    optimizer: Optimizer,
    steps: int,
    record: LogSpaced | AtSteps | None = None,
    *,
    step_scale: ArrayLike | Mapping[str, ArrayLike] | None = None,
    schedule: Schedule | None = None,
    backend: Backend = "auto",
    checkpoint: Callable[[TrainState], None] | None = None,
    checkpoint_seconds: float = 30.0,
    resume: TrainState | None = None,
    observe: Observe | None = None,
    stop: Callable[[Record], bool] | None = None,
    progress: Progress | bool | None = None,
    snapshots: bool = True,
) -> Trajectory:
    """Train ``model`` on ``data`` for ``steps`` steps of ``optimizer``, all runs together, and
    leave the final weights in ``model``.

    The same call gives the same bits, on any number of cores, interrupted and resumed or not. A run
    whose gradient is exactly zero (all scores tied) stops; the others go on.

    Until all records are there, or ``stop`` ends it: a record where one is due (1), else steps up
    to the next one in blocks of a tenth of a second (2), with progress and checkpoints between
    blocks (3). At the end ``model`` gets the weights (4).

    Args:
        model: an :class:`~attsvm.attention.Attention`.
        data: one instance for all runs, or one per run.
        optimizer: any torch optimiser of the model's parameters.
            :class:`~attsvm.optim.SteepestDescent` in the Frobenius norm and
            :class:`~attsvm.optim.MirrorDescent` are taken by the compiled loop where nothing is in
            the way.
        steps: number of steps, 0 for a look at the start only.
        record: which steps are recorded, ``LogSpaced(count)`` or ``AtSteps(marks)``;
            ``LogSpaced(50)`` when left out.
        step_scale: ``(runs,)`` factors of the steps of each run: its own step size, whatever the
            optimiser (of mirror descent, its own step in the dual); or such factors by name of the
            parameter (``W``, ``K``, ``Q``, ``KQ``, ``head.readout``). Per-run step sizes of
            the head are a sweep over kappa, the ratio of the two step sizes.
        schedule: a function of the step number (from 0) whose value multiplies every step size;
            such functions by name of the parameter, as in ``step_scale`` (a parameter without one
            keeps its steps); or a torch scheduler of ``optimizer``, stepped after every step
            (``ReduceLROnPlateau`` with the mean loss of the runs).
        backend: ``auto`` takes the compiled loop where it knows all that is asked;
            ``compiled`` insists on it; ``autograd`` takes torch's.
        checkpoint: called with the :class:`~attsvm.training.TrainState`, at most every
            ``checkpoint_seconds`` (0: after every step).
        checkpoint_seconds: shortest time between two checkpoints.
        resume: a state of the very same call, to go on from. Earlier records are shown to ``stop``
            again, in order, so that a rule that remembers is rebuilt; ``observe`` is not called for
            them again.
        observe: called at every record with step, ``W``, ``head`` and ``intercept`` (NumPy, run
            axis as in the trajectory); the numbers it returns are stored in
            ``trajectory.observed``.
        stop: called with every record; training ends when it returns True.
            :class:`~attsvm.DirectionWithin` is such a rule.
        progress: True for a bar on standard error; or a function that is called with steps done,
            ``steps`` and a dict with ``loss`` (mean over runs at the last record) and ``seconds``.
        snapshots: whether ``W`` is kept at every record or only at the last.

    Raises:
        InputError: arguments out of range, data or an optimiser that does not fit the model, a
            state of another run, and ``backend="compiled"`` for what the compiled loop does not
            know; the message says why.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> run = attsvm.train(model, data, step, steps=200)
        >>> best = attsvm.max_margin(attsvm.selection_margins(data, run.selected[-1]))
        >>> run.backend, bool(run.direction_gap(best)[-1] < run.direction_gap(best)[1])
        ('compiled', True)
    """
    # what is refused is refused before anything is computed
    if not isinstance(model, Attention):
        raise InputError(
            f"model is {kind(model)}; give an attsvm.attention.Attention, as in"
            " train(model, data, optimizer, steps)"
        )
    require_data(data)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"optimizer is {kind(optimizer)}; give one of torch, such as"
            " attsvm.optim.SteepestDescent(model.parameters(), lr=0.1, norm='spectral')"
        )
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise InputError(f"steps is {steps!r}; give a number of steps, 0 or more")
    if not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds is {checkpoint_seconds!r}; give 0 or more seconds")
    if record is not None and not callable(getattr(record, "steps", None)):
        raise InputError(
            f"record is {kind(record)}; give attsvm.LogSpaced(50) for fifty records, or the steps"
            " themselves as attsvm.training.AtSteps([10, 100])"
        )
    if isinstance(schedule, Mapping):
        _check_names(model, "schedule", schedule)
    readout = getattr(model.head, "readout", None)
    trained_head = any(
        parameter is readout for group in optimizer.param_groups for parameter in group["params"]
    )
    scales = _step_scales(model, step_scale)
    engine_class = _choose_engine(model, optimizer, backend, schedule)
    engine: Engine = engine_class(model, data, optimizer, scales, schedule)
    record_steps = (LogSpaced() if record is None else record).steps(int(steps))
    # the digest reads all data, so it is computed only where a state is written or read
    fingerprint = (
        ""
        if checkpoint is None and resume is None
        else _fingerprint(model, data, optimizer, engine.name, record_steps, scales, schedule)
    )

    def is_last(latest: Record) -> bool:
        return stop is not None and stop(latest)

    # a resumed run goes on from the very numbers of the state
    step, seconds, records = 0, 0.0, list[Record]()
    ended = False
    if resume is not None:
        if resume.fingerprint != fingerprint:
            raise InputError(
                "the checkpoint belongs to another run (other data, steps, records or optimiser);"
                " delete it to start afresh"
            )
        engine.restore(dict(resume.arrays))
        step, seconds, records = resume.step, resume.seconds, list(resume.records)
        verdicts = [is_last(earlier) for earlier in records]  # all of them: a rule may remember
        ended = any(verdicts)
    report = _progress_function(progress)
    checkpoint_clock, progress_clock = _Clock(checkpoint_seconds), _Clock(CLOCKS.progress_seconds)
    block = 1  # steps before the clocks are read again
    while not ended:
        # 1. a record, where one is due
        if step == record_steps[len(records)]:
            records.append(_make_record(engine, model, step, seconds, observe))
            ended = is_last(records[-1]) or len(records) == len(record_steps)
            if report is not None and (ended or progress_clock.is_due()):
                report(step, int(steps), _progress_figures(records, seconds))
            continue
        # 2. steps up to the next record, as many as one block holds
        # ``checkpoint_seconds=0`` asks for a state after every single step
        count = min(
            int(record_steps[len(records)]) - step,
            block if checkpoint is None or checkpoint_seconds > 0 else 1,
        )
        # the clock is that of training alone: records and checkpoints do not count
        started = time.perf_counter()
        engine.advance(step, count)
        spent = time.perf_counter() - started
        step, seconds = step + count, seconds + spent
        # the next block takes ``block_seconds`` at this pace, and at most twice as many steps
        fitting = CLOCKS.block_seconds * count / max(spent, 1e-9)
        block = max(1, int(min(fitting, 2.0 * block)))
        # 3. progress and checkpoints, by the clock
        if report is not None and progress_clock.is_due():
            report(step, int(steps), _progress_figures(records, seconds))
        if checkpoint is not None and checkpoint_clock.is_due():
            checkpoint(TrainState(step, seconds, fingerprint, engine.state(), tuple(records)))

    # 4. the model gets the final weights; the torch loop trains the model itself
    if engine.name == "compiled":
        with torch.no_grad():
            _write_back(model, records[-1], trained_head)
    _log.debug("%d steps of the %s loop in %.3g s", step, engine.name, seconds)
    stopped_at = engine.stopped_at.copy() if model.runs is not None else engine.stopped_at[0].copy()
    return Trajectory.from_records(
        records, np.asarray(stopped_at), engine.name, snapshots, trained_head
    )


def _choose_engine(
    model: Attention, optimizer: Optimizer, backend: Backend, schedule: Schedule | None
) -> type[NativeLoop] | type[AutogradEngine]:
    """The class of the loop that trains.

    Raises:
        InputError: an unknown backend, an optimiser of another model's parameters, or ``compiled``
            for what the compiled loop does not know.
    """
    if backend not in ("auto", "compiled", "autograd"):
        raise InputError(f"backend is {backend!r}; use 'auto', 'compiled' or 'autograd'")
    of_model = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in of_model for parameter in group["params"]):
            raise InputError(
                "the optimizer holds a parameter that the model does not have; build it from this"
                " model's parameters()"
            )
    # the compiled loop wherever nothing speaks against it
    reason = None if backend == "autograd" else unsupported(model, optimizer, schedule)
    if reason is not None and backend == "compiled":
        raise InputError(
            f"the compiled loop does not train this because {reason}; use backend='auto' or"
            " 'autograd'"
        )
    return AutogradEngine if reason is not None or backend == "autograd" else NativeLoop


def _progress_function(progress: Progress | bool | None) -> Progress | None:
    """The function that is called with the progress, or None."""
    if not isinstance(progress, bool):
        return progress
    bars = reporter(progress)
    return None if bars is None else lambda step, steps, _: bars("training", step, steps)


class _Clock:
    """An alarm that is due whenever ``seconds`` have passed since it last was."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def is_due(self) -> bool:
        """Whether the time has come; if so it is set anew."""
        now = time.monotonic()
        due = now - self._last >= self._seconds
        self._last = now if due else self._last
        return due


def _make_record(
    engine: Engine, model: Attention, step: int, seconds: float, observe: Observe | None
) -> Record:
    """A record of the present weights, without run axis for a model that has none."""
    evaluation = engine.evaluate()
    fields = {
        "loss": evaluation.loss,
        "selected": evaluation.selected,
        "softmax_probability": evaluation.softmax_probability,
        # Frobenius's norm of every run, without a copy of W
        "norm": np.sqrt(np.einsum("rij,rij->r", evaluation.W, evaluation.W)),
        "log_gradient_norm": evaluation.log_gradient_norm,
        "W": evaluation.W,
        "head": evaluation.head,
        "intercept": evaluation.intercept,
    }
    parameters = dict(evaluation.parameters)
    # a model without run axis is one run to the loops
    if model.runs is None:
        fields = {name: value[0] for name, value in fields.items()}
        parameters = {name: value[0] for name, value in parameters.items()}
    observed: Mapping[str, Any] = (
        {} if observe is None else observe(step, fields["W"], fields["head"], fields["intercept"])
    )
    return Record(
        step=step,
        seconds=seconds,
        **fields,
        parameters=parameters,
        observed={name: np.asarray(value) for name, value in observed.items()},
    )


def _progress_figures(records: list[Record], seconds: float) -> dict[str, float]:
    """Mean loss of the last record, and seconds."""
    loss = float(np.mean(records[-1].loss)) if records else math.nan
    return {"loss": loss, "seconds": seconds}


def _write_back(model: Attention, last: Record, trained_head: bool) -> None:
    """Copy the weights of a record, and its head if that was trained, into the model."""
    # factors are recorded by name beside W, their product
    for name, weight in model.weights.items():
        weight.copy_(torch.as_tensor(last.parameters.get(name, last.W)))
    if trained_head:
        readout = last.head
        if model.head.has_intercept:
            readout = np.concatenate([readout, np.asarray(last.intercept)[..., None]], axis=-1)
        model.head.readout.copy_(torch.as_tensor(readout[..., None]))


def _step_scales(
    model: Attention, step_scale: ArrayLike | Mapping[str, ArrayLike] | None
) -> dict[str, FloatArray]:
    """Factors ``(runs,)`` by name of the parameter.

    Raises:
        InputError: a name that is no parameter, a parameter without run axis, factors of another
            shape, negative or not finite.
    """
    if step_scale is None:
        return {}
    # factors without names scale every parameter
    names = [name for name, _ in model.named_parameters()]
    by_name = (
        dict(step_scale) if isinstance(step_scale, Mapping) else dict.fromkeys(names, step_scale)
    )
    _check_names(model, "step_scale", by_name)
    runs = model.runs or 1
    scales = {}
    for name, value in by_name.items():
        array = floats(f"step_scale of {name}", value)
        if array.shape not in ((), (runs,)) or not (np.isfinite(array) & (array >= 0)).all():
            raise InputError(
                f"step_scale of {name} has shape {array.shape}; give ({runs},) finite factors, 0 or"
                " more, one per run"
            )
        scales[name] = np.array(np.broadcast_to(array, (runs,)))
    return scales


def _check_names(model: Attention, argument: str, names: Iterable[str]) -> None:
    """Raise :class:`~attsvm.InputError` for a name that is no parameter's."""
    parameters = [name for name, _ in model.named_parameters()]
    for name in names:
        if name not in parameters:
            raise InputError(
                f"{argument} names {name!r}, which is no parameter of the model; it has"
                f" {', '.join(parameters)}"
            )


def _fingerprint(
    model: Attention,
    data: AttentionData,
    optimizer: Optimizer,
    backend: str,
    record_steps: Any,
    scales: Mapping[str, FloatArray],
    schedule: Schedule | None,
) -> str:
    """A digest of everything that decides the bits of a run, save where it starts: that is in the
    state.
    """
    digest = hashlib.blake2b(digest_size=16)
    # what moves is in the state; what does not is in the digest
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    fixed = [
        value.detach().cpu().numpy()
        for value in model.state_dict(keep_vars=True).values()
        if id(value) not in trained
    ]
    functions = (
        list(schedule.values())
        if isinstance(schedule, Mapping)
        else [schedule]
        if callable(schedule)
        else []
    )
    # a function has no bytes: its values at all steps stand for it
    rates = [
        np.array([float(function(step)) for step in range(int(record_steps[-1]))])
        for function in functions
    ]
    for array in [
        data.tokens,
        data.labels,
        data.queries,
        data.mask,
        record_steps,
        *fixed,
        *model.inputs.arrays(data),
        *scales.values(),
        *rates,
    ]:
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    # hyper-parameters, with all digits, and which parameters they are for
    groups = [
        {key: _setting_text(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    members = [
        [names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups
    ]
    shapes = [
        (name, tuple(weight.shape), str(weight.dtype)) for name, weight in model.named_parameters()
    ]
    of_model = (
        type(model).__name__,
        model.runs,
        repr(model.objective),
        model.penalty.tolist(),
        model.inputs.prompt,
        kind(model.similarity),
    )
    order = (
        sorted(scales),
        (
            list(schedule)
            if isinstance(schedule, Mapping)
            else None
            if schedule is None
            else type(schedule).__name__
        ),
    )
    digest.update(
        repr((backend, type(optimizer).__name__, groups, members, shapes, of_model, order)).encode()
    )
    return digest.hexdigest()


def _setting_text(value: Any) -> str:
    """A text of a hyper-parameter with all its digits."""
    return repr(value.tolist() if isinstance(value, torch.Tensor) else value)
