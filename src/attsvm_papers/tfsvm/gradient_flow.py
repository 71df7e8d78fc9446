r"""Gradient flow of attention under a fixed head :math:`h(o)=\mathbf 1^\top\phi(V^\top o)`, for
smooth :math:`\phi`, to times that no number of steps reaches.

.. math:: \frac{dW}{d\log\tau}=-\tau\,\nabla\mathcal L(W),\qquad
          \mathcal L(W)=\frac1n\sum_i\log(1+e^{-Y_ih(X_i^\top s_i)}),\quad
          s_i=\mathrm{softmax}(X_iWz_i).

Where a head wants a mixture of tokens the loss attains its infimum along the finite part of W, and
the other tokens lose their attention like :math:`1/\tau`, so that W diverges like :math:`\log\tau`.
The flow is stiff, its Jacobian known: an implicit method of backward differences takes some hundred
steps. Gradients are measured from the likeliest token, so that what is left of the attention to the
others is seen however small it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import orth
from scipy.optimize import minimize
from scipy.special import expit, ndtr

from attsvm import AttentionData
from attsvm.data import FloatArray

Function = Callable[[FloatArray], FloatArray]
START = -2.0  # the logarithm of the time at which the flow starts, well before anything moves
TOLERANCE = 1e-5  # of a step of the flow, relative; a hundredth of it absolute


class Activation(NamedTuple):
    """A smooth function with its first two derivatives."""

    value: Function
    slope: Function
    curvature: Function


def _density(x: FloatArray) -> FloatArray:
    found: FloatArray = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return found


ACTIVATIONS = {
    "GELU": Activation(
        lambda x: x * ndtr(x),
        lambda x: ndtr(x) + x * _density(x),
        lambda x: (2.0 - x * x) * _density(x),
    ),
    "tanh": Activation(
        np.tanh,
        lambda x: 1.0 - np.tanh(x) ** 2,
        lambda x: -2.0 * np.tanh(x) * (1.0 - np.tanh(x) ** 2),
    ),
}


class _Point(NamedTuple):
    r"""What derivatives need at some weights: probabilities, inputs of the units, pulls on the
    logits :math:`s_t(\gamma_t-\bar\gamma)`, values :math:`Yh`, and features measured from those
    of the likeliest token.
    """

    s: FloatArray
    inner: FloatArray
    pull: FloatArray
    value: FloatArray
    features: FloatArray


class Flow:
    r"""The flow of one instance from weights ``(d, d)``, in orthonormal coordinates of
    :math:`\operatorname{span}\{(x_{it}-x_{i1})z_i^\top\}`, which it does not leave.

    Args:
        data: one instance, self-contained: no masks.
        V: ``(d, hidden)``.
        activation: one of :data:`ACTIVATIONS`.
        start: the weights.
    """

    def __init__(
        self, data: AttentionData, V: FloatArray, activation: Activation, start: FloatArray
    ) -> None:
        X, z = data.tokens, data.queries
        rows = np.einsum("itd,ie->itde", X - X[:, :1], z).reshape(data.n * data.T, -1)
        self.basis = orth(rows.T)
        self._features = (rows @ self.basis).reshape(data.n, data.T, -1)
        self._logits = np.einsum("itd,de,ie->it", X, start, z)
        self._inner, self._labels, self._phi, self._start = X @ V, data.labels, activation, start

    def run(self, times: Sequence[float]) -> tuple[FloatArray, FloatArray]:
        """Weights ``(times, d, d)`` at logarithms of times, and the last probabilities."""
        found = solve_ivp(
            self.velocity,
            (START, times[-1]),
            np.zeros(self.basis.shape[1]),
            method="BDF",
            jac=self.jacobian,
            rtol=TOLERANCE,
            atol=0.01 * TOLERANCE,
            t_eval=times,
        )
        assert found.success, found.message
        moved = (self.basis @ found.y).T.reshape(-1, *self._start.shape)
        return self._start + moved, self._at(found.y[:, -1]).s

    def velocity(self, log_time: float, w: FloatArray) -> FloatArray:
        """The negative gradient times the time."""
        at = self._at(w)
        pulled = np.einsum("i,it,itr->r", expit(-at.value), at.pull, at.features)
        found: FloatArray = np.exp(log_time) / len(at.s) * pulled
        return found

    def jacobian(self, log_time: float, w: FloatArray) -> FloatArray:
        """The derivative of :meth:`velocity`."""
        at = self._at(w)
        mean = np.einsum("it,itr->ir", at.s, at.features)
        slope = np.einsum("it,itr->ir", at.pull, at.features)
        moved = np.einsum("it,itm,itr->imr", at.s, self._inner, at.features)
        moved -= at.inner[:, :, None] * mean[:, None, :]
        bent = self._labels[:, None] * self._phi.curvature(at.inner)
        cross = np.einsum("ir,iq->irq", mean, slope)
        curve = np.einsum("it,itr,itq->irq", at.pull, at.features, at.features)
        curve += np.einsum("im,imr,imq->irq", bent, moved, moved) - cross - cross.swapaxes(1, 2)
        rate = expit(-at.value)
        curve -= expit(at.value)[:, None, None] * np.einsum("ir,iq->irq", slope, slope)
        found: FloatArray = np.exp(log_time) / len(rate) * np.einsum("i,irq->rq", rate, curve)
        return found

    def _at(self, w: FloatArray) -> _Point:
        logits = self._logits + self._features @ w
        s = np.exp(logits - logits.max(axis=1, keepdims=True))
        s /= s.sum(axis=1, keepdims=True)
        inner = np.einsum("it,itm->im", s, self._inner)
        gains = self._labels[:, None] * self._phi.slope(inner)
        scores = np.einsum("itm,im->it", self._inner, gains)
        pull = s * (scores - np.sum(s * scores, axis=1, keepdims=True))
        value = self._labels * self._phi.value(inner).sum(axis=1)
        first = self._features[np.arange(len(s)), logits.argmax(axis=1)]
        return _Point(s, inner, pull, value, self._features - first[:, None])


def best_mixture(inner: FloatArray, label: float, activation: Activation) -> FloatArray:
    r"""Probabilities ``(T,)`` of tokens that make :math:`Yh` as large as it can be near equal ones,
    from :math:`XV`, ``(T, hidden)``: no attention is trained.
    """

    def negative(logits: FloatArray) -> tuple[float, Any]:
        s = _softmax(logits)
        units = s @ inner
        scores = label * (inner @ activation.slope(units))
        return -label * float(activation.value(units).sum()), -s * (scores - s @ scores)

    start = np.zeros(len(inner))
    found = minimize(negative, start, jac=True, method="BFGS", options={"gtol": 1e-11})
    return _softmax(found.x)


def _softmax(logits: FloatArray) -> FloatArray:
    s = np.exp(logits - logits.max())
    found: FloatArray = s / s.sum()
    return found
