"""What every optimiser of the house shares: one fixed ``step`` around a small direction of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from attsvm.errors import InputError

TensorList = list[Tensor]
StateList = list[Tensor | None]


class DescentOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose subclasses only say how a list of parameters moves.

    A subclass names its state in ``state_names``, fills it in :meth:`_new_state`, checks its hyper-parameters in
    :meth:`_check_group` and moves the parameters in :meth:`_update`. Everything else is here: the closure, parameters without a
    gradient, refusals, groups, checkpoints that keep the precision of the state, pickling.

    Hyper-parameters live in ``param_groups`` alone and are read at every step, so schedulers, per-group values and loaded
    checkpoints are seen. The step reads no tensor on the host, unless that is free.

    Args:
        params: parameters, named parameters, or groups of them.
        defaults: the hyper-parameters of a group that does not set them; ``lr`` is one of them.

    Raises:
        InputError: no parameters, a complex parameter, a ``lr`` that is not positive and finite; at :meth:`step`, a closure that
            returns None and a sparse gradient (where ``accepts_sparse`` is False).
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """The tensors that are kept per parameter, in the order in which :meth:`_update` receives them."""

    accepts_sparse: ClassVar[bool] = False

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if not isinstance(params, Tensor):  # which torch refuses in its own words
            params = list(params)  # type: ignore[assignment]
            if not params:
                raise InputError(f"{type(self).__name__} got an empty parameter list; give at least one parameter or parameter group")
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise :class:`~attsvm.errors.InputError` for hyper-parameters or parameters that this optimiser cannot use."""

    def _new_state(self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]) -> dict[str, Any]:
        """The state that this parameter lacks now, given what is ``known``; empty where nothing has to be added."""
        return {}

    def _update(self, group: dict[str, Any], parameters: TensorList, gradients: TensorList, *states: StateList) -> None:
        """Move ``parameters`` in place, given their gradients and one list per name in ``state_names`` (None where there is none)."""
        raise NotImplementedError

    def _update_groups(self, moving: list[tuple[Any, ...]]) -> None:
        """Call :meth:`_update` for every group; where groups have to know of each other, this is the place."""
        for arguments in moving:
            self._update(*arguments)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Any]) -> Any: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter that has a gradient.

        Args:
            closure: evaluates the model anew, with gradients, and returns the loss.

        Returns:
            The closure's loss, None without a closure.

        Raises:
            InputError: the closure returned None, or a gradient that this optimiser cannot use.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            if loss is None:
                raise InputError(f"the closure given to {type(self).__name__}.step returned None; return the loss from it")
        moving: list[tuple[Any, ...]] = []
        for group in self.param_groups:
            parameters: TensorList = []
            gradients: TensorList = []
            states: tuple[StateList, ...] = tuple([] for _ in self.state_names)
            self._init_group(group, parameters, gradients, *states)
            if parameters:
                moving.append((group, parameters, gradients, *states))
        self._update_groups(moving)
        return loss

    def _init_group(self, group: dict[str, Any], parameters: TensorList, gradients: TensorList, *states: StateList) -> None:
        """Gather what takes part in this step. ``torch.compile`` runs the method of this name outside its graph."""
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided and not (self.accepts_sparse and gradient.layout is torch.sparse_coo):
                raise InputError(
                    f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient ({gradient.layout}); "
                    f"{type(self).__name__} needs {'dense or COO' if self.accepts_sparse else 'dense'} real gradients"
                )
            known = self.state.get(parameter, {})
            added = self._new_state(group, parameter, known)
            if added:  # a parameter without state leaves no entry behind
                self.state[parameter].update(added)
                known = self.state[parameter]
            parameters.append(parameter)
            gradients.append(gradient)
            for name, column in zip(self.state_names, states, strict=True):
                column.append(known.get(name))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own, checked like the constructor's."""
        super().add_param_group(param_group)
        try:
            check_lr(param_group["lr"])
            for parameter in param_group["params"]:
                if parameter.is_complex():
                    raise InputError(
                        f"a parameter of shape {tuple(parameter.shape)} is complex; a complex gradient has no place here: "
                        f"give {type(self).__name__} torch.view_as_real of it"
                    )
            self._check_group(param_group)
        except InputError:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # hyper-parameters that an older checkpoint does not know
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; state keeps the precision in which it was saved.

        torch itself casts floating state to the parameter's precision, which would round the float32 state of a bfloat16
        parameter. Hyper-parameters that the checkpoint does not know stay as constructed.
        """
        saved: dict[str, Any] = {}
        last = self.register_load_state_dict_pre_hook(lambda _, final: saved.update(final))
        first = self.register_load_state_dict_post_hook(lambda _: self._restore_precision(saved), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _restore_precision(self, saved: dict[str, Any]) -> None:
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(indices, parameters, strict=True):
            for name, value in saved["state"].get(index, {}).items():
                mine = self.state[parameter][name]
                if isinstance(value, Tensor) and mine.dtype != value.dtype:
                    self.state[parameter][name] = value.detach().to(device=mine.device, copy=True)


def check_lr(lr: Any) -> None:
    """Raise :class:`~attsvm.errors.InputError` unless ``lr`` is a positive finite number or a tensor of one."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InputError(f"lr is a tensor of shape {tuple(lr.shape)}; give a tensor with one element")
    if isinstance(lr, bool) or not isinstance(lr, (int, float, Tensor)) or not (math.isfinite(float(lr)) and float(lr) > 0):
        raise InputError(f"lr is {lr!r}; give a positive finite step length")


def scalar(value: float | Tensor) -> float | Tensor:
    """``value`` as a number where reading it costs nothing, otherwise (on an accelerator, under ``torch.compile``) as a 0-d tensor."""
    if not isinstance(value, Tensor):
        return value
    if torch.compiler.is_compiling() or value.device.type != "cpu":
        return value.reshape(())
    return float(value)


def add_scaled(targets: TensorList, directions: TensorList, factor: float | Tensor) -> None:
    """``target += factor * direction`` for every pair, in one multi-tensor call; ``factor`` as from :func:`scalar`."""
    if isinstance(factor, Tensor):
        torch._foreach_add_(targets, torch._foreach_mul(directions, factor))
    else:
        torch._foreach_add_(targets, directions, alpha=factor)
