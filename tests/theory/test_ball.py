"""Best weights in a ball: optimality by the Frank-Wolfe gap, a closed form, and another solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.theory import Likelihood, graph_svm, graph_svm_batch, stack_likelihoods
from attsvm.theory.ball import ball_path
from attsvm.theory.sentences import NextTokenData, priority_graph


@settings(max_examples=6)
@given(st.integers(0, 500), st.booleans())
def test_no_point_of_the_ball_is_better(seed: int, cyclic: bool) -> None:
    likelihood, other = (
        graph_svm(priority_graph(6, 4, 6, 8, s, cyclic=cyclic)).likelihood()
        for s in (seed, seed + 1)
    )
    path = ball_path(likelihood, [1.0, 5.0, 20.0])
    beside = ball_path(stack_likelihoods([other, likelihood]), path.radii)
    np.testing.assert_allclose(beside.points[:, 1, : likelihood.dimension], path.points, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(path.points, axis=-1), path.radii, rtol=1e-12)
    assert (path.gap <= 1e-14).all()  # rounding of losses of order one
    if not cyclic:  # every term of the gradient keeps its digits
        far = ball_path(likelihood, [200.0, 400.0])
        assert (far.gap <= 1e-12 * far.loss).all()
    rng = np.random.default_rng(seed)
    for R, loss in zip(path.radii, path.loss, strict=True):
        others = rng.standard_normal((50, likelihood.dimension))
        others *= R * rng.random((50, 1)) ** 0.1 / np.linalg.norm(others, axis=1, keepdims=True)
        assert all(likelihood.value(point) >= loss for point in others)


def test_one_rival_has_a_closed_form_at_any_size() -> None:
    likelihood = Likelihood(np.ones((1, 1, 1)), np.zeros((1, 1)), np.ones(1))
    path = ball_path(likelihood, [1.0, 30.0, 600.0])
    np.testing.assert_allclose(path.points[:, 0], path.radii, rtol=1e-12)
    np.testing.assert_allclose(
        path.multiplier, np.exp(-path.radii) / (1 + np.exp(-path.radii)) / path.radii, rtol=1e-10
    )


def test_a_loss_with_a_minimiser_inside_the_ball_has_no_multiplier() -> None:
    # each graph is one component
    sentences, labels = [[0, 1, 2]] * 6 + [[2, 1, 0]] * 3, [0, 1, 1, 2, 2, 2, 0, 1, 2]
    rows = [np.random.default_rng(seed).standard_normal((3, 4)) for seed in range(5)]
    inner = graph_svm_batch(
        [
            NextTokenData.from_sentences(sentences, labels, embeddings=E, following=np.arange(3))
            for E in rows
        ]
    )
    assert not any(one.directed for one in inner)
    path = ball_path(stack_likelihoods([one.likelihood() for one in inner]), [50.0])
    assert (path.multiplier == 0.0).all()
    for k, one in enumerate(inner):
        basis = one.basis()
        np.testing.assert_allclose(
            np.tensordot(path.points[0, k, : len(basis)], basis, axes=1), one.finite, atol=1e-10
        )


def test_radii_are_positive() -> None:
    with pytest.raises(InputError, match="radii"):
        ball_path(Likelihood(np.ones((1, 1, 1)), np.zeros((1, 1)), np.ones(1)), [1.0, -2.0])
