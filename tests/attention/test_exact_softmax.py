"""The attention operation: its gradient against autodiff, against extended precision, and where
others break down.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm.attention import Attention, Logistic, LogScale, select
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData


def test_loss_slope_may_underflow_without_losing_the_gradient() -> None:
    data, v = unit_sphere(4, 5, 6, seed=1)
    directions = []
    for offset in (50.0, 5000.0):  # all margins shifted: only the common slope of the loss changes
        lifted = AttentionData(data.tokens, np.ones(4), data.queries)
        model, scale = (
            Attention.cross(lifted, v, intercept=offset, init=("uniform", 3), train_head=True),
            LogScale(),
        )
        model.loss(lifted, scale).backward()
        assert (model.head.readout.grad.abs() > 1e-3).any()
        directions.append(model.W.grad / torch.linalg.norm(model.W.grad))
    torch.testing.assert_close(directions[0], directions[1], rtol=1e-10, atol=1e-10)


def test_tied_scores_keep_their_second_order_gradient() -> None:
    # Token 1 ties with the winner 0 in score; token 2 does not and is far below: s_2 = e^-900 would
    # underflow.
    tokens = np.array([[[1.0, 0.0, 2.0], [0.5, 0.0, 2.0], [-900.0, 1.0, 0.0]]])
    data = AttentionData(tokens, [1.0], [[1.0]])
    W = np.array([[1.0], [0.0], [0.0]])
    model, scale = Attention.cross(data, [0.0, 0.0, 1.0], init=W), LogScale()
    model.loss(data, scale).backward()
    s1 = 1.0 / (1.0 + np.exp(0.5))
    # -n grad ~ s_2 g_2 (x_0 - x_2) - s_1 (s_2 g_2) (x_0 - x_1), with s_2 g_2 taken out
    expected = (
        -2.0 * (1.0 - s1) * ((tokens[0, 0] - tokens[0, 2]) - s1 * (tokens[0, 0] - tokens[0, 1]))
    )
    got = model.W.grad.numpy()[:, 0]
    np.testing.assert_allclose(
        got / np.linalg.norm(got), expected / np.linalg.norm(expected), rtol=1e-12
    )
    assert float(scale.attention) < -890.0


def test_all_scores_tied_give_exactly_zero_and_no_nan() -> None:
    """Under no head, and of five equal tokens: more than one vector register takes."""
    data, v = unit_sphere(3, 5, 7, seed=2)
    equal = AttentionData(np.repeat(data.tokens[:, :1], 5, axis=1), data.labels, data.queries)
    for one, head in ((data, 0.0 * v), (equal, v)):
        model, scale = Attention.cross(one, head, init=("uniform", 0)), LogScale()
        model.loss(one, scale).backward()
        assert (model.W.grad == 0).all()
        assert scale.attention == -torch.inf


def test_a_large_common_part_of_the_tokens_costs_no_digits() -> None:
    data, v = unit_sphere(4, 5, 6, seed=3)
    tokens = np.ldexp(np.rint(np.ldexp(data.tokens, 20)), -20)
    gradients = []
    for shift in (0.0, 2.0**20):
        moved = AttentionData(tokens + shift * (np.arange(6) == 0), data.labels, data.queries)
        model = Attention.cross(moved, v * (np.arange(6) > 0), init=("uniform", 0))
        model.loss(moved).backward()
        gradients.append(model.W.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-11)


def test_select_reads_the_first_of_equal_logits() -> None:
    selection = select(
        torch.tensor([[1.0, 3.0, 3.0, 9.0]]), torch.tensor([[True, True, True, False]])
    )
    assert selection.winner.tolist() == [1]
    torch.testing.assert_close(selection.probability.sum(-1), torch.ones(1))
    assert selection.probability[0, 3] == 0


def test_small_masses_of_losers_survive() -> None:
    logits = torch.tensor([[0.0, -60.0]], dtype=torch.float64)
    selection = select(logits, torch.ones(1, 2, dtype=torch.bool))
    assert float(selection.log_probability[0, 0]) == pytest.approx(-np.exp(-60.0), rel=1e-12, abs=0)


def test_logistic_loss_never_overflows() -> None:
    loss = Logistic()(torch.tensor([[-1e4], [1e4], [0.0]], dtype=torch.float64))
    torch.testing.assert_close(loss, torch.tensor([1e4, 0.0, np.log(2.0)], dtype=torch.float64))
