"""Softmax-attention models whose gradients stay exact at any saturation."""

from attsvm.attention.attention import Attention, FactoredAttention, ScaledAttention
from attsvm.attention.decision_heads import LambdaHead, LinearHead, MLPHead, VectorHead
from attsvm.attention.exact_softmax import Selection, attend, select
from attsvm.attention.losses import Exponential, FunctionLoss, Linear, Logistic, LogScale, Loss
from attsvm.attention.sequences import Inputs, Sequences
from attsvm.attention.word_embeddings import WordEmbeddings

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
    "ScaledAttention",
    "Selection",
    "Sequences",
    "VectorHead",
    "WordEmbeddings",
    "attend",
    "select",
]


def __dir__() -> list[str]:
    return __all__
