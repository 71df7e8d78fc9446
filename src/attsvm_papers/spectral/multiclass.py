r"""Multinomial logistic regression on fixed inputs, many data sets at once, with a gradient that
keeps its direction at any margin.

.. math:: L(W)=-\frac1n\sum_i\log\mathrm{softmax}(Wh_i)_{y_i}=\frac1n\sum_i\log\Big(1+\sum_{c\ne
    y_i}e^{-(e_{y_i}-e_c)^\top Wh_i}\Big)

The convex problem of Fan, Schmidt and Thrampoulidis, *Implicit Bias of Spectral Descent and Muon on
Multiclass Separable Data* (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.data import FloatArray, IntArray

_SMALL = -600.0  # exp of it, and of what counts beside it, is an ordinary number
_ROUNDED = -37.0  # exp of it is below half a unit in the last place of one


@dataclass(frozen=True, eq=False)
class Multiclass:
    """Inputs with classes, one data set per run.

    Attributes:
        inputs: ``(runs, n, d)``.
        labels: ``(runs, n)``, 0 to ``classes - 1``.
        classes: number of classes.
    """

    inputs: FloatArray
    labels: IntArray
    classes: int

    def lags(self, W: FloatArray) -> FloatArray:
        r"""Minus the margins, :math:`(e_c-e_{y_i})^\top Wh_i`: ``(runs, n, classes)`` for
        ``(runs, classes, d)``; -inf at the own class.
        """
        scores = self.inputs @ W.mT
        own_class = self.labels[..., None]
        lags = scores - np.take_along_axis(scores, own_class, axis=-1)
        np.put_along_axis(lags, own_class, -np.inf, axis=-1)
        return lags

    def gradient(self, W: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The direction of the gradient ``(runs, classes, d)``, and the logarithm ``(runs,)`` of
        the factor that makes it the gradient of the loss.

        The residual of the own class is minus the sum of the others, and the largest residual is of
        order one before the factor.
        """
        lags = self.lags(W)  # minus the margins; -inf at the own class
        top = lags.max(axis=-1)
        peak = np.maximum(top, 0.0)
        others = np.exp(lags - peak[..., None])
        log_sum = peak + np.log(np.exp(-peak) + others.sum(axis=-1))
        # log of the largest residual of a run: what the direction is divided by
        factor = (top - log_sum).max(axis=-1)
        share = log_sum + factor[:, None]
        ordinary = (factor > _SMALL).all()  # else what matters may have underflowed
        residual = (
            others * np.exp(peak - share)[..., None]
            if ordinary
            else np.exp(lags - share[..., None])
        )
        np.put_along_axis(
            residual, self.labels[..., None], -residual.sum(axis=-1, keepdims=True), axis=-1
        )
        return residual.mT @ self.inputs / self.inputs.shape[1], factor

    def margin(self, W: FloatArray) -> FloatArray:
        r"""Smallest margin :math:`\min_{i,c\ne y_i}(e_{y_i}-e_c)^\top Wh_i` of every run,
        ``(runs,)``.
        """
        return -self.lags(W).max(axis=(-2, -1))

    def log_proxy(self, W: FloatArray) -> FloatArray:
        r"""Logarithm of :math:`G(W)=\frac1n\sum_i(1-\mathrm{softmax}(Wh_i)_{y_i})`, ``(runs,)``:
        the proxy of the proofs.
        """
        odds = np.logaddexp.reduce(self.lags(W), axis=-1)
        return _log_mean(odds - np.logaddexp(0.0, odds))


def log_log1p(log_x: FloatArray) -> FloatArray:
    r""":math:`\log\log(1+x)` from :math:`\log x`."""
    return np.where(log_x < _ROUNDED, log_x, np.log(np.logaddexp(0.0, np.maximum(log_x, _ROUNDED))))


def _log_mean(logs: FloatArray) -> FloatArray:
    return np.logaddexp.reduce(logs, axis=-1) - np.log(logs.shape[-1])
