r"""From values to probabilities: :math:`\sigma(af+b)`, or :math:`\mathrm{softmax}(af)` of three
classes or more, on values of bags that the model did not see.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray

_RANGE = (-7.0, 7.0)  # of the logarithm of the slope


def calibration(values: FloatArray, labels: IntArray, shift: bool) -> tuple[float, float]:
    r"""Slope ``a > 0`` and offset ``b``, which is 0 unless ``shift``.

    Args:
        values: ``(n, C)``, of bags left out.
        labels: ``(n,)``: 0 and 1, or 0 to C - 1.
        shift: whether the values of two classes may move against zero.

    Source: Platt (1999), with his targets :math:`(n_k+1)/(n_k+2)` for two classes, which keep the
    slope finite where values separate the classes; temperature scaling otherwise.
    """
    from scipy.optimize import minimize

    two = values.shape[1] == 1
    if two:
        many = np.bincount(labels, minlength=2)
        targets = np.where(labels > 0, (many[1] + 1) / (many[1] + 2), 1 / (many[0] + 2))

    def loss(at: FloatArray) -> float:
        scaled = np.exp(np.clip(at[0], *_RANGE)) * values
        if two:
            f = scaled[:, 0] + (at[1] if shift else 0.0)
            return float(np.mean(np.logaddexp(0.0, f) - targets * f))
        top = scaled.max(axis=1)
        total = top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))
        return float(np.mean(total - scaled[np.arange(len(labels)), labels]))

    found = minimize(loss, np.zeros(2 if shift else 1), method="Nelder-Mead").x
    return float(np.exp(np.clip(found[0], *_RANGE))), float(found[1]) if shift else 0.0
