"""A step that is refused, or fails on the way, changes nothing, and the next one is as if it had
never been.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.base.errors import InputError
from attsvm.norms import Lp, Nuclear, Schatten, Spectral
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.optim.polyak import PolyakDescent

Make = Callable[[list[nn.Parameter]], Optimizer]


def groups(parameters: list[nn.Parameter], **second: Any) -> list[dict[str, Any]]:
    """The settings under test are those of the second group: the first has moved by then."""
    return [{"params": parameters[:2]}, {"params": parameters[2:], **second}]


def mirror(form: dict[str, Any], **second: Any) -> Make:
    return lambda parameters: MirrorDescent(
        groups(parameters, **second), lr=0.05, p=1.75, momentum=0.5, **form
    )


def steepest(**second: Any) -> Make:
    return lambda parameters: SteepestDescent(groups(parameters, **second), lr=0.05, momentum=0.5)


def combined(first: type, **second: Any) -> Make:
    return lambda parameters: CombinedOptimizer(
        [
            torch.optim.AdamW(parameters[:1]),
            first(parameters[1:2], lr=0.05),
            first(parameters[2:], lr=0.05, **second),
        ]
    )


FORMS: list[dict[str, Any]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]
SCHATTEN: dict[str, Any] = {"potential": "schatten", "fused": False}
EVERY: dict[str, Make] = {
    **{f"mirror {form}": mirror(form, p=3.0) for form in FORMS},
    "mirror normalised": mirror({}, normalize=True),
    "mirror schatten": mirror({}, **SCHATTEN),
    "steepest": steepest(),
    "steepest unfused": steepest(fused=False, norm=Lp(3)),
    "steepest one by one": steepest(foreach=False, norm=Lp(3)),
    "polyak": lambda parameters: PolyakDescent(parameters, lr=0.05),
    "steepest spectral": steepest(norm=Spectral()),
    "steepest schatten": steepest(norm=Schatten(3)),
    "combined mirror": combined(MirrorDescent, p=3.0),
    "combined schatten": combined(MirrorDescent, **SCHATTEN),
    "combined steepest": combined(SteepestDescent, norm=Nuclear()),
}
DECOMPOSING = [
    "mirror schatten",
    "steepest spectral",
    "steepest schatten",
    "combined schatten",
    "combined steepest",
]


def start() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(5, 4, generator=generator).double()) for _ in range(4)]


def feed(parameters: list[nn.Parameter], step: int) -> None:
    for index, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(100 * step + index)
        parameter.grad = torch.randn(5, 4, generator=generator).double()


def step(optimizer: Optimizer) -> None:
    optimizer.step(lambda: 0.5)


def everything(optimizer: Optimizer, parameters: list[nn.Parameter]) -> Any:
    state = copy.deepcopy(
        [dict(optimizer.state[p]) if p in optimizer.state else None for p in parameters]
    )
    settings = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    return [p.detach().clone() for p in parameters], state, copy.deepcopy(settings)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def refuse(
    make: Make,
    before: int,
    spoil: Callable[[Optimizer, list[nn.Parameter]], Any],
    error: Any,
    sentence: str | None = None,
) -> None:
    """Steps, a refused one, and clean ones: nothing moves, and a twin that never saw it ends
    alike.
    """
    parameters, others = start(), start()
    optimizer, twin = make(parameters), make(others)
    for number in range(before):
        for one, tensors in ((optimizer, parameters), (twin, others)):
            feed(tensors, number)
            step(one)
    known = everything(optimizer, parameters)
    feed(parameters, 50)
    attempt = spoil(optimizer, parameters)
    with pytest.raises(error, match=sentence) as caught:
        (attempt or step)(optimizer)
    if error is InputError:
        assert "\n" not in str(caught.value)
    assert_same(everything(optimizer, parameters), known)
    for number in range(before, before + 2):
        for one, tensors in ((optimizer, parameters), (twin, others)):
            feed(tensors, number)
            step(one)
    assert_same(everything(optimizer, parameters), everything(twin, others))


def longer(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    parameters[-1].grad.data = torch.zeros(50, 40, dtype=torch.float64)


def sparse(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    parameters[-1].grad = parameters[-1].grad.to_sparse()


def silent(*_: Any) -> Any:
    return lambda one: one.step(lambda: None)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("spoil", [longer, sparse, silent])
@pytest.mark.parametrize("before", [0, 2])
def test_a_gradient_that_does_not_fit_or_a_closure_without_a_loss(
    name: str, before: int, spoil: Any
) -> None:
    refuse(EVERY[name], before, spoil, InputError)


@pytest.mark.parametrize("name", EVERY)
def test_a_closure_that_raises(name: str) -> None:
    def closure() -> float:
        raise KeyError("batch")

    refuse(EVERY[name], 2, lambda *_: lambda one: one.step(closure), KeyError)


@pytest.mark.parametrize("name", DECOMPOSING)
@pytest.mark.parametrize("before", [0, 2])
def test_a_decomposition_that_fails(
    name: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first, the second, and so on up to the last that a step takes."""
    svd, remaining = torch.linalg.svd, 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            raise torch.linalg.LinAlgError("linalg.svd: did not converge")
        return svd(*arguments, **options)

    def attempt(one: Optimizer) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(torch.linalg, "svd", failing)
            step(one)

    parameters = start()
    optimizer = EVERY[name](parameters)
    for number in range(before):
        feed(parameters, number)
        step(optimizer)
    feed(parameters, 50)
    attempt(optimizer)
    decompositions = -remaining
    assert decompositions >= 1
    for number in range(1, decompositions + 1):
        remaining = number
        refuse(EVERY[name], before, lambda *_: attempt, InputError)


