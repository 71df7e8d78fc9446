"""Stratified splits whose bits depend on the seed alone."""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.errors import InputError


def split(labels: FloatArray, share: float, seed: int, name: str) -> tuple[IntArray, IntArray]:
    """Sorted positions ``(rest, part)`` with about ``share`` of each label in ``part``, at least
    one of each in both.

    Raises:
        InputError: ``share`` is not between 0 and 1, or a label has fewer than two sequences.
    """
    if not 0.0 < share < 1.0:
        raise InputError(f"{name} is {share}; it must lie between 0 and 1")
    generator = np.random.default_rng(seed)
    part = []
    for label in (-1.0, 1.0):
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            raise InputError(
                f"label {label:+g} has {len(members)} sequence(s); {name} needs at least two of"
                " each label"
            )
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        part.append(generator.permutation(members)[:count])
    chosen = np.sort(np.concatenate(part))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen
