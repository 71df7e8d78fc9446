"""Layers of several heads: their gradients, what they share, and the programme of all together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attsvm
from attsvm.attention import Attention, Exponential, Linear, Logistic, LogScale
from attsvm.base.errors import InputError
from attsvm_papers.multihead.sum_of_heads import sum_of_heads

n, T, d, H = 4, 5, 6, 3


@pytest.fixture(scope="module")
def layer():
    data, _ = attsvm.datasets.unit_sphere(n, T, d, seed=0)
    rng = np.random.default_rng(0)
    return data, rng.standard_normal((H, d)), rng.standard_normal((d, H * d))


def textbook(data, decoders, W, loss):
    """The layer as one writes it down, in torch's own autograd."""
    X, z, v = map(torch.from_numpy, (np.array(data.tokens), np.array(data.queries), decoders))
    values = 0.0
    for h in range(len(decoders)):
        logits = torch.einsum("ntd,de,ne->nt", X, W[:, h * d : (h + 1) * d], z)
        values = values + torch.softmax(logits, -1).unsqueeze(-2).matmul(X)[:, 0] @ v[h]
    return loss(torch.from_numpy(np.array(data.labels)) * values).mean()


@pytest.mark.parametrize(
    ("loss", "function"),
    [
        (Logistic(), lambda u: torch.nn.functional.softplus(-u)),
        (Exponential(), lambda u: torch.exp(-u)),
        (Linear(), lambda u: -u),
    ],
)
def test_loss_and_gradient_are_those_of_the_textbook(layer, loss, function):
    data, decoders, W = layer
    pairs = attsvm.head_pairs(data, H)
    model = sum_of_heads(pairs, decoders, loss=loss, init=W)
    expected = torch.tensor(W, requires_grad=True)
    value = textbook(data, decoders, expected, function)
    value.backward()
    found = model.loss(pairs)
    found.backward()
    assert found.item() == pytest.approx(value.item(), rel=1e-14)
    np.testing.assert_allclose(model.W.grad, expected.grad, rtol=0, atol=1e-15)
    model.W.grad, scale = None, LogScale()
    model.loss(pairs, scale).backward()
    np.testing.assert_allclose(
        model.W.grad * torch.exp(scale.weights), expected.grad, rtol=0, atol=1e-15
    )


def test_scores_and_selections_have_a_row_per_head_and_runs_are_layers_of_their_own():
    data, _ = attsvm.datasets.unit_sphere(n, T, d, seed=[0, 1])
    rng = np.random.default_rng(1)
    decoders, W = rng.standard_normal((2, H, d)), rng.standard_normal((2, d, H * d))
    pairs = attsvm.head_pairs(data, H)
    model = sum_of_heads(pairs, decoders, init=W)
    for r in range(2):
        one, own = data.instance(r), pairs.instance(r)
        alone = sum_of_heads(own, decoders[r], init=W[r]).loss(own).item()
        assert model.loss(pairs)[r].item() == pytest.approx(alone, rel=1e-12)
        for h in range(H):
            single = Attention.cross(one, decoders[r, h], init=W[r][:, h * d : (h + 1) * d])
            assert (model.selected(pairs)[r, h::H] == single.selected(one)).all()
            np.testing.assert_allclose(
                model.scores(pairs)[r, h::H], attsvm.token_scores(one, decoders[r, h]), atol=1e-14
            )


def test_what_does_not_fit_is_refused(layer):
    data, decoders, _ = layer
    pairs = attsvm.head_pairs(data, H)
    with pytest.raises(InputError, match=r"give \(H, 6\)"):
        sum_of_heads(pairs, decoders[0])
    with pytest.raises(InputError, match="not finite"):
        sum_of_heads(pairs, decoders * np.nan)
    with pytest.raises(InputError, match="for as many heads as decoders"):
        sum_of_heads(pairs, np.ones((5, d)))