def test_another_optimizer_that_fails_after_ours() -> None:
    def make(parameters: list[nn.Parameter]) -> Optimizer:
        return CombinedOptimizer(
            [
                MirrorDescent(parameters[1:2], lr=0.05, p=3.0),
                MirrorDescent(parameters[2:], lr=0.05, potential="schatten"),
                torch.optim.Adam(parameters[:1]),
            ]
        )

    def spoil(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        parameters[0].grad = parameters[0].grad.to_sparse()

    refuse(make, 2, spoil, RuntimeError)


def test_settings_that_only_the_step_can_refuse() -> None:
    refuse(EVERY["polyak"], 2, lambda *_: lambda one: one.step(), InputError)
    refuse(EVERY["polyak"], 2, lambda *_: lambda one: one.step(lambda: torch.ones(3)), InputError)


def of_another_model(saved: dict[str, Any]) -> None:
    saved["state"][3]["momentum_buffer"] = torch.zeros(2, 2, dtype=torch.float64)


def a_number(saved: dict[str, Any]) -> None:
    saved["state"][3]["momentum_buffer"] = 1.0


def with_state_of_adam(saved: dict[str, Any]) -> None:
    saved["state"][3]["exp_avg"] = torch.zeros(5, 4, dtype=torch.float64)


def with_settings_of_adam(saved: dict[str, Any]) -> None:
    saved["param_groups"][1]["betas"] = (0.9, 0.99)


def fewer_groups(saved: dict[str, Any]) -> None:
    saved["param_groups"].pop()


def fewer_parameters(saved: dict[str, Any]) -> None:
    saved["param_groups"][1]["params"].pop()


CHECKPOINTS: dict[Callable[[dict[str, Any]], None], str] = {
    of_another_model: r"a momentum_buffer of shape \(2, 2\).*load a checkpoint of this model",
    a_number: "has a momentum_buffer that is float and no tensor",
    with_state_of_adam: "it has the state exp_avg, where there is .*momentum_buffer here; load it",
    with_settings_of_adam: "it has the settings betas; load it into an optimizer of the kind that",
    fewer_groups: "a different number of parameter groups than .*, 1 and not 2; build the",
    fewer_parameters: r"has parameter groups of \[2, 1\] parameters, and .* of \[2, 2\]; build the",
}


TWO_GROUPS = [name for name in EVERY if name != "polyak" and not name.startswith("combined")]


@pytest.mark.parametrize("name", TWO_GROUPS)
@pytest.mark.parametrize("change", CHECKPOINTS, ids=lambda change: change.__name__)
def test_a_checkpoint_of_something_else(name: str, change: Any) -> None:
    def spoil(optimizer: Optimizer, parameters: list[nn.Parameter]) -> Any:
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"].setdefault(3, {})  # without momentum there is none
        saved["param_groups"][0]["lr"] = 7.0
        change(saved)
        return lambda one: one.load_state_dict(saved)

    refuse(EVERY[name], 2, spoil, InputError, CHECKPOINTS[change])


@pytest.mark.parametrize("name", ["mirror {'fused': True}", "mirror schatten", "steepest"])
def test_state_that_somebody_replaced_after_a_load(name: str) -> None:
    def spoil(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.state[parameters[0]]["momentum_buffer"] = torch.zeros(2, 2).double()

    parameters = start()
    optimizer = EVERY[name](parameters)
    feed(parameters, 0)
    step(optimizer)
    spoil(optimizer, parameters)
    before = [p.detach().clone() for p in parameters]
    with pytest.raises(InputError, match="load a checkpoint of this model"):
        optimizer.step()
    assert_same([p.detach() for p in parameters], before)
