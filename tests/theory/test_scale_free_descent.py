"""Directions with memory are those of the optimisers where gradients are ordinary numbers, and keep
their direction where they are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Spectral
from attsvm.theory.scale_free_descent import Adam, Average, Steepest, descend_scale_free

MARKS = np.array([0, 1, 7, 30])
A = np.random.default_rng(0).standard_normal((2, 4, 4))


def pull(W: Any) -> Any:
    """A gradient that is nowhere zero and never the same."""
    return A @ W + np.cos(W) + A.mT


def plain(W: Any) -> Any:
    return pull(W), np.zeros(len(W))


def by_torch(make: Any, steps: int, rate: Any) -> Any:
    W = torch.nn.Parameter(torch.zeros(2, 4, 4, dtype=torch.float64))
    optimizer = make([W])
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = rate(t)
        W.grad = torch.from_numpy(pull(W.detach().numpy()))
        optimizer.step()
    return W.detach().numpy()


def rate(t: int) -> float:
    return float(0.1 / np.sqrt(t + 1.0))


def test_adam_is_torchs_without_its_constant() -> None:
    looks, _ = descend_scale_free(plain, np.zeros((2, 4, 4)), Adam(), rate, MARKS)
    expected = by_torch(lambda p: torch.optim.Adam(p, lr=0.1, eps=0.0), 30, rate)
    np.testing.assert_allclose(looks[-1], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [lambda: Steepest(Frobenius(), 0.9), lambda: Steepest(Spectral(), 0.9), Adam],
    ids=["NMD", "Muon", "Adam"],
)
def test_a_common_factor_of_all_gradients_changes_nothing(make: Any) -> None:
    expected, _ = descend_scale_free(plain, np.zeros((2, 4, 4)), make(), rate, MARKS)
    for log in (-460.0, 460.0, -5000.0):  # ten to the 200, and beyond all floats
        looks, _ = descend_scale_free(
            lambda W, log=log: (pull(W), np.full(len(W), log)),
            np.zeros((2, 4, 4)),
            make(),
            rate,
            MARKS,
        )
        np.testing.assert_allclose(looks, expected, rtol=1e-9, atol=1e-12)


def test_an_average_is_the_one_of_true_gradients() -> None:
    rng = np.random.default_rng(1)
    average, expected = Average(0.9), np.zeros((3, 2, 2))
    for _ in range(20):
        G, logs = rng.standard_normal((3, 2, 2)), rng.uniform(-20, 20, 3)
        average.add(G, logs)
        expected = 0.9 * expected + 0.1 * np.exp(logs)[:, None, None] * G
        np.testing.assert_allclose(
            np.exp(average.log)[:, None, None] * average.value, expected, rtol=1e-12
        )
        assert (np.abs(average.value).max(axis=(1, 2)) < 10.0).all()


def test_a_zero_gradient_is_noted_and_moves_nothing() -> None:
    def gradient(W: Any) -> Any:
        return np.stack([np.zeros((3, 3)), np.eye(3)]), np.array([-np.inf, 0.0])

    for make in (lambda: Steepest(Frobenius()), lambda: Steepest(Spectral(), 0.5), Adam):
        looks, stopped = descend_scale_free(
            gradient, np.zeros((2, 3, 3)), make(), lambda t: 1.0, np.array([0, 4])
        )
        assert stopped.tolist() == [0, -1]
        assert not looks[:, 0].any()
        assert looks[-1, 1].any()


def test_an_average_has_a_weight_below_one() -> None:
    with pytest.raises(InputError, match="weight of the past"):
        Steepest(Frobenius(), 1.0)
