r"""The general path: any torch optimiser, all runs as one tensor programme.

Runs may have step lengths of their own, whatever the optimiser: after each step every run keeps a
share of it. An optimiser does not know which axis of a parameter counts runs, so it takes one step
for all, and :math:`W\leftarrow W+s_r\,\Delta W` makes it a step of length :math:`s_r\eta`. Mirror
descent is linear in the step on its dual iterate only: there it is :math:`Y\leftarrow Y+s_r\,\Delta
Y`, and the weights are the image of that.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from attsvm.attention import Attention, LogScale
from attsvm.attention.overriding import hooked, linear_head, overridden
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.training.engine import Evaluation

Schedule = Callable[[int], float] | Mapping[str, Callable[[int], float]] | LRScheduler
_SETTINGS = (bool, int, float, tuple)  # types that a scheduler may write into a group


class AutogradEngine:
    """Trains the model's own parameters in place.

    Where every step is a normalised one of its gradient alone, the gradients are rescaled per run,
    so they never underflow. Other optimisers, steepest or mirror descent with momentum or Polyak's
    step, trained keys or values, subclasses with methods of their own and callers' hooks get the
    true gradients.
    """

    name = "autograd"

    def __init__(
        self,
        model: Attention,
        data: AttentionData,
        optimizer: Optimizer,
        step_scale: Mapping[str, FloatArray] | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self._functions = (
            None
            if schedule is None or isinstance(schedule, LRScheduler)
            else _group_schedules(model, optimizer, schedule)
        )
        self._sequences = model.sequences(data)
        groups = optimizer.param_groups
        is_steepest = isinstance(optimizer, SteepestDescent)
        is_mirror = isinstance(optimizer, MirrorDescent)
        is_polyak = isinstance(optimizer, PolyakDescent)
        # with momentum or weight decay a zero gradient is no place to stay
        self._stops = (is_steepest or is_mirror) and not any(
            group["momentum"] or group["weight_decay"] for group in groups
        )
        # normalised steps of the gradient alone do not depend on its size
        scale_free = (
            is_steepest
            and not is_polyak
            and all(group["normalize"] and not group["momentum"] for group in groups)
        )
        if is_mirror:
            scale_free = all(_is_scale_free(group) for group in groups)
        self._rescales = not (overridden(model) or model.inputs.modules or hooked(optimizer))
        self._scale = LogScale() if scale_free and self._rescales else None
        self._rates = [group["lr"] for group in groups]
        weight = next(iter(model.weights.values()))
        # a run's own step length is a share of the step that the optimiser takes for all
        self._shares = StepShares(model, optimizer, step_scale) if step_scale else None
        self._parameters = list(model.parameters())
        trained = [parameter for group in groups for parameter in group["params"]]
        # parameters of one run each, and those that all runs share
        with_run_axis = {
            id(parameter) for parameter in (*model.weights.values(), *_readouts_per_run(model))
        }
        self._per_run = [
            parameter
            for parameter in trained
            if model.runs is None or id(parameter) in with_run_axis
        ]
        per_run = {id(parameter) for parameter in self._per_run}
        self._shared = [parameter for parameter in trained if id(parameter) not in per_run]
        self._on_cpu = weight.device.type == "cpu"
        self._ones = weight.new_ones(() if model.runs is None else (model.runs,))
        self._stopped = torch.full((model.runs or 1,), -1, device=weight.device)

    @property
    def stopped_at(self) -> IntArray:
        """The step at which the gradient of each run was exactly zero, -1 where it never was."""
        return self._stopped.cpu().numpy().copy()

    def _backward(self, scale: LogScale | None) -> Tensor:
        """The loss of each run, ``([runs])``, with the gradients in the parameters."""
        self._clear_gradients()
        loss = (
            self._model.loss(self._sequences)
            if scale is None
            else self._model.loss(self._sequences, scale)
        )
        torch.autograd.backward(
            loss, self._ones if loss.dtype == self._ones.dtype else self._ones.to(loss.dtype)
        )
        if scale is not None and self._model.penalty.any():
            self._model.add_penalty(scale)
        return loss.detach()

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        for number in range(step, step + count):
            loss = self._backward(self._scale)
            if self._stops:
                self._note_zeros(number)
            self._move(number, loss)
        self._clear_gradients()
        if count and self._functions is not None:
            self._set_rates([1.0] * len(self._rates))

    def _move(self, number: int, loss: Tensor) -> None:
        """Take step ``number`` along the gradients in the parameters.

        1. Step lengths by the schedule.
        2. The step of the optimiser, of which every run keeps its share.
        3. The schedulers of torch.
        """
        # 1. step lengths
        if self._functions is not None:
            self._set_rates(
                [
                    1.0 if function is None else float(function(number))
                    for function in self._functions
                ]
            )
        # 2. the step
        if self._shares is not None:
            self._shares.remember()
        if isinstance(self._optimizer, PolyakDescent):
            self._optimizer.step(lambda: loss)
        else:
            self._optimizer.step()
        if self._shares is not None:
            self._shares.shorten()
        # 3. schedulers
        if isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step(float(loss.mean()))
        elif isinstance(self._schedule, LRScheduler):
            self._schedule.step()

    def _set_rates(self, factors: list[float]) -> None:
        for group, rate, factor in zip(
            self._optimizer.param_groups, self._rates, factors, strict=True
        ):
            group["lr"] = rate * factor

    def _note_zeros(self, step: int) -> None:
        """Record ``step`` for runs whose gradient is zero: they stay there for good."""
        runs = len(self._stopped)
        # One entry of each run is most often not zero, and reading it costs nothing where the host
        # need not wait for it.
        first = self._per_run[0].grad if self._per_run and self._on_cpu else None
        if first is not None and first.numpy().reshape(runs, -1)[:, :1].all():
            return
        moving = torch.zeros_like(self._stopped, dtype=torch.bool)
        for parameter in self._per_run:
            if parameter.grad is not None:
                moving |= parameter.grad.reshape(runs, -1).any(dim=1)
        for parameter in self._shared:  # what moves it moves every run
            if parameter.grad is not None:
                moving |= parameter.grad.any()
        self._stopped.masked_fill_((self._stopped < 0) & ~moving, step)

    def evaluate(self) -> Evaluation:
        """Loss, selection and norms at the present weights."""
        model, scale = self._model, LogScale() if self._rescales else None
        runs = model.runs or 1
        loss = self._backward(scale)
        # the norm over all weights, of any size: a sum of squares in logarithms
        logs = [
            torch.log(torch.linalg.matrix_norm(weight.grad))
            for weight in model.weights.values()
            if weight.grad is not None
        ]
        if not logs:
            raise InputError(
                "the attention weights receive no gradient from the loss; train a model whose"
                " weights require gradients"
            )
        log_norm = 0.5 * torch.logsumexp(torch.stack([2.0 * log for log in logs]), dim=0)
        log_norm = log_norm if scale is None else log_norm + scale.weights
        self._clear_gradients()
        with torch.no_grad():
            selection, combined = model.selection(self._sequences), model.combined()
        # probability of the winner, out of its logarithm
        probability = torch.exp(
            selection.log_probability.gather(-1, selection.winner[..., None])[..., 0]
        )
        rows = selection.winner.shape[0 if model.runs is None else 1 :]
        head = linear_head(model)
        # where W is the only parameter, it is not recorded twice
        only, *others = model.weights.values()
        is_parameter = not others and combined.data_ptr() == only.data_ptr()
        return Evaluation(
            loss=_to_numpy(loss).reshape(runs),
            selected=selection.winner.cpu().numpy().reshape(runs, *rows),
            softmax_probability=_to_numpy(probability).reshape(runs, *rows),
            log_gradient_norm=_to_numpy(log_norm).reshape(runs),
            W=_to_numpy(combined).reshape(runs, *combined.shape[-2:]),
            head=(
                np.zeros((runs, 0))
                if head is None
                else np.broadcast_to(_to_numpy(head.weight), (runs, head.weight.shape[-1]))
            ),
            intercept=(
                np.zeros(runs)
                if head is None
                else np.broadcast_to(_to_numpy(head.intercept), (runs,))
            ),
            parameters=(
                {}
                if is_parameter
                else {
                    name: _to_numpy(value).reshape(runs, *value.shape[-2:])
                    for name, value in model.weights.items()
                }
            ),
        )

    def state(self) -> dict[str, Any]:
        """Parameters, the optimiser's own tensors and the schedule, copied.

        Raises:
            InputError: the optimiser or the schedule keeps something that is not a tensor or a
                number.
        """
        arrays: dict[str, Any] = {"stopped_at": self.stopped_at}
        arrays |= {
            f"model.{name}": value.detach().cpu().numpy().copy()
            for name, value in self._model.state_dict().items()
        }
        # the optimiser's tensors, by the number of their parameter
        for index, entries in self._optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if not isinstance(value, (Tensor, int, float)):
                    name = type(self._optimizer).__name__
                    raise InputError(
                        f"{name} keeps {key!r} as {type(value).__name__}; train it without a"
                        " checkpoint"
                    )
                arrays[f"optimizer.{index}.{key}"] = np.array(
                    value.detach().cpu().numpy() if isinstance(value, Tensor) else value
                )
        if isinstance(self._schedule, LRScheduler):
            groups = [
                {name: value for name, value in group.items() if isinstance(value, _SETTINGS)}
                for group in self._optimizer.param_groups
            ]
            # what torch does not load as plain numbers would not be resumed
            file = io.BytesIO()
            try:
                torch.save([self._schedule.state_dict(), groups], file)
                file.seek(0)
                torch.load(file, weights_only=True)
            except (pickle.PickleError, AttributeError, TypeError):
                raise InputError(
                    f"{type(self._schedule).__name__} keeps state that is not a number; train it"
                    " without a checkpoint"
                ) from None
            arrays["schedule"] = np.frombuffer(file.getvalue(), dtype=np.uint8).copy()
        return arrays

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from a :meth:`state`."""
        self._stopped = torch.as_tensor(np.array(arrays["stopped_at"]), device=self._stopped.device)
        prefix = "model."
        values = {
            name.removeprefix(prefix): torch.tensor(value)
            for name, value in arrays.items()
            if name.startswith(prefix)
        }
        self._model.load_state_dict(values)
        # hyper-parameters stay those of the call; the digest has compared them
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in arrays.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = torch.tensor(value)
        self._optimizer.load_state_dict(
            {"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]}
        )
        if isinstance(self._schedule, LRScheduler):
            file = io.BytesIO(np.asarray(arrays["schedule"], dtype=np.uint8).tobytes())
            state_of_schedule, settings = torch.load(file, weights_only=True)
            self._schedule.load_state_dict(state_of_schedule)
            for group, saved in zip(self._optimizer.param_groups, settings, strict=True):
                group.update(saved)


def _readouts_per_run(model: Attention) -> list[Tensor]:
    """The readout of a linear head with one column for every run, as a list of one or none."""
    head = linear_head(model)
    return [] if head is None or head.readout.ndim < 3 else [head.readout]


def _group_schedules(
    model: Attention,
    optimizer: Optimizer,
    schedule: Callable[[int], float] | Mapping[str, Callable[[int], float]],
) -> list[Callable[[int], float] | None]:
    """The schedule of every group of the optimiser.

    Raises:
        InputError: two parameters of one group have different schedules.
    """
    if not isinstance(schedule, Mapping):
        return [schedule] * len(optimizer.param_groups)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    functions = []
    for group in optimizer.param_groups:
        of_members = [schedule.get(names[id(parameter)]) for parameter in group["params"]]
        if any(function is not of_members[0] for function in of_members):
            members = " and ".join(names[id(parameter)] for parameter in group["params"])
            raise InputError(
                f"{members} have different schedules and share a group of the optimizer; give each"
                " a group of its own"
            )
        functions.append(of_members[0])
    return functions


def _is_scale_free(group: dict[str, Any]) -> bool:
    """Whether mirror descent takes the same step when the gradient of every run has a positive
    factor of its own.
    """
    return group["normalize"] and not (
        group["momentum"] or group["eps"] or (group["weight_decay"] and group["decay_mode"] == "l2")
    )


def _to_numpy(tensor: Tensor) -> FloatArray:
    """A float64 array of the numbers of a tensor, wherever it lies."""
    return tensor.detach().cpu().numpy().astype(np.float64)


class StepShares:
    """The points that an optimiser moves from, and how far along its step every run goes.

    Args:
        model: whose parameters are moved.
        optimizer: of those parameters.
        step_scale: ``(runs,)`` shares by name of the parameter, 0 or more.

    Raises:
        InputError: mirror descent with decay of the weights themselves, which is no multiple of a
            step in the dual.
    """

    def __init__(
        self, model: Attention, optimizer: Optimizer, step_scale: Mapping[str, FloatArray]
    ) -> None:
        names = dict(model.named_parameters())
        self._scaled = [
            (names[name], _broadcast_over_runs(names[name], share))
            for name, share in step_scale.items()
        ]
        self._mirror = optimizer if isinstance(optimizer, MirrorDescent) else None
        self._groups: dict[int, dict[str, Any]] = {}
        for group in optimizer.param_groups if self._mirror else ():
            # weights that decay between two mirror maps are no point of a line in the dual
            if group["weight_decay"] and group["decay_mode"] == "primal" and group["p"] != 2:
                raise InputError(
                    "step_scale scales steps of the dual, and decay_mode='primal' with p other"
                    " than 2 is no multiple of a step there; use decay_mode='dual' or 'l2'"
                )
            self._groups |= {id(parameter): group for parameter in group["params"]}
        self._before: list[Tensor] = []

    def _point(self, parameter: Tensor) -> Tensor:
        """A copy of what a step moves: the dual iterate of mirror descent, or the weights."""
        group = self._groups.get(id(parameter))
        if self._mirror is None or group is None:
            return parameter.detach().clone()
        return self._mirror.dual_of(group, parameter)

    @torch.no_grad()
    def remember(self) -> None:
        """Copy the points before a step."""
        self._before = [self._point(parameter) for parameter, _ in self._scaled]

    @torch.no_grad()
    def shorten(self) -> None:
        """Move every run back to its share of the step."""
        for (parameter, share), old in zip(self._scaled, self._before, strict=True):
            # W <- W_old + s (W_new - W_old), or the same of the dual iterate
            point = torch.lerp(old, self._point(parameter), share.to(old.dtype))
            group = self._groups.get(id(parameter))
            if self._mirror is None or group is None:
                parameter.copy_(point)
            else:
                self._mirror.move_to(group, parameter, point)


def _broadcast_over_runs(parameter: Tensor, share: FloatArray) -> Tensor:
    """Shares ``(runs,)`` as a tensor that multiplies a parameter ``(runs, ...)``."""
    return torch.as_tensor(share, dtype=parameter.dtype, device=parameter.device).reshape(
        -1, *[1] * (parameter.ndim - 1)
    )
