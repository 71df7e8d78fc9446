r"""What all optimisers here share: one fixed ``step`` around a small direction that is their own,
and the hyper-parameters that mean the same in all of them.

For a gradient :math:`G_t` (its negative with ``maximize``), with ``momentum`` :math:`\mu`,
``dampening`` :math:`\tau` and ``nesterov``,

.. math:: M_t=\mu M_{t-1}+(1-\tau)\,G_t,\qquad M_{-1}=0,\qquad 0\le\mu<1,\ 0\le\tau\le1,

and the step goes along :math:`M_t`, or with ``nesterov`` along :math:`\mu M_t+(1-\tau)\,G_t`.
``dampening = 0`` is the momentum of ``torch.optim.SGD``, ``dampening = momentum`` a moving average.
``normalize`` makes a step as long as ``lr`` says, in the norm that the optimiser belongs to: the
last two axes of a parameter are one matrix, and every axis in front counts independent runs, each
with its own norm. ``weight_decay`` :math:`\lambda` never enters what is averaged or normalised,
unless an optimiser has a mode that says so.

A step of length 0 (``lr=0``, for a frozen group or a warm-up) leaves every bit of the weights,
whatever the gradient; averages of gradients go on. A gradient that is not finite is written as
torch's own optimisers write it: what a weight has of it becomes NaN or infinite, and nothing is
raised; a ``GradScaler`` skips such steps.

``compute()`` returns the updates of all groups and changes nothing; ``apply(updates)`` writes them.
All that can fail is in the first: a step that is refused, or whose decomposition does not converge,
changes nothing.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from attsvm.base.errors import InputError

TensorList = list[Tensor]
StateList = list[Tensor | None]


class GroupTensors(NamedTuple):
    """The tensors of a parameter group that take part in a step, in the same order in every list.

    Attributes:
        group: the parameter group, with its hyper-parameters.
        parameters: those that have a gradient.
        gradients: theirs.
        states: one list per name in ``state_names``, None where a parameter has no such state.
        new_state: a parameter and the entries that its state will get, for each that lacks some.
    """

    group: dict[str, Any]
    parameters: TensorList
    gradients: TensorList
    states: tuple[StateList, ...]
    new_state: Sequence[tuple[Tensor, dict[str, Any]]] = ()


class GroupUpdate(NamedTuple):
    """A step of a parameter group before it is written.

    Attributes:
        tensors: what takes part in it.
        results: what ``_compute_group`` returned; None where nothing of the step can fail. Such a
            step is computed as it is written, a portion at a time, which stays in the cache.
    """

    tensors: GroupTensors
    results: Any


class PreciseStateOptimizer(Optimizer):
    """An optimiser whose loaded state keeps the precision in which it was saved.

    torch itself casts floating state to the parameter's precision, which would round the float32
    state of a bfloat16 parameter.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned. Hyper-parameters that the checkpoint does not know
        stay as constructed.

        Raises:
            InputError: a checkpoint of another optimizer, or of other parameters; nothing has been
                changed then.
        """
        saved: dict[str, Any] = {}

        def check_and_remember(_: Optimizer, final: dict[str, Any]) -> None:
            self._check_checkpoint(final)
            saved.update(final)

        # last of all hooks before the load: it sees what those of the user made of the checkpoint
        before = self.register_load_state_dict_pre_hook(check_and_remember)
        # first of all hooks after the load: those of the user see the final state
        after = self.register_load_state_dict_post_hook(
            lambda _: self._restore_precision(saved), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _check_checkpoint(self, saved: dict[str, Any]) -> None:
        """Raise :class:`~attsvm.InputError` for what is no checkpoint of this optimizer."""
        label = type(self).__name__
        check_group_sizes(self, label, saved["param_groups"])
        check_origin(self, label, saved["param_groups"], saved["state"])

    def _restore_precision(self, saved: dict[str, Any]) -> None:
        """Take the tensors that torch has cast from the checkpoint again, as they are there."""
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(indices, parameters, strict=True):
            for name, value in saved["state"].get(index, {}).items():
                loaded = self.state[parameter][name]
                if isinstance(value, Tensor) and loaded.dtype != value.dtype:
                    self.state[parameter][name] = value.detach().to(loaded.device, copy=True)


class DescentOptimizer(PreciseStateOptimizer):
    """A ``torch.optim.Optimizer`` whose subclasses only say how a list of parameters moves.

    A subclass names its state in ``state_names``, makes it in :meth:`_missing_state`, checks its
    hyper-parameters in :meth:`_check_group`, and moves parameters in two steps:
    :meth:`_compute_group` computes all that can fail, :meth:`_apply_group` writes. Everything else
    is here: the closure, parameters without a gradient, refusals, groups, checkpoints that keep the
    precision of the state, pickling.

    Hyper-parameters live in ``param_groups`` alone and are read at every step, so schedulers,
    per-group values and loaded checkpoints are seen. The step reads no tensor on the host unless
    that is free.

    Args:
        params: parameters, named parameters, or groups of them.
        defaults: the hyper-parameters of a group that does not set them; ``lr`` is one of them.

    Raises:
        InputError: no parameters, a complex parameter, a ``lr`` that is negative or not finite; at
            :meth:`step`, a closure that returns None, a sparse gradient, a decomposition that does
            not converge; at :meth:`load_state_dict`, a checkpoint of another optimizer.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """The tensors of state of a parameter, in the order of :attr:`GroupTensors.states`."""

    _has_unchecked_state = False  # loaded, and not compared with the parameters since

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, nn.Module):
            raise InputError(
                f"{type(self).__name__} got the module {type(params).__name__}; give its"
                " parameters(), or those that split_params finds in it"
            )
        # a single tensor is refused by torch, in its own words
        if not isinstance(params, Tensor):
            params = list(params)  # type: ignore[assignment]
            if not params:
                raise InputError(
                    f"{type(self).__name__} got an empty parameter list; give at least one"
                    " parameter or parameter group"
                )
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise :class:`~attsvm.InputError` for hyper-parameters or parameters that this
        optimiser cannot use.
        """

    def _missing_state(
        self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the entries that the ``state`` of this parameter lacks, or that no longer hold;
        an empty dictionary where there are none. Nothing is changed.
        """
        return {}

    def _compute_group(self, tensors: GroupTensors, loss: Any) -> Any:
        """Return all of the step of a group whose computation can fail; None where there is nothing
        of the kind. Nothing is changed. The ``loss`` is that of the closure, None without one.
        """
        return None

    def _apply_group(self, tensors: GroupTensors, results: Any) -> None:
        """Move parameters and state in place, by the ``results`` of :meth:`_compute_group`."""
        raise NotImplementedError

    @overload
    def step(
        self, closure: None = None, *, before_writing: Callable[[], None] | None = ...
    ) -> None: ...
    @overload
    def step(
        self, closure: Callable[[], Any], *, before_writing: Callable[[], None] | None = ...
    ) -> Any: ...
    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        before_writing: Callable[[], None] | None = None,
    ) -> Any:
        """Take one step for every parameter that has a gradient.

        1. Evaluate the closure, if there is one.
        2. Refuse gradients and state that do not fit.
        3. Compute the update of every group.
        4. Let others do what has to succeed with it.
        5. Write.

        Args:
            closure: evaluates the model anew, with gradients, and returns the loss.
            before_writing: called once all that can fail has been computed, and before anything is
                written: whatever else has to succeed for this step to count. A compiled step calls
                it at its end.

        Returns:
            The closure's loss, None without a closure.

        Raises:
            InputError: the closure returned None, a gradient that this optimiser cannot use, or a
                decomposition that did not converge. Nothing has been changed then.
        """
        # 1. the loss, and gradients with it
        loss = evaluate_closure(self, closure)
        if torch.compiler.is_compiling():
            self._step_in_graph(loss)
            if before_writing is not None:
                before_writing()
            return loss
        # 2. refusals
        self.check_step()
        # 3. updates
        try:
            updates = self.compute(loss)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise InputError(
                f"{type(self).__name__} could not decompose a gradient or its state ({error});"
                " nothing was moved: skip this step, or lower lr"
            ) from error
        # 4. whatever may still fail
        if before_writing is not None:
            before_writing()
        # 5. nothing fails from here on
        self.apply(updates)
        return loss

    def compute(self, loss: Any = None) -> list[GroupUpdate]:
        """Compute the step of every group as far as it can fail; nothing is changed. Gradients are
        those that :meth:`check_step` lets pass, and autograd is off, as in :meth:`step`.

        Args:
            loss: the loss at the present weights, for optimisers that read it.

        Returns:
            The updates, for :meth:`apply`.
        """
        updates = []
        for group in self.param_groups:
            tensors = self._gather(group)
            if tensors.parameters:
                updates.append(GroupUpdate(tensors, self._compute_group(tensors, loss)))
        return updates

    def apply(self, updates: Sequence[GroupUpdate]) -> None:
        """Write what :meth:`compute` returned."""
        # 1. state, which a step that failed would not have made
        for tensors, _ in updates:
            for parameter, entries in tensors.new_state:
                self.state[parameter].update(entries)
        # 2. weights, and state that moves with them
        for tensors, results in updates:
            self._apply_group(tensors, results)

    def _step_in_graph(self, loss: Any) -> None:
        """Step as ``torch.compile`` follows it: a graph has no failures to wait for."""
        for index, group in enumerate(self.param_groups):
            parameters: TensorList = []
            gradients: TensorList = []
            states: tuple[StateList, ...] = tuple([] for _ in self.state_names)
            self._init_group(index, parameters, gradients, *states)
            if parameters:
                tensors = GroupTensors(group, parameters, gradients, states)
                self._apply_group(tensors, self._compute_group(tensors, loss))

    def _init_group(
        self, index: int, parameters: TensorList, gradients: TensorList, *states: StateList
    ) -> None:
        """Fill the lists with what takes part in a step of a group, and keep its new state.
        ``torch.compile`` runs the method of this name, which is torch's, outside its graph. A group
        that it met in the joined list of a combination it would hand over by its position there, so
        the method takes the position in this optimizer.
        """
        self._check_gradients(self.param_groups[index])
        tensors = self._gather(self.param_groups[index])
        for parameter, entries in tensors.new_state:
            self.state[parameter].update(entries)
        parameters.extend(tensors.parameters)
        gradients.extend(tensors.gradients)
        for column, gathered in zip(states, tensors.states, strict=True):
            column.extend(gathered)

    def _gather(self, group: dict[str, Any]) -> GroupTensors:
        """Collect the tensors of a group that take part in a step; nothing is changed."""
        parameters: TensorList = []
        gradients: TensorList = []
        states: tuple[StateList, ...] = tuple([] for _ in self.state_names)
        new_state: list[tuple[Tensor, dict[str, Any]]] = []
        for parameter in group["params"]:
            gradient = parameter.grad
            # a parameter without a gradient takes no part, and gets no state
            if gradient is None:
                continue
            state = self.state.get(parameter, {})
            entries = self._missing_state(group, parameter, state)
            if entries:
                new_state.append((parameter, entries))
            parameters.append(parameter)
            gradients.append(gradient)
            # state that is new takes part already, though it is written later
            for name, column in zip(self.state_names, states, strict=True):
                column.append(entries.get(name, state.get(name)))
        return GroupTensors(group, parameters, gradients, states, new_state)

    def check_step(self) -> None:
        """Raise :class:`~attsvm.InputError` for what the next step would refuse; nothing is
        changed.
        """
        for group in self.param_groups:
            self._check_gradients(group)
        if self._has_unchecked_state:
            for parameter, state in self.state.items():
                check_state(parameter, state, self.state_names)
            self._has_unchecked_state = False

    def _check_gradients(self, group: dict[str, Any]) -> None:
        """Raise for a gradient that is sparse, or not real, or not like its parameter."""
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided:
                raise InputError(
                    f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient"
                    f" ({gradient.layout}); {type(self).__name__} needs dense real gradients"
                )
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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own, checked like the constructor's."""
        add = Optimizer.add_param_group
        # torch's decorator that keeps the method out of graphs imports the compiler: a second
        if "torch._dynamo" not in sys.modules:
            add = inspect.unwrap(add)
        add(self, param_group)
        try:
            check_lr(param_group["lr"])
            for parameter in param_group["params"]:
                if parameter.is_complex():
                    raise InputError(
                        f"a parameter of shape {tuple(parameter.shape)} is complex; a complex"
                        f" gradient has no place here: give {type(self).__name__}"
                        " torch.view_as_real of it"
                    )
            self._check_group(param_group)
        except InputError:
            # torch has added the group before it could be checked
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        fill_missing_settings(
            state["param_groups"],
            self.__dict__.get("param_groups"),
            state.get("defaults", self.__dict__.get("defaults", {})),
        )
        super().__setstate__(state)
        self._has_unchecked_state = True


