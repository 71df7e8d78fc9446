"""What the experiment on soft labels draws and measures with, against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from attsvm.dynamics import AtSteps
from attsvm.dynamics.next_token import Rule, output_stage
from attsvm.selection import soft_label_svm
from attsvm_papers.ntp import contexts


@pytest.fixture(scope="module")
def svm():
    return soft_label_svm(*contexts.random_contexts(5, 6, 7, 3, 0))


def gradient(svm, W):
    h, p, weights = svm.labels
    return ((softmax(h @ W.T, axis=1) - p) * weights[:, None]).T @ h


def test_sentences_of_one_token_are_the_soft_labels(svm):
    h, p, weights = svm.labels
    step, W = 0.3, np.zeros((6, 7))
    marks = np.arange(4)
    course = output_stage(
        contexts.sentences(svm), Rule(step, normalize=False), 3, records=AtSteps(marks)
    )
    for k in range(4):
        np.testing.assert_allclose(course.W[k, 0], W, atol=1e-14)
        expected = -weights @ (p * log_softmax(h @ W.T, axis=1)).sum(axis=1)
        assert course.loss[k, 0] == pytest.approx(expected, rel=1e-13)
        W = W - step * gradient(svm, W)


def test_steps_are_as_long_as_the_curvature_allows(svm):
    """Power iterations on differences of gradients never see more curvature."""
    rng = np.random.default_rng(0)
    bound = 1.0 / contexts.longest_step(svm)
    most = 0.0
    for _ in range(20):
        W, D = rng.standard_normal((2, 6, 7))
        for _ in range(20):
            D /= np.linalg.norm(D)
            D = (gradient(svm, W + 1e-5 * D) - gradient(svm, W - 1e-5 * D)) / 2e-5
            most = max(most, float(np.linalg.norm(D)))
    assert 0.0 < most <= bound * (1 + 1e-6)


def test_what_is_off_the_supports(svm):
    h, p, weights = svm.labels
    W = np.random.default_rng(1).standard_normal((6, 7))
    every = softmax(h @ W.T, axis=1) * weights[:, None]
    np.testing.assert_allclose(contexts.off_support(svm, W), every[p == 0], rtol=1e-12)
    assert (contexts.multipliers(svm) >= 0).all()
    assert len(contexts.multipliers(svm)) == (p == 0).sum()


def test_nulls_of_labels():
    drawn = contexts.two_topics(8, 10, 0)
    h, n = drawn
    p = contexts.reversed_odds(drawn)[1]
    inside = n > 0
    np.testing.assert_array_equal(p > 0, inside)
    for row, turned, own in zip(n, p, inside, strict=True):
        np.testing.assert_allclose(row[own] * turned[own], (row * turned).max())
    assert (contexts.most_frequent(drawn)[1].argmax(axis=1) == n.argmax(axis=1)).all()
    found = soft_label_svm(h, n)
    assert found.separable
    assert not found.compatible
