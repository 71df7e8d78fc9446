"""Gradients and gaps of next-token models: plain autograd, extended precision, and what saturation
must not change.
"""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch
from transformer import NextTokenTransformer

from attsvm.theory.next_token import Problem, output_values
from attsvm.theory.sentences import NextTokenData, stack

LOSSES = ("cross_entropy", "squared", "squared_softmax", "log_mass")
K, D = 5, 6


@pytest.fixture(scope="module")
def sentences():
    """Repeats, one token, identical tokens, many lengths (so padding), random embeddings and
    weights.
    """
    rng = np.random.default_rng(3)
    lists = [[1, 1, 2, 0], [3], [2, 2, 2], [4, 0, 1, 2, 3, 3, 3], [0, 4], [2, 4, 4, 1]]
    labels = [1, 3, 2, 3, 0, 2]
    return [
        NextTokenData.from_sentences(
            lists[:n],
            labels[:n],
            rng.uniform(0.5, 2.0, n),
            rng.standard_normal((K, D)),
            following=range(K),
        )
        for n in (6, 4)
    ]


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(4)
    return 0.4 * rng.standard_normal((2, D, D)), rng.standard_normal((2, K, D))


def embeddings(sentences):
    return np.stack([one.embeddings for one in sentences])


def textbook_loss(data, W, V, loss):
    """Each sentence token by token, repeats and all: no multiplicities, no differences."""
    total = 0.0
    E = torch.tensor(data.embeddings)
    for sentence, y, weight in zip(data.sentences, data.labels, data.weights, strict=True):
        X = E[torch.tensor(sentence)]
        phi = torch.softmax(X @ W @ X[-1], dim=0)
        o = torch.tensor(V) @ X.T @ phi
        p = torch.softmax(o, dim=0)[y]
        mass = phi[torch.tensor(sentence == y)].sum()
        term = {
            "cross_entropy": -torch.log(p),
            "squared": (1 - o[y]) ** 2,
            "squared_softmax": (1 - p) ** 2,
            "log_mass": -torch.log(mass),
        }
        total = total + weight * term[loss]
    return total


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_and_losses_are_those_of_the_textbook_where_nothing_saturates(
    sentences, weights, loss
) -> None:
    model = NextTokenTransformer(stack(sentences), *weights)
    W = torch.tensor(weights[0], requires_grad=True)
    values = torch.stack(
        [textbook_loss(one, W[r], weights[1][r], loss) for r, one in enumerate(sentences)]
    )
    (expected,) = torch.autograd.grad(values.sum(), W)
    own = model.loss(loss)
    own.sum().backward()
    problem = Problem.of(sentences, loss, output_values(weights[1], embeddings(sentences)))
    G, log_scale = problem.gradient(weights[0])
    # rounding of about a hundred terms, relative to the largest entry
    for found in (torch.tensor(G * np.exp(log_scale)[:, None, None]), model.W_kq.grad):
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()
    outputs, first = problem.outputs(weights[0]), sentences[0]
    X = first.embeddings[first.sentences[0]]
    shares = torch.softmax(torch.tensor(X @ weights[0][0] @ X[-1]), 0).numpy()
    np.testing.assert_allclose(outputs[0], shares @ X @ weights[1][0].T, rtol=1e-12)
    sign, log = problem.gap(weights[0])
    for found in (own.detach(), problem.floor() + sign * np.exp(log)):
        np.testing.assert_allclose(found, values.detach(), rtol=1e-12)


def extended_loss(data, W, h, delta, values, loss):
    """The loss at ``W + h delta`` in mpmath's precision."""
    E = mp.matrix(data.embeddings.tolist())
    S = E * (mp.matrix(W.tolist()) + h * mp.matrix(delta.tolist())) * E.T
    total = mp.mpf(0)
    for sentence, y, weight in zip(data.sentences, data.labels, data.weights, strict=True):
        e = [mp.exp(S[int(v), int(sentence[-1])]) for v in sentence]
        phi = [each / mp.fsum(e) for each in e]
        classes = range(values.shape[1])
        o = [
            mp.fsum(a * mp.mpf(float(values[v, c])) for a, v in zip(phi, sentence, strict=True))
            for c in classes
        ]
        p = mp.exp(o[y]) / mp.fsum(mp.exp(each) for each in o)
        mass = mp.fsum(a for a, v in zip(phi, sentence, strict=True) if v == y)
        term = {
            "cross_entropy": -mp.log(p),
            "squared": (1 - o[y]) ** 2,
            "squared_softmax": (1 - p) ** 2,
            "log_mass": -mp.log(mass),
        }
        total += mp.mpf(float(weight)) * term[loss]
    return total


@pytest.mark.parametrize(("size", "shift"), [(30.0, 0.0), (300.0, 1e4)])
@pytest.mark.parametrize("loss", LOSSES)
def test_saturated_gradients_and_gaps_agree_with_four_hundred_digits(loss, size, shift) -> None:
    # Three tokens; attention off the winner is as small as exp(-200). A common shift makes the norm
    # 1e4 and changes no attention.
    data = NextTokenData.from_sentences(
        [[0, 1, 2], [1, 2, 0]], [0, 1], [1.0, 3.0], np.eye(3), following=range(3)
    )
    W = np.array([[0.3, 0.0, 0.9], [0.9, 0.0, 0.2], [-0.1, 0.0, -0.4]])
    W = W * size / np.linalg.norm(W) + [shift, 0.0, shift]
    values = (
        np.eye(3)
        if loss == "squared"
        else np.array([[2.0, -1.0, 0.5], [0.1, 1.5, -0.3], [-0.7, 0.2, 0.9]])
    )
    problem = Problem.of(data, loss, values)
    G, log_scale = problem.gradient(W)
    with mp.workdps(400):
        h = mp.mpf(10) ** -200
        exact = mp.matrix(3, 3)
        for i in range(3):
            for j in (0, 2):  # token 1 is no query
                delta = np.zeros((3, 3))
                delta[i, j] = 1.0
                exact[i, j] = (
                    extended_loss(data, W, h, delta, values, loss)
                    - extended_loss(data, W, -h, delta, values, loss)
                ) / (2 * h)
        log_size = mp.log(mp.mnorm(exact, "f"))
        direction = np.array((exact / mp.mnorm(exact, "f")).tolist(), dtype=np.float64)
        winner_only = NextTokenData.from_sentences(
            [[0], [1]], [0, 1], [1.0, 3.0], np.eye(3), following=range(3)
        )
        loss_at, floor = (
            extended_loss(one, W, 0, np.zeros((3, 3)), values, loss) for one in (data, winner_only)
        )
        log_gap = float(mp.log(abs(loss_at - floor)))
        sign_gap = float(mp.sign(loss_at - floor))
    # Logits are known to an ulp of their size, and so is the logarithm of what is exponential in
    # them.
    noise = 1e-13 + 4e-16 * np.abs(W).max()
    assert log_scale[0] + np.log(np.linalg.norm(G)) == pytest.approx(float(log_size), abs=noise)
    assert np.abs(G[0] / np.linalg.norm(G) - direction).max() < noise
    assert np.array(problem.gap(W[None]))[:, 0].tolist() == pytest.approx(
        [sign_gap, log_gap], abs=noise
    )
