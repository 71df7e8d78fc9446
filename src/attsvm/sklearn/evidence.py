"""What speaks for each prediction, and whether it suffices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of predictions, bag by bag.

    Attributes:
        instances: for each bag the positions of the selected instances, the weightiest first.
        margin: ``(n,)``: the value of the predicted class above that of the runner-up (of two
            classes, the size of the decision value).
        sufficient: ``(n,)``: the selected instances alone give the same prediction.
        necessary: ``(n,)``: without them the prediction is another one, or nothing is left.
        agrees: ``(n,)``: soft attention and the instance with the most attention alone give the
            same prediction.
        runner_up: ``(n,)``: the best instance for the predicted class, alone, above the best
            instance for any other class.
        rejected: ``(n,)``: ``margin`` is below the threshold.
    """

    instances: list[IntArray]
    margin: FloatArray
    sufficient: BoolArray
    necessary: BoolArray
    agrees: BoolArray
    runner_up: FloatArray
    rejected: BoolArray

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {np.mean(getattr(self, name)):.1%}"
            for name in ("sufficient", "necessary", "agrees", "rejected")
        )
        return f"Evidence({len(self.margin)} bags: {shares})"
