"""Every promise of ``docs/optimisers.md`` for every optimiser alone and in every composition, held
against its leaves stepped one after the other, parameter by parameter.

A new optimiser joins by one line in ``LEAVES``, a new composition by one in ``FORMS``.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from parameters import normal_values
from torch import nn
from torch.optim import Optimizer

from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent

Make = Callable[[list[nn.Parameter]], Optimizer]


def adamw(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def sgd(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def spectral(parameters: list[nn.Parameter]) -> Optimizer:
    return SteepestDescent(parameters, lr=0.1, norm="spectral", momentum=0.9, nesterov=True)


def mirror(parameters: list[nn.Parameter]) -> Optimizer:
    return MirrorDescent(parameters, lr=0.1, p=1.5)


LEAVES: dict[str, Make] = {
    "spectral": spectral,
    "rates of AdamW": lambda p: SteepestDescent(
        p, lr=0.1, norm="spectral", adjust_lr_fn="match_rms_adamw", flatten=True
    ),
    "normalised": lambda p: SteepestDescent(p, lr=0.1, weight_decay=0.1),
    "lp, momentum": lambda p: SteepestDescent(p, lr=0.1, norm="lp:3", momentum=0.9, dampening=0.5),
    "mirror": mirror,
    "mirror, momentum": lambda p: MirrorDescent(p, lr=0.1, p=3.0, momentum=0.9, normalize=True),
    "schatten": lambda p: MirrorDescent(p, lr=0.1, p=1.5, potential="schatten", weight_decay=0.1),
    "AdamW": adamw,
    "SGD": sgd,
}
FORMS: dict[str, Callable[[Make], Any]] = {
    "alone": lambda leaf: leaf,
    "one member": lambda leaf: [leaf],
    "before AdamW": lambda leaf: [leaf, adamw],
    "after SGD": lambda leaf: [sgd, leaf],
    "beside ours": lambda leaf: [leaf, spectral, mirror],
    "nested": lambda leaf: [adamw, [leaf, [mirror]], sgd],
}
"""A list is a combination of its entries; a leaf takes the next two parameters."""

SHAPES = (((4, 3), torch.float32), ((2, 3, 3), torch.bfloat16))
every = [
    pytest.param(leaf, form, id=f"{name}, {name_of_form}")
    for name, leaf in LEAVES.items()
    for name_of_form, form in FORMS.items()
    if name_of_form != "alone" or name not in ("AdamW", "SGD")
]
composed = pytest.mark.parametrize(("leaf", "form"), every)


class Case:
    """A composition over parameters of its own, and the leaves of it."""

    def __init__(self, leaf: Make, form: Callable[[Make], Any], apart: bool = False) -> None:
        self.parameters: list[nn.Parameter] = []
        self.leaves: list[Optimizer] = []
        self.optimizer = self._build(form(leaf))
        self.apart = apart

    def _build(self, tree: Any) -> Optimizer:
        if isinstance(tree, list):
            return CombinedOptimizer([self._build(subtree) for subtree in tree])
        count = len(self.parameters)
        mine = [
            nn.Parameter(normal_values(*shape, seed=count + index, dtype=dtype))
            for index, (shape, dtype) in enumerate(SHAPES)
        ]
        self.parameters += mine
        self.leaves.append(tree(mine))
        return self.leaves[-1]

    def feed(self, number: int, scale: float = 1.0) -> None:
        """Gradients of a step; one parameter has none in the second."""
        for index, p in enumerate(self.parameters):
            gradient = normal_values(
                *p.shape, seed=100 * (number + 1) + index, dtype=p.dtype, scale=scale
            )
            p.grad = None if (number, index) == (1, 0) else gradient

    def step(self) -> None:
        for optimizer in self.leaves if self.apart else [self.optimizer]:
            optimizer.step()

    def run(self, *numbers: int) -> Case:
        for number in numbers:
            self.feed(number)
            self.step()
        return self

    def bits(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters]


def pair(leaf: Make, form: Callable[[Make], Any]) -> tuple[Case, Case]:
    """The composition, and the leaves that step one after the other."""
    return Case(leaf, form), Case(leaf, form, apart=True)


def assert_equal(mine: Case, other: Case, rounding: float = 0.0) -> None:
    """Weights and state; ``rounding`` in units of a parameter's precision."""
    for p, q in zip(mine.parameters, other.parameters, strict=True):
        slack = rounding * torch.finfo(p.dtype).eps
        torch.testing.assert_close(p.detach(), q.detach(), rtol=slack, atol=slack)
        one, two = (case.optimizer.state.get(w, {}) for case, w in ((mine, p), (other, q)))
        assert one.keys() == two.keys()
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=slack, atol=slack)


