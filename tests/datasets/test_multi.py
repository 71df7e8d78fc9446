"""Instances for nonlinear heads: order of the draws, norms, and one instance per seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm.datasets import mlp_instance, orthonormal, toy
from attsvm.errors import InputError


def test_draws_come_in_the_published_order() -> None:
    generator = torch.Generator().manual_seed(3)
    V, X, Y, Z = (
        torch.randn(*shape, generator=generator) for shape in ((4, 4), (3, 5, 4), (3,), (3, 4))
    )
    data, first = mlp_instance(3, 5, 4, seed=3)
    np.testing.assert_allclose(first, (V / torch.linalg.norm(V)).double(), rtol=1e-15)
    np.testing.assert_allclose(data.tokens, (X / X.norm(dim=-1, keepdim=True)).double(), rtol=3e-7)
    assert (data.labels == np.where(Y.numpy() > 0, 1, -1)).all()
    np.testing.assert_allclose(data.queries, (Z / Z.norm(dim=-1, keepdim=True)).double(), rtol=3e-7)


def test_orthonormal_tokens() -> None:
    data, v = orthonormal(3, 4, seed=[0, 1])
    np.testing.assert_allclose(
        data.tokens @ data.tokens.swapaxes(-1, -2),
        np.broadcast_to(np.eye(4), (2, 3, 4, 4)),
        atol=1e-14,
    )
    assert (data.labels == 1).all()
    np.testing.assert_allclose(np.linalg.norm(v, axis=-1), 1, rtol=1e-6)
    assert (data.instance(1).tokens == orthonormal(3, 4, seed=1)[0].tokens).all()


def test_refusals() -> None:
    with pytest.raises(InputError, match="every size must be at least 1"):
        mlp_instance(3, 0, 4, seed=0)
    with pytest.raises(InputError, match="seed is an empty list"):
        orthonormal(3, 4, seed=[])


def test_toys_answer_to_their_experiments_and_lift_their_scores() -> None:
    assert toy("mmts-1").name == "single_global"
    assert toy("tfsvm-1").name == "plane"
    assert toy("tfsvm-1").lifted is None
    assert toy("joint").lifted is None
    problem = toy("mmts-3")
    assert (problem.lifted.tokens @ problem.keys.T == problem.data.tokens).all()
    assert (
        problem.lifted.labels[:, None] * (problem.lifted.tokens @ problem.value_head)
        == problem.scores
    ).all()
