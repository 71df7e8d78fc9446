"""Penalised attention pooling: gradients, its convex start, and what it gains."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from attsvm.datasets.bags import as_bags
from attsvm.sklearn.penalised import Pooled, attention_heads, losses, mean_head


def problem(columns=1, equal=False, n=12, seed=0):
    generator = np.random.default_rng(seed)
    lengths = np.full(n, 3) if equal else generator.integers(1, 5, size=n)
    bags = as_bags([generator.normal(size=(length, 3)) for length in lengths])
    labels = np.arange(n) % max(columns, 2)
    queries = generator.normal(size=(n, 2))
    return Pooled(bags, 2.0, queries, labels, columns), np.full(n, 1 / n)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_are_those_of_the_loss(columns, equal):
    given, shares = problem(columns, equal)
    generator = np.random.default_rng(1)
    W, V = generator.normal(size=(2, 3, 2)), generator.normal(size=(2, 4, columns))

    def value(flat):
        return given.loss(flat[: W.size].reshape(W.shape), flat[W.size :].reshape(V.shape), shares)

    flat = np.concatenate([W.ravel(), V.ravel()])
    numeric = approx_fprime(flat, lambda at: value(at)[0], 1e-7)
    _, at_W, at_V = value(flat)
    np.testing.assert_allclose(np.concatenate([at_W.ravel(), at_V.ravel()]), numeric, atol=2e-5)
    one = replace(given, queries=np.ones((12, 1)))
    same = replace(given, queries=np.full((12, 2), 0.5))
    first, second = (
        one.loss(W[:, :, :1], V, shares),
        same.loss(np.repeat(W[:, :, :1], 2, 2), V, shares),
    )
    assert first[0] == pytest.approx(second[0], rel=1e-12)
    np.testing.assert_allclose(first[1], 2 * second[1][:, :, :1], atol=1e-14)
    np.testing.assert_allclose(first[2], second[2], atol=1e-14)


def test_some_bags_have_the_losses_and_values_that_they_have_among_all():
    given, _ = problem(3)
    generator = np.random.default_rng(1)
    W, V = generator.normal(size=(2, 3, 2)), generator.normal(size=(2, 4, 3))
    kept = np.array([1, 4, 5, 11])
    some = given.take(kept)
    np.testing.assert_allclose(some.values(W, V), given.values(W, V)[kept], rtol=1e-12)
    shares = np.zeros(12)
    shares[kept] = 0.25
    for one, all_of in zip(
        some.loss(W, V, np.full(4, 0.25)), given.loss(W, V, shares), strict=True
    ):
        np.testing.assert_allclose(one, all_of, atol=1e-13)


@pytest.mark.parametrize("columns", [1, 3])
def test_without_attention_it_is_logistic_regression_on_means(columns):
    given, shares = problem(columns, n=60)
    means, penalty = given.means(), 1e-2
    head, step = mean_head(given, means, shares, penalty, None)
    assert step.status == "optimal"
    known = LogisticRegression(C=1 / (60 * penalty), fit_intercept=False, tol=1e-10, max_iter=500)
    known.fit(means, given.labels)
    np.testing.assert_allclose(head.T, known.coef_, atol=2e-3)
    flat, heads = np.zeros((1, 3, 2)), head[None]
    values = means @ head
    assert given.loss(flat, heads, shares)[0] == pytest.approx(
        float(shares @ losses(values, given.labels)[0]), rel=1e-12
    )


def test_attention_gains_where_one_instance_carries_the_label():
    generator = np.random.default_rng(0)
    labels = np.arange(80) % 2
    rows = generator.normal(size=(80, 6, 3))
    rows[:, 0, 0] += 4.0 * (2 * labels - 1)
    rows[:, 0, 1] += 6.0
    given = Pooled(as_bags(rows), 1.0, np.ones((80, 1)), labels, 1)
    shares, penalty = np.full(80, 1 / 80), 1e-3
    head, step = mean_head(given, given.means(), shares, penalty, None)
    W, V = attention_heads(given, shares, penalty, 0.1, head, 1, 0, 200)
    size = given.loss(W, V, shares)[0] + penalty / 2 * (np.sum(V**2) + 0.1 * np.sum(W**2))
    assert size < 0.7 * step.objective
    assert W[0, 1, 0] > abs(W[0, 2, 0])


def test_products_in_single_precision_are_those_of_long_bags_too():
    generator = np.random.default_rng(0)
    bags = as_bags([generator.normal(size=(length, 3)) for length in (5000, 3, 700)])
    queries, labels = generator.normal(size=(3, 2)), np.array([0, 1, 0])
    W, V = generator.normal(size=(2, 3, 2)), generator.normal(size=(2, 4, 1))
    exact = Pooled(bags, 1.0, queries, labels, 1)
    single = replace(exact, dtype=np.float32)
    for one, other in zip(
        exact.loss(W, V, np.full(3, 1 / 3)), single.loss(W, V, np.full(3, 1 / 3)), strict=True
    ):
        np.testing.assert_allclose(other, one, atol=2e-5)
    np.testing.assert_allclose(exact.means()[2, :3], bags[2].mean(axis=0), rtol=1e-12)
    assert (exact.means()[:, 3] == 4.0).all()
