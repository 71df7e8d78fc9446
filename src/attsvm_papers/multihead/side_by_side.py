"""Weights of several heads side by side, and their measures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    MarginSolution,
    locally_optimal,
    max_margin_batch,
    selection_margins,
)
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.training import direction_gap


def split_heads(W: FloatArray, heads: int = 2) -> FloatArray:
    """The heads ``(heads, ..., d_x, d_z)`` of weights ``(..., d_x, heads * d_z)``."""
    return np.stack(np.split(W, heads, axis=-1))


def head_norms(W: FloatArray, heads: int = 2) -> FloatArray:
    """The Frobenius norms of the heads ``(heads, ...)``."""
    norms: FloatArray = np.linalg.norm(split_heads(W, heads), axis=(-2, -1))
    return norms


def worst_gaps(W: FloatArray, best: FloatArray, heads: int = 2, shift: int = 0) -> FloatArray:
    """The largest direction gap ``(...)`` of a head to its block of ``best``, or to that of the
    head ``shift`` further on.
    """
    goals = np.roll(split_heads(best, heads), -shift, axis=0)
    pairs = zip(split_heads(W, heads), goals, strict=True)
    gaps: FloatArray = np.max([direction_gap(head, goal) for head, goal in pairs], axis=0)
    return gaps


def joint_programmes(pairs: AttentionData, rows: IntArray, norm: str = "fro") -> Any:
    """The max-margin solutions of the tokens ``(instances, rows)`` that all heads select."""
    return max_margin_batch(
        [selection_margins(pairs.instance(k), tokens) for k, tokens in enumerate(rows)], norm
    )


def locally_optimal_heads(solutions: Sequence[MarginSolution], scores: FloatArray) -> BoolArray:
    """True for instances in which every head selects tokens that are optimal among neighbours."""
    is_optimal = [
        solution.has_weights and bool(locally_optimal(solution, scores_of_instance).all())
        for solution, scores_of_instance in zip(solutions, scores, strict=True)
    ]
    return np.array(is_optimal)


def margin_shares(W: FloatArray, solutions: Sequence[MarginSolution]) -> FloatArray:
    """The smallest margin of each instance over the best for weights of that norm."""
    shares = [
        float(solution.margins(weights).min() * solution.norm / solution.geometry.value(weights))
        for weights, solution in zip(W, solutions, strict=True)
    ]
    return np.array(shares)
