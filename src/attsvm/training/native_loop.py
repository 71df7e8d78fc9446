"""The compiled loop: descent on W, on factors and on a prompt, and on the head beside them, by
normalised, plain, Polyak's and mirror steps.

Runs are shared out among the cores, or the sequences of a large run; the bits do not depend on
their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from attsvm import native
from attsvm.attention import Attention, FactoredAttention, ScaledAttention
from attsvm.attention.overriding import hooked, linear_head, overridden
from attsvm.base.cores import WORTH_SHARING, even_shares, map_on_threads, task_ranges, threads
from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, broadcast
from attsvm.norms import Frobenius
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.optim.powers import mirror_exponents
from attsvm.training.engine import Evaluation
from attsvm.training.instances import from_coordinates, read_instances, to_coordinates

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.training.autograd import Schedule

STEEPEST, POLYAK, MIRROR = range(3)  # kinds of steps
_READOUT = "head.readout"


class NativeLoop:
    """Trains W, or K and Q, and the head when it is among the parameters of the optimizer.

    A step of one run, in ``native/attention.cpp``:

    1. W is formed from its factors.
    2. Every chunk of sequences is read: logits, winners, margins, and the descent direction of
       each sequence with its factor as a logarithm.
    3. When the largest factor is known, the chunks are summed.
    4. The sums come together, with the penalty, and every parameter takes its step.

    What moves (``state``) is in coordinates of what keys and queries span; see
    :mod:`attsvm.training.instances`.
    """

    name = "compiled"

    def __init__(
        self,
        model: Attention,
        data: AttentionData,
        optimizer: Optimizer,
        step_scale: Mapping[str, FloatArray] | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        model.require(data)
        runs = model.runs or 1
        self._groups = _trained_groups(model, optimizer)
        self._first, self._second = _moving_parameters(model, list(self._groups))
        self._penalty = np.array(np.broadcast_to(model.penalty, (runs,)))
        self._loss = int(model.objective.code)
        # penalties and mirror steps also move what is outside of the spans of keys and queries
        reducible = isinstance(optimizer, SteepestDescent) and not self._penalty.any()
        instances = read_instances(data, model.inputs, _READOUT in self._groups, reducible)
        self._instances = instances * (runs // len(instances))  # one per run
        self._stacked = "KQ" in model.weights
        self._start, self._head = _start_weights(model, runs), _heads_of_runs(model, runs)
        self._head_width = 0
        if _READOUT in self._groups:
            self._head_width = self._head.shape[1] - (not model.head.has_intercept)
        self._schedules = [_schedule_of(schedule, name) for name in (self._first, self._second)]
        self._state = self._moving_arrays(isinstance(optimizer, MirrorDescent))
        self._winner = np.zeros((runs, data.n), np.int64)
        self._margin, self._softmax_sum = np.zeros((2, runs, data.n))
        self._runs = [self._descent_run(r, step_scale or {}) for r in range(runs)]
        self._pointers = native.pointers(self._runs)
        self._room_size = max(native.library.descent_room(run) for run in self._runs)
        self._room = np.empty(self._room_size)
        self._operations = [_operations_per_step(run) for run in self._runs]
        self._U = _stack_bases([instance.U for instance in instances])
        self._V = _stack_bases([instance.V for instance in instances])

    def _moving_arrays(self, mirror: bool) -> dict[str, FloatArray]:
        """The arrays that move, ``(runs, ...)`` each: weights transposed, in coordinates of what
        keys and queries span.
        """
        # transposed, so that rows of W meet rows of keys in memory
        state = {"head": self._head}
        pairs = list(enumerate(self._instances))
        if len(self._start) == 2:
            K, Q = self._start
            state["K"] = _stack(instance.key_coordinates(K[r]).T for r, instance in pairs)
            state["Q"] = _stack(to_coordinates(Q[r], instance.V) for r, instance in pairs)
        else:
            (W,) = self._start
            state["W"] = _stack(instance.coordinates(W[r]) for r, instance in pairs)
        if mirror:
            state["dual"] = _mirror_image(state["W"], self._groups[self._first])
            state["head_dual"] = _mirror_image(self._head, self._groups[self._second])
        return state

    def _descent_run(self, r: int, scales: Mapping[str, FloatArray]) -> native.DescentRun:
        """The struct of run ``r``."""
        instance, head = self._instances[r], self._head[r]
        sequences = instance.sequences
        state = {name: array[r] for name, array in self._state.items()}
        if "K" in state:  # memory for the product of the factors
            state["W"] = np.zeros((int(sequences.d_z), int(sequences.d_k)))
        first, second = (
            _step_rule(self._groups[name], _rate_of_run(self._groups[name], scales, name, r))
            for name in (self._first, self._second)
        )
        run = native.DescentRun(
            sequences,
            winner=self._winner[r],
            margin=self._margin[r],
            softmax_sum=self._softmax_sum[r],
            head_width=self._head_width,
            loss=self._loss,
            stacked=self._stacked,
            penalty=float(self._penalty[r]),
            rules=(first, second),
            **state,
        )
        if self._head_width:
            return run
        # scores of a fixed head are computed once
        score, intercept_score = instance.scores(head[:-1]), instance.labels * head[-1]
        best = np.maximum.reduceat(score, instance.start[:-1]) + intercept_score
        run.fix_scores(score, intercept_score, best)
        if first.kind == POLYAK:
            group = self._groups[self._first]
            floor = broadcast("the loss_floor", group["loss_floor"], (len(self._head),), 0)[r]
            run.best_loss_excess = _loss_above_floor(best, self._loss, float(floor))
            run.polyak_factor = float(group["polyak_factor"])
        return run

    @property
    def stopped_at(self) -> IntArray:
        """``(runs,)``, the step at which the gradient was exactly zero, -1 where it never was."""
        return np.array([run.stopped_at for run in self._runs], dtype=np.int64)

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        first_factors, second_factors = (
            step_factors(schedule, step, count) for schedule in self._schedules
        )
        runs = len(self._runs)
        workers = threads() if sum(self._operations) * count > WORTH_SHARING else 1
        # one large run: its chunks are shared out, step by step
        chunks = self._instances[0].sequences.chunks
        if workers > 1 and chunks > 1 and self._operations[0] > WORTH_SHARING:
            for r in range(runs):
                self._advance_large(r, step, first_factors, second_factors, workers)
            return

        def descend(share: tuple[int, int], room: FloatArray | None = None) -> None:
            room = np.empty(self._room_size) if room is None else room
            native.library.descend(
                self._pointers,
                *share,
                step,
                first_factors.ctypes.data,
                second_factors.ctypes.data,
                count,
                room.ctypes.data,
            )

        if min(workers, runs) == 1:
            descend((0, runs), self._room)
            return
        # several shares per thread: runs that stop early leave some of them short
        map_on_threads(descend, task_ranges(runs, workers), workers)

    def _advance_large(
        self,
        r: int,
        step: int,
        first_factors: FloatArray,
        second_factors: FloatArray,
        workers: int,
    ) -> None:
        """Take steps of one run, whose chunks are shared out: the four steps of the class."""
        core, run = native.library, self._runs[r]
        run.workspace = self._room.ctypes.data
        chunk_shares = even_shares(run.sequences.chunks, workers)
        for k, (first, second) in enumerate(zip(first_factors, second_factors, strict=True)):
            if run.stopped_at >= 0:
                return
            # 1. W from its factors
            core.form_weights(run)
            # 2. every chunk is read
            map_on_threads(lambda share: core.read_chunks(run, *share), chunk_shares)
            # 3. and summed, against the largest factor of all
            map_on_threads(lambda share: core.sum_chunks(run, *share), chunk_shares)
            # 4. the step
            core.finish_step(run, step + k, first, second)

    def evaluate(self) -> Evaluation:
        """Loss, selection and norms at the present weights."""
        native.library.evaluate_runs(self._pointers, 0, len(self._runs), self._room.ctypes.data)
        parameters = self._full_parameters()
        # the core knows the loss of the margins; the penalty is added here
        loss = np.array([run.mean_loss for run in self._runs])
        if self._penalty.any():
            squares = sum(np.einsum("rij,rij->r", array, array) for array in parameters)
            loss += self._penalty * squares
        W, named = parameters[0], dict[str, FloatArray]()
        if len(parameters) == 2:
            K, Q = parameters
            W = K @ Q.mT
            named = (
                {"KQ": np.concatenate(parameters, axis=-2)} if self._stacked else {"K": K, "Q": Q}
            )
        return Evaluation(
            loss,
            np.stack(
                [instance.positions[self._winner[r]] for r, instance in enumerate(self._instances)]
            ),
            1.0 / self._softmax_sum,
            np.array([run.log_gradient_norm for run in self._runs]),
            W,
            self._head[:, :-1].copy(),
            self._head[:, -1].copy(),
            named,
        )

    def _full_parameters(self) -> list[FloatArray]:
        """W ``(runs, d_k, d_z)``, or K and Q, out of their coordinates."""
        state = self._state
        if len(self._start) == 2:
            K, Q = self._start
            return [
                _moved_rows(K, state["K"].mT, self._U),
                _moved_rows(Q, state["Q"], self._V),
            ]
        (start,) = self._start
        coordinates, d_k = state["W"].mT, start.shape[1]
        # what of the start is outside of the spans never moved: only the change is mapped back
        keeps_start = (self._U is not None or self._V is not None) and start.any()
        if keeps_start:
            coordinates = coordinates - np.stack(
                [instance.coordinates(start[r]).T for r, instance in enumerate(self._instances)]
            )
        W = from_coordinates(coordinates, self._U, d_k)
        W = np.array(W, order="C") if self._V is None else W @ self._V
        if keeps_start:
            W += start
        return [W]

    def _saved_arrays(self) -> dict[str, FloatArray]:
        """The arrays of a checkpoint, without the steps at which runs stopped."""
        return self._state | {f"start.{k}": start for k, start in enumerate(self._start)}

    def state(self) -> dict[str, Any]:
        """Arrays from which :meth:`restore` continues to the same bits, copied."""
        arrays = {**self._saved_arrays(), "stopped_at": self.stopped_at}
        return {name: array.copy() for name, array in arrays.items()}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state`.

        Raises:
            InputError: an array is missing, or has another shape.
        """
        saved = self._saved_arrays()
        for name, array in {**saved, "stopped_at": self.stopped_at}.items():
            shape = np.shape(arrays[name]) if name in arrays else None
            if shape != array.shape:
                raise InputError(
                    f"{name} of the checkpoint has shape {shape} and not {array.shape}; it"
                    " belongs to another run: delete it to start afresh"
                )
        for name, array in saved.items():
            array[...] = arrays[name]  # in place: the structs point there
        for run, step in zip(self._runs, arrays["stopped_at"], strict=True):
            run.stopped_at = int(step)


