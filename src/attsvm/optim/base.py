r"""What every optimiser of the house shares: one fixed ``step`` around a small direction of its
own, and the words that mean the same in all of them.

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

A step computes first what can fail, and writes then: a step that is refused, or whose
decomposition does not converge, changes nothing.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from attsvm.base.errors import InputError

TensorList = list[Tensor]
StateList = list[Tensor | None]
Write = Callable[[], None]


class KeepsPrecision(Optimizer):
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

        def remember(_: Optimizer, final: dict[str, Any]) -> None:
            self._check_checkpoint(final)
            saved.update(final)

        last = self.register_load_state_dict_pre_hook(remember)
        first = self.register_load_state_dict_post_hook(
            lambda _: self._restore_precision(saved), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _check_checkpoint(self, saved: dict[str, Any]) -> None:
        """Raise :class:`~attsvm.InputError` for what is no checkpoint of this optimizer."""
        name = type(self).__name__
        check_sizes(self, name, saved["param_groups"])
        check_origin(self, name, saved["param_groups"], saved["state"])

    def _restore_precision(self, saved: dict[str, Any]) -> None:
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(indices, parameters, strict=True):
            for name, value in saved["state"].get(index, {}).items():
                mine = self.state[parameter][name]
                if isinstance(value, Tensor) and mine.dtype != value.dtype:
                    self.state[parameter][name] = value.detach().to(device=mine.device, copy=True)


class DescentOptimizer(KeepsPrecision):
    """A ``torch.optim.Optimizer`` whose subclasses only say how a list of parameters moves.

    A subclass names its state in ``state_names``, fills it in :meth:`_new_state`, checks its
    hyper-parameters in :meth:`_check_group` and says in :meth:`_prepared` how parameters move.
    Everything else is here: the closure, parameters without a gradient, refusals, groups,
    checkpoints that keep the precision of the state, pickling.

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
    """The tensors that are kept per parameter, in the order in which :meth:`_prepared` receives
    them.
    """

    between: Write | None = None
    """Called in a step after all has been computed that can fail, and before anything is
    written; by a compiled step at its end.
    """

    _state_is_foreign = False  # a checkpoint's, and not looked at since
    _born: list[tuple[Tensor, dict[str, Any]]] | None = None  # state that the step will keep

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, nn.Module):
            raise InputError(
                f"{type(self).__name__} got the module {type(params).__name__}; give its"
                " parameters(), or those that split_params finds in it"
            )
        if not isinstance(params, Tensor):  # which torch refuses in its own words
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

    def _new_state(
        self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]
    ) -> dict[str, Any]:
        """The state that this parameter lacks now, given what is ``known``; empty where nothing has
        to be added.
        """
        return {}

    def _prepared(
        self,
        group: dict[str, Any],
        parameters: TensorList,
        gradients: TensorList,
        *states: StateList,
    ) -> Write:
        """Compute what can fail, given the gradients and one list per name in ``state_names``
        (None where there is none); the function that moves ``parameters`` and state in place.
        """
        raise NotImplementedError

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
            InputError: the closure returned None, a gradient that this optimiser cannot use, or a
                decomposition that did not converge. Nothing has been changed then.
        """
        loss = evaluated(self, closure)
        if torch.compiler.is_compiling():
            for write in self._computed():
                write()
            if self.between is not None:  # where only the members of a combination are compiled
                self.between()
            return loss
        self.check_step()
        self._born = []
        try:
            writes = self._computed()
            if self.between is not None:
                self.between()
            for parameter, added in self._born:
                self.state[parameter].update(added)
            for write in writes:
                write()
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise InputError(
                f"{type(self).__name__} could not decompose a gradient or its state ({error});"
                " nothing was moved: skip this step, or lower lr"
            ) from error
        finally:
            self._born = None
        return loss

    def check_step(self, loss: Any = None) -> None:
        """Raise :class:`~attsvm.InputError` for what the next step would refuse; nothing is
        changed.

        Args:
            loss: the loss of that step, for those who read it.
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

    def _computed(self) -> list[Write]:
        writes = []
        for index, group in enumerate(self.param_groups):
            parameters: TensorList = []
            gradients: TensorList = []
            states: tuple[StateList, ...] = tuple([] for _ in self.state_names)
            self._init_group(index, parameters, gradients, *states)
            if parameters:
                writes.append(self._prepared(group, parameters, gradients, *states))
        return writes

    def _init_group(
        self,
        index: int,
        parameters: TensorList,
        gradients: TensorList,
        *states: StateList,
    ) -> None:
        """Gather what of a group takes part in this step. ``torch.compile`` runs the method of this
        name outside its graph; a group that it met in the joined list of a combination it would
        hand over by its place there, so the place in this optimizer is said.
        """
        group = self.param_groups[index]
        if self._born is None:
            self._check_gradients(group)
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            known = self.state.get(parameter, {})
            added = self._new_state(group, parameter, known)
            if added and self._born is None:
                self.state[parameter].update(added)
            elif added:
                self._born.append((parameter, added))  # type: ignore[union-attr]
            parameters.append(parameter)
            gradients.append(gradient)
            for name, column in zip(self.state_names, states, strict=True):
                column.append(added.get(name, known.get(name)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own, checked like the constructor's."""
        add = Optimizer.add_param_group
        if "torch._dynamo" not in sys.modules:  # what keeps it out of a graph imports it: a second
            add = inspect.unwrap(add)
        add(self, param_group)
        try:
            check_lr(param_group["lr"])
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
        complete(
            state["param_groups"],
            self.__dict__.get("param_groups"),
            state.get("defaults", self.__dict__.get("defaults", {})),
        )
        super().__setstate__(state)
        self._state_is_foreign = True


def evaluated(optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
    """The loss of a closure, evaluated with gradients; None without one."""
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


def check_shared(group: dict[str, Any]) -> None:
    """Raise :class:`~attsvm.InputError` for a value of ``normalize``, ``momentum``,
    ``dampening``, ``nesterov``, ``weight_decay``, ``foreach`` or ``fused`` that means nothing.
    """
    bounds: dict[str, tuple[Callable[[float], bool], str]] = {
        "momentum": (lambda number: 0 <= number < 1, "0 <= momentum < 1"),
        "dampening": (lambda number: 0 <= number <= 1, "0 <= dampening <= 1"),
        "weight_decay": (lambda number: 0 <= number < math.inf, "a number that is at least 0"),
    }
    for name, (holds, wanted) in bounds.items():
        check_number(group, name, holds, wanted)
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
    group: dict[str, Any], name: str, holds: Callable[[float], bool], wanted: str
) -> None:
    """Raise :class:`~attsvm.InputError` unless a hyper-parameter is a number for which a
    condition ``holds``.
    """
    value = group[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
        raise InputError(f"{name} is {value!r}; give {wanted}")


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


def averaged(group: dict[str, Any], gradients: TensorList, buffers: StateList) -> TensorList:
    """What the step goes along, see the module; ``buffers`` are written, the gradients are not."""
    momentum = group["momentum"]
    if momentum == 0:
        return gradients
    weight = 1 - group["dampening"]
    averages = [buffer for buffer in buffers if buffer is not None]
    if group["dampening"] == momentum:
        torch._foreach_lerp_(averages, gradients, weight)
        return (
            list(torch._foreach_lerp(gradients, averages, momentum))
            if group["nesterov"]
            else averages
        )
    torch._foreach_mul_(averages, momentum)
    torch._foreach_add_(averages, gradients, alpha=weight)
    if not group["nesterov"]:
        return averages
    if weight != 1:
        gradients = list(torch._foreach_mul(gradients, weight))
    return list(torch._foreach_add(gradients, averages, alpha=momentum))


def momentum_buffer(group: dict[str, Any], parameter: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """The state of a parameter that has no momentum yet."""
    if group["momentum"] == 0:
        return {}
    return {
        "momentum_buffer": torch.zeros_like(
            parameter, dtype=dtype, memory_format=torch.preserve_format
        )
    }


def stands(lr: float | Tensor) -> bool:
    """Whether the host knows that a step of this length moves nothing; ``lr`` as from
    :func:`scalar`.
    """
    if isinstance(lr, Tensor):
        return False
    return lr == 0


def held(lr: float | Tensor, before: TensorList, after: TensorList) -> TensorList:
    """``after``, and ``before`` where ``lr`` is a tensor of zero; ``lr`` as from :func:`scalar`."""
    if isinstance(lr, Tensor):
        return [
            torch.where(lr == 0, old, new.to(old.dtype))
            for old, new in zip(before, after, strict=True)
        ]
    return after


def scalar(group: dict[str, Any], name: str) -> float | Tensor:
    """A hyper-parameter as a number where the host may read it for free, otherwise as a 0-d
    tensor.
    """
    value: float | Tensor = group[name]
    if not isinstance(value, Tensor):
        return value
    # asked by itself: the compiler of torch 2.15 follows `if` here, and neither `or` nor `not`
    if torch.compiler.is_compiling():
        return value.reshape(())
    return float(value) if value.device.type == "cpu" else value.reshape(())


def add_scaled(targets: TensorList, directions: TensorList, factor: float | Tensor) -> None:
    """``target += factor * direction`` for every pair, in one multi-tensor call; ``factor`` as from
    :func:`scalar`. A factor that is a tensor of zero leaves every bit of the targets.
    """
    if isinstance(factor, Tensor):
        moves = torch._foreach_mul(directions, factor)
        # x + -0.0 is x, for -0.0 and NaN too
        torch._foreach_add_(targets, [torch.where(factor == 0, -0.0, move) for move in moves])
    else:
        torch._foreach_add_(targets, directions, alpha=factor)


def complete(
    groups: Sequence[dict[str, Any]],
    present: Sequence[dict[str, Any]] | None,
    defaults: dict[str, Any],
) -> None:
    """Give loaded groups the hyper-parameters that their checkpoint does not know: those of the
    ``present`` groups, or the defaults where there are none.
    """
    for index, group in enumerate(groups):
        here = present[index] if present is not None and index < len(present) else {}
        for name, value in defaults.items():
            group.setdefault(name, here.get(name, value))


def check_sizes(optimizer: Optimizer, label: str, groups: Sequence[dict[str, Any]]) -> None:
    """Raise :class:`~attsvm.InputError` unless saved groups are as many as those of an
    optimizer, and as large.
    """
    sizes, saved = (
        [len(group["params"]) for group in either] for either in (optimizer.param_groups, groups)
    )
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
        optimizer: who would load them, of this package or another.
        label: what it is called in the sentence.
        groups: its groups as a ``state_dict`` has them.
        state: the state of parameters by their numbers.
    """
    elsewhere = _settings_elsewhere() - optimizer.defaults.keys()
    ours = optimizer.state_names if isinstance(optimizer, DescentOptimizer) else None
    for group, live in zip(groups, optimizer.param_groups, strict=True):
        for index, parameter in zip(group["params"], live["params"], strict=True):
            if ours is None:
                continue
            entries = state.get(index, {})
            if strange := entries.keys() - set(ours):
                raise InputError(
                    f"the checkpoint was not saved by {label}: it has the state"
                    f" {', '.join(sorted(strange))}, where there is {' and '.join(ours)} here;"
                    f" {_REMEDY}"
                )
            check_state(parameter, entries, ours, placed=False)
        if strange := group.keys() & elsewhere - live.keys():
            raise InputError(
                f"the checkpoint was not saved by {label}: it has the settings"
                f" {', '.join(sorted(strange))}; {_REMEDY}"
            )


_REMEDY = (
    "load it into an optimizer of the kind that saved it (members in the same order), or begin"
    " without it"
)


# what many optimizers have, or a scheduler writes into a group of any
_SHARED = {"lr", "momentum", "weight_decay", "maximize", "foreach", "fused", "differentiable"}


def _settings_elsewhere() -> set[str]:
    """Names of hyper-parameters by which the groups of an optimizer are known."""
    kinds = [
        kind
        for kind in (*vars(torch.optim).values(), *DescentOptimizer.__subclasses__())
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    ]
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    return names - _SHARED - {"params", "capturable", "d"}


def check_state(
    parameter: Tensor, known: dict[str, Any], names: Sequence[str], placed: bool = True
) -> None:
    """Raise :class:`~attsvm.InputError` unless the state of these ``names`` has the shape
    and, where it is ``placed``, the device of its parameter.
    """
    for name in names:
        kept = known.get(name)
        if kept is None:
            continue
        if not isinstance(kept, Tensor):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} has a {name} that is"
                f" {type(kept).__name__} and no tensor; load a checkpoint of this model, or build"
                " the optimizer anew"
            )
        if kept.shape != parameter.shape or (placed and kept.device != parameter.device):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} on {parameter.device} has a {name}"
                f" of shape {tuple(kept.shape)} on {kept.device}; load a checkpoint of this model,"
                " or build the optimizer anew"
            )


def fused_obstacle(parameter: Tensor) -> str | None:
    """Why the compiled step cannot move this parameter, or None."""
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
