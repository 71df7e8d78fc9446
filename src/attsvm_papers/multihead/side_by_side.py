"""Weights of several heads side by side, and what is measured of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm import AttentionData, MarginSolution, locally_optimal, max_margin, selection_margins
from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.dynamics import direction_gap


def apart(W: FloatArray, heads: int = 2) -> FloatArray:
    """``(heads, ..., d_x, d_z)`` of weights ``(..., d_x, heads * d_z)``."""
    return np.stack(np.split(W, heads, axis=-1))


def lengths(W: FloatArray, heads: int = 2) -> FloatArray:
    """``(heads, ...)``: the Frobenius norms."""
    found: FloatArray = np.linalg.norm(apart(W, heads), axis=(-2, -1))
    return found


def gaps(W: FloatArray, best: FloatArray, heads: int = 2, shift: int = 0) -> FloatArray:
    """``(...)``: the largest direction gap of a head to its part of ``best``, or to that of the
    head ``shift`` further on.
    """
    goals = np.roll(apart(best, heads), -shift, axis=0)
    parts = zip(apart(W, heads), goals, strict=True)
    found: FloatArray = np.max([direction_gap(own, goal) for own, goal in parts], axis=0)
    return found


def joint_programmes(pairs: AttentionData, rows: IntArray, norm: str = "fro") -> Any:
    """The max-margin solutions of the tokens ``(instances, rows)`` that all heads select."""
    return max_margin(
        [selection_margins(pairs.instance(k), own) for k, own in enumerate(rows)], norm
    )


def are_local(solutions: Sequence[MarginSolution], scores: FloatArray) -> BoolArray:
    """Whether every head selects tokens that are optimal among their neighbours."""
    found = [
        solution.has_weights and bool(locally_optimal(solution, own).all())
        for solution, own in zip(solutions, scores, strict=True)
    ]
    return np.array(found)


def margin_shares(W: FloatArray, solutions: Sequence[MarginSolution]) -> FloatArray:
    """The smallest margin of each instance over the best for weights of that norm."""
    found = [
        float(solution.margins(own).min() * solution.norm / solution.geometry.value(own))
        for own, solution in zip(W, solutions, strict=True)
    ]
    return np.array(found)