@composed
def test_members_move_as_they_do_by_themselves(leaf: Make, form: Any) -> None:
    together, apart = pair(leaf, form)
    assert_equal(together.run(0, 1, 2), apart.run(0, 1, 2))


@composed
def test_a_closure_is_evaluated_once_with_gradients(leaf: Make, form: Any) -> None:
    together, apart = pair(leaf, form)
    calls = []

    def closure() -> torch.Tensor:
        together.optimizer.zero_grad()
        loss = sum((p.float() ** 2).sum() for p in together.parameters)
        loss.backward()
        calls.append(loss.detach())
        return loss

    assert together.optimizer.step(closure).detach() == calls[0]
    assert len(calls) == 1
    for p in apart.parameters:
        p.grad = 2 * p.detach()
    apart.step()
    assert_equal(together, apart)


@composed
def test_a_scaler_unscales_and_skips_all(leaf: Make, form: Any) -> None:
    together, apart = pair(leaf, form)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))  # a scaler that has scaled something may unscale
    together.feed(0, scale=4.0)
    scaler.step(together.optimizer)
    scaler.update()
    assert_equal(together, apart.run(0))
    for value in (math.inf, math.nan):
        before = together.bits()
        together.feed(2)
        together.parameters[-1].grad[1] = value
        scaler.step(together.optimizer)
        scaler.update()
        assert all(map(torch.equal, together.bits(), before))
    assert scaler.get_scale() == 1.0
    together.feed(2)  # scaled by one
    scaler.step(together.optimizer)
    assert_equal(together, apart.run(2))


def hooked(case: Case) -> list[str]:
    """What is called in a step, by whom."""
    calls: list[str] = []
    for index, optimizer in enumerate(dict.fromkeys([case.optimizer, *case.leaves])):
        optimizer.register_step_pre_hook(lambda *_, index=index: calls.append(f"before {index}"))
        optimizer.register_step_post_hook(lambda *_, index=index: calls.append(f"after {index}"))
    return calls


@composed
def test_hooks_of_the_whole_and_of_members_are_called_once(leaf: Make, form: Any) -> None:
    together, apart = pair(leaf, form)
    calls = hooked(together)
    assert_equal(together.run(0), apart.run(0))
    count = len(dict.fromkeys([together.optimizer, *together.leaves]))
    assert sorted(calls) == sorted(
        f"{when} {k}" for k in range(count) for when in ("before", "after")
    )
    assert (calls[0], calls[-1]) == ("before 0", "after 0")
    saved, order = together.optimizer, []
    saved.register_state_dict_pre_hook(lambda *_: order.append("saving"))
    saved.register_state_dict_post_hook(lambda _, state: state | {"note": order.append("saved")})
    state = saved.state_dict()
    assert state.keys() == {"state", "param_groups", "note"}
    saved.register_load_state_dict_pre_hook(lambda *_: order.append("loading"))
    saved.register_load_state_dict_post_hook(lambda *_: order.append("loaded"))
    saved.load_state_dict(state)
    assert order == ["saving", "saved", "loading", "loaded"]
    assert_equal(together.run(2), apart.run(2))


