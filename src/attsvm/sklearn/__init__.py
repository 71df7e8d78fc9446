"""The scikit-learn face of attsvm: bags in, a classifier with its evidence and its margin out."""

from __future__ import annotations

from attsvm.sklearn.features import BagFeatures
from attsvm.sklearn.svc import AttentionSVC, Evidence

__all__ = ["AttentionSVC", "BagFeatures", "Evidence"]
