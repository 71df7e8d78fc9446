"""The scikit-learn face of attsvm: bags in, a classifier with its evidence and its margin out."""

from __future__ import annotations

from attsvm.sklearn.bag_classifier import ChanceWarning
from attsvm.sklearn.evidence import BagEvidence
from attsvm.sklearn.explaining import Explanation, Limits
from attsvm.sklearn.features import BagContext, BagFeatures
from attsvm.sklearn.saved import load_classifier, save_classifier
from attsvm.sklearn.svc import AttentionSVC, WitnessSVC

__all__ = [
    "AttentionSVC",
    "BagContext",
    "BagEvidence",
    "BagFeatures",
    "ChanceWarning",
    "Explanation",
    "Limits",
    "WitnessSVC",
    "load_classifier",
    "save_classifier",
]


def __dir__() -> list[str]:
    return __all__