def _trained_groups(model: Attention, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """The group of every parameter that is trained, by name."""
    group_of = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }
    return {
        name: group_of[id(parameter)]
        for name, parameter in model.named_parameters()
        if id(parameter) in group_of
    }


def _moving_parameters(model: Attention, trained: list[str]) -> tuple[str, str]:
    """The names of the two parameters that move; one name twice where one does."""
    weights = list(model.weights)
    return weights[0], _READOUT if _READOUT in trained else weights[-1]


def _start_weights(model: Attention, runs: int) -> list[FloatArray]:
    """W, or K and Q, ``(runs, ...)`` each."""
    weights = model.factors() if isinstance(model, FactoredAttention) else (model.combined(),)
    return [
        np.array(weight.detach().numpy().reshape(runs, *weight.shape[-2:])) for weight in weights
    ]


def _heads_of_runs(model: Attention, runs: int) -> FloatArray:
    """The head of every run, ``(runs, d_x + 1)``, the intercept last."""
    readout = model.head.readout.detach()[..., 0].expand(runs, -1).numpy()
    no_intercept = np.zeros((runs, 0 if model.head.has_intercept else 1))
    return np.concatenate([readout, no_intercept], axis=1)


def _stack_bases(bases: list[FloatArray | None]) -> FloatArray | None:
    """The bases of all instances, ``(instances, r, d)``, or None."""
    present = [basis for basis in bases if basis is not None]
    return np.stack(present) if present else None


