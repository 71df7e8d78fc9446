"""Attention trained by steepest descent in every norm: runs stay independent, margins grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attsvm import token_scores
from attsvm.datasets import unit_sphere
from attsvm.dynamics import LogSpaced, Trajectory, train
from attsvm.geometry import Frobenius, Lp, MaxRow, Norm, Nuclear, Rows, Schatten, Spectral
from attsvm.models import Attention
from attsvm.optim import SteepestDescent

NORMS: list[Norm] = [
    Frobenius(),
    Lp(1.5),
    Lp(float("inf")),
    Nuclear(),
    Schatten(3),
    Spectral(),
    Rows(),
    MaxRow(),
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "dampening": 0.9},
    {"normalize": False},
    {"step_size": "polyak"},
]


def run(data: Any, v: np.ndarray, norm: Norm, steps: int = 40, **settings: Any) -> Trajectory:
    model = Attention.cross(data, v)
    # what the loss is when every sequence reads its optimal token alone
    if settings.get("step_size") == "polyak":
        settings["loss_floor"] = torch.as_tensor(
            np.log1p(np.exp(-token_scores(data, v).max(axis=-1))).mean(axis=-1)
        )
    optimizer = SteepestDescent(
        model.parameters(), lr=settings.pop("lr", 0.05), norm=norm, **settings
    )
    return train(model, data, optimizer, steps, LogSpaced(4), backend="autograd")


@pytest.mark.parametrize("norm", NORMS, ids=repr)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_batch_is_its_runs_one_by_one(norm: Norm, settings: dict[str, Any]) -> None:
    data, v = unit_sphere(4, 4, 5, seed=[0, 1])
    together = run(data, v, norm, **settings)
    assert np.isfinite(together.W).all()
    for r in range(2):
        alone = run(data.instance(r), v[r], norm, **settings)
        # sums of another length differ in the last bits, and a direction of few singular values
        # passes that on
        np.testing.assert_allclose(together.W[:, r], alone.W, rtol=1e-8, atol=1e-8)
