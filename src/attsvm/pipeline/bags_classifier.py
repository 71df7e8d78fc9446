"""The attention of a fit as an estimator of bags, for the page of its held-out bags."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.datasets.attention_data import AttentionData, IntArray
from attsvm.sklearn import AttentionSVC
from attsvm.sklearn.choosing import Predictor
from attsvm.sklearn.layers import PooledLayer
from attsvm.sklearn.stage import Weights


def bags_classifier(
    weights: Weights,
    data: AttentionData,
    validation_rows: IntArray,
    query: Literal["mean", "constant", "first"] = "mean",
) -> AttentionSVC:
    """The classifier of bags with these weights, calibrated on the validation part.

    Args:
        weights: attention and head, in the units of the data.
        data: the sequences of training and validation.
        validation_rows: positions of those that the weights were not trained on.
        query: of new sequences without one.
    """
    classifier = AttentionSVC(query=query)
    training = classifier.training_bags(data)
    layer = PooledLayer(weights.W[None], weights.head[None, :, None], np.array([weights.intercept]))
    left_out = np.full((data.n, 1), np.nan)
    classifier.predictor_ = Predictor(layer, 0.0, None, np.empty(0), left_out, [], False)
    values = classifier._reading(training.bags, data.queries).values
    classifier._describe(training, values, validation_rows)
    classifier.convex_steps_, classifier.optimum_ = [], "none"
    return classifier
