"""Softmax-attention models whose gradients stay exact at any saturation."""

from attsvm.models.attention import (
    Attention,
    FactoredAttention,
    FixedPromptAttention,
    PromptAttention,
)
from attsvm.models.classifiers import (
    BagClassifier,
    TextClassifier,
    VisionTransformer,
    soft_sparsity,
)
from attsvm.models.decision_heads import LambdaHead, LinearHead, MLPHead
from attsvm.models.losses import (
    Custom,
    Exponential,
    Linear,
    Logistic,
    LogScale,
    Loss,
    PerRun,
    logistic_loss,
)
from attsvm.models.next_token import NextTokenTransformer
from attsvm.models.sequences import Sequences
from attsvm.models.softmax import Selection, attend, select
from attsvm.models.sum_of_heads import sum_of_heads

__all__ = [
    "Attention",
    "BagClassifier",
    "Custom",
    "Exponential",
    "FactoredAttention",
    "FixedPromptAttention",
    "LambdaHead",
    "Linear",
    "LinearHead",
    "LogScale",
    "Logistic",
    "Loss",
    "MLPHead",
    "NextTokenTransformer",
    "PerRun",
    "PromptAttention",
    "Selection",
    "Sequences",
    "TextClassifier",
    "VisionTransformer",
    "attend",
    "logistic_loss",
    "select",
    "soft_sparsity",
    "sum_of_heads",
]
