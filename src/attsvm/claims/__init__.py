"""A small language for claims that a machine can check.

A claim is a statement with a source, the assumptions it needs, a measured quantity, and a threshold
with its reason. Checked against evidence, and against that of a broken variant, its null, it gives
a verdict: ``holds``, ``fails``, ``undecided``, ``not shown`` or ``not applicable``.
"""

from attsvm.claims.claim import (
    Claim,
    Evidence,
    Expectation,
    Failure,
    Null,
    Outcome,
    Source,
    Verdict,
    above,
    at_least,
    at_most,
    below,
    between,
    close_to,
    true,
)
from attsvm.claims.intervals import Interval, interval

__all__ = [
    "Claim",
    "Evidence",
    "Expectation",
    "Failure",
    "Interval",
    "Null",
    "Outcome",
    "Source",
    "Verdict",
    "above",
    "at_least",
    "at_most",
    "below",
    "between",
    "close_to",
    "interval",
    "true",
]


def __dir__() -> list[str]:
    return __all__
