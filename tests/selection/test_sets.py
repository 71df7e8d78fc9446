"""Selected sets, and the mixtures that a concave head prefers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets import orthonormal
from attsvm.dynamics import LogSpaced, train
from attsvm.errors import InputError
from attsvm.models import Attention, LambdaHead
from attsvm.optim import SteepestDescent
from attsvm.selection import selected_sets, sparsemax, sparsemax_selection, token_scores


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=7))
def test_sparsemax_is_the_projection_onto_the_simplex(values: list[float]) -> None:
    gamma = np.array(values)
    s = sparsemax(gamma)
    assert (s >= 0).all()
    assert s.sum() == pytest.approx(1.0, abs=1e-12)
    slack = gamma - s  # variational inequality: <gamma - s, e_t - s> <= 0 at every vertex
    assert slack.max() - slack @ s <= 1e-11


def test_hidden_tokens_get_nothing() -> None:
    assert sparsemax([[0.0, -np.inf, 0.0]]).tolist() == [[0.5, 0.0, 0.5]]


def test_training_selects_the_predicted_mixture() -> None:
    # T21 and tfsvm-8, with steps that shrink: no peeking at the trained softmax.
    data, v = orthonormal(3, 4, seed=list(range(20)))
    sizes = []
    for strength in (0.05, 1.0):
        model = Attention.cross(data, LambdaHead(torch.tensor(v), strength))
        train(
            model,
            data,
            SteepestDescent(model.parameters(), lr=0.1),
            1200,
            LogSpaced(1),
            schedule=lambda k: min(1.0, 100 / (k + 1)),
        )
        predicted = sparsemax_selection(token_scores(data, v), strength)
        # What lies outside the sets dies out exponentially in the length of the path: this short
        # one leaves some thousandths.
        assert (
            np.median(
                np.abs(model.probabilities(data).detach().numpy() - predicted.probabilities).max(
                    axis=(1, 2)
                )
            )
            < 5e-3
        )
        sizes.append(predicted.sets.sum(axis=-1).mean())
    assert sizes == sorted(sizes)


def test_thresholds() -> None:
    s = np.array([[[0.6, 0.4, 1e-9]], [[0.999, 1e-3, 1e-5]], [[0.5, 0.3, 0.2]]])
    found = selected_sets(s)
    assert found.sets.tolist() == [
        [[True, True, False]],
        [[True, True, False]],
        [[True, True, True]],
    ]
    assert found.clear.tolist() == [True, False, False]
    assert selected_sets(s[1], mask=[[True, True, False]]).clear.tolist() is False
    with pytest.raises(InputError, match="the thresholds"):
        selected_sets(s, selected=1e-7)
    with pytest.raises(InputError, match="strength is 0"):
        sparsemax_selection(s, 0.0)
