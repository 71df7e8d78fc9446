"""Penalised attention pooling: gradients, its convex start, and what it gains."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from attsvm.datasets.bags import as_bags
from attsvm.sklearn.lockstep import DescentOptions
from attsvm.sklearn.penalised import (
    Pooled,
    attention_heads,
    attention_start,
    certified_head,
    losses,
    mean_heads,
    objectives,
)


def problem(columns=1, equal=False, n=12, seed=0):
    generator = np.random.default_rng(seed)
    lengths = np.full(n, 3) if equal else generator.integers(1, 5, size=n)
    bags = as_bags([generator.normal(size=(length, 3)) for length in lengths])
    labels = np.arange(n) % max(columns, 2)
    queries = generator.normal(size=(n, 2))
    return Pooled(bags, 2.0, queries, labels, columns, np.float64), np.full((n, 1), 1 / n)


def weights(columns, candidates=1, seed=1, d_z=2):
    """Of two heads on three features."""
    generator = np.random.default_rng(seed)
    shapes = (2, 3, d_z, candidates), (2, 4, columns, candidates)
    return [generator.normal(size=shape) for shape in shapes]


def check_gradients(pooled, W, V, shares):
    """Gradients are those of finite differences; returns the loss."""

    def value(flat):
        return pooled.loss(flat[: W.size].reshape(W.shape), flat[W.size :].reshape(V.shape), shares)

    flat = np.concatenate([W.ravel(), V.ravel()])
    numeric = approx_fprime(flat, lambda at: value(at)[0][0], 1e-7)
    total, at_W, at_V = value(flat)
    np.testing.assert_allclose(np.concatenate([at_W.ravel(), at_V.ravel()]), numeric, atol=2e-5)
    return total


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_are_those_of_the_loss(columns, equal):
    pooled, shares = problem(columns, equal)
    W, V = weights(columns)
    check_gradients(pooled, W, V, shares)
    one = replace(pooled, queries=np.ones((12, 1)))
    same = replace(pooled, queries=np.full((12, 2), 0.5))
    first, second = (
        one.loss(W[:, :, :1], V, shares),
        same.loss(np.repeat(W[:, :, :1], 2, 2), V, shares),
    )
    np.testing.assert_allclose(first[0], second[0], rtol=1e-12)
    np.testing.assert_allclose(first[1], 2 * second[1][:, :, :1], atol=1e-14)
    np.testing.assert_allclose(first[2], second[2], atol=1e-14)


@pytest.mark.parametrize("columns", [1, 3])
def test_gradients_are_those_of_the_loss_of_a_drawn_instance(columns):
    pooled, shares = problem(columns)
    drawn = replace(pooled, drawn=True)
    W, V = (matrix[:1] for matrix in weights(columns))
    total = check_gradients(drawn, W, V, shares)
    np.testing.assert_allclose(total, shares[:, 0] @ drawn.bag_losses(W, V), rtol=1e-12)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_row_that_stands_for_several_is_a_row_repeated(columns, drawn):
    pooled, _ = problem(columns)
    pooled = replace(pooled, drawn=drawn)
    W, V = (matrix[:1] for matrix in weights(columns, candidates=2))
    generator = np.random.default_rng(3)
    counts, shares = generator.integers(1, 40, len(pooled.bags.rows)), generator.random((12, 2))
    by_bag = np.split(counts, pooled.bags.offsets[1:-1])
    bags = as_bags([np.repeat(pooled.bags[i], by_bag[i], axis=0) for i in range(12)])
    repeated = replace(pooled, bags=bags)
    counted = replace(pooled, log_counts=np.log(counts))
    for one, other in zip(counted.loss(W, V, shares), repeated.loss(W, V, shares), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    np.testing.assert_allclose(counted.values(W, V), repeated.values(W, V), atol=1e-12)
    np.testing.assert_allclose(counted.bag_losses(W, V), repeated.bag_losses(W, V), atol=1e-12)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_drawn_instance_loses_at_least_what_the_mean_answer_loses(columns):
    pooled, _ = problem(columns)
    drawn = replace(pooled, drawn=True)
    W, V = (matrix[:1] for matrix in weights(columns))
    above = drawn.bag_losses(W, V) - pooled.bag_losses(W, V)
    several = pooled.bags.lengths > 1
    assert (above[several] > 1e-6).all()  # by Jensen's inequality, for values differ
    np.testing.assert_allclose(above[~several], 0.0, atol=1e-12)
    decided = 1e4 * W  # all attention is on one instance
    np.testing.assert_allclose(
        drawn.bag_losses(decided, V), pooled.bag_losses(decided, V), rtol=1e-6
    )
    np.testing.assert_allclose(drawn.values(W, V), pooled.values(decided, V), rtol=1e-6)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("equal", [False, True])
def test_candidates_beside_each_other_are_those_alone(columns, equal):
    pooled, _ = problem(columns)
    pooled = replace(pooled, queries=np.ones((12, 2))) if equal else pooled
    W, V = weights(columns, candidates=8)
    shares = np.random.default_rng(2).random((12, 8))
    shares[:4, 3] = 0.0
    together = pooled.loss(W, V, shares)
    for k in range(8):
        at = slice(k, k + 1)
        alone = pooled.loss(W[..., at], V[..., at], shares[:, at])
        for one, of_all in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, of_all[..., at], atol=1e-13)
    np.testing.assert_allclose(
        pooled.values(W[..., 3:4], V[..., 3:4]), pooled.values(W, V)[..., 3:4], atol=1e-13
    )


def test_bags_without_a_share_play_no_part():
    pooled, _ = problem(3)
    W, V = weights(3)
    chosen = np.array([1, 4, 5, 11])
    some = replace(
        pooled,
        bags=pooled.bags.take(chosen),
        queries=pooled.queries[chosen],
        labels=pooled.labels[chosen],
    )
    shares = np.zeros((12, 1))
    shares[chosen] = 0.25
    for one, of_all in zip(
        some.loss(W, V, np.full((4, 1), 0.25)), pooled.loss(W, V, shares), strict=True
    ):
        np.testing.assert_allclose(one, of_all, atol=1e-13)


@pytest.mark.parametrize("columns", [1, 3])
def test_without_attention_it_is_logistic_regression_on_means(columns):
    pooled, shares = problem(columns, n=60)
    means, penalty = pooled.means(), 1e-2
    head, step = certified_head(pooled, means, shares[:, 0], penalty)
    assert step.status == "optimal"
    known = LogisticRegression(C=1 / (60 * penalty), fit_intercept=False, tol=1e-10, max_iter=500)
    known.fit(means, pooled.labels)
    np.testing.assert_allclose(head.T, known.coef_, atol=2e-3)
    # beside others, of another penalty and without the last ten bags
    some = np.where(np.arange(60) < 50, 1 / 50, 0.0)
    wide = np.column_stack([some, shares[:, 0], shares[:, 0]])
    beside = mean_heads(pooled, means, wide, np.array([penalty, penalty, 1.0]))
    np.testing.assert_allclose(beside[..., 1], head, atol=1e-3)
    fewer, _ = certified_head(pooled, means, some, penalty)
    np.testing.assert_allclose(beside[..., 0], fewer, atol=1e-3)
    values = (means @ head)[..., None]
    uniform = pooled.loss(np.zeros((1, 3, 2, 1)), head[None, ..., None], shares)[0]
    expected = shares[:, 0] @ losses(values, pooled.labels)[0]
    np.testing.assert_allclose(uniform, expected, rtol=1e-12)


def test_attention_gains_where_one_instance_carries_the_label():
    generator = np.random.default_rng(0)
    labels = np.arange(80) % 2
    rows = generator.normal(size=(80, 6, 3))
    rows[:, 0, 0] += 4.0 * (2 * labels - 1)
    rows[:, 0, 1] += 6.0
    pooled = Pooled(as_bags(rows), 1.0, np.ones((80, 1)), labels, 1)
    shares, penalty, ratio = np.full((80, 1), 1 / 80), np.array([1e-3]), np.array([0.1])
    head, step = certified_head(pooled, pooled.means(), shares[:, 0], 1e-3)
    start = attention_start(head[..., None], (1, 3, 1), 0)
    descent = DescentOptions(iterations=200, tolerance=1e-6)
    W, V, objective = attention_heads(pooled, shares, penalty, ratio, *start, descent)
    np.testing.assert_allclose(objectives(pooled, shares, 1e-3, 0.1, W, V), objective, rtol=1e-5)
    assert objective[0] < 0.7 * step.objective
    assert W[0, 1, 0, 0] > abs(W[0, 2, 0, 0])


def test_products_in_single_precision_are_those_of_long_bags_too():
    generator = np.random.default_rng(0)
    bags = as_bags([generator.normal(size=(length, 3)) for length in (5000, 3, 700)])
    queries, labels = generator.normal(size=(3, 2)), np.array([0, 1, 0])
    W, V = weights(1)
    exact = Pooled(bags, 1.0, queries, labels, 1, np.float64)
    single = replace(exact, dtype=np.float32)
    shares = np.full((3, 1), 1 / 3)
    for one, other in zip(exact.loss(W, V, shares), single.loss(W, V, shares), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5)
    np.testing.assert_allclose(exact.means()[2, :3], bags[2].mean(axis=0), rtol=1e-12)
    assert (exact.means()[:, 3] == 4.0).all()
