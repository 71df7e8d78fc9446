"""What every optimiser of the house shares: one fixed ``step`` around a small direction of its
own.

A step that is refused, or fails on the way, changes nothing. What a step can know beforehand it is
asked before anything is written. A decomposition can fail in the middle: what such a step writes is
copied first, and put back.

A ``GradScaler`` hands its scale and what it found to the step, instead of unscaling gradients and
waiting for a look at them. ``torch.amp.GradScaler.step`` does so for optimisers whose
``_step_supports_amp_scaling`` is true: it sets ``grad_scale`` (None where the user has unscaled)
and ``found_inf`` on the optimiser, calls ``step`` whether there was an overflow or not, and takes
both away.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from attsvm.errors import InputError
from attsvm.optim.reductions import local
from attsvm.optim.standstill import Standstill

TensorList = list[Tensor]
StateList = list[Tensor | None]


class DescentOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose subclasses only say how a list of parameters moves.

    A subclass names its state in ``state_names``, fills it in :meth:`_new_state`, checks its
    hyper-parameters in
    :meth:`_check_group` and moves the parameters in :meth:`_update`. Everything else is here: the
    closure, parameters without a gradient, refusals, groups, checkpoints that keep the precision of
    the state, pickling.

    Hyper-parameters live in ``param_groups`` alone and are read at every step, so schedulers,
    per-group values and loaded checkpoints are seen. The step reads no tensor on the host unless
    that is free, and none at all in a group with ``capturable``.

    Where every group is ``fused`` or ``capturable``, a ``GradScaler`` hands its scale and what it
    found to the step, as it does to torch's fused optimisers: an overflow skips the step, and on an
    accelerator nobody waits to learn of it. There the step keeps a copy of what it moves, for its
    duration.

    A group of which no tensor moves by 5% of its size in its first 50 steps is named in one
    :class:`UserWarning`, with what to change. Steps at less than half of a scheduler's base rate do
    not count, and nothing is watched after a checkpoint has been loaded or where ``capturable``.

    Args:
        params: parameters, named parameters, or groups of them.
        defaults: the hyper-parameters of a group that does not set them; ``lr`` is one of them.

    Raises:
        InputError: no parameters, a complex parameter, a ``lr`` that is not positive and finite; at
            :meth:`step`, a closure that returns None and a sparse gradient (where
            ``accepts_sparse`` is False).
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """The tensors that are kept per parameter, in the order in which :meth:`_update` receives
    them.
    """

    accepts_sparse: ClassVar[bool] = False

    _state_is_foreign = False  # a checkpoint's, and not looked at since
    _standstill: Standstill | None = None  # of the first steps of a training

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if not isinstance(params, Tensor):  # which torch refuses in its own words
            params = list(params)  # type: ignore[assignment]
            if not params:
                raise InputError(
                    f"{type(self).__name__} got an empty parameter list; give at least one"
                    " parameter or parameter group"
                )
        super().__init__(params, defaults)
        self._standstill = Standstill()

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise :class:`~attsvm.errors.InputError` for hyper-parameters or parameters that this
        optimiser cannot use.
        """

    def _new_state(
        self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]
    ) -> dict[str, Any]:
        """The state that this parameter lacks now, given what is ``known``; empty where nothing has
        to be added.
        """
        return {}

    def _update(
        self,
        group: dict[str, Any],
        parameters: TensorList,
        gradients: TensorList,
        *states: StateList,
    ) -> None:
        """Move ``parameters`` in place, given their gradients and one list per name in
        ``state_names`` (None where there is none).
        """
        raise NotImplementedError

    def _update_groups(self, moving: list[tuple[Any, ...]]) -> None:
        """Call :meth:`_update` for every group; where groups have to know of each other, this is
        the place.
        """
        for arguments in moving:
            self._update(*arguments)

    def _moved(self, moving: list[tuple[Any, ...]]) -> None:
        """Called when a step under a ``GradScaler`` has been kept or taken back without a look at
        which, and nothing is written any more.
        """

    @property
    def _step_supports_amp_scaling(self) -> bool:  # the name under which a GradScaler asks
        return all(group.get("fused") or group.get("capturable") for group in self.param_groups)

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
                Nothing has been changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            if loss is None:
                raise InputError(
                    f"the closure given to {type(self).__name__}.step returned None; return the"
                    " loss from it"
                )
        # there only while a GradScaler steps
        overflow, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if overflow is not None and all(reads_host(group, overflow) for group in self.param_groups):
            if float(overflow):
                return loss
            overflow = None
        if torch.compiler.is_compiling():
            self._advance(self.param_groups, overflow, scale)
            return loss
        self.check_step()
        watch, groups = self._standstill, self.param_groups
        if watch is not None:
            watch.before(groups)
        if risky := self.risky_groups():
            with unchanged_on_error(self, risky):
                self._advance(risky, overflow, scale)
            groups = [group for group in groups if not any(group is each for each in risky)]
        self._advance(groups, overflow, scale)
        if watch is not None and not watch.after(type(self).__name__, self.param_groups):
            self._standstill = None
        return loss

    def leave_unwatched(self) -> None:
        """No sentence about parameters that hardly move: for callers that record the whole way."""
        self._standstill = None

    def check_step(self) -> None:
        """Raise :class:`~attsvm.errors.InputError` for what the next step would refuse; nothing is
        changed.
        """
        for group in self.param_groups:
            self._check_gradients(group)
        if self._state_is_foreign:
            for parameter, known in self.state.items():
                check_state(parameter, known, self.state_names)
            self._state_is_foreign = False

    def _check_gradients(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided:
                self._check_sparse(group, parameter, gradient)
            if (
                gradient.shape != parameter.shape
                or gradient.device != parameter.device
                or not gradient.is_floating_point()
            ):
                raise InputError(
                    f"a parameter of shape {tuple(parameter.shape)} on {parameter.device} has a"
                    f" {gradient.dtype} gradient of shape {tuple(gradient.shape)} on"
                    f" {gradient.device}; give a real gradient of its own shape and device"
                )

    def _check_sparse(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        if not (self.accepts_sparse and gradient.layout is torch.sparse_coo):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient"
                f" ({gradient.layout}); {type(self).__name__} needs"
                f" {'dense or COO' if self.accepts_sparse else 'dense'} real gradients"
            )

    def risky_groups(self) -> list[dict[str, Any]]:
        """The groups whose steps can fail when some of it is written, as only the data can tell.
        They step first, on a copy that puts them back.
        """
        return []

    def _advance(
        self, groups: list[dict[str, Any]], overflow: Tensor | None, scale: Tensor | None
    ) -> None:
        """Move the parameters of these groups."""
        moving: list[tuple[Any, ...]] = []
        for group in groups:
            parameters: TensorList = []
            gradients: TensorList = []
            states: tuple[StateList, ...] = tuple([] for _ in self.state_names)
            self._init_group(group, parameters, gradients, *states)
            if parameters:
                moving.append((group, parameters, gradients, *states))
                if scale is not None:
                    unscale_(gradients, scale)
        if overflow is None:
            self._update_groups(moving)
        else:
            written = [
                tensor
                for _, parameters, _, *states in moving
                for column in (parameters, *states)
                for tensor in column
            ]
            known = [tensor for tensor in written if tensor is not None]
            unless_overflowed(
                overflow, known, lambda: self._update_groups(moving), lambda: self._born(moving)
            )
            self._moved(moving)

    def _born(self, moving: list[tuple[Any, ...]]) -> TensorList:
        """The state that the step has made and :meth:`_new_state` has not."""
        return [
            self.state[parameter][name]
            for _, parameters, _, *states in moving
            for name, column in zip(self.state_names, states, strict=True)
            for parameter, before in zip(parameters, column, strict=True)
            if before is None and name in self.state.get(parameter, {})
        ]

    def _init_group(
        self,
        group: dict[str, Any],
        parameters: TensorList,
        gradients: TensorList,
        *states: StateList,
    ) -> None:
        """Gather what takes part in this step. ``torch.compile`` runs the method of this name
        outside its graph.
        """
        if torch.compiler.is_compiling():
            self._check_gradients(group)
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
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
        add = Optimizer.add_param_group
        if "torch._dynamo" not in sys.modules:  # what keeps it out of a graph imports it: a second
            add = inspect.unwrap(add)
        add(self, param_group)
        try:
            check_lr(param_group["lr"])
            _check_capturable(param_group)
            if param_group.get("differentiable"):
                raise InputError(
                    f"differentiable is True, but a step of {type(self).__name__} has no useful"
                    " derivative where weights or gradients are zero; leave it False"
                )
            for parameter in param_group["params"]:
                if parameter.is_complex():
                    raise InputError(
                        f"a parameter of shape {tuple(parameter.shape)} is complex; a complex"
                        f" gradient has no place here: give {type(self).__name__}"
                        " torch.view_as_real of it"
                    )
            self._check_group(param_group)
        except InputError:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._state_is_foreign, self._standstill = True, None
        for group in self.param_groups:  # hyper-parameters that an older checkpoint does not know
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; state keeps the precision in which it was saved.

        torch itself casts floating state to the parameter's precision, which would round the
        float32 state of a bfloat16 parameter. Hyper-parameters that the checkpoint does not know
        stay as constructed.
        """
        saved: dict[str, Any] = {}
        last = self.register_load_state_dict_pre_hook(lambda _, final: saved.update(final))
        first = self.register_load_state_dict_post_hook(
            lambda _: self._restore_precision(saved), prepend=True
        )
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
    """Raise :class:`~attsvm.errors.InputError` unless ``lr`` is a positive finite number or a
    tensor of one.
    """
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InputError(
            f"lr is a tensor of shape {tuple(lr.shape)}; give a tensor with one element (step"
            " lengths per run: step_scale of attsvm.train)"
        )
    if (
        isinstance(lr, bool)
        or not isinstance(lr, (int, float, Tensor))
        or not (math.isfinite(float(lr)) and float(lr) > 0)
    ):
        raise InputError(f"lr is {lr!r}; give a positive finite step length")


def _check_capturable(group: dict[str, Any]) -> None:
    """A graph replays what it saw: a number would stay what it was, and a tensor elsewhere would be
    read through the host.
    """
    if not group.get("capturable"):
        return
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        raise InputError(
            f"capturable is True with lr={lr!r}, which a graph would never see change; give a"
            " tensor of one number"
        )
    for parameter in group["params"]:
        if parameter.device != lr.device:
            raise InputError(
                f"capturable is True with lr on {lr.device} and a parameter on {parameter.device};"
                " put lr where the parameters are"
            )
    if group.get("fused"):
        raise InputError(
            "capturable and fused are both True, and the compiled kernel is the CPU's, which has no"
            " graphs; choose one"
        )


def reads_host(group: dict[str, Any], value: Tensor) -> bool:
    """Whether the step of this group may read the tensor on the host, because that is free."""
    # asked by itself: the compiler of torch 2.15 follows `if` here, and neither `or` nor `not`
    if group.get("capturable"):
        return False
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def scalar(group: dict[str, Any], name: str) -> float | Tensor:
    """A hyper-parameter as a number where :func:`reads_host` allows, otherwise as a 0-d tensor."""
    value: float | Tensor = group[name]
    if not isinstance(value, Tensor):
        return value
    return float(value) if reads_host(group, value) else value.reshape(())


def add_scaled(targets: TensorList, directions: TensorList, factor: float | Tensor) -> None:
    """``target += factor * direction`` for every pair, in one multi-tensor call; ``factor`` as from
    :func:`scalar`.
    """
    if isinstance(factor, Tensor):
        torch._foreach_add_(targets, torch._foreach_mul(directions, factor))
    else:
        torch._foreach_add_(targets, directions, alpha=factor)


def unscale_(gradients: Sequence[Tensor], scale: Tensor) -> None:
    """Divide gradients by the scale in place, to the bits of ``GradScaler.unscale_``."""
    inverse = scale.double().reciprocal().float()
    for gradient in gradients:
        gradient.mul_(inverse.to(gradient.device))


def unless_overflowed(
    overflow: Tensor,
    tensors: Sequence[Tensor],
    update: Callable[[], None],
    born: Callable[[], Sequence[Tensor]],
) -> None:
    """Run ``update``, and take it back where ``overflow`` is not zero, without reading ``overflow``
    on the host.

    Nothing but a copy undoes a step that has seen an infinity, so for its duration the step keeps
    one of everything that it moves.

    Args:
        overflow: ``found_inf`` of the scaler, one number.
        tensors: what ``update`` writes.
        update: the step.
        born: what ``update`` has made; it becomes zero.
    """
    mine = [local(tensor) for tensor in tensors]
    before = [tensor.clone() for tensor in mine]
    update()
    for tensor, kept in zip(mine, before, strict=True):
        tensor.copy_(torch.where(overflow.to(tensor.device) == 0, tensor, kept))
    for tensor in map(local, born()):
        tensor.copy_(torch.where(overflow.to(tensor.device) == 0, tensor, torch.zeros_like(tensor)))


@contextmanager
def unchanged_on_error(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Put parameters, state and settings of these groups back where the block raises.

    Args:
        optimizer: whose groups they are.
        groups: what the block moves.

    Raises:
        InputError: for a decomposition that LAPACK could not finish; other errors pass.
    """
    if getattr(optimizer, "_copied", False):  # by a block around this one
        yield
        return
    settings = [(group, dict(group)) for group in groups]
    moved = [p for group in groups for p in group["params"] if p.grad is not None]
    known = {p: dict(optimizer.state[p]) for p in moved if p in optimizer.state}
    kept = [value for entry in known.values() for value in entry.values()]
    written = [local(each) for each in (*moved, *kept) if isinstance(each, Tensor)]
    copies = [tensor.clone() for tensor in written]
    optimizer._copied = True  # type: ignore[attr-defined]
    try:
        yield
    except BaseException as error:
        for tensor, copy in zip(written, copies, strict=True):
            tensor.copy_(copy)
        for group, before in settings:
            group.clear()
            group.update(before)
        for parameter in moved:
            optimizer.state.pop(parameter, None)
            if parameter in known:
                optimizer.state[parameter] = known[parameter]
        if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            raise InputError(
                f"{type(optimizer).__name__} could not decompose a gradient or its state"
                f" ({error}); nothing was moved: skip this step, or lower lr"
            ) from error
        raise
    finally:
        optimizer._copied = False  # type: ignore[attr-defined]


def check_state(parameter: Tensor, known: dict[str, Any], names: Sequence[str]) -> None:
    """Raise :class:`~attsvm.errors.InputError` unless the state of these ``names`` has the shape
    and the place of its parameter.
    """
    for name in names:
        kept = known.get(name)
        if kept is not None and (kept.shape != parameter.shape or kept.device != parameter.device):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} on {parameter.device} has a {name}"
                f" of shape {tuple(kept.shape)} on {kept.device}; load a checkpoint of this model,"
                " or build the optimizer anew"
            )


def fused_obstacle(parameter: Tensor) -> str | None:
    """Why the compiled kernel cannot move this parameter, or None."""
    if type(parameter) not in (Tensor, torch.nn.Parameter):
        return f"is a {type(parameter).__name__}"
    if not parameter.is_cpu:
        return f"is on {parameter.device}, and not on the CPU"
    if parameter.dtype not in (torch.float32, torch.float64):
        return f"is {parameter.dtype}, and neither float32 nor float64"
    if not parameter.is_contiguous():
        return f"is not contiguous (its strides are {parameter.stride()})"
    return None