def _stack(arrays: Iterable[FloatArray]) -> FloatArray:
    return np.array(list(arrays), order="C")


def _moved_rows(start: FloatArray, coordinates: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Factors ``(runs, d, m)`` that were ``start`` and have these coordinates now."""
    if basis is None:
        return from_coordinates(coordinates, None, start.shape[-2]).copy()
    return start + basis.mT @ (coordinates - basis @ start)


def _mirror_image(weights: FloatArray, group: dict[str, Any]) -> FloatArray:
    r"""The dual iterate of weights: :math:`\mathrm{sp}(W,p-1)`."""
    forward, _ = mirror_exponents(float(group["p"]))
    image, weights = np.empty(weights.shape), np.ascontiguousarray(weights)
    native.library.signed_powers(
        weights.ctypes.data, image.ctypes.data, weights.size, forward.integer, forward.fraction
    )
    return image


def _rate_of_run(
    group: dict[str, Any], scales: Mapping[str, FloatArray], name: str, r: int
) -> float:
    """The step length of parameter ``name`` in run ``r``."""
    return float(group["lr"]) * float(scales[name][r] if name in scales else 1.0)


def _step_rule(group: dict[str, Any], lr: float) -> native.ParameterRule:
    """The rule by which a parameter of this group moves."""
    if "p" in group:
        # at p = 2 the mirror map is the identity, and the weights are their own dual
        forward, inverse = mirror_exponents(float(group["p"]))
        keeps_dual = group["p"] != 2
        powers = inverse.integer, inverse.fraction, forward.integer, forward.fraction
        return native.ParameterRule(
            MIRROR, bool(group["normalize"]), keeps_dual, lr, group["eps"], *powers
        )
    kind = POLYAK if "polyak_factor" in group else STEEPEST
    return native.ParameterRule(kind, bool(group["normalize"]), False, lr)


def _loss_above_floor(best: FloatArray, loss: int, floor: float) -> float:
    """Mean loss of the best tokens above the floor; 0 where that is the rounding of a mean.

    Args:
        best: ``(n,)``, their margins.
        loss: 0 logistic, 1 exponential, 2 linear.
        floor: the infimum that Polyak's step aims at.
    """
    # the three losses of Attention, in the order of their codes
    losses = np.logaddexp(0.0, -best), np.exp(-best), -best
    excess = float(np.mean(losses[loss])) - floor
    # 1e-13: the rounding of a mean that was summed in another order
    return 0.0 if abs(excess) <= 1e-13 * abs(floor) else excess


def _operations_per_step(run: native.DescentRun) -> int:
    """About how many floating-point operations a step takes."""
    s = run.sequences
    return int(s.n * (100 + 2 * s.d_k * s.d_z) + s.N * (60 + 4 * s.d_k + 4 * run.head_width))


def _schedule_of(schedule: Schedule | None, parameter: str) -> Callable[[int], float] | None:
    """The schedule of one parameter; None for torch schedulers, which write into groups."""
    function = schedule.get(parameter) if isinstance(schedule, Mapping) else schedule
    return None if isinstance(function, LRScheduler) else function


def step_factors(schedule: Callable[[int], float] | None, step: int, count: int) -> FloatArray:
    """Factors ``(count,)`` of the step length from ``step`` on."""
    if schedule is None:
        return np.ones(count)
    return np.array([float(schedule(k)) for k in range(step, step + count)])


def unsupported(
    model: Attention, optimizer: Optimizer, schedule: Schedule | None = None
) -> str | None:
    """The reason why the compiled loop does not train this, as the end of a sentence; None where it
    does.

    Args:
        model: see :func:`~attsvm.training.train`.
        optimizer: of its parameters.
        schedule: see :func:`~attsvm.training.train`.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> from attsvm.training import unsupported
        >>> unsupported(model, step) is None
        True
        >>> import torch
        >>> unsupported(model, torch.optim.RMSprop(model.parameters()))
        'the optimizer is RMSprop, neither SteepestDescent nor MirrorDescent'
    """
    # the model first, then its loss, the schedule and the steps, last the tensors
    groups = optimizer.param_groups
    trained = {id(parameter): parameter for group in groups for parameter in group["params"]}
    readout = getattr(model.head, "readout", None)
    weights = list(model.weights.values())
    if names := overridden(model):
        return f"{type(model).__name__} overrides {', '.join(sorted(names))}"
    if model.similarity is not None:
        return "the model has a similarity of its own"
    if model.inputs.modules:
        return f"{' and '.join(model.inputs.modules)} are made by a module"
    if model.inputs.targets is not None:
        return "values are compared with targets and not with labels"
    if linear_head(model) is None:
        return f"the head is {kind(model.head)} and not linear"
    if isinstance(model, ScaledAttention):
        return "the model has temperatures"
    if isinstance(model, FactoredAttention) and id(readout) in trained:
        return "the head is trained beside factors"
    if model.objective.code < 0:
        return f"it does not know the loss {model.objective!r}"
    if isinstance(schedule, LRScheduler):
        return "the schedule is a torch scheduler and not a function of the step"
    if reason := _unsupported_steps(optimizer):
        return reason
    if type(optimizer) is MirrorDescent:
        if reason := _unsupported_mirror_steps(model, optimizer):
            return reason
    elif type(optimizer) is PolyakDescent and (
        isinstance(model, FactoredAttention) or model.penalty.any() or id(readout) in trained
    ):
        return "the step is Polyak's, and W under a fixed head is not all that is trained"
    if weights[0].dtype != torch.float64 or weights[0].device.type != "cpu":
        return f"the weights are {weights[0].dtype} on {weights[0].device}, not float64 on the CPU"
    if any(id(weight) not in trained for weight in weights):
        return f"the optimizer does not train {' and '.join(model.weights)}"
    if not all(parameter.requires_grad for parameter in trained.values()):
        return "a parameter of the optimizer does not require gradients"
    return None


def _unsupported_steps(optimizer: Optimizer) -> str | None:
    """The reason why the compiled loop does not take such steps, or None."""
    groups = optimizer.param_groups
    if type(optimizer) not in (SteepestDescent, PolyakDescent, MirrorDescent):
        return (
            f"the optimizer is {type(optimizer).__name__}, neither SteepestDescent nor"
            " MirrorDescent"
        )
    if hooked(optimizer):
        return "the optimizer or a parameter has hooks"
    if any(group["momentum"] or group["weight_decay"] or group["maximize"] for group in groups):
        return "the optimizer has momentum or weight decay, or maximises"
    if type(optimizer) is not MirrorDescent:
        if any(group["norm"] != Frobenius() for group in groups):
            return "the norm is not Frobenius"
        if any(group["blocks"] is not None for group in groups):
            return "the weights are cut into blocks"
    return None


def _unsupported_mirror_steps(model: Attention, optimizer: Optimizer) -> str | None:
    """The reason why the compiled loop does not take such steps of mirror descent, or None."""
    groups = optimizer.param_groups
    if isinstance(model, FactoredAttention):
        return "mirror descent is on factors"
    if any(
        group["potential"] != "power" or group["state_dtype"] not in (None, torch.float64)
        for group in groups
    ):
        return "the potential is Schatten's, or the dual is kept in float32"
    if any(optimizer.state.get(parameter) for group in groups for parameter in group["params"]):
        return "the optimizer has dual iterates from earlier steps"
    return None
