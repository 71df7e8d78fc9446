import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from attsvm import AttentionData
from attsvm.datasets.attention_data import mean_tokens
from attsvm.pipeline.attention_model import logistic_loss, mean_pooling
from attsvm.sklearn.preparation import split_train_validation
from attsvm.sklearn.stage import Weights, argmax_tokens, probabilities


def ragged(seed=0, n=80, d=4):
    generator = np.random.default_rng(seed)
    labels = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    bags = [generator.normal(size=(generator.integers(1, 6), d)) + 0.4 * label for label in labels]
    return AttentionData.from_bags(bags, labels), bags


def test_zero_weights_are_mean_pooling():
    data, _ = ragged()
    head = mean_pooling(data, ragged(seed=1)[0])
    weights = Weights(np.zeros((data.d_x, data.d_z)), head.coef, head.intercept)
    np.testing.assert_allclose(weights.values(data), head.values(data), rtol=1e-12, atol=1e-12)


def test_the_penalty_has_the_smallest_validation_loss_of_all_tried():
    data, validation = ragged()[0], ragged(seed=1)[0]
    head = mean_pooling(data, validation)
    for relative in 10.0 ** np.arange(-3, 4):
        C = relative / np.mean(np.sum(mean_tokens(data) ** 2, axis=1))
        other = LogisticRegression(C=C, max_iter=1000).fit(mean_tokens(data), data.labels)
        loss = logistic_loss(validation.labels, other.decision_function(mean_tokens(validation)))
        assert head.validation_loss <= loss + 1e-12


def test_logistic_loss_neither_overflows_nor_vanishes():
    assert logistic_loss(np.array([1.0]), np.array([-1e4])) == 1e4
    assert logistic_loss(np.array([1.0]), np.array([50.0])) == pytest.approx(
        np.exp(-50.0), rel=1e-12
    )


def test_splits_are_stratified_sorted_and_disjoint():
    labels = np.array([1.0] * 30 + [-1.0] * 10)
    rest, part = split_train_validation(labels, 0.2, 0, "test_size")
    assert np.array_equal(np.sort(np.concatenate([rest, part])), np.arange(40))
    assert (labels[part] > 0).sum() == 6
    assert (labels[part] < 0).sum() == 2
    assert np.array_equal(split_train_validation(labels, 0.2, 0, "test_size")[1], part)
    assert not np.array_equal(split_train_validation(labels, 0.2, 1, "test_size")[1], part)


def test_masked_tokens_are_never_selected():
    data, _ = ragged()
    for sign in (-1e3, 1e3):  # with one of them the padding would be ahead
        W = np.full((data.d_x, data.d_z), sign)
        assert (argmax_tokens(data, W) < data.lengths).all()
        weights = probabilities(data, W)
        assert (weights[~data.mask] == 0).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
