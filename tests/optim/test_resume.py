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
            "normalize": draw.random() < 0.5,
            "decay_mode": draw.choice(["dual", "primal", "l2"]),
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
