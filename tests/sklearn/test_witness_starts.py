"""Attention pooling of long bags begins at witnesses of either class and sees few rows first."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from attsvm.datasets.bags import as_bags
from attsvm.sklearn import AttentionSVC
from attsvm.sklearn.penalised import Pooled
from attsvm.sklearn.witness_starts import StartOptions, thinned


def slides(seed, n=40, patches=260, d=24):
    """Half of the bags hold three rows that lie far in one direction."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    bags = generator.normal(size=(n, patches, d)).astype(np.float32)
    bags += generator.normal(size=(n, 1, d)).astype(np.float32)  # every slide has its stain
    bags[labels == 1, :3, 0] += 8.0
    return bags, labels


@pytest.mark.parametrize("positive", [1, 0])
def test_a_few_telling_instances_of_either_class_are_seen(positive):
    bags, labels = slides(0)
    more, truth = slides(1)
    model = AttentionSVC().fit(bags, labels == positive)
    assert roc_auc_score(truth == positive, model.decision_function(more)) > 0.95
    assert np.mean(model.select(more[truth == 1]) < 3) > 0.9


def problem(bags, labels):
    return Pooled(bags, 1.0, np.ones((bags.n, 1)), labels, 1, np.float64)


def test_a_row_that_stands_for_several_counts_as_often():
    generator = np.random.default_rng(0)
    tables = [generator.normal(size=(4, 3)) for _ in range(5)]
    labels, counts = np.arange(5) % 2, generator.integers(1, 4, size=20)
    repeated = [
        np.repeat(table, times, axis=0)
        for table, times in zip(tables, counts.reshape(5, 4), strict=True)
    ]
    W, V = generator.normal(size=(1, 3, 1, 2)), generator.normal(size=(1, 4, 1, 2))
    shares = np.full((5, 2), 0.2)
    few = replace(problem(as_bags(tables), labels), log_counts=np.log(counts))
    for of_few, of_all in zip(
        few.loss(W, V, shares), problem(as_bags(repeated), labels).loss(W, V, shares), strict=True
    ):
        np.testing.assert_allclose(of_few, of_all, atol=1e-12)


def test_thinned_bags_hold_the_likeliest_witnesses_and_stand_for_all_rows():
    tables, labels = slides(2, n=6)
    bags = as_bags([*tables, tables[0][:7]])
    weights = np.zeros((bags.d + 1, 1))
    weights[0] = 1.0
    options = StartOptions(rows=20, heavy=5)
    few = thinned(problem(bags, np.append(labels, 0)), weights, 0, options)
    assert few.bags.lengths.tolist() == [20] * 6 + [7]
    alone = np.split(few.log_counts == 0, few.bags.offsets[1:-1])
    for table, bag, is_heavy in zip(tables, few.bags, alone, strict=False):
        np.testing.assert_array_equal(np.sort(bag[is_heavy, 0]), np.sort(table[:, 0])[-5:])
        assert len(np.unique(bag[:, 0])) == 20  # no row twice
    stands_for = np.add.reduceat(np.exp(few.log_counts), few.bags.offsets[:-1])
    np.testing.assert_allclose(stands_for, bags.lengths)
    short = problem(bags.take([6]), np.zeros(1, int))
    assert thinned(short, weights, 0, options) is short