def by_file(case: Case, fresh: Case) -> Case:
    file = io.BytesIO()
    torch.save(case.optimizer.state_dict(), file)
    file.seek(0)
    fresh.optimizer.load_state_dict(torch.load(file))
    with torch.no_grad():
        for p, q in zip(fresh.parameters, case.parameters, strict=True):
            p.copy_(q)
    return fresh


WAYS: dict[str, Callable[[Case, Case], Case]] = {
    "a file": by_file,
    "a pickle": lambda case, _: pickle.loads(pickle.dumps(case)),
    "a copy": lambda case, _: copy.deepcopy(case),
}


@pytest.mark.parametrize("way", WAYS)
@composed
def test_a_reload_goes_on_to_the_same_bits(leaf: Make, form: Any, way: str) -> None:
    case = Case(leaf, form).run(0, 1)
    for group in case.optimizer.param_groups:
        group["lr"] = 0.05
    other = WAYS[way](case, Case(leaf, form))
    assert {group["lr"] for group in other.optimizer.param_groups} == {0.05}
    assert_equal(other.run(2, 3), case.run(2, 3))


@composed
def test_a_checkpoint_without_settings_leaves_those_of_each_group(leaf: Make, form: Any) -> None:
    """An older one; what a group does not know stays as it was built for that group."""
    case, other = Case(leaf, form).run(0), Case(leaf, form)
    saved = copy.deepcopy(case.optimizer.state_dict())
    for k, group in enumerate(saved["param_groups"]):
        saved["param_groups"][k] = {"lr": group["lr"], "params": group["params"]}
    for either in (case, other):
        for k, group in enumerate(either.optimizer.param_groups):
            group["weight_decay"] = 0.01 * (1 + k)
    other.optimizer.load_state_dict(saved)
    with torch.no_grad():
        for p, q in zip(other.parameters, case.parameters, strict=True):
            p.copy_(q)
    assert_equal(other.run(2), case.run(2))


@composed
def test_a_group_added_later_moves_like_the_others(leaf: Make, form: Any) -> None:
    together, apart = pair(leaf, form)
    for case in (together.run(0), apart.run(0)):
        late = nn.Parameter(normal_values(3, 4, seed=9, dtype=torch.float64))
        case.parameters.append(late)
        case.leaves[-1].add_param_group({"params": [late], "lr": 0.02})
        assert case.optimizer.param_groups[-1]["params"] == [late]
    before = together.parameters[-1].detach().clone()
    assert_equal(together.run(2, 3), apart.run(2, 3))
    assert not torch.equal(together.parameters[-1], before)


@composed
def test_schedulers_of_the_whole_and_of_a_member(leaf: Make, form: Any) -> None:
    together, apart = pair(leaf, form)
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(together.optimizer, 0.5),
        torch.optim.lr_scheduler.LambdaLR(together.leaves[0], lambda step: float(step > 0)),
    ]
    assert together.leaves[0].param_groups[0]["lr"] == 0.0  # a warm-up from zero
    for number in (0, 1, 2):
        for leaf_apart, leaf_together in zip(apart.leaves, together.leaves, strict=True):
            for mine, other in zip(
                leaf_apart.param_groups, leaf_together.param_groups, strict=True
            ):
                mine["lr"] = other["lr"]
        assert_equal(together.run(number), apart.run(number))
        for schedule in schedules:
            schedule.step()
    assert together.leaves[0].param_groups[0]["lr"] == 0.1  # as its own schedule says
    assert all(leaf.param_groups[0]["lr"] == 0.0125 for leaf in together.leaves[1:])


@composed
def test_zero_grad_clears_all(leaf: Make, form: Any) -> None:
    case = Case(leaf, form)
    case.feed(0)
    case.optimizer.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in case.parameters)
    case.optimizer.zero_grad()
    assert all(p.grad is None for p in case.parameters)


