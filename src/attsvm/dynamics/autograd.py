"""The general path: any torch optimiser, all runs as one tensor programme."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from attsvm.data import AttentionData, FloatArray
from attsvm.dynamics.engine import Look
from attsvm.errors import InputError
from attsvm.models import Attention, LogScale
from attsvm.models.attention import linear_head
from attsvm.optim import SteepestDescent

Schedule = Callable[[int], float] | LRScheduler


class AutogradEngine:
    """Trains the model's own parameters in place.

    Where every step is normalised the gradients are rescaled per run, so they never underflow; other optimisers get the true gradients.
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
        self._sequences = model.sequences(data)
        self._steepest = isinstance(optimizer, SteepestDescent)
        normalised = self._steepest and all(group["normalize"] for group in optimizer.param_groups)
        self._scale = LogScale() if normalised else None
        self._rates = [group["lr"] for group in optimizer.param_groups]
        like = next(iter(model.weights.values()))
        names = dict(model.named_parameters())
        self._shares = [
            (names[name], torch.as_tensor(share, dtype=like.dtype, device=like.device).reshape(-1, *[1] * (names[name].ndim - 1)))
            for name, share in (step_scale or {}).items()
        ]
        self.stopped_at = np.full(model.runs or 1, -1, dtype=np.int64)
        self._running = torch.ones(model.runs or 1, dtype=torch.bool, device=like.device)

    def _backward(self, scale: LogScale | None) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._model.loss(self._sequences, scale)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        for number in range(step, step + count):
            self._backward(self._scale)
            if self._steepest:
                self._note_zeros(number)
            self._move(number)
        self._optimizer.zero_grad(set_to_none=True)
        if count and callable(self._schedule):
            self._set_rates(1.0)

    def _move(self, number: int) -> None:
        if self._schedule is not None and not isinstance(self._schedule, LRScheduler):
            self._set_rates(float(self._schedule(number)))
        before = [parameter.detach().clone() for parameter, _ in self._shares]
        self._optimizer.step()
        with torch.no_grad():
            for (parameter, share), old in zip(self._shares, before, strict=True):
                parameter.copy_(torch.lerp(old, parameter, share))
        if isinstance(self._schedule, LRScheduler):
            self._schedule.step()

    def _set_rates(self, factor: float) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def _note_zeros(self, step: int) -> None:
        """A steepest descent at a zero gradient stays there for good: note when it arrived."""
        moving = torch.zeros_like(self._running)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moving |= parameter.grad.reshape(len(moving), -1).count_nonzero(dim=1) > 0
        arrived = self._running & ~moving
        if arrived.any():
            self.stopped_at[arrived.cpu().numpy()] = step
            self._running &= moving

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        model, scale = self._model, LogScale()
        runs = model.runs or 1
        loss = self._backward(scale)
        logs = [torch.log(torch.linalg.matrix_norm(weight.grad)) for weight in model.weights.values() if weight.grad is not None]
        if not logs:
            raise InputError("the attention weights receive no gradient from the loss; train a model whose weights require gradients")
        log_norm = 0.5 * torch.logsumexp(torch.stack([2.0 * log for log in logs]), dim=0) + scale.weights
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            selection, combined = model.selection(self._sequences), model.combined()
        probability = torch.exp(selection.log_probability.gather(-1, selection.winner[..., None])[..., 0])
        rows = selection.winner.shape[0 if model.runs is None else 1 :]
        head = linear_head(model)
        direct = combined.data_ptr() == next(iter(model.weights.values())).data_ptr()
        return Look(
            loss=_numpy(loss).reshape(runs),
            selected=selection.winner.cpu().numpy().reshape(runs, *rows),
            softmax_probability=_numpy(probability).reshape(runs, *rows),
            log_gradient_norm=_numpy(log_norm).reshape(runs),
            W=_numpy(combined).reshape(runs, *combined.shape[-2:]),
            head=np.zeros((runs, 0)) if head is None else np.broadcast_to(_numpy(head.weight), (runs, head.weight.shape[-1])),
            intercept=np.zeros(runs) if head is None else np.broadcast_to(_numpy(head.intercept), (runs,)),
            parameters={} if direct else {name: _numpy(value).reshape(runs, *value.shape[-2:]) for name, value in model.weights.items()},
        )

    def state(self) -> dict[str, Any]:
        """Parameters, the optimiser's own tensors and the schedule, copied.

        Raises:
            InputError: the optimiser or the schedule keeps something that is not a tensor or a number.
        """
        arrays: dict[str, Any] = {"stopped_at": self.stopped_at.copy()}
        arrays |= {f"model.{name}": value.detach().cpu().numpy().copy() for name, value in self._model.state_dict().items()}
        for index, entries in self._optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if not isinstance(value, (Tensor, int, float)):
                    name = type(self._optimizer).__name__
                    raise InputError(f"{name} keeps {key!r} as {type(value).__name__}; train it without a checkpoint")
                arrays[f"optimizer.{index}.{key}"] = np.array(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        if isinstance(self._schedule, LRScheduler):
            try:
                text = json.dumps(self._schedule.state_dict())
            except TypeError:
                raise InputError(
                    f"{type(self._schedule).__name__} keeps state that is not a number; train it without a checkpoint"
                ) from None
            arrays["schedule"] = np.frombuffer(text.encode(), dtype=np.uint8).copy()
        return arrays

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from a :meth:`state`."""
        self.stopped_at = np.array(arrays["stopped_at"])
        self._running = torch.as_tensor(self.stopped_at < 0, device=self._running.device)
        prefix = "model."
        values = {name.removeprefix(prefix): torch.tensor(value) for name, value in arrays.items() if name.startswith(prefix)}
        self._model.load_state_dict(values)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in arrays.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = torch.tensor(value)
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})
        if isinstance(self._schedule, LRScheduler):
            self._schedule.load_state_dict(json.loads(np.asarray(arrays["schedule"], dtype=np.uint8).tobytes().decode()))
            for group, rate in zip(self._optimizer.param_groups, self._schedule.get_last_lr(), strict=True):
                group["lr"] = rate


def _numpy(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().cpu().numpy().astype(np.float64)
    return array
