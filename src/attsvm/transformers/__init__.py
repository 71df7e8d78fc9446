"""What the heads of a trained transformer select, by what margin, and which tokens decide it."""

from __future__ import annotations

from attsvm.transformers.audit import Audit, audit
from attsvm.transformers.capture import capture
from attsvm.transformers.checkpoints import Checkpoints
from attsvm.transformers.demo import demo_model
from attsvm.transformers.growth import GrowthOptions, HeadMetrics
from attsvm.transformers.guard import LogitGuard, LogitWarning, UnreadWeightsWarning
from attsvm.transformers.guard_callbacks import guard_lightning, guard_trainer
from attsvm.transformers.head_findings import Comparison, Head, Support
from attsvm.transformers.null_weights import reflection
from attsvm.transformers.recording import Recording
from attsvm.transformers.selection_table import SelectionTable, TokenSelection

__all__ = [
    "Audit",
    "Checkpoints",
    "Comparison",
    "GrowthOptions",
    "Head",
    "HeadMetrics",
    "LogitGuard",
    "LogitWarning",
    "Recording",
    "SelectionTable",
    "Support",
    "TokenSelection",
    "UnreadWeightsWarning",
    "audit",
    "capture",
    "demo_model",
    "guard_lightning",
    "guard_trainer",
    "reflection",
]
