"""Equalities written as pairs of opposite inequalities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.margins import Margins


def opposite_pairs(margins: Margins) -> tuple[Margins, IntArray, FloatArray]:
    """The programme with every equality as two opposite inequalities, and row and sign that each of
    its rows comes from.
    """
    equal = np.flatnonzero(margins.equalities)
    source = np.concatenate([np.arange(margins.m), equal])
    sign = np.concatenate([np.ones(margins.m), -np.ones(len(equal))])
    order = np.argsort(margins.sequence[source], kind="stable")
    source, sign = source[order], sign[order]
    offsets = np.concatenate(
        [[0], np.cumsum(np.bincount(margins.sequence[source], minlength=margins.n))]
    )
    differences = sign[:, None] * margins.differences[source]
    rhs = sign * margins.rhs[source] + 0.0
    pairs = replace(
        margins,
        differences=differences,
        offsets=offsets,
        rhs=rhs,
        token=margins.token[source],
        equality=None,
    )
    return pairs, source, sign