def evaluate_closure(optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
    """Evaluate a closure with gradients and return its loss; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    if loss is None:
        raise InputError(
            f"the closure given to {type(optimizer).__name__}.step returned None; return the loss"
            " from it"
        )
    return loss


def check_shared_settings(group: dict[str, Any]) -> None:
    """Raise :class:`~attsvm.InputError` for a value of ``normalize``, ``momentum``,
    ``dampening``, ``nesterov``, ``weight_decay``, ``foreach`` or ``fused`` that means nothing.
    """
    bounds: dict[str, tuple[Callable[[float], bool], str]] = {
        "momentum": (lambda number: 0 <= number < 1, "0 <= momentum < 1"),
        "dampening": (lambda number: 0 <= number <= 1, "0 <= dampening <= 1"),
        "weight_decay": (lambda number: 0 <= number < math.inf, "a number that is at least 0"),
    }
    for name, (holds, remedy) in bounds.items():
        check_number(group, name, holds, remedy)
    if not isinstance(group["normalize"], bool):
        raise InputError(
            f"normalize is {group['normalize']!r}; give True for steps of length lr in each matrix"
            " of the last two axes, or False"
        )
    if group["nesterov"] and not group["momentum"]:
        raise InputError("nesterov is True with momentum 0; give a momentum")
    if group["foreach"] and group["fused"]:
        raise InputError("foreach and fused are both True; choose one")


def check_number(
    group: dict[str, Any], name: str, holds: Callable[[float], bool], remedy: str
) -> None:
    """Raise :class:`~attsvm.InputError`, which says to give the ``remedy``, unless a
    hyper-parameter is a number for which the condition ``holds``.
    """
    value = group[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
        raise InputError(f"{name} is {value!r}; give {remedy}")


def check_lr(lr: Any) -> None:
    """Raise :class:`~attsvm.InputError` unless ``lr`` is a finite number that is at least 0,
    or a tensor of one.
    """
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InputError(
            f"lr is a tensor of shape {tuple(lr.shape)}; give a tensor with one element (step"
            " lengths per run: step_scale of attsvm.train)"
        )
    if (
        isinstance(lr, bool)
        or not isinstance(lr, (int, float, Tensor))
        or not 0 <= float(lr) < math.inf
    ):
        raise InputError(f"lr is {lr!r}; give a finite step length that is at least 0")


def average_gradients(
    group: dict[str, Any], gradients: TensorList, buffers: StateList
) -> TensorList:
    r"""Update the momentum and return the vectors that the step goes along, by the formulas of the
    module. The gradients are not written; without momentum they are what is returned.

    Args:
        group: ``momentum``, ``dampening`` and ``nesterov``.
        gradients: :math:`G_t`.
        buffers: :math:`M_{t-1}`, overwritten by :math:`M_t`; None without momentum.
    """
    momentum = group["momentum"]
    if momentum == 0:
        return gradients
    weight = 1 - group["dampening"]
    averages = [buffer for buffer in buffers if buffer is not None]
    if group["dampening"] == momentum:
        # a moving average, in one call: M + (1 - mu) (G - M)
        torch._foreach_lerp_(averages, gradients, weight)
        return (
            list(torch._foreach_lerp(gradients, averages, momentum))
            if group["nesterov"]
            else averages
        )
    # M = mu M + (1 - tau) G
    torch._foreach_mul_(averages, momentum)
    torch._foreach_add_(averages, gradients, alpha=weight)
    if not group["nesterov"]:
        return averages
    # mu M + (1 - tau) G with the new M
    if weight != 1:
        gradients = list(torch._foreach_mul(gradients, weight))
    return list(torch._foreach_add(gradients, averages, alpha=momentum))


def new_momentum(group: dict[str, Any], parameter: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Return the state of a parameter that has no momentum yet: zeros, or nothing without
    momentum.
    """
    if group["momentum"] == 0:
        return {}
    return {
        "momentum_buffer": torch.zeros_like(
            parameter, dtype=dtype, memory_format=torch.preserve_format
        )
    }


def is_known_zero(lr: float | Tensor) -> bool:
    """Return whether the host knows that a step of this length moves nothing; ``lr`` as from
    :func:`read_scalar`.
    """
    if isinstance(lr, Tensor):
        return False
    return lr == 0


def keep_where_zero(lr: float | Tensor, before: TensorList, after: TensorList) -> TensorList:
    """Return ``after``, but ``before`` where ``lr`` is a tensor of zero; ``lr`` as from
    :func:`read_scalar`.
    """
    if isinstance(lr, Tensor):
        return [
            torch.where(lr == 0, old, new.to(old.dtype))
            for old, new in zip(before, after, strict=True)
        ]
    return after


def read_scalar(group: dict[str, Any], name: str) -> float | Tensor:
    """Return a hyper-parameter as a number where the host may read it for free, otherwise as a 0-d
    tensor.
    """
    value: float | Tensor = group[name]
    if not isinstance(value, Tensor):
        return value
    # by itself: the compiler of torch 2.15 follows `if` here, and neither `or` nor `not`
    if torch.compiler.is_compiling():
        return value.reshape(())
    return float(value) if value.device.type == "cpu" else value.reshape(())


def add_scaled(targets: TensorList, directions: TensorList, factor: float | Tensor) -> None:
    """Add ``factor * direction`` to every target in place, in one multi-tensor call; ``factor`` as
    from :func:`read_scalar`. A factor that is a tensor of zero leaves every bit of the targets.
    """
    if isinstance(factor, Tensor):
        # on a device the factor is not read
        moves = torch._foreach_mul(directions, factor)
        # x + -0.0 is x, for -0.0 and NaN too
        torch._foreach_add_(targets, [torch.where(factor == 0, -0.0, move) for move in moves])
    else:
        torch._foreach_add_(targets, directions, alpha=factor)


def fill_missing_settings(
    groups: Sequence[dict[str, Any]],
    present: Sequence[dict[str, Any]] | None,
    defaults: dict[str, Any],
) -> None:
    """Give loaded groups the hyper-parameters that their checkpoint does not know: those of the
    ``present`` groups, or the defaults where there are none.
    """
    for index, group in enumerate(groups):
        settings = present[index] if present is not None and index < len(present) else {}
        for name, value in defaults.items():
            group.setdefault(name, settings.get(name, value))


def check_group_sizes(optimizer: Optimizer, label: str, groups: Sequence[dict[str, Any]]) -> None:
    """Raise :class:`~attsvm.InputError` unless saved groups are as many as those of an
    optimizer, and as large.
    """
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved = [len(group["params"]) for group in groups]
    if len(sizes) != len(saved):
        raise InputError(
            f"the checkpoint has a different number of parameter groups than {label},"
            f" {len(saved)} and not {len(sizes)}; build the optimizer with the groups that were"
            " saved, in their order"
        )
    if sizes != saved:
        raise InputError(
            f"the checkpoint has parameter groups of {saved} parameters, and {label} of {sizes};"
            " build the optimizer with the groups that were saved, in their order"
        )


def check_origin(
    optimizer: Optimizer, label: str, groups: Sequence[dict[str, Any]], state: dict[Any, Any]
) -> None:
    """Raise :class:`~attsvm.InputError` for groups or state of another kind of optimizer.

    Args:
        optimizer: the one that would load them, of this package or another.
        label: its name in the sentence.
        groups: its groups as a ``state_dict`` has them.
        state: the state of parameters by their numbers.
    """
    foreign_settings = _settings_of_kinds() - optimizer.defaults.keys()
    state_names = optimizer.state_names if isinstance(optimizer, DescentOptimizer) else None
    for group, live in zip(groups, optimizer.param_groups, strict=True):
        for index, parameter in zip(group["params"], live["params"], strict=True):
            if state_names is None:
                continue
            # tensors of state that this kind does not have
            entries = state.get(index, {})
            if strange := entries.keys() - set(state_names):
                raise InputError(
                    f"the checkpoint was not saved by {label}: it has the state"
                    f" {', '.join(sorted(strange))}, where there is {' and '.join(state_names)}"
                    f" here; {_REMEDY}"
                )
            check_state(parameter, entries, state_names, on_device=False)
        # hyper-parameters of another kind; those that were added to the live group are welcome
        if strange := group.keys() & foreign_settings - live.keys():
            raise InputError(
                f"the checkpoint was not saved by {label}: it has the settings"
                f" {', '.join(sorted(strange))}; {_REMEDY}"
            )


_REMEDY = (
    "load it into an optimizer of the kind that saved it (members in the same order), or begin"
    " without it"
)


# settings that many optimizers have, or that a scheduler writes into a group of any
_SHARED_SETTINGS = {
    "lr",
    "momentum",
    "weight_decay",
    "maximize",
    "foreach",
    "fused",
    "differentiable",
}


def _settings_of_kinds() -> set[str]:
    """Return the names of hyper-parameters that tell one kind of optimizer from others."""
    # the optimizers of torch, and those here
    kinds = [
        kind
        for kind in (*vars(torch.optim).values(), *DescentOptimizer.__subclasses__())
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    ]
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    return names - _SHARED_SETTINGS - {"params", "capturable", "d"}


def check_state(
    parameter: Tensor, state: dict[str, Any], names: Sequence[str], on_device: bool = True
) -> None:
    """Raise :class:`~attsvm.InputError` unless the state of these ``names`` has the shape and, with
    ``on_device``, the device of its parameter.
    """
    for name in names:
        value = state.get(name)
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} has a {name} that is"
                f" {type(value).__name__} and no tensor; load a checkpoint of this model, or build"
                " the optimizer anew"
            )
        if value.shape != parameter.shape or (on_device and value.device != parameter.device):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} on {parameter.device} has a {name}"
                f" of shape {tuple(value.shape)} on {value.device}; load a checkpoint of this"
                " model, or build the optimizer anew"
            )


def fused_obstacle(parameter: Tensor) -> str | None:
    """Return why the compiled step cannot move this parameter, or None where it can."""
    # a subclass, such as a DTensor, has its entries elsewhere
    if type(parameter) not in (Tensor, torch.nn.Parameter):
        return f"is a {type(parameter).__name__}"
    if not parameter.is_cpu:
        return f"is on {parameter.device}, and not on the CPU"
    if parameter.dtype not in (torch.float32, torch.float64):
        return f"is {parameter.dtype}, and neither float32 nor float64"
    if not parameter.is_contiguous():
        return f"is not contiguous (its strides are {parameter.stride()})"
    return None


def refuse_fused(parameter: Tensor, obstacle: str | None) -> None:
    """Raise :class:`~attsvm.InputError` where there is an obstacle to ``fused=True``."""
    if obstacle is not None:
        raise InputError(
            f"fused is True for a parameter of shape {tuple(parameter.shape)} that {obstacle};"
            " leave fused out"
        )
