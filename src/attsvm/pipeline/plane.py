"""Sequences of a run with tokens in the plane, kept for the explorer of its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray

SEQUENCES, TOKENS = 5, 8
"""The most that a reader can follow."""


def plane_arrays(
    train: AttentionData, selected: IntArray, scores: FloatArray, support: IntArray
) -> dict[str, Any]:
    """``plane_*`` of ``arrays.safetensors``, see ``docs/run-folder.md``: a few sequences, those of
    the support constraints first. Empty where tokens do not have two features, or no sequence has
    from two to eight of them.

    Args:
        train: the training part.
        selected: ``(n,)`` token positions.
        scores: ``(n, T)``.
        support: ``(k, 2)``, sequence and token of each support constraint, by falling dual.
    """
    if train.d_x != 2:
        return {}
    order = dict.fromkeys([*support[:, 0].tolist(), *range(train.n)])
    counts = train.mask.sum(axis=1)
    rows = [i for i in order if 2 <= counts[i] <= TOKENS][:SEQUENCES]
    if not rows:
        return {}
    return {
        "plane_sequence": np.array(rows, dtype=np.int64),
        "plane_tokens": train.tokens[rows],
        "plane_queries": train.queries[rows],
        "plane_labels": train.labels[rows],
        "plane_mask": train.mask[rows],
        "plane_selected": selected[rows],
        "plane_scores": scores[rows],
    }
