"""Wherever a norm is taken, its name is: every public callable, found by its signature."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import attsvm
from attsvm import datasets, optim, solvers, theory, transformers
from attsvm.base.errors import InputError
from attsvm.sklearn import AttentionSVC, Limits, WitnessSVC
from attsvm.theory import next_token
from attsvm.theory.sentences import NextTokenData, priority_graph
from attsvm.training.trajectory import AtSteps

RESULTS = {
    "attsvm.theory.RegularizationPath",
    "attsvm.solvers.MarginSolution",
    "attsvm.solvers.SolutionBatch",
}
"""What comes back with a norm in it, and is made by no user."""

data, head = datasets.unit_sphere(n=4, T=3, d=4, seed=0)
tokens = attsvm.optimal_tokens(data, head)
margins = attsvm.selection_margins(data, tokens)
ONCE = AtSteps(())


class Heads(torch.nn.Module):
    """Two heads of attention over what is given."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.q_proj, self.k_proj = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
        for map_ in (self.q_proj, self.k_proj):
            map_.weight.data = torch.randn(8, 8, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (each(x).unflatten(-1, (2, 4)).mT.mT for each in (self.q_proj, self.k_proj))
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k)


def audited(norm: Any) -> Any:
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(1))
    model = Heads()
    with torch.no_grad(), transformers.capture(model) as recording:
        model(x)
    return transformers.audit(recording, norms=(norm,), nulls=(), threshold=0.2)


def steepest(norm: Any) -> Any:
    weight = torch.nn.Parameter(torch.eye(3, dtype=torch.float64))
    step = optim.SteepestDescent([weight], lr=0.5, norm=norm)
    (weight * torch.arange(9.0, dtype=torch.float64).reshape(3, 3)).sum().backward()
    step.step()
    return weight.detach().numpy()


def next_tokens() -> Any:
    return next_token.Problem.of([priority_graph(4, 6, 8, 8, 0)], "log_mass")


def explained(model: Any) -> Callable[[Any], Any]:
    rng = np.random.default_rng(0)
    labels = np.arange(16) % 2
    bags = rng.normal(size=(16, 3, 2)) + labels[:, None, None]
    model.fit(bags, labels)
    return lambda norm: model.explain(bags, labels, norm=norm, limits=Limits(steps=3)).solution


CALLS: dict[str, Callable[[Any], Any]] = {
    "attsvm.norms.as_norm": lambda norm: attsvm.norms.as_norm(norm).name,
    "attsvm.solvers.max_margin": lambda norm: [
        solvers.max_margin(margins, norm).W,
        solvers.max_margin(margins, norm=norm).W,
    ],
    "attsvm.solvers.max_margin_batch": lambda norm: solvers.max_margin_batch([margins], norm)[0].W,
    "attsvm.solvers.max_margin_blocks": lambda norm: (
        solvers.max_margin_blocks(attsvm.Margins.from_blocks([margins]), norm).W
    ),
    "attsvm.solvers.margin_path": lambda norm: [
        *(each.W for each in solvers.margin_path(margins, [norm, norm])),
        solvers.margin_path([margins], norm)[0].W,
    ],
    "attsvm.theory.margin_drop_bound": lambda norm: theory.margin_drop_bound(
        data.take([0, 1]), tokens[:2], norm
    ),
    "attsvm.optim.SteepestDescent": steepest,
    "attsvm.theory.regularization_path": lambda norm: (
        theory.regularization_path(data, head, norm, [2.0], starts=1).W
    ),
    "attsvm.theory.implicit_bias": lambda norm: theory.implicit_bias(
        lambda parameters: optim.SteepestDescent(parameters, lr=0.1),
        seeds=2,
        steps=300,
        norms=[norm],
    ).share[-1],
    "attsvm.theory.next_token.steepest_stage": lambda norm: (
        next_token.steepest_stage(
            next_tokens(), norm, next_token.StepRule(0.1), 3, init=np.eye(8), records=ONCE
        ).W
    ),
    "attsvm.theory.next_token.factored_stage": lambda norm: (
        next_token.factored_stage(
            next_tokens(),
            next_token.StepRule(0.1),
            3,
            init=(np.eye(8), np.eye(8)),
            norm=norm,
            records=ONCE,
        ).W
    ),
    "attsvm.theory.next_token.factored_output_stage": lambda norm: (
        next_token.factored_output_stage(
            NextTokenData.from_sentences([[0], [1]], [1, 0]),
            next_token.StepRule(0.1),
            3,
            init=tuple(np.arange(8.0).reshape(2, 2, 2)),
            norm=norm,
            records=ONCE,
        ).W
    ),
    "attsvm.transformers.audit": lambda norm: [each.fits[0].norm for each in audited(norm).heads],
    "attsvm.transformers.Head.fit": lambda norm: audited("nuc").heads[0].fit(norm).norm,
    "attsvm.sklearn.AttentionSVC.explain": lambda norm: (
        explained(AttentionSVC(penalty=0.01, query="mean"))(norm).W
    ),
    # whose weights are a vector, on which nuclear and spectral norm agree
    "attsvm.sklearn.WitnessSVC.explain": lambda norm: (
        explained(WitnessSVC(penalty=0.01))(norm).geometry.name
    ),
}


def taken() -> Iterator[str]:
    """Public functions, classes and methods with a parameter that is a norm."""
    seen = set()
    for info in pkgutil.walk_packages(attsvm.__path__, "attsvm."):
        if info.name.endswith("__main__"):
            continue
        room = importlib.import_module(info.name)
        names = [*getattr(room, "__all__", ())] or (
            ["AttentionSVC"] if info.name == "attsvm.sklearn" else []
        )
        for name in names:
            found = getattr(room, name)
            if not callable(found) or id(found) in seen:
                continue
            seen.add(id(found))
            parts = {f"{info.name}.{name}": found}
            if inspect.isclass(found):
                parts |= {
                    f"{info.name}.{name}.{key}": value
                    for key, value in inspect.getmembers(found, callable)
                    if not key.startswith("_")
                }
            for path, part in parts.items():
                try:
                    parameters = inspect.signature(part).parameters.values()
                except (TypeError, ValueError):
                    continue
                if any(re.search(r"\bNorm\b", str(each.annotation)) for each in parameters):
                    yield path


def test_every_place_is_known() -> None:
    assert set(taken()) - RESULTS == set(CALLS)


@pytest.mark.parametrize("place", CALLS)
def test_a_name_is_as_good_as_the_norm(place: str) -> None:
    call = CALLS[place]
    named, norm = call("nuc"), call(attsvm.Nuclear())
    np.testing.assert_array_equal(named, norm)
    if place != "attsvm.transformers.Head.fit":  # which has compared in one norm alone
        spectral = call("spectral")
        if not isinstance(named, str | float):
            assert any(not np.array_equal(a, b) for a, b in zip(named, spectral, strict=True)), (
                "the norm plays no part"
            )
    with pytest.raises(InputError, match="unknown norm 'euclid'"):
        call("euclid")
