"""Excesses over nulls, and means by seed, of the tables of this room's figures."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.datasets.attention_data import FloatArray
from attsvm_papers import kit
from attsvm_papers.heads.own_solutions import NULLS

STRICTEST = (*NULLS, "heads")

NAMES = {
    "adamw": "AdamW",
    "sgd": "SGD",
    "muon": "Muon",
    "signum": "Signum",
    "mirror": "mirror, p = 1.1",
}
COLOURS = {
    "adamw": kit.INK,
    "sgd": kit.TRAINED,
    "muon": kit.ATTENTION,
    "signum": kit.BEST,
    "mirror": kit.FAINT,
}


def excess_over_nulls(evidence: kit.Evidence) -> FloatArray:
    """``(rows,)``: the cosine minus that of the strictest null: the largest of ``random``,
    ``rotated``, ``permuted`` and the mean of the layer's other heads.
    """
    excess: FloatArray = evidence["cosine"] - np.nanmax([evidence[k] for k in STRICTEST], axis=0)
    return excess


def by_seed(evidence: kit.Evidence, values: ArrayLike) -> FloatArray:
    """``(seeds,)``: the mean of the rows of each seed that have a value; NaN where none has."""
    numbers, seeds = np.asarray(values, dtype=np.float64), evidence["seed"]
    groups = [numbers[(seeds == seed) & ~np.isnan(numbers)] for seed in np.unique(seeds)]
    return np.array([group.mean() if len(group) else np.nan for group in groups])


def over_seeds(evidence: kit.Evidence, values: ArrayLike) -> float:
    """The mean of :func:`by_seed` over the seeds that have a value; NaN where none has."""
    means = by_seed(evidence, values)
    means = means[~np.isnan(means)]
    return float(means.mean()) if len(means) else np.nan


WRITTEN = {"a text that somebody wrote": lambda e: bool(np.all(e["digest"] != ""))}
REAL = WRITTEN | {"five seeds": lambda e: len(e.levels("seed")) >= 5}
"""What claims about trained heads assume."""

ROTATED = kit.replaced(
    "rotated weights, measured as if they were the head",
    cosine="rotated",
    rotated=lambda e: np.full(e.rows, np.nan),
)
MIRRORED = kit.replaced(
    "a reflected draw, measured as if it were the head, and the head as if it were the draw",
    cosine="reflected",
    reflected="cosine",
)
AGAIN = kit.replaced("another permuted draw, measured as if it were the head", cosine="again")
"""Nulls of claims about excesses. The last is stricter than the first, and there for some heads
alone.
"""
