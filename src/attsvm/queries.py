"""Queries for bags that come without one."""

from __future__ import annotations

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.errors import InputError


def bag_queries(tokens: FloatArray, mask: BoolArray, kind: str) -> FloatArray:
    """``(n, d_z)`` queries: ``mean`` ``[1, m / |m|] / sqrt(2)``, ``constant`` ``[1]``, ``first`` the first visible token.

    The constant entry of ``mean`` lets ``W`` prefer tokens whatever the bag; the rest lets the preference depend on the bag.

    Raises:
        InputError: unknown kind.
    """
    n = len(tokens)
    if kind == "constant":
        return np.ones((n, 1))
    if kind == "first":
        first: FloatArray = tokens[np.arange(n), np.argmax(mask, axis=1)]
        return first
    if kind == "mean":
        mean = np.where(mask[..., None], tokens, 0.0).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        queries: FloatArray = np.hstack([np.ones((n, 1)), mean / np.where(length > 0, length, 1.0)]) / np.sqrt(2.0)
        return queries
    raise InputError(f"query is {kind!r}; choose 'mean', 'constant' or 'first'")
