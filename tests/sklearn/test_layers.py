"""What fitted models say of bags: parts that sum up, and the form of the assumption."""

import numpy as np
import pytest

from attsvm.sklearn.layers import PooledLayer, WitnessLayer
from attsvm.sklearn.segments import (
    bag_moments,
    bag_products,
    columns,
    first_largest,
    products,
    softmax,
    sums,
)

OFFSETS = np.array([0, 3, 4, 9])


def rows(seed=0, count=9):
    return np.random.default_rng(seed).normal(size=(count, 4))


def layers():
    generator = np.random.default_rng(3)
    W, V = generator.normal(size=(2, 4, 1)), generator.normal(size=(2, 4, 3))
    yield PooledLayer(W, V, generator.normal(size=3))
    yield PooledLayer(W[:1], V[:1, :, :1], generator.normal(size=1), hard=True)
    for hard in (False, True):
        yield WitnessLayer(generator.normal(size=(1, 4)), np.zeros(1), True, hard, 0.3)
        yield WitnessLayer(generator.normal(size=(2, 4)), np.zeros(2), True, hard)
        yield WitnessLayer(generator.normal(size=(3, 4)), np.zeros(3), False, hard)


@pytest.mark.parametrize("layer", list(layers()))
def test_attention_sums_to_one_and_contributions_to_the_values(layer):
    read = layer.read(rows(), OFFSETS, np.ones((3, 1)))
    np.testing.assert_allclose(sums(read.attention, OFFSETS), 1.0)
    np.testing.assert_allclose(sums(read.contributions, OFFSETS), read.values)
    np.testing.assert_allclose(layer.alone(rows()[3:4]), read.values[1:2])
    assert (read.selected >= 0).all()
    assert (read.selected < np.diff(OFFSETS)[:, None]).all()


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("hard", [False, True])
def test_a_further_instance_never_lowers_the_value_of_a_bag(columns, hard):
    generator = np.random.default_rng(0)
    layer = WitnessLayer(generator.normal(size=(columns, 4)), np.zeros(columns), True, hard)
    base = rows()
    for seed in range(20):
        more = np.vstack([base, 5.0 * rows(seed, 1)])
        values = [
            layer.read(X, np.array([0, len(X)]), np.ones((1, 1))).values for X in (base, more)
        ]
        assert values[1] >= values[0] - 1e-12


def test_sums_over_bags_are_those_of_a_loop():
    X, moved = rows(), rows(1, 3)
    for offsets in (OFFSETS, np.array([0, 3, 6, 9])):
        parts = np.split(np.arange(9), offsets[1:-1])
        found = products(X, moved, offsets)
        np.testing.assert_allclose(
            found, np.concatenate([X[p] @ m for p, m in zip(parts, moved, strict=True)])
        )
        shares, factors = rows(2), np.random.default_rng(6).normal(size=(3, 4, 2))
        known = [X[p].T @ shares[p] for p in parts]
        np.testing.assert_allclose(bag_moments(X, shares, offsets), known)
        known = np.vstack([X[p] @ factor for p, factor in zip(parts, factors, strict=True)])
        np.testing.assert_allclose(bag_products(X, factors, offsets), known)
        p, total = softmax(found, offsets)
        np.testing.assert_allclose(total, [np.log(np.exp(found[q]).sum()) for q in parts])
        np.testing.assert_allclose(p, np.exp(found - np.repeat(total, np.diff(offsets))))
        assert first_largest(found, offsets).tolist() == [np.argmax(found[q]) for q in parts]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_products_column_by_column_are_products(count):
    factor = np.random.default_rng(5).normal(size=(4, count))
    np.testing.assert_allclose(columns(rows(), factor), rows() @ factor)
