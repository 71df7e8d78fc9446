"""The general path: any torch optimiser, all runs as one tensor programme."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from attsvm.data import AttentionData, FloatArray
from attsvm.dynamics.engine import Look
from attsvm.errors import InputError
from attsvm.models import Attention, LogScale
from attsvm.optim import MirrorDescent, SteepestDescent


class AutogradEngine:
    """Trains the model's own parameters in place.

    Where every step is a normalised one of its gradient alone, the gradients are rescaled per run, so they never underflow; other
    optimisers, and steepest or mirror descent with momentum or Polyak's step, get the true gradients.
    """

    name = "autograd"

    def __init__(self, model: Attention, data: AttentionData, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._sequences = model.sequences(data)
        groups = optimizer.param_groups
        steepest, mirror = isinstance(optimizer, SteepestDescent), isinstance(optimizer, MirrorDescent)
        self._polyak = steepest and any(group["step_size"] == "polyak" for group in groups)
        # with momentum or weight decay a zero gradient is no place to stay
        self._stops = (steepest or mirror) and not any(group["momentum"] or group["weight_decay"] for group in groups)
        scale_free = steepest and not self._polyak and all(group["normalize"] and not group["momentum"] for group in groups)
        if mirror:
            scale_free = all(_sees_no_scale(group, model.runs) for group in groups)
        self._scale = LogScale() if scale_free else None
        self.stopped_at = np.full(model.runs or 1, -1, dtype=np.int64)
        self._running = torch.ones(model.runs or 1, dtype=torch.bool, device=model.W.device)

    def _backward(self, scale: LogScale | None) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._model.loss(self._sequences, scale)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        for number in range(step, step + count):
            loss = self._backward(self._scale)
            if self._stops:
                self._note_zeros(number)
            if self._polyak and isinstance(self._optimizer, SteepestDescent):
                self._optimizer.step(loss=loss)
            else:
                self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

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
        gradient = model.W.grad
        if gradient is None or scale.loss is None or scale.attention is None:
            raise InputError("W receives no gradient from the loss; train a model whose W requires gradients")
        log_norm = torch.log(torch.linalg.matrix_norm(gradient)) + scale.loss + scale.attention
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            selection = model.selection(self._sequences)
        n = selection.winner.shape[-1]
        probability = torch.exp(selection.log_probability.gather(-1, selection.winner[..., None])[..., 0])
        return Look(
            loss=_numpy(loss).reshape(runs),
            selected=selection.winner.cpu().numpy().reshape(runs, n),
            softmax_probability=_numpy(probability).reshape(runs, n),
            log_gradient_norm=_numpy(log_norm).reshape(runs),
            W=_numpy(model.W).reshape(runs, *model.W.shape[-2:]),
            head=_numpy(model.head.weight).reshape(runs, -1),
            intercept=_numpy(model.head.intercept).reshape(runs),
        )

    def state(self) -> dict[str, Any]:
        """Parameters and the optimiser's own tensors, copied.

        Raises:
            InputError: the optimiser keeps something that is not a tensor or a number.
        """
        arrays: dict[str, Any] = {"stopped_at": self.stopped_at.copy()}
        arrays |= {f"model.{name}": value.detach().cpu().numpy().copy() for name, value in self._model.state_dict().items()}
        for index, entries in self._optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if not isinstance(value, (Tensor, int, float)):
                    name = type(self._optimizer).__name__
                    raise InputError(f"{name} keeps {key!r} as {type(value).__name__}; train it without a checkpoint")
                arrays[f"optimizer.{index}.{key}"] = np.array(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        return arrays

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from a :meth:`state`."""
        self.stopped_at = np.array(arrays["stopped_at"])
        self._running = torch.as_tensor(self.stopped_at < 0, device=self._model.W.device)
        prefix = "model."
        values = {name.removeprefix(prefix): torch.tensor(value) for name, value in arrays.items() if name.startswith(prefix)}
        self._model.load_state_dict(values)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in arrays.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = torch.tensor(value)
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})


def _sees_no_scale(group: dict[str, Any], runs: int | None) -> bool:
    """Whether mirror descent takes the same step when the gradient of every run has a positive factor of its own."""
    per_run = group["normalize"] == "run" or (runs is None and group["normalize"] in (True, "tensor"))
    return per_run and not (group["momentum"] or group["eps"] or (group["weight_decay"] and group["decay_mode"] == "l2"))


def _numpy(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().cpu().numpy().astype(np.float64)
    return array
