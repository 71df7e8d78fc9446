"""What the heads of a trained transformer select, by what margin, and which tokens decide it."""

from __future__ import annotations

from attsvm.probe.audit import Audit, audit
from attsvm.probe.caches import from_cache
from attsvm.probe.capture import Recording, capture
from attsvm.probe.checkpoints import Checkpoints
from attsvm.probe.demo import story
from attsvm.probe.growth import HeadMetrics
from attsvm.probe.guard import LogitGuard, LogitWarning
from attsvm.probe.guard_callbacks import guard_lightning, guard_trainer
from attsvm.probe.head_findings import Comparison, Head, Support
from attsvm.probe.null_weights import reflection

__all__ = [
    "Audit",
    "Checkpoints",
    "Comparison",
    "Head",
    "HeadMetrics",
    "LogitGuard",
    "LogitWarning",
    "Recording",
    "Support",
    "audit",
    "capture",
    "from_cache",
    "guard_lightning",
    "guard_trainer",
    "reflection",
    "story",
]
