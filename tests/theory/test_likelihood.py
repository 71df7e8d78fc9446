"""The log loss of attention mass as a multinomial logistic regression: the same number, convex,
minimised to rounding.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.theory import Likelihood, attention_likelihood, stack_likelihoods, token_masses
from attsvm.theory.sentences import NextTokenData, priority_graph


def draw(seed: int) -> NextTokenData:
    """Sentences with repeats and unequal lengths, weights far from equal."""
    rng = np.random.default_rng(seed)
    K = 5
    sentences = [rng.integers(K, size=rng.integers(1, 8)) for _ in range(6)]
    labels = [int(rng.choice(sentence)) for sentence in sentences]
    E = rng.standard_normal((K, 4))  # dependent rows: nothing here needs them independent
    return NextTokenData.from_sentences(
        sentences, labels, rng.dirichlet(np.ones(6)), E, following=np.arange(K)
    )


@given(st.integers(0, 10_000))
def test_it_is_minus_the_log_of_the_attention_mass(seed: int) -> None:
    data = draw(seed)
    W = np.random.default_rng(seed + 1).standard_normal((data.d, data.d))
    tokens, count = data.distinct()
    mass = np.sum(token_masses(data, W) * (tokens == data.labels[:, None]) * (count > 0), axis=1)
    loss = attention_likelihood(data)
    # rounding of a few logarithms
    assert loss.value(W.ravel()) == pytest.approx(-data.weights @ np.log(mass), rel=1e-12)


@given(st.integers(0, 10_000))
def test_derivatives_are_those_of_the_value_and_the_hessian_has_no_negative_eigenvalue(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    loss = attention_likelihood(draw(seed))
    c, direction = rng.standard_normal((2, loss.dimension))
    here = loss.curvature(c)
    step = 1e-5
    up, down = loss.curvature(c + step * direction), loss.curvature(c - step * direction)
    scale = np.abs(loss.features).sum() ** 2 + 1.0
    # rounding over the step, and its square
    assert abs((up.value - down.value) / (2 * step) - here.gradient @ direction) < 1e-9 * scale
    np.testing.assert_allclose(
        (up.gradient - down.gradient) / (2 * step), here.hessian @ direction, atol=1e-8 * scale
    )
    assert np.linalg.eigvalsh(here.hessian).min() >= -1e-12 * max(1.0, np.abs(here.hessian).max())


def test_masses_and_loss_keep_their_digits_where_the_label_has_almost_everything() -> None:
    features = np.array([[[1.0], [2.0]]])
    loss = Likelihood(features, np.log([[1.0, 3.0]]), np.ones(1))
    with mpmath.workdps(400):
        rest = [mpmath.exp(-200), 3 * mpmath.exp(-400)]
        expected = mpmath.log(1 + sum(rest))
        gradient = -(rest[0] + 2 * rest[1]) / (1 + sum(rest))
    here = loss.curvature([200.0])
    assert float(here.value) == pytest.approx(float(expected), rel=1e-14, abs=0.0)
    assert here.gradient[0] == pytest.approx(float(gradient), rel=1e-14, abs=0.0)


@given(st.integers(0, 10_000), st.sampled_from([1e-9, 1e-3, 1.0]))
def test_newton_ends_where_the_gradient_is_rounding(seed: int, ridge: float) -> None:
    loss = attention_likelihood(draw(seed))
    start = np.random.default_rng(seed).standard_normal(loss.dimension) if ridge > 1e-6 else None
    best = loss.minimise(ridge, start)
    size = 1.0 + np.abs(loss.features).max()
    assert best.gradient <= 1e-13 * size
    assert best.iterations < 100


def test_a_stack_is_its_parts() -> None:
    parts = [
        attention_likelihood(priority_graph(n, T, 6, 3, seed=n))
        for n, T in ((3, 4), (5, 2), (1, 3))
    ]
    whole = stack_likelihoods(parts)
    c = np.random.default_rng(0).standard_normal((3, whole.dimension))
    together = whole.curvature(c)
    np.testing.assert_allclose(whole.value(c), together.value, rtol=1e-15)
    for k, part in enumerate(parts):
        alone = part.curvature(c[k])
        for one, other in zip(alone, (field[k] for field in together), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)
    best = whole.minimise(0.1)
    for k, part in enumerate(parts):
        np.testing.assert_allclose(best.point[k], part.minimise(0.1).point, atol=1e-12)
