"""Halves of the trials of an experiment, drawn again and again: what a verdict rests on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

HALVES = 40
"""Halves that are drawn. The mean over a half deviates from that over all trials as this one does
from the truth (McCarthy, *Replication*, 1966), and no trial is in a half twice.
"""
FEW = 0.1
"""The share of the halves that may give the other verdict. Chosen on the claims of all experiments
at the quick scale: verdicts on three ranges of seeds then agree, and one claim in sixteen is open.
"""


def half_samples(trial: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Masks of the rows ``(rows,)`` of :data:`HALVES` random halves of the trials, the same ones
    every time; of an odd number of trials one more or one less than half.

    Args:
        trial: ``(rows,)``, the number of the trial that a row is of, -1 for rows of none, which are
            in every half.
    """
    count = int(trial.max(initial=-1)) + 1
    rng = np.random.default_rng(0)
    for _ in range(HALVES):
        in_half = np.zeros(count + 1, dtype=bool)
        in_half[rng.permutation(count)[: (count + int(rng.integers(2))) // 2]] = True
        in_half[-1] = True  # what trial -1 reads
        yield in_half[trial]
