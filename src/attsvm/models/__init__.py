"""Softmax-attention models whose gradients stay exact at any saturation."""

from attsvm.models.attention import Attention, Sequences
from attsvm.models.heads import LinearHead
from attsvm.models.losses import LogScale, logistic_loss
from attsvm.models.softmax import Selection, attend, select

__all__ = ["Attention", "LinearHead", "LogScale", "Selection", "Sequences", "attend", "logistic_loss", "select"]
