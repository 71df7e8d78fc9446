"""Weights with their multipliers, and where a method that improves them ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray


class Iterate(NamedTuple):
    """Weights ``(d_x, d_z)`` and multipliers ``(m,)``."""

    W: FloatArray
    dual: FloatArray

    def is_usable(self) -> bool:
        """Whether both are finite, and neither is zero: a method can go on from here."""
        return all(array.any() and bool(np.isfinite(array).all()) for array in self)


class Stop(NamedTuple):
    """The error and the time at which a method ends.

    Attributes:
        aim: the error that is aimed at.
        deadline: of :func:`time.monotonic`.
        enough: the error that is enough where less costs much.
    """

    aim: float
    deadline: float
    enough: float = 0.0
