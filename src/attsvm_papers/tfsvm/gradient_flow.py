r"""Gradient flow of attention under a fixed head :math:`h(o)=\mathbf 1^\top\phi(V^\top o)`, for
smooth :math:`\phi`, to times that no number of steps reaches.

.. math:: \frac{dW}{d\log\tau}=-\tau\,\nabla\mathcal L(W),\qquad
          \mathcal L(W)=\frac1n\sum_i\log(1+e^{-Y_ih(X_i^\top s_i)}),\quad
          s_i=\mathrm{softmax}(X_iWz_i).

Where a head wants a mixture of tokens the loss attains its infimum along the finite part of W, and
the other tokens lose their attention like :math:`1/\tau`, so that W diverges like :math:`\log\tau`.
The flow is stiff, its Jacobian known: implicit backward differences take a few hundred
steps. Gradients are measured from the likeliest token, so that what is left of the attention to the
others is seen however small it is.
"""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import orth
from scipy.optimize import minimize
from scipy.special import expit, ndtr, softmax


def gelu(x):
    """The value of GELU and its first two derivatives."""
    density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return x * ndtr(x), ndtr(x) + x * density, (2.0 - x * x) * density


def tanh(x):
    """The value of tanh and its first two derivatives."""
    value = np.tanh(x)
    return value, 1.0 - value**2, -2.0 * value * (1.0 - value**2)


ACTIVATIONS = {"GELU": gelu, "tanh": tanh}


class Flow:
    r"""The flow of one instance from weights ``(d, d)``, in orthonormal coordinates of
    :math:`\operatorname{span}\{(x_{it}-x_{i1})z_i^\top\}`, which it does not leave.

    Args:
        data: tokens, labels and queries; no mask.
        V: ``(d, hidden)``.
        activation: one of :data:`ACTIVATIONS`.
        start: the weights.
    """

    def __init__(self, data, V, activation, start):
        X, z = data.tokens, data.queries
        rows = np.einsum("itd,ie->itde", X - X[:, :1], z).reshape(data.n * data.T, -1)
        self.basis = orth(rows.T)
        self._features = (rows @ self.basis).reshape(data.n, data.T, -1)
        self._logits = np.einsum("itd,de,ie->it", X, start, z)
        self._inner, self._labels, self._phi, self._start = X @ V, data.labels, activation, start

    def run(self, times):
        """Weights ``(times, d, d)`` at logarithms of times, and the last probabilities."""
        for method in ("BDF", "Radau"):  # late differences may stall; Radau takes twice the time
            flow = solve_ivp(
                self.velocity,
                (-2.0, times[-1]),  # from before anything moves
                np.zeros(self.basis.shape[1]),
                method=method,
                jac=self.jacobian,
                t_eval=times,
                rtol=1e-5,
                atol=1e-7,
            )
            if flow.success:
                break
        assert flow.success, flow.message
        displacement = (self.basis @ flow.y).T.reshape(-1, *self._start.shape)
        return self._start + displacement, self._at(flow.y[:, -1])[0]

    def velocity(self, log_time, w):
        """The negative gradient times the time."""
        s, _, pull, value, _, features = self._at(w)
        return np.exp(log_time) / len(s) * np.einsum("i,it,itr", expit(-value), pull, features)

    def jacobian(self, log_time, w):
        """The derivative of :meth:`velocity`."""
        s, inner, pull, value, curvature, features = self._at(w)
        mean, slope = np.einsum("sit,itr->sir", [s, pull], features)
        centred = np.einsum("it,itm,itr->imr", s, self._inner, features)
        centred -= inner[:, :, None] * mean[:, None, :]
        cross = np.einsum("ir,iq->irq", mean, slope)
        curve = np.einsum("it,itr,itq->irq", pull, features, features)
        curve += (
            np.einsum("im,imr,imq->irq", curvature, centred, centred) - cross - cross.swapaxes(1, 2)
        )
        curve -= np.einsum("i,ir,iq->irq", expit(value), slope, slope)
        return np.exp(log_time) / len(s) * np.einsum("i,irq", expit(-value), curve)

    def _at(self, w):
        r"""Probabilities, inputs of the units, pulls :math:`s_t(\gamma_t-\bar\gamma)` on the
        logits, values :math:`Yh`, curvatures of the units, and features measured from those of the
        likeliest token.
        """
        logits = self._logits + self._features @ w
        s = softmax(logits, axis=1)
        inner = np.einsum("it,itm->im", s, self._inner)
        value, slope, curvature = self._labels[:, None] * np.array(self._phi(inner))
        scores = np.einsum("itm,im->it", self._inner, slope)
        pull = s * (scores - np.sum(s * scores, axis=1, keepdims=True))
        first = self._features[np.arange(len(s)), logits.argmax(axis=1)]
        return s, inner, pull, value.sum(axis=1), curvature, self._features - first[:, None]


def best_mixture(inner, label, activation):
    r"""Probabilities ``(T,)`` of tokens that make :math:`Yh` as large as it can be near equal ones,
    from :math:`XV`, ``(T, hidden)``: no attention is trained.
    """

    def negative(logits):
        s = softmax(logits)
        value, slope, _ = label * np.array(activation(s @ inner))
        scores = inner @ slope
        return -value.sum(), -s * (scores - s @ scores)

    optimum = minimize(
        negative, np.zeros(len(inner)), jac=True, method="BFGS", options={"gtol": 1e-11}
    )
    return softmax(optimum.x)
