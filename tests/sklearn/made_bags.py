"""Bags of the tests of estimators."""

import numpy as np
import pytest

from attsvm.sklearn import AttentionSVC, WitnessSVC

BOTH = pytest.mark.parametrize("kind", [AttentionSVC, WitnessSVC])


def make_bags(n=60, seed=0, d=6):
    """Bags of noise in which one token carries the label on its first feature and is marked by its
    second.
    """
    generator = np.random.default_rng(seed)
    labels = np.where(np.arange(n) % 2 == 0, "cat", "dog")
    bags = []
    for label in labels:
        bag = generator.normal(size=(generator.integers(2, 7), d)) * 0.5
        bag[generator.integers(len(bag)), :2] = (2.0 if label == "dog" else -2.0, 2.0)
        bags.append(bag)
    return bags, labels
