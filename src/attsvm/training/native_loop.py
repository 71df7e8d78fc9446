"""The compiled loop: descent on W, on factors and on a prompt, and on the head beside them, by
normalised, plain, Polyak's and mirror steps.

Runs are shared out among the cores, or the sequences of a large run; the bits do not depend on
their number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from attsvm import native
from attsvm.attention import Attention, FactoredAttention
from attsvm.attention.overriding import linear_head, overridden
from attsvm.base.cores import WORTH_SHARING, even_shares, shared_out, shares, threads
from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, spread
from attsvm.norms import Frobenius
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.optim.powers import mirror_exponents
from attsvm.training import instances
from attsvm.training.engine import Look, hooked, values
from attsvm.training.instances import inside, outside

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.training.autograd import Schedule

STEEPEST, POLYAK, MIRROR = range(3)  # kinds of steps
_READOUT = "head.readout"
_ROUNDED = 1e-13  # a mean loss that somebody summed in another order


class NativeLoop:
    """Trains W, or K and Q, and the head when asked; state: all of these and their dual
    iterates.
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
        self._groups = _groups(model, optimizer)
        self._first, self._second = _moved(model, list(self._groups))
        self._penalty = np.array(np.broadcast_to(model.penalty, (runs,)))
        self._loss = int(model.objective.code)
        reducible = isinstance(optimizer, SteepestDescent) and not self._penalty.any()
        read = instances.read(data, model.inputs, _READOUT in self._groups, reducible)
        self._instances = read * (runs // len(read))
        self._stacked = "KQ" in model.weights
        self._start, self._head, self._width = _starts(model, runs), _head(model, runs), 0
        if _READOUT in self._groups:
            self._width = self._head.shape[1] - (not model.head.has_intercept)
        self._schedules = [_function(schedule, name) for name in (self._first, self._second)]
        self._state = self._arrays(isinstance(optimizer, MirrorDescent))
        self._kept: list[Any] = []
        self._descents = (native.Descent * runs)()
        self._found = [np.zeros((runs, data.n), dtype) for dtype in (np.int64, float, float)]
        for r in range(runs):
            self._fill(r, step_scale or {})
        self._point()
        self._size = max(native.library.descent_room(each) for each in self._descents)
        self._room = np.empty(self._size)
        self._operations = [_operations(each) for each in self._descents]
        self._U, self._V = _bases([one.U for one in read]), _bases([one.V for one in read])

    def _arrays(self, mirror: bool) -> dict[str, Any]:
        """What moves: weights transposed, in coordinates of what keys and queries span."""
        state: dict[str, Any] = {"head": self._head}
        pairs = list(enumerate(self._instances))
        if len(self._start) == 2:
            K, Q = self._start
            state["K"] = _stacked(one.keys_inside(K[r]).T for r, one in pairs)
            state["Q"] = _stacked(inside(Q[r], one.V) for r, one in pairs)
        else:
            state["W"] = _stacked(one.inside(self._start[0][r]) for r, one in pairs)
        if mirror:
            state["dual"] = _image(state["W"], self._groups[self._first])
            state["head_dual"] = _image(self._head, self._groups[self._second])
        return state

    def _fill(self, r: int, scales: Mapping[str, FloatArray]) -> None:
        """The struct of a run, its state and what is found of it apart."""
        one, made = self._instances[r], self._descents[r]
        s, head = one.sequences, self._head[r]
        made.data, made.loss, made.stopped_at = ctypes.pointer(s), self._loss, -1
        made.width, made.stacked, made.penalty = self._width, self._stacked, self._penalty[r]
        for k, name in enumerate((self._first, self._second)):
            made.rules[k] = _rule(self._groups[name], _rate(self._groups[name], scales, name, r))
        if self._width:
            return
        score, shift = one.scores(head[:-1]), one.labels * head[-1]
        best = np.maximum.reduceat(score, one.start[:-1]) + shift
        self._kept.append((score, shift, best))
        made.score = native.address(score, np.float64, s.N)
        made.shift = native.address(shift, np.float64, s.n)
        made.best = native.address(best, np.float64, s.n)
        if made.rules[0].kind == POLYAK:
            group = self._groups[self._first]
            floor = spread("the loss_floor", group["loss_floor"], (len(self._head),), 0)[r]
            made.beyond = _beyond(best, self._loss, float(floor))
            made.factor = float(group["polyak_factor"])

    def _point(self) -> None:
        """Where the state of every run lies, and what is found of it."""
        s, state, runs = self._instances[0].sequences, self._state, len(self._descents)
        d_x = self._instances[0].tokens.shape[1]
        weights = (int(s.d_z), int(s.d_k))
        arrays: dict[str, tuple[Any, tuple[int, ...]]] = {"head": (self._head, (d_x + 1,))}
        arrays["W"] = state.get("W"), weights
        if "K" in state:
            inner = state["K"].shape[1]
            self._product = np.zeros((runs, *weights))
            arrays["W"] = self._product, weights
            arrays["K"], arrays["Q"] = (state["K"], (inner, s.d_k)), (state["Q"], (s.d_z, inner))
        if "dual" in state:
            arrays["dual"] = state["dual"], weights
            arrays["head_dual"] = state["head_dual"], (d_x + 1,)
        for name, found in zip(("winner", "margin", "mass"), self._found, strict=True):
            arrays[name] = found, (s.n,)
        for name, (array, shape) in arrays.items():
            first = native.address(array, array.dtype.type, runs, *shape)
            for r, made in enumerate(self._descents):
                setattr(made, name, first + r * array.strides[0])
        for made in self._descents:
            made.inner = state["K"].shape[1] if "K" in state else 0

    @property
    def stopped_at(self) -> IntArray:
        """The step at which the gradient of each run was exactly zero, -1 where it never was."""
        return np.array([each.stopped_at for each in self._descents], dtype=np.int64)

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        factors, others = (values(each, step, count) for each in self._schedules)
        runs = len(self._descents)
        workers = threads() if sum(self._operations) * count > WORTH_SHARING else 1
        chunks = self._instances[0].sequences.chunks
        if workers > 1 and chunks > 1 and self._operations[0] > WORTH_SHARING:
            for r in range(runs):
                self._advance_large(r, step, factors, others, workers)
            return

        def descend(part: tuple[int, int], room: FloatArray | None = None) -> None:
            room = np.empty(self._size) if room is None else room
            native.library.descend(
                self._descents,
                *part,
                step,
                factors.ctypes.data,
                others.ctypes.data,
                count,
                room.ctypes.data,
            )

        if min(workers, runs) == 1:
            descend((0, runs), self._room)
            return
        # several shares per thread: runs that stop early leave some of them short
        shared_out(descend, shares(runs, workers), workers)

    def _advance_large(
        self, r: int, step: int, factors: FloatArray, others: FloatArray, workers: int
    ) -> None:
        """Steps of one run, whose chunks are shared out."""
        core, run = native.library, self._descents[r]
        run.room = self._room.ctypes.data
        parts = even_shares(run.data.contents.chunks, workers)
        for k, (factor, other) in enumerate(zip(factors, others, strict=True)):
            if run.stopped_at >= 0:
                return
            core.form_weights(run)
            shared_out(lambda part: core.read_chunks(run, *part), parts)
            shared_out(lambda part: core.sum_chunks(run, *part), parts)
            core.finish_step(run, step + k, factor, other)

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        native.library.look(self._descents, 0, len(self._descents), self._room.ctypes.data)
        winner, _, mass = self._found
        parts = self._weights()
        loss = np.array([each.value for each in self._descents])
        if self._penalty.any():
            squares = sum(np.einsum("rij,rij->r", part, part) for part in parts)
            loss += self._penalty * squares
        W, named = parts[0], dict[str, FloatArray]()
        if len(parts) == 2:
            K, Q = parts
            W = K @ Q.mT
            named = {"KQ": np.concatenate(parts, axis=-2)} if self._stacked else {"K": K, "Q": Q}
        pairs = enumerate(self._instances)
        return Look(
            loss,
            np.stack([one.positions[winner[r]] for r, one in pairs]),
            1.0 / mass,
            np.array([each.log_norm for each in self._descents]),
            W,
            self._head[:, :-1].copy(),
            self._head[:, -1].copy(),
            named,
        )

    def _weights(self) -> list[FloatArray]:
        """``(runs, d_k, d_z)``: W in full, or its factors."""
        state = self._state
        if len(self._start) == 2:
            K, Q = self._start
            return [_full(K, state["K"].mT, self._U), _full(Q, state["Q"], self._V)]
        (start,) = self._start
        moved, d_k = state["W"].mT, start.shape[1]
        whole = self._U is None and self._V is None
        if not whole and start.any():
            moved = moved - np.stack(
                [one.inside(start[r]).T for r, one in enumerate(self._instances)]
            )
        found = outside(moved, self._U, d_k)
        found = np.array(found, order="C") if self._V is None else found @ self._V
        if not whole and start.any():
            found += start
        return [found]

    def state(self) -> dict[str, Any]:
        """Arrays from which :meth:`restore` continues to the same bits, copied."""
        starts = {f"start.{k}": start for k, start in enumerate(self._start)}
        found = {**self._state, **starts, "stopped_at": self.stopped_at}
        return {name: value.copy() for name, value in found.items()}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state`.

        Raises:
            InputError: an array is missing, or has another shape.
        """
        present = {**self.state(), **self._state}
        present |= {f"start.{k}": start for k, start in enumerate(self._start)}
        for name, array in present.items():
            shape = np.shape(arrays[name]) if name in arrays else None
            if shape != array.shape:
                raise InputError(
                    f"{name} of the checkpoint has shape {shape} and not {array.shape}; it"
                    " belongs to another run: delete it to start afresh"
                )
        for name, array in present.items():
            array[...] = arrays[name]
        for run, stopped in zip(self._descents, arrays["stopped_at"], strict=True):
            run.stopped_at = int(stopped)


def _groups(model: Attention, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """The group of every parameter that is trained, by name."""
    of = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    return {name: of[id(each)] for name, each in model.named_parameters() if id(each) in of}


def _moved(model: Attention, names: list[str]) -> tuple[str, str]:
    """The names of the two parameters that move; the same twice where one does."""
    weights = list(model.weights)
    second = _READOUT if _READOUT in names else weights[-1]
    return weights[0], second


def _starts(model: Attention, runs: int) -> list[FloatArray]:
    """W, or K and Q, of every run."""
    parts = model.factors() if isinstance(model, FactoredAttention) else (model.combined(),)
    return [np.array(part.detach().numpy().reshape(runs, *part.shape[-2:])) for part in parts]


def _head(model: Attention, runs: int) -> FloatArray:
    """``(runs, d_x + 1)``, the intercept last."""
    readout = model.head.readout.detach()[..., 0].expand(runs, -1).numpy()
    missing = np.zeros((runs, 0 if model.head.has_intercept else 1))
    return np.concatenate([readout, missing], axis=1)


def _bases(of: list[FloatArray | None]) -> FloatArray | None:
    """Those of all instances, or None."""
    found = [basis for basis in of if basis is not None]
    return np.stack(found) if found else None


def _stacked(arrays: Iterable[FloatArray]) -> FloatArray:
    return np.array(list(arrays), order="C")


def _full(start: FloatArray, now: FloatArray, basis: FloatArray | None) -> FloatArray:
    """``(runs, d, m)``: rows that were ``start`` and have these coordinates now."""
    if basis is None:
        return outside(now, None, start.shape[-2]).copy()
    return start + basis.mT @ (now - basis @ start)


def _image(weights: FloatArray, group: dict[str, Any]) -> FloatArray:
    """The dual iterate of weights."""
    forward, _ = mirror_exponents(float(group["p"]))
    image, weights = np.empty(weights.shape), np.ascontiguousarray(weights)
    where = weights.ctypes.data, image.ctypes.data
    native.library.signed_powers(*where, weights.size, forward.integer, forward.fraction)
    return image


def _rate(group: dict[str, Any], scales: Mapping[str, FloatArray], name: str, r: int) -> float:
    return float(group["lr"]) * float(scales[name][r] if name in scales else 1.0)


def _rule(group: dict[str, Any], lr: float) -> native.Rule:
    """How a parameter of this group moves."""
    if "p" in group:
        forward, inverse = mirror_exponents(float(group["p"]))
        keeps = group["p"] != 2
        powers = inverse.integer, inverse.fraction, forward.integer, forward.fraction
        return native.Rule(MIRROR, bool(group["normalize"]), keeps, lr, group["eps"], *powers)
    kind = POLYAK if "polyak_factor" in group else STEEPEST
    return native.Rule(kind, bool(group["normalize"]), False, lr)


def _beyond(best: FloatArray, loss: int, floor: float) -> float:
    """Loss of the best tokens above the floor that was given; nothing where that is the rounding of
    a mean.
    """
    losses = np.logaddexp(0.0, -best), np.exp(-best), -best
    beyond = float(np.mean(losses[loss])) - floor
    return 0.0 if abs(beyond) <= _ROUNDED * abs(floor) else beyond


def _operations(run: native.Descent) -> int:
    """About how many a step takes."""
    s = run.data.contents
    return int(s.n * (100 + 2 * s.d_k * s.d_z) + s.N * (60 + 4 * s.d_k + 4 * run.width))


def _function(schedule: Schedule | None, parameter: str) -> Callable[[int], float] | None:
    """The schedule of one parameter."""
    found = schedule.get(parameter) if isinstance(schedule, Mapping) else schedule
    return None if isinstance(found, LRScheduler) else found


def unsupported(
    model: Attention, optimizer: Optimizer, schedule: Schedule | None = None
) -> str | None:
    """Why the compiled loop does not train this, as the end of a sentence; None where it does.

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
    groups = optimizer.param_groups
    trained = {id(parameter): parameter for group in groups for parameter in group["params"]}
    readout = getattr(model.head, "readout", None)
    weights = list(model.weights.values())
    if changed := overridden(model):
        return f"{type(model).__name__} overrides {', '.join(sorted(changed))}"
    if model.similarity is not None:
        return "the model has a similarity of its own"
    if model.inputs.targets is not None:
        return "values are compared with targets and not with labels"
    if linear_head(model) is None:
        return f"the head is {kind(model.head)} and not linear"
    if isinstance(model, FactoredAttention) and id(readout) in trained:
        return "the head is trained beside factors"
    if model.objective.code < 0:
        return f"it does not know the loss {model.objective!r}"
    if isinstance(schedule, LRScheduler):
        return "the schedule is a torch scheduler and not a function of the step"
    if reason := _other_steps(optimizer):
        return reason
    if type(optimizer) is MirrorDescent:
        if reason := _other_mirror_steps(model, optimizer):
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


def _other_steps(optimizer: Optimizer) -> str | None:
    """Why steps are none that the compiled loop takes, or None."""
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


def _other_mirror_steps(model: Attention, optimizer: Optimizer) -> str | None:
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
