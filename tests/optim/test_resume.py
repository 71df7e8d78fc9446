"""An optimiser that was saved, and loaded into a model built anew, goes on to the same bits."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp, Nuclear, Schatten, Spectral
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.optim.mirror import digest

FORMS: list[dict[str, Any]] = [{}, {"fused": True}, {"foreach": True}, {"foreach": False}]
MATRICES = [(6, 4), (4, 6), (8, 8), (2, 6, 4), (300, 230)]  # the last is long: taken by all cores
VECTORS = [(5,), (), (1,), (0, 4)]
EXPONENTS = [1.1, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0]

needs_compiler = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
]


class Plan:
    """A random optimiser of random parameters: everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.kind = draw.choice(["mirror"] * 5 + ["steepest"] * 3 + ["combined"] * 2)
        self.dtype = draw.choice([torch.float32] * 2 + [torch.float64, torch.bfloat16])
        self.steps = draw.randint(4, 9)
        self.cut = draw.randint(0, self.steps)
        self.seed = seed
        self.shapes = draw.sample(MATRICES, draw.randint(1, 3))
        self.groups = [self._settings(draw, self.kind) for _ in range(draw.randint(1, 3))]
        if all(not takes_singular_values(settings) for settings in self.groups):
            self.shapes += draw.sample(VECTORS, draw.randint(0, 2))
        if draw.random() < 0.2:
            self.groups = [{**settings, "missing": True} for settings in self.groups]

    def _settings(self, draw: random.Random, kind: str) -> dict[str, Any]:
        form = draw.choice(FORMS)
        momentum = draw.choice([0.0, 0.0, 0.9])
        shared = {
            "lr": draw.choice([1e-3, 0.05]),
            "momentum": momentum,
            "weight_decay": draw.choice([0.0, 0.1]),
            "maximize": draw.random() < 0.1,
        }
        if kind == "steepest" or (kind == "combined" and draw.random() < 0.4):
            norm = draw.choice([Frobenius(), Lp(1.5), Lp(float("inf")), Spectral(), Schatten(3)])
            return {
                "class": SteepestDescent,
                "norm": draw.choice([norm, Nuclear()]) if draw.random() < 0.2 else norm,
                "normalize": draw.random() < 0.7,
                "dampening": momentum * draw.choice([0, 1]),
                "nesterov": momentum > 0 and draw.random() < 0.5,
                "polar": draw.choice(["exact", "newton-schulz", "polar-express"]),
                "blocks": draw.choice([None, None, 2]),
                **shared,
                **form,
            }
        return {
            "class": MirrorDescent,
            "p": draw.choice([*EXPONENTS, draw.uniform(1.05, 6.0)]),
            "potential": draw.choice(["power"] * 3 + ["schatten"]),
            "normalize": draw.choice([None, None, "tensor", "run", "global"]),
            "decay_mode": draw.choice(["dual", "primal", "l2"]),
            "dual_state": draw.random() < 0.9,
            "state_dtype": draw.choice([None] * 3 + [torch.float32, torch.float64]),
            "nesterov": momentum > 0 and draw.random() < 0.3,
            **shared,
            **form,
        }

    def parameters(self) -> list[nn.Parameter]:
        generator = torch.Generator().manual_seed(self.seed)
        return [
            nn.Parameter((0.2 * torch.randn(shape, generator=generator)).to(self.dtype))
            for shape in self.shapes * len(self.groups)
        ]

    def optimizer(self, parameters: list[nn.Parameter], **changed: Any) -> Optimizer:
        """Each group has the same shapes; a combination gives each optimiser one of them."""
        count, built, shared = len(self.shapes), [], []
        for number, settings in enumerate(self.groups):
            options = {name: value for name, value in settings.items() if name != "missing"}
            kind = options.pop("class")
            group = {"params": parameters[number * count : (number + 1) * count]}
            if self.kind == "combined":
                built.append(kind([group], **{**options, **changed}))
            else:
                shared.append({**group, **options})
        if self.kind == "combined":
            rest = [nn.Parameter(parameters[0].detach()[..., :0])]
            return CombinedOptimizer([*built, torch.optim.AdamW(rest)])
        return kind(shared, **({"lr": 0.5} | changed))

    def feed(self, parameters: list[nn.Parameter], step: int) -> None:
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        for index, parameter in enumerate(parameters):
            gradient = 0.3 * torch.randn(parameter.shape, generator=generator)
            skipped = self.groups[0].get("missing") and (index + step) % 3 == 0
            parameter.grad = None if skipped else gradient.to(parameter.dtype)


