"""Several optimisers as one: attention by its own geometry, the rest by AdamW, one object for the
training loop.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from attsvm.base.errors import InputError
from attsvm.optim.base import (
    DescentOptimizer,
    PreciseStateOptimizer,
    check_group_sizes,
    check_origin,
    evaluate_closure,
    fill_missing_settings,
)


class CombinedOptimizer(PreciseStateOptimizer):
    """Optimisers of disjoint parameters as one ``torch.optim.Optimizer``.

    ``param_groups`` is the joined list of the members' own groups, not a copy: a scheduler, or the
    ``Trainer`` of Hugging Face, acts on all of them, and whatever changes in a member is seen here.
    ``state_dict`` has torch's usual layout, as if one optimiser owned all groups, so checkpoints
    work as usual, distributed ones included; loading hands every member its groups. Hooks of a step
    may be a member's own; hooks of state dicts belong to the combination. A member may be a
    combination itself.

    Under a ``GradScaler`` all gradients are unscaled and checked together: one overflow skips the
    step of every member.

    A scheduler that cycles momentum (``OneCycleLR``, ``CyclicLR``) writes ``momentum`` into every
    group; members with ``betas``, such as AdamW, take it for their first one at the next step.
    Where a member has neither, give the scheduler ``cycle_momentum=False``.

    Args:
        optimizers: the members, in the order of their groups.

    Raises:
        InputError: no members, something that is not a ``torch.optim.Optimizer``, a parameter that
            two members would move, ``LBFGS``, whose step evaluates the model itself; a checkpoint
            of other members, or of members in another order; an ``add_param_group``, which does not
            say who gets the parameters.

    Example:
        >>> import torch
        >>> from attsvm.optim import CombinedOptimizer, SteepestDescent, split_params
        >>> network = torch.nn.MultiheadAttention(8, num_heads=2)
        >>> split = split_params(network)
        >>> spectral = SteepestDescent(split.attention, lr=0.02, norm="spectral")
        >>> both = CombinedOptimizer([spectral, torch.optim.AdamW(split.rest, lr=1e-3)])
        >>> schedule = torch.optim.lr_scheduler.ExponentialLR(both, gamma=0.5)
        >>> network(*torch.randn(3, 4, 1, 8))[0].sum().backward()
        >>> both.step()
        >>> schedule.step()
        >>> [group["lr"] for group in both.param_groups]
        [0.01, 0.0005]
    """

    optimizers: tuple[Optimizer, ...] = ()

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        members = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
        for member in members:
            if not isinstance(member, Optimizer):
                raise InputError(
                    f"a member of CombinedOptimizer is a {type(member).__name__}; give"
                    " torch.optim.Optimizer objects"
                )
            if isinstance(member, torch.optim.LBFGS):
                raise InputError(
                    "a member of CombinedOptimizer is LBFGS, whose step evaluates the model as"
                    " often as it needs; step it by itself"
                )
        if not members:
            raise InputError("CombinedOptimizer got no optimisers; give at least one")
        _owner_by_parameter(members)
        # sets up hooks; the groups are the members'
        super().__init__([{"params": []}], {})
        self.optimizers = members
        # schedulers see by it whether there is a momentum to cycle
        if all({"momentum", "betas"} & member.defaults.keys() for member in members):
            self.defaults = {"momentum": 0.0}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The members' groups, joined."""
        return [group for member in self.optimizers for group in member.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        # torch's constructor sets an empty list before there are members
        if not self.optimizers:
            return
        counts = [len(member.param_groups) for member in self.optimizers]
        if len(groups) != sum(counts):
            raise InputError(
                f"{len(groups)} parameter groups for members that have {counts}; give as many"
                " groups, in the same order"
            )
        for member, member_groups in self._groups_by_member(groups):
            member.param_groups = member_groups

    @property  # type: ignore[override]
    def state(self) -> MutableMapping[Tensor, Any]:
        """The members' states, joined."""
        return _JoinedState(self.optimizers)

    @state.setter
    def state(self, state: MutableMapping[Tensor, Any]) -> None:
        joined = _JoinedState(self.optimizers)
        for parameter, value in state.items():
            joined[parameter] = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after construction: add the group to the member that should move it, and it
        appears here.
        """
        if self.optimizers:
            raise InputError(
                "CombinedOptimizer cannot tell which member gets a new parameter group; call"
                " add_param_group of that member instead"
            )

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
        """Evaluate the closure once, then step every member.

        Args:
            closure: evaluates the model anew, with gradients, and returns the loss.
            before_writing: see :meth:`attsvm.optim.base.DescentOptimizer.step`.

        Raises:
            InputError: the closure returned None, or a gradient that a member of this package
                cannot use. Nothing has been changed then.
        """
        loss = evaluate_closure(self, closure)
        for member in self.optimizers:
            if "momentum" not in member.defaults:
                _take_momentum(member)
        # a graph has no failures to wait for
        if torch.compiler.is_compiling():
            _step_together((), self.optimizers, before_writing)
            return loss
        self.check_step()
        ours = [member for member in self.optimizers if isinstance(member, _OURS)]
        # combinations last: what their other members write is not taken back
        ours.sort(key=lambda member: isinstance(member, CombinedOptimizer))
        others = [member for member in self.optimizers if not isinstance(member, _OURS)]
        _step_together(ours, others, before_writing)
        return loss

    def check_step(self) -> None:
        """See :meth:`attsvm.optim.base.DescentOptimizer.check_step`."""
        for member in self.optimizers:
            if isinstance(member, _OURS):
                member.check_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of every member's parameters."""
        for member in self.optimizers:
            member.zero_grad(set_to_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # a copy or a pickle has the members themselves, a checkpoint their groups and state
        if "param_groups" not in state:
            return super().__setstate__(state)
        for member, groups in self._groups_by_member(state["param_groups"]):
            # a combination goes through its own members
            if not isinstance(member, CombinedOptimizer):
                fill_missing_settings(groups, member.param_groups, member.defaults)
            parameters = {parameter for group in groups for parameter in group["params"]}
            member_state = {
                parameter: entries
                for parameter, entries in state["state"].items()
                if parameter in parameters
            }
            member.__setstate__({"state": defaultdict(dict, member_state), "param_groups": groups})
        return None

    def _check_checkpoint(self, saved: dict[str, Any]) -> None:
        check_group_sizes(self, type(self).__name__, saved["param_groups"])
        self._check_members(saved, type(self).__name__)

    def _check_members(self, saved: dict[str, Any], label: str) -> None:
        """Raise for groups and state of which a member, in this order, has not been saved."""
        members = enumerate(self._groups_by_member(saved["param_groups"]))
        for position, (member, groups) in members:
            name = f"{type(member).__name__} (member {position} of {label})"
            if isinstance(member, CombinedOptimizer):
                member._check_members(saved | {"param_groups": groups}, name)
            else:
                check_origin(member, name, groups, saved["state"])

    def _groups_by_member(
        self, groups: list[dict[str, Any]]
    ) -> Iterator[tuple[Optimizer, list[dict[str, Any]]]]:
        """Yield every member and its groups, of the joined list ``groups``."""
        for member in self.optimizers:
            count = len(member.param_groups)
            yield member, groups[:count]
            groups = groups[count:]

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizers": self.optimizers}

    def __repr__(self) -> str:
        """The members, a line for each group, with the settings that are not their defaults."""
        lines = []
        for member in self.optimizers:
            if isinstance(member, CombinedOptimizer):
                lines += repr(member).splitlines()
            else:
                lines += [_describe_group(member, group) for group in member.param_groups]
        return "\n".join([f"{type(self).__name__} (", *(f"    {line}" for line in lines), ")"])


def _describe_group(optimizer: Optimizer, group: dict[str, Any]) -> str:
    """A line with the optimiser, its rate, and the settings that its class does not begin with."""
    arguments = inspect.signature(type(optimizer)).parameters
    settings = [
        f"{name} {group[name]}"
        for name in arguments
        if name in group
        and name != "params"
        and (name == "lr" or group[name] != arguments[name].default)
    ]
    count = len(group["params"])
    tensors = f"{count} tensor{'' if count == 1 else 's'}"
    return f"{type(optimizer).__name__}, {tensors}: {', '.join(settings)}"


_OURS = DescentOptimizer, CombinedOptimizer


def _step_together(
    ours: Sequence[DescentOptimizer | CombinedOptimizer],
    others: Sequence[Optimizer],
    before_writing: Callable[[], None] | None,
) -> None:
    """Step so that every optimizer of this package computes before any of them writes: whichever
    fails, those of this package have changed nothing.

    1. The first of ``ours`` computes.
    2. Before it writes, the rest of ``ours`` step in the same way.
    3. In the innermost of these steps, ``others`` step, and ``before_writing`` is called.
    4. All of ``ours`` write, the last one first.
    """
    if torch.compiler.is_compiling():
        # in a graph, maybe that of the optimizer before, one steps after the other
        _step_in_turn([*ours, *others])
    elif ours:
        # 1, 2 and 4
        first, *rest = ours
        first.step(before_writing=partial(_step_together, rest, others, before_writing))
        return
    else:
        # 3
        for other in others:
            other.step()
    if before_writing is not None:
        before_writing()


def _step_in_turn(members: Sequence[Optimizer]) -> None:
    """Step optimizers one after the other. No loop: the compiler gives up one in which a graph
    ends, as it does in the steps of torch's own optimisers.
    """
    if members:
        members[0].step()
        _step_in_turn(members[1:])


class _JoinedState(MutableMapping[Tensor, Any]):
    """The members' states as one mapping; an entry is in the state of the member that owns the
    parameter.
    """

    def __init__(self, members: Sequence[Optimizer]) -> None:
        self._members = members

    def _owner(self, parameter: Tensor) -> Optimizer:
        # sharding a model replaces parameters in groups: what has state may be in no group
        for member in self._members:
            if parameter in member.state:
                return member
        return _owner_by_parameter(self._members)[parameter]

    def __getitem__(self, parameter: Tensor) -> Any:
        return self._owner(parameter).state[parameter]

    def __setitem__(self, parameter: Tensor, value: Any) -> None:
        self._owner(parameter).state[parameter] = value

    def __delitem__(self, parameter: Tensor) -> None:
        del self._owner(parameter).state[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in member.state for member in self._members)

    def __iter__(self) -> Iterator[Tensor]:
        for member in self._members:
            yield from member.state

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)


def _take_momentum(member: Optimizer) -> None:
    """Turn the momentum that a scheduler has written into the first beta of groups with betas."""
    for group in member.param_groups:
        if "betas" in group and "momentum" in group:
            group["betas"] = (group.pop("momentum"), *group["betas"][1:])


def _owner_by_parameter(members: Sequence[Optimizer]) -> dict[Tensor, Optimizer]:
    """Return the member that moves each parameter.

    Raises:
        InputError: two members would move the same one.
    """
    owner: dict[Tensor, Optimizer] = {}
    for member in members:
        for group in member.param_groups:
            for parameter in group["params"]:
                if owner.setdefault(parameter, member) is not member:
                    raise InputError(
                        f"a parameter of shape {tuple(parameter.shape)} is in two optimisers,"
                        f" {type(owner[parameter]).__name__} and {type(member).__name__}; give each"
                        " parameter to one (attsvm.optim.split_params does)"
                    )
    return owner