@composed
def test_what_is_not_finite_goes_into_the_weights_and_nowhere_else(leaf: Make, form: Any) -> None:
    for value in (math.nan, math.inf, -math.inf):
        case = Case(leaf, form).run(0)
        for number in (2, 3):
            case.feed(number)
            if number == 2:
                case.parameters[0].grad[1, 1] = value
            case.step()
        assert not bool(case.parameters[0].isfinite().all())
        assert all(bool(p.isfinite().all()) for p in case.parameters[1:])


# ours in one graph, and with one of torch's own optimisers in between
FAST = {("mirror", "beside ours"), ("normalised", "after SGD")}
compiled = pytest.mark.parametrize(
    ("leaf", "form", "where"),
    [
        pytest.param(
            *param.values,
            where,
            id=f"{param.id}, {where}",
            marks=[]
            if where == "method" and tuple(str(param.id).rsplit(", ", 1)) in FAST
            else pytest.mark.slow,
        )
        for param in every
        for where in ("method", "members", "loop", "hooks", "closure", "inductor")
        if where != "inductor" or param.id in ("mirror, beside ours", "schatten, before AdamW")
    ],
)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@compiled
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_a_compiled_step_moves_all_that_the_plain_one_moves(
    leaf: Make, form: Any, where: str
) -> None:
    """Also with a missing gradient, new rates and a loaded checkpoint on the way."""
    case, plain = Case(leaf, form), Case(leaf, form)
    optimizer, backend = case.optimizer, "inductor" if where == "inductor" else "eager"
    calls, expected = (hooked(case), hooked(plain)) if where == "hooks" else ([], [])
    step: Callable[[], Any] = torch.compile(optimizer.step, backend=backend)
    if where == "loop":

        @torch.compile(backend="eager")
        def step() -> None:
            for member in [optimizer]:
                for group in member.param_groups:
                    group["touched"] = True
                member.step()

    elif where == "members":  # compiled one by one, and put into a combination that is not
        for member in case.leaves:
            member.step = torch.compile(member.step, backend="eager")  # type: ignore[method-assign]
        step = optimizer.step

    elif where == "closure":
        inner = step

        def step() -> None:
            assert float(inner(lambda: torch.tensor(2.0))) == 2.0

    fast = where == "method" and form in (FORMS[name_of_form] for _, name_of_form in FAST)
    for number in (0,) if fast else (0, 1, 2, 3):
        if number == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for either in (optimizer, plain.optimizer):
            for k, group in enumerate(either.param_groups):
                group["lr"] = (0.1 + 0.01 * k) * (number != 3)
        before = case.bits()
        case.feed(number)
        step()
        plain.run(number)
        # AdamW's own graph keeps its counter as a tensor, and rounds otherwise than its plain step
        assert_equal(case, plain, rounding=40 * (number + 1))
        still = [torch.equal(p, q) for p, q in zip(case.parameters, before, strict=True)]
        assert not any(still[2 if number == 1 else 0 :]) if number < 3 else all(still)
    assert sorted(calls) == sorted(expected)


@pytest.mark.slow  # the compiler has to start
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_a_compiled_step_may_be_the_first_one_with_these_exponents() -> None:
    """No optimizer of this process has had them before."""
    steps = []
    for exponents in ((1.7321, 2.2361), (1.7322, 2.2362)):
        parameters = [nn.Parameter(normal_values(4, 3, seed=seed)) for seed in (0, 1)]
        for p in parameters:
            p.grad = p.detach().clone()
        optimizer = CombinedOptimizer(
            [
                MirrorDescent([p], lr=0.1, p=exponent)
                for p, exponent in zip(parameters, exponents, strict=True)
            ]
        )
        compiled = torch.compile(optimizer.step, backend="eager") if not steps else optimizer.step
        compiled()
        steps.append(parameters)
    torch.testing.assert_close(*steps, rtol=0, atol=1e-4)  # exponents differ by that
