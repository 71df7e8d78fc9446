"""What of a model its class, or somebody else, has replaced: compiled passes and closed formulas
say what a model does where nothing is.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from torch import nn

from attsvm.attention.decision_heads import LinearHead

_HOME = "attsvm.attention.attention"
_STORED = {"W", "K", "Q", "KQ", "head", "objective", "penalty", "runs", "inputs", "similarity"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MADE_BY = {"cross", "prompt", "training", "parameterization"}


def overridden(model: Any) -> frozenset[str]:
    """The names by which a model departs from the form that it is of: those that its class, or the
    model itself, overrides.
    """
    kind: Any = type(model)
    mine, there = _own_names(kind), _altered(model, _names_of(form_of(kind)))
    return mine | there if there else mine


def form_of(kind: Any) -> Any:
    """The class that says what the parameters of models of this class are."""
    return next(each for each in kind.__mro__ if each.__module__ == _HOME)


def linear_head(model: Any) -> LinearHead | None:
    """The head of a model when it is linear, as it was made."""
    head = model.head
    return head if type(head) is LinearHead and not _altered(head, {"forward"}) else None


def _altered(module: nn.Module, methods: Collection[str]) -> set[str]:
    """Which of these methods were replaced on the module itself; hooks count as ``forward``."""
    found = set(vars(module)) & set(methods)
    return found | {"forward"} if any(getattr(module, each) for each in _HOOKS) else found


@cache
def _names_of(form: Any) -> frozenset[str]:
    """What decides the outputs of a model of this form."""
    above = [each for each in form.__mro__ if each.__module__ == _HOME]
    made = {name for each in above for name in vars(each) if not name.startswith("__")}
    return frozenset((made - _MADE_BY) | {"__call__", "__getattr__", "__getattribute__"})


@cache
def _own_names(kind: Any) -> frozenset[str]:
    form = form_of(kind)
    above = kind.__mro__[: kind.__mro__.index(form)]
    names = {name for each in above for name in vars(each)}
    return frozenset(names & (_names_of(form) | _STORED))
