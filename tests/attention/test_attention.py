"""The module: shapes, runs, initial weights, predictions, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData


def test_one_instance_per_run_equals_each_alone() -> None:
    data, v = unit_sphere(4, 5, 6, seed=[0, 1, 2])
    together = Attention.cross(data, v, init=("uniform", 9))
    loss = together.loss(data)
    loss.sum().backward()
    for r in range(3):
        alone = Attention.cross(data.instance(r), v[r], init=together.W[r].detach().numpy())
        single = alone.loss(data.instance(r))
        single.backward()
        torch.testing.assert_close(single, loss[r], rtol=1e-13, atol=0)
        torch.testing.assert_close(alone.W.grad, together.W.grad[r], rtol=1e-12, atol=1e-16)


def test_uniform_start_of_a_run_does_not_depend_on_the_number_of_runs() -> None:
    data, v = unit_sphere(2, 3, 4, seed=0)
    many = Attention.cross(data, v, runs=5, init=("uniform", 1)).W
    one = Attention.cross(data, v, init=("uniform", 1)).W
    assert torch.equal(many[0], one)
    assert (many.abs() <= 0.5).all()
    assert not torch.equal(many[0], many[1])


def test_predictions_follow_their_definitions() -> None:
    data, v = unit_sphere(4, 5, 6, seed=3)
    W = np.random.default_rng(0).standard_normal((6, 6))
    model = Attention.cross(data, v, intercept=0.7, init=W)
    logits = np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    s = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.probabilities(data).detach(), s, rtol=1e-12)
    ours = model.logits(data).detach().numpy()
    np.testing.assert_allclose(
        ours - ours.mean(axis=1, keepdims=True),
        logits - logits.mean(axis=1, keepdims=True),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        model(data).detach(), np.einsum("nt,ntd,d->n", s, data.tokens, v) + 0.7, rtol=1e-12
    )
    winner = logits.argmax(axis=1)
    assert (model.selected(data).numpy() == winner).all()


def test_head_is_a_parameter_only_when_trained() -> None:
    data, v = unit_sphere(2, 3, 4, seed=0)
    assert [name for name, _ in Attention.cross(data, v).named_parameters()] == ["W"]
    trained = Attention.cross(data, v, train_head=True)
    assert [name for name, _ in trained.named_parameters()] == ["W", "head.readout"]
    assert trained.head.trainable
    assert trained.head.readout.shape == (5, 1)
    bare = Attention.cross(data, v, intercept=None, train_head=True)
    assert bare.head.readout.shape == (4, 1)
    assert float(bare.head.intercept) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": np.ones(5)}, r"head has shape \(5,\); it must be \(4,\)"),
        ({"runs": 0}, "runs is 0"),
        ({"init": "ones"}, "init is 'ones'"),
        ({"init": np.ones((3, 4))}, r"init has shape \(3, 4\)"),
        ({"init": np.full((4, 4), np.nan)}, "init holds a value that is not finite"),
        ({"intercept": [1.0, 2.0]}, "intercept has shape"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    data, v = unit_sphere(2, 3, 4, seed=0)
    with pytest.raises(InputError, match=message):
        Attention.cross(data, **{"head": v, **change})


def test_refuses_data_of_another_shape() -> None:
    data, v = unit_sphere(2, 3, 4, seed=0)
    model = Attention.cross(data, v)
    with pytest.raises(InputError, match="d_x=5, d_z=5"):
        model(unit_sphere(2, 3, 5, seed=0)[0])
    batch, _ = unit_sphere(2, 3, 4, seed=[0, 1])
    with pytest.raises(InputError, match="runs=None"):
        model(batch)
    with pytest.raises(InputError, match="runs is 3 but data holds 2"):
        Attention.cross(batch, v, runs=3)
    deep = AttentionData(np.ones((2, 2, 2, 3, 4)), np.ones((2, 2, 2)))
    with pytest.raises(InputError, match="at most one"):
        Attention.cross(deep, v)
