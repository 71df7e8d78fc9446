"""Equal norms are one norm, however they were written: every public field of every result."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

import attsvm
from attsvm import (
    Frobenius,
    Lp,
    MaxRow,
    Norm,
    Nuclear,
    Rows,
    Schatten,
    Spectral,
    margin_path,
    max_margin,
    max_margin_batch,
)
from attsvm.margins import selection_margins
from attsvm.norms import as_norm

SPELLINGS: dict[str, list[Norm | str]] = {
    "fro": [
        *("fro", " Frobenius ", "lp:2", "schatten:2", "lp:2.0", "dual:fro", "dual:schatten:2"),
        *("dual:dual:lp:2", Frobenius(), Lp(2), Schatten(2), Lp(2).dual, Schatten(2).dual),
    ],
    "nuc": [
        *("nuc", "nuclear", "schatten:1", "dual:spec", "dual:schatten:inf"),
        *(Nuclear(), Schatten(1), Schatten(inf).dual, Spectral().dual),
    ],
    "spec": [
        *("spec", "spectral", "schatten:inf", "dual:nuc", "dual:schatten:1"),
        *(Spectral(), Schatten(inf), Schatten(1).dual, Nuclear().dual),
    ],
    "lp:1": ["l1", "lp:1", "dual:linf", "dual:lp:inf", Lp(1), Lp(inf).dual],
    "lp:inf": ["linf", "lp:inf", "lp:INF", "dual:l1", Lp(inf), Lp(1).dual],
    "lp:1.3333333333333333": ["lp:1.3333333333333333", "dual:lp:4", Lp(4 / 3), Lp(4).dual],
    "schatten:1.3333333333333333": [
        *("schatten:1.3333333333333333", "dual:schatten:4", Schatten(4 / 3), Schatten(4).dual)
    ],
    "rows": ["rows", "dual:maxrow", Rows(), MaxRow().dual],
    "maxrow": ["maxrow", "dual:rows", MaxRow(), Rows().dual],
}


def plain(value: Any) -> Any:
    """Every public field, with the bits of arrays and the kind of objects."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return plain(value.detach().numpy())
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if not field.name.startswith("_")]
        return {name: plain(getattr(value, name)) for name in names if name != "margins"}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return type(value), repr(value)


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(0)
    data, head = attsvm.datasets.unit_sphere(n=3, T=3, d=3, seed=0)
    margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
    equal = attsvm.multi_token_margins(
        attsvm.AttentionData(rng.normal(size=(2, 3, 3)), np.ones(2), rng.normal(size=(2, 2))),
        np.array([[True, True, False], [True, False, False]]),
    )
    opposite = attsvm.AttentionData([[[2.0], [1.0], [3.0]]], labels=[1], queries=[[1.0]])
    weights = rng.normal(size=(4, 3))

    def step(norm: Norm | str) -> Any:
        parameter = torch.nn.Parameter(torch.ones(4, 3, dtype=torch.float64))
        optimizer = attsvm.optim.SteepestDescent([parameter], lr=0.5, norm=norm)
        (parameter * torch.tensor(weights)).sum().backward()
        optimizer.step()
        return parameter, optimizer.param_groups[0]["norm"]

    def of(norm: Norm | str) -> dict[str, Any]:
        hard = max_margin(margins, norm)
        return {
            "name": as_norm(norm).name,
            "hard": [hard, hard.message, hard.kkt(), repr(hard)],
            "soft": max_margin(margins, norm, slack=0.5),
            "equalities": max_margin(equal, norm),
            "infeasible": max_margin(selection_margins(opposite, [0]), norm),
            "batch": list(max_margin_batch([margins, margins], norm)),
            "path": margin_path([margins, margins], norm),
            "step": step(norm),
        }

    return of


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_gives_the_same_in_every_field(name: str, results) -> None:
    norms = [as_norm(norm) for norm in SPELLINGS[name]]
    assert {norm.name for norm in norms} == {name}
    assert len({(type(norm), repr(norm)) for norm in norms}) == 1
    for one, other in pairwise(norms):
        assert one.__dict__ == other.__dict__
    first, *others = [{k: plain(v) for k, v in results(n).items()} for n in SPELLINGS[name]]
    for norm, found in zip(SPELLINGS[name][1:], others, strict=True):
        for what, value in first.items():
            assert found[what] == value, (norm, what)


@pytest.mark.parametrize("name", ["fro", "nuc", "lp:1.3333333333333333"])
def test_so_does_a_path_of_radii(name: str) -> None:
    data, head = attsvm.datasets.unit_sphere(n=2, T=2, d=2, seed=0)
    first, *others = [
        attsvm.regularization_path(data, head, norm, [2.0], starts=1)
        for norm in (SPELLINGS[name][0], SPELLINGS[name][-1])
    ]
    for other in others:
        assert plain(other) == plain(first)
