"""The attention of a fit as an estimator of bags, for the page of its held-out bags."""

from __future__ import annotations

import numpy as np

from attsvm.datasets.attention_data import AttentionData, IntArray
from attsvm.sklearn import AttentionSVC
from attsvm.sklearn.layers import Layer, PooledLayer
from attsvm.sklearn.stage import Weights


class _WeightsClassifier(AttentionSVC):
    """An :class:`~attsvm.sklearn.AttentionSVC` that predicts with weights it was not fitted to."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.weights = weights

    def _layer(self) -> Layer:
        W, head, intercept = self.weights.W, self.weights.head, self.weights.intercept
        return PooledLayer(W[None], head[None, :, None], np.array([intercept]))


def bags_classifier(
    weights: Weights, data: AttentionData, validation_rows: IntArray
) -> AttentionSVC:
    """The classifier of bags with these weights, calibrated on the validation part.

    Args:
        weights: attention and head, in the units of the data.
        data: the sequences of training and validation.
        validation_rows: positions of those that the weights were not trained on.
    """
    classifier = _WeightsClassifier(weights)
    training = classifier.training_bags(data)
    values = classifier._reading(training.bags, data.queries).values
    classifier._describe(training, values, validation_rows)
    classifier.convex_steps_, classifier.optimum_ = [], "none"
    return classifier
