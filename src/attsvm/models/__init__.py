"""Softmax-attention models whose gradients stay exact at any saturation."""

from attsvm.models.attention import Attention, FactoredAttention
from attsvm.models.decision_heads import LambdaHead, LinearHead, MLPHead, VectorHead
from attsvm.models.losses import (
    Exponential,
    FunctionLoss,
    Linear,
    Logistic,
    LogScale,
    Loss,
)
from attsvm.models.sequences import Inputs, Sequences
from attsvm.models.softmax import Selection, attend, select

__all__ = [
    "Attention",
    "Exponential",
    "FactoredAttention",
    "FunctionLoss",
    "Inputs",
    "LambdaHead",
    "Linear",
    "LinearHead",
    "LogScale",
    "Logistic",
    "Loss",
    "MLPHead",
    "Selection",
    "Sequences",
    "VectorHead",
    "attend",
    "select",
]


def __dir__() -> list[str]:
    return __all__
