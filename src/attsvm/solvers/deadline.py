"""Whether there is time left for a factorisation, which cannot be interrupted."""

from __future__ import annotations

import time

_SPEED = 1e10  # multiply-adds a second of one thread of BLAS; half of it on a busy machine


def time_for(work: float, deadline: float) -> bool:
    """Whether so many multiply-adds end before a deadline of :func:`time.monotonic`."""
    return time.monotonic() + work / _SPEED <= deadline


def cholesky_work(size: int, width: int = 0) -> float:
    """Multiply-adds of a Cholesky factor of ``size`` equations, and of the Gram matrix of as many
    rows of ``width`` numbers.
    """
    return size**3 / 3.0 + size**2 * width / 2.0