def takes_singular_values(settings: dict[str, Any]) -> bool:
    return settings.get("potential") == "schatten" or isinstance(settings.get("norm"), Schatten)


def possible(seed: int) -> Plan:
    """The plan of the first seed in a row whose settings go together."""
    while True:
        plan = Plan(seed)
        try:
            optimizer, parameters = (plan.optimizer(given := plan.parameters()), given)
            plan.feed(parameters, 0)
            optimizer.step()
        except InputError:
            seed += 100_003
        else:
            return plan


def by_file(plan: Plan, optimizer: Optimizer, parameters: list[nn.Parameter]) -> Any:
    """A model built anew; the file is read before or after the weights."""
    file = io.BytesIO()
    torch.save({"model": [p.detach() for p in parameters], "all": optimizer.state_dict()}, file)
    file.seek(0)
    loaded, fresh = torch.load(file), plan.parameters()
    with torch.no_grad():
        if plan.seed % 2:
            for parameter, value in zip(fresh, loaded["model"], strict=True):
                parameter.copy_(value)
        other = plan.optimizer(fresh)
        other.load_state_dict(loaded["all"])
        if not plan.seed % 2:
            for parameter, value in zip(fresh, loaded["model"], strict=True):
                parameter.copy_(value)
    return other, fresh


def by_pickle(plan: Plan, optimizer: Optimizer, parameters: list[nn.Parameter]) -> Any:
    return pickle.loads(pickle.dumps((optimizer, parameters)))


def by_copy(plan: Plan, optimizer: Optimizer, parameters: list[nn.Parameter]) -> Any:
    return copy.deepcopy((optimizer, parameters))


WAYS: list[Callable[..., Any]] = [by_file, by_file, by_pickle, by_copy]


def check(seed: int) -> None:
    plan = possible(seed)
    parameters = plan.parameters()
    optimizer = plan.optimizer(parameters)
    for step in range(plan.cut):
        plan.feed(parameters, step)
        optimizer.step()
    other, copies = WAYS[seed % len(WAYS)](plan, optimizer, parameters)
    for step in range(plan.cut, plan.steps):
        for one, tensors in ((optimizer, parameters), (other, copies)):
            plan.feed(tensors, step)
            one.step()
    for parameter, resumed in zip(parameters, copies, strict=True):
        assert same_bits(parameter, resumed), (seed, plan.groups)
        mine, theirs = optimizer.state.get(parameter, {}), other.state.get(resumed, {})
        if plan.cut < plan.steps and not plan.groups[0].get("missing"):
            assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert same_bits(value, theirs[name]), (seed, name, plan.groups)


def same_bits(a: Tensor, b: Tensor) -> bool:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return a.dtype == b.dtype and torch.equal(
        *(each.detach().contiguous().view(kinds[a.dtype.itemsize]) for each in (a, b))
    )


@pytest.mark.parametrize("block", range(4))
def test_interrupted_runs_end_in_the_same_bits(block: int) -> None:
    for seed in range(15 * block, 15 * (block + 1)):
        check(seed)


@pytest.mark.slow
def test_300_interrupted_runs_end_in_the_same_bits() -> None:
    """Other runs with another ``ATTSVM_SEED``."""
    first = 1000 * int(os.environ.get("ATTSVM_SEED", "1"))
    for seed in range(first, first + 300):
        check(seed)


@pytest.mark.parametrize(
    "backend",
    ["eager", pytest.param("inductor", marks=[pytest.mark.slow, *needs_compiler])],
)
@pytest.mark.parametrize("optimizer", [MirrorDescent, SteepestDescent])
@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_a_compiled_run_resumes_to_the_same_bits(backend: str, optimizer: Any) -> None:
    """The compiler writes weights with powers of its own, and no version counter tells of them."""
    torch._dynamo.reset()
    own = {"p": 1.75} if optimizer is MirrorDescent else {"norm": Lp(3)}

    def start(values: list[Tensor]) -> Any:
        weights = [nn.Parameter(value.clone()) for value in values]
        made = optimizer(weights, lr=torch.tensor(0.05), momentum=0.9, **own)
        return weights, made, torch.compile(made.step, backend=backend)

    def feed(weights: list[nn.Parameter], step: int) -> None:
        for index, weight in enumerate(weights):
            generator = torch.Generator().manual_seed(10 * step + index)
            weight.grad = torch.randn(weight.shape, generator=generator)

    generator = torch.Generator().manual_seed(0)
    weights, whole, step = start([torch.randn(6, 5, generator=generator) for _ in range(2)])
    for number in range(6):
        if number == 3:
            saved = copy.deepcopy(whole.state_dict())
            copies, resumed, again = start([weight.detach() for weight in weights])
            resumed.load_state_dict(saved)
        feed(weights, number)
        step()
        if number >= 3:
            feed(copies, number)
            again()
    for weight, other in zip(weights, copies, strict=True):
        assert same_bits(weight, other)
        for name, value in whole.state[weight].items():
            assert same_bits(value, resumed.state[other][name])
    torch._dynamo.reset()


