"""Whether there is time left for a factorisation, which cannot be interrupted."""

from __future__ import annotations

import math
import time

_SPEED = 1e10  # multiply-adds a second of one thread of BLAS; half of it on a busy machine
_PIECE = 1e8  # multiply-adds of steps of active sets in some hundredths of a second
_LEAST_STEPS = 25  # before each look the system is solved anew, which costs as much as some steps


def time_for(work: float, deadline: float) -> bool:
    """Whether so many multiply-adds end before a deadline of :func:`time.monotonic`."""
    return time.monotonic() + work / _SPEED <= deadline


def cholesky_work(size: int, width: int = 0) -> float:
    """Multiply-adds of a Cholesky factor of ``size`` equations, and of the Gram matrix of as many
    rows of ``width`` numbers.
    """
    return size**3 / 3.0 + size**2 * width / 2.0


def steps_per_look(rows: int, deadline: float, most: int) -> int:
    """Steps of active sets on the Gram matrix of so many rows between two looks at the clock."""
    if deadline == math.inf:
        return most
    return min(most, max(int(_PIECE / rows**2), _LEAST_STEPS))
