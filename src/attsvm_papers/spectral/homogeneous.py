r"""Networks :math:`f(x)=\sum_ja_j(w_j^\top x+b_j)^2` with fixed signs :math:`a`, and what a
limit of their training is.

In :math:`\theta=[W\,b]` they are homogeneous of degree two, and smooth. A
direction of least norm among those with margins of one satisfies
:math:`\theta\in\arg\min\|\Delta\|` subject to
:math:`\langle\nabla y_if(x_i;\theta),\Delta\rangle\ge2` (Karush, Kuhn, Tucker): it solves the
programme that is linear around itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm import Margins
from attsvm.datasets.attention_data import FloatArray


@dataclass(frozen=True, eq=False)
class SquaredUnits:
    """One network and one data set per run.

    Attributes:
        inputs: ``(runs, n, d + 1)``, the last entry is one.
        labels: ``(runs, n)``, -1 or 1.
        signs: ``(hidden,)``.
    """

    inputs: FloatArray
    labels: FloatArray
    signs: FloatArray

    def margins(self, theta: FloatArray) -> FloatArray:
        """Margins :math:`y_if(x_i)` ``(..., runs, n)`` of weights ``(..., runs, hidden, d +
        1)``.
        """
        return self.labels * ((self.inputs @ theta.mT) ** 2 @ self.signs)

    def gradient(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The gradient of the logistic loss ``(runs, hidden, d + 1)`` over the slope of the input
        that has the largest, and the logarithm ``(runs,)`` of this.
        """
        slopes = -np.logaddexp(0.0, self.margins(theta))  # logarithms of the sizes
        largest = slopes.max(axis=-1, keepdims=True)
        weights = 2.0 * self.labels * np.exp(slopes - largest)
        pulls = weights[..., None] * (self.inputs @ theta.mT) * self.signs
        return -pulls.mT @ self.inputs / self.labels.shape[-1], largest[..., 0]

    def programme(self, theta: FloatArray, run: int) -> Margins:
        """The margins of one run that are linear around its weights ``(hidden, d + 1)``."""
        inputs, labels = self.inputs[run], self.labels[run]
        rows = 2.0 * labels[:, None] * (inputs @ theta.T) * self.signs
        offsets = np.arange(len(rows) + 1)
        first = np.zeros(len(rows), dtype=np.int64)
        return Margins(rows, inputs, offsets, np.ones(len(rows)), first, first, kind="label")