def trained(values: Tensor, steps: int = 3, **settings: Any) -> tuple[nn.Parameter, MirrorDescent]:
    weight = nn.Parameter(values.clone())
    optimizer = MirrorDescent([weight], lr=0.05, **settings)
    for step in range(steps):
        push(weight, step)
        optimizer.step()
    return weight, optimizer


def push(weight: nn.Parameter, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)


def start() -> Tensor:
    return 0.3 * torch.randn(70, 60, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("p", [1.3, 1.75, 3.0])
@pytest.mark.parametrize("way", ["in place", "after a file", "after a pickle"])
def test_only_entries_that_were_written_take_a_new_dual(
    form: dict[str, Any], p: float, way: str
) -> None:
    """Untouched entries keep their bits, in the form whose powers round otherwise as well."""
    (weight, optimizer), (whole, reference) = (trained(start(), p=p, **form) for _ in range(2))
    if way == "after a file":
        saved = copy.deepcopy(optimizer.state_dict())
        weight = nn.Parameter(weight.detach().clone())
        optimizer = MirrorDescent([weight], lr=0.05, p=p, **form)
        optimizer.load_state_dict(saved)
    elif way == "after a pickle":
        weight, optimizer = pickle.loads(pickle.dumps((weight, optimizer)))
    with torch.no_grad():
        weight[3] = 0.5
        weight[4] *= 1.0
    for one, tensor in ((optimizer, weight), (reference, whole)):
        push(tensor, 9)
        one.step()
    rest = torch.arange(70) != 3
    assert same_bits(weight[rest], whole[rest])
    assert same_bits(optimizer.state[weight]["dual"][rest], reference.state[whole]["dual"][rest])
    expected = 0.5 ** (p - 1) - 0.05 * weight.grad[3]
    torch.testing.assert_close(optimizer.state[weight]["dual"][3], expected)


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("p", [1.75, 3.0])
def test_the_smallest_change_is_followed(form: dict[str, Any], p: float) -> None:
    """Somebody's own decay shrinks weights by a few roundings a step; it adds up."""
    weight, optimizer = trained(start(), p=p, **form)
    before = weight.detach().clone()
    for _ in range(400):
        with torch.no_grad():
            weight.mul_(1 - 6e-7)
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    shrunk = (weight.detach() / before).double().mean()
    assert 1 - shrunk == pytest.approx(400 * 6e-7, rel=0.2)


def test_a_checkpoint_taken_while_averages_stand_in_the_model() -> None:
    weight, optimizer = trained(start(), p=1.75, fused=True)
    own = weight.detach().clone()
    with torch.no_grad():
        weight.lerp_(start(), 0.5)
    saved = copy.deepcopy(optimizer.state_dict())
    with torch.no_grad():
        weight.copy_(own)
    copied = nn.Parameter(own.clone())
    other = MirrorDescent([copied], lr=0.05, p=1.75, fused=True)
    other.load_state_dict(saved)
    for one, tensor in ((optimizer, weight), (other, copied)):
        push(tensor, 9)
        one.step()
    assert same_bits(weight, copied)
    assert same_bits(optimizer.state[weight]["dual"], other.state[copied]["dual"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_digest_tells_every_bit_and_every_place_and_touches_nothing(dtype: torch.dtype) -> None:
    weight = start().to(dtype)
    kept, found = weight.clone(), digest(weight)
    assert torch.equal(digest(weight), found)
    assert torch.equal(weight, kept)
    assert torch.equal(digest(weight.t().contiguous().t()), found)
    seen = {int(found)}
    for k in range(100):
        changed = weight.clone()
        if k % 2:
            place = divmod(k * 17, 60)
            changed[place] = torch.nextafter(changed[place], torch.tensor(9.0, dtype=dtype))
        else:
            changed[:, [k % 59, k % 59 + 1]] = changed[:, [k % 59 + 1, k % 59]]
        seen.add(int(digest(changed)))
    assert len(seen) == 101
