"""Optimisers of many runs at once that treat every run by itself: known ones on the stacked
parameters, any other as one object per run; and those that have a name on the command line.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from attsvm.base.errors import InputError
from attsvm.base.nearest import did_you_mean
from attsvm.optim import MirrorDescent, SteepestDescent

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

_ENTRY_BY_ENTRY = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.RMSprop),
)
"""Optimisers of torch whose steps of an entry see the gradients of that entry alone."""


class Lion(Optimizer):
    r"""Signs of averaged gradients, :math:`W\leftarrow
    W-\eta\,(\mathrm{sign}(\beta_1M+(1-\beta_1)G)+\lambda W)`,
    :math:`M\leftarrow\beta_2M+(1-\beta_2)G`.

    Source: Chen et al., *Symbolic Discovery of Optimization Algorithms* (2302.06675).

    Example:
        >>> import torch
        >>> from attsvm.theory.optimiser_per_run import Lion
        >>> W = torch.zeros(2, requires_grad=True)
        >>> step = Lion([W], lr=0.5)
        >>> W.grad = torch.tensor([3.0, -0.1])
        >>> step.step()
        >>> W.tolist()
        [-0.5, 0.5]
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                update = average.lerp(parameter.grad, 1.0 - first).sign_()
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                parameter.sub_(update, alpha=group["lr"])
                average.lerp_(parameter.grad, 1.0 - second)


class OptimizerPerRun(Optimizer):
    """One optimiser for every run of stacked parameters ``(runs, ...)``.

    Each gets views of its run, which share memory with the stack, so that a step that is taken in
    place moves the stack. A schedule's factor of ``lr`` is passed on.

    Args:
        params: stacked parameters.
        make_optimizer: makes the optimiser of one run.
    """

    def __init__(self, params: Iterable[nn.Parameter], make_optimizer: MakeOptimizer) -> None:
        stacked = list(params)
        super().__init__(stacked, {"lr": 1.0})
        self._views = [
            [nn.Parameter(parameter.data[run]) for parameter in stacked]
            for run in range(len(stacked[0]))
        ]
        self._optimizers = [make_optimizer(views) for views in self._views]
        self._rates = [
            [group.get("lr") for group in optimizer.param_groups] for optimizer in self._optimizers
        ]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step of every run."""
        factor, stacked = self.param_groups[0]["lr"], self.param_groups[0]["params"]
        for run, optimizer in enumerate(self._optimizers):
            for parameter, view in zip(stacked, self._views[run], strict=True):
                view.grad = None if parameter.grad is None else parameter.grad[run]
            for group, rate in zip(optimizer.param_groups, self._rates[run], strict=True):
                if rate is not None:
                    group["lr"] = rate * factor
            optimizer.step()


def optimizer_of_runs(make_optimizer: MakeOptimizer, model: nn.Module) -> tuple[Optimizer, str]:
    """An optimiser of all runs of a model that treats each by itself, and the name of its class.

    Raises:
        InputError: something else than an optimiser is made.
    """
    stacked = list(model.parameters())
    trial = make_optimizer([nn.Parameter(parameter.data[0].clone()) for parameter in stacked])
    if not isinstance(trial, Optimizer):
        raise InputError(
            f"make_optimizer gives {type(trial).__name__}; it must give an optimiser of torch, such"
            " as torch.optim.Adam(parameters, lr=0.01)"
        )
    name = type(trial).__name__
    separable = (
        SteepestDescent,
        MirrorDescent,
        Lion,
    )  # they take leading axes as separate matrices
    if type(trial) in (*_ENTRY_BY_ENTRY, *separable):
        return make_optimizer(stacked), name
    return OptimizerPerRun(stacked, make_optimizer), name


def _steepest(**fixed: Any) -> Callable[..., Optimizer]:
    return lambda parameters, lr, **options: SteepestDescent(
        parameters, lr=lr, **{**fixed, **options}
    )


def _adam_without_constant(parameters: Any, lr: float, **options: Any) -> Optimizer:
    return torch.optim.Adam(parameters, lr=lr, eps=0.0, **options)


def _mirror_descent(p: float) -> Callable[..., Optimizer]:
    return lambda parameters, lr, **options: MirrorDescent(
        parameters, lr=lr, p=p, **{"normalize": True, **options}
    )


OPTIMISERS: dict[str, tuple[str, Callable[..., Optimizer]]] = {
    "gd": ("gradient descent", _steepest(normalize=False)),
    "ngd": ("normalised gradient descent", _steepest()),
    "momentum": (
        "momentum",
        lambda parameters, lr, **options: torch.optim.SGD(
            parameters, lr=lr, **{"momentum": 0.9, **options}
        ),
    ),
    "sign": ("sign descent", _steepest(norm="linf")),
    "muon": ("Muon", _steepest(norm="spectral", momentum=0.9)),
    "adam": ("Adam", torch.optim.Adam),
    "adam-eps0": ("Adam without its constant", _adam_without_constant),
    "adamw": ("AdamW", torch.optim.AdamW),
    "lion": ("Lion", Lion),
}
"""Optimisers by their names on the command line: a title, and what makes them from parameters, a
step size ``lr`` and further options. ``mirror:P`` is mirror descent of that exponent.
"""


def named_optimizer(name: str, lr: float, **options: Any) -> tuple[str, MakeOptimizer]:
    """Title and maker of an optimiser: a name of :data:`OPTIMISERS`, ``mirror:P``, or the import
    path ``package.module:Class`` of any other.

    Args:
        name: see above.
        lr: step size.
        options: further keyword arguments of the optimiser.

    Raises:
        InputError: an unknown name, a module or class that cannot be imported, or arguments that
            the class does not take.

    Example:
        >>> from attsvm.theory import named_optimizer
        >>> named_optimizer("torch.optim:Adagrad", lr=0.1)[0]
        'Adagrad'
    """
    family, colon, rest = name.partition(":")
    if name in OPTIMISERS:
        title, kind = OPTIMISERS[name]
    elif family == "mirror":
        title, kind = f"mirror descent, p = {rest}", _mirror_descent(_exponent(name, rest))
    elif colon and rest:
        title, kind = rest, _imported(family, rest)
    else:
        known = [*OPTIMISERS, "mirror:P"]
        raise InputError(
            f"there is no optimiser {name!r}; choose from: {', '.join(known)}, or give the import"
            f" path package.module:Class{did_you_mean(name, known)}"
        )

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        try:
            return kind(parameters, lr=lr, **options)
        except TypeError as error:
            raise InputError(
                f"optimiser {name} does not take these options ({error}); see its documentation"
            ) from error

    return title, make


def _exponent(name: str, text: str) -> float:
    try:
        p = float(text)
    except ValueError:
        p = math.nan
    if not p > 1.0:
        raise InputError(
            f"optimiser {name!r} needs an exponent above 1 after mirror:, such as mirror:1.5"
        )
    return p


def _imported(module: str, name: str) -> Callable[..., Optimizer]:
    """A class by its import path."""
    try:
        value = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"optimiser {module}:{name} cannot be imported ({error}); give package.module:Class of"
            " an installed package, or of a module in this folder"
        ) from error
    if not callable(value):
        raise InputError(f"{module}:{name} is no class; give one that makes an optimiser of torch")
    return value


__all__ = ["OPTIMISERS", "Lion", "MakeOptimizer", "named_optimizer", "optimizer_of_runs"]
