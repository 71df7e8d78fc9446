"""Which methods of a model its class, or somebody else, has replaced, and whether an optimiser has
hooks: compiled passes and closed formulas compute what the methods of this package compute, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from torch import nn
from torch.optim import Optimizer

from attsvm.attention.decision_heads import LinearHead

METHODS = frozenset(
    {
        *("weights", "combined", "factors", "moved", "require", "sequences", "logits"),
        *("selection", "probabilities", "selected", "outputs", "forward", "loss", "scores"),
        *("add_penalty", "__call__", "__getattr__", "__getattribute__"),
    }
)
"""Methods that decide the outputs and gradients of a model."""
_ATTRIBUTES = frozenset(
    {
        *("W", "K", "Q", "KQ", "head", "objective", "penalty", "runs", "inputs", "similarity"),
    }
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def overridden(model: Any) -> frozenset[str]:
    """The names by which a model departs from :func:`form_of` its class: those that the class, or
    the model itself, overrides.
    """
    kind: Any = type(model)
    return _overridden_in_class(kind) | _replaced_on_instance(model, METHODS)


def form_of(kind: Any) -> Any:
    """The class of this package, ``Attention`` or ``FactoredAttention``, that says what the
    parameters of models of this class are.
    """
    return next(base for base in kind.__mro__ if base.__module__ == "attsvm.attention.attention")


def linear_head(model: Any) -> LinearHead | None:
    """The head of a model when it is linear, as it was made."""
    head = model.head
    is_plain = type(head) is LinearHead and not _replaced_on_instance(head, {"forward"})
    return head if is_plain else None


def hooked(optimizer: Optimizer) -> bool:
    """Whether a step or a gradient passes through functions of the caller."""
    steps: Any = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return any(steps) or any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


@cache
def _overridden_in_class(kind: Any) -> frozenset[str]:
    form = form_of(kind)
    return frozenset(
        name
        for name in METHODS | _ATTRIBUTES
        if getattr(kind, name, None) is not getattr(form, name, None)
    )


def _replaced_on_instance(module: nn.Module, methods: Collection[str]) -> set[str]:
    """Which of these methods were replaced on the module itself; hooks count as ``forward``."""
    names = vars(module).keys() & set(methods)
    return names | {"forward"} if any(getattr(module, hooks) for hooks in _HOOKS) else names
