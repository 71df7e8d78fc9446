"""Whether there is time left for a factorisation, which cannot be interrupted."""

from __future__ import annotations

import math
import time
from typing import NamedTuple


class WorkOptions(NamedTuple):
    """How long work takes, on a machine of today; measured on factorisations of 500 to 4000 rows.

    Attributes:
        speed: multiply-adds a second of one thread of BLAS; half of it on a busy machine.
        work_per_look: multiply-adds of steps of active sets in some hundredths of a second.
        least_steps: between two looks, before each of which the system is solved anew, which costs
            as much as some steps.
    """

    speed: float = 1e10
    work_per_look: float = 1e8
    least_steps: int = 25


WORK = WorkOptions()


def time_for(work: float, deadline: float, options: WorkOptions = WORK) -> bool:
    """Whether so many multiply-adds end before a deadline of :func:`time.monotonic`."""
    return time.monotonic() + work / options.speed <= deadline


def cholesky_work(size: int, width: int = 0) -> float:
    """Multiply-adds of a Cholesky factor of ``size`` equations, and of the Gram matrix of as many
    rows of ``width`` numbers.
    """
    return size**3 / 3.0 + size**2 * width / 2.0


def steps_per_look(rows: int, deadline: float, most: int, options: WorkOptions = WORK) -> int:
    """Steps of active sets on the Gram matrix of so many rows between two looks at the clock."""
    if deadline == math.inf:
        return most
    return min(most, max(int(options.work_per_look / rows**2), options.least_steps))
