"""What the heads of a trained transformer select, by what margin, and which tokens decide it."""

from __future__ import annotations

from attsvm.probe.audit import Audit, Comparison, Head, Support, audit
from attsvm.probe.capture import Recording, capture
from attsvm.probe.growth import HeadMetrics
from attsvm.probe.guard import LogitGuard, LogitWarning
from attsvm.probe.guard_callbacks import guard_lightning, guard_trainer

__all__ = [
    "Audit",
    "Comparison",
    "Head",
    "HeadMetrics",
    "LogitGuard",
    "LogitWarning",
    "Recording",
    "Support",
    "audit",
    "capture",
    "guard_lightning",
    "guard_trainer",
]
