r"""Loss above its infimum, in log space, and the charts of the spheres on which it is minimised.

With :math:`G_i=\sum_ts_{it}(\gamma_{i\,\mathrm{opt}}-\gamma_{it})` from
:math:`\log G_i=\mathrm{LSE}_t(\log s_{it}+\log(\gamma_{i\,\mathrm{opt}}-\gamma_{it}))` the excess
of a sequence is
:math:`e_i=\ell(\gamma_{i\,\mathrm{opt}}-G_i)-\ell(\gamma_{i\,\mathrm{opt}})`, to first order
:math:`|\ell'(\gamma_{i\,\mathrm{opt}})|G_i`. Its logarithm, and the gradient of that, are ordinary
numbers when :math:`e_i` itself is far below the smallest float.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit

from attsvm.attention import Exponential, Linear, Logistic, Loss
from attsvm.base.errors import InputError
from attsvm.base.softmax import softmax_rows
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, centred_tokens
from attsvm.margins import token_scores
from attsvm.margins.checks import reals
from attsvm.norms import Frobenius, Norm

Objective = Callable[[FloatArray], tuple[float, FloatArray]]
Slack = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
Pullback = Callable[[FloatArray], FloatArray]

_FIRST_ORDER = -14.0  # log G below which the excess is |l'| G to within a relative 1e-6


class Excess:
    """``log|L - L_star|`` of weights ``(d_k, d_z)`` under a fixed linear head, with its sign and
    its gradient.

    ``L_star`` is the loss of selecting ``tokens``: the infimum for the optimal ones; near another
    direction, for its own tokens, the loss may fall below it, and the sign says so.
    """

    def __init__(
        self,
        data: AttentionData,
        head: FloatArray,
        loss: Loss,
        keys: ArrayLike | None,
        prompt: bool,
        tokens: IntArray | None = None,
    ) -> None:
        if type(loss) not in (Logistic, Exponential, Linear):
            raise InputError(
                "the loss of a regularisation path is Logistic, Exponential or Linear, not"
                f" {loss!r}"
            )
        self._keys = mapped_keys(data, keys)
        self._queries = np.ones((data.n, 1)) if prompt else np.array(data.queries)
        self.shape = (self._keys.shape[-1], self._queries.shape[-1])
        scores = token_scores(data, head)
        best = np.argmax(scores, axis=1) if tokens is None else tokens
        self._best = scores[np.arange(data.n), best]
        self._log_slope = log_expit(-self._best)  # of the logistic loss
        lag = np.where(data.mask, self._best[:, None] - np.where(data.mask, scores, 0.0), 0.0)
        with np.errstate(divide="ignore"):
            self._log_lag, self._sign = np.log(np.abs(lag)), np.sign(lag)
        self._hidden, self._loss = np.where(data.mask, 0.0, -np.inf), loss

    def __call__(self, W: FloatArray) -> tuple[float, float, FloatArray]:
        """Logarithm of the size, sign, and gradient ``(d_k, d_z)`` of the logarithm.

        1. Attention in log space, log s.
        2. The lag of every sequence behind its selected token,
           log|G_i| = LSE_t(log s_it + log|gamma_sel - gamma_it|), with its sign.
        3. The excess of every sequence, log|e_i|, and its derivative by log|G_i|.
        4. Their sum over sequences, and the share of each in it.
        5. The chain rule: d log|G_i| / d logits is the share of a token in G_i minus its attention.
        """
        # 1. attention
        logits = (self._keys @ (self._queries @ W.T)[:, :, None])[:, :, 0] + self._hidden
        log_s = logits - _signed_log_sum(logits)[0][:, None]
        # 2. lags
        terms = log_s + self._log_lag
        log_G, sign = _signed_log_sum(terms, self._sign)
        # 3. excess of every sequence
        value, slope = self._log_excess(log_G, sign)
        # 4. their sum
        (total,), (above,) = _signed_log_sum(value[None], sign[None])
        share = above * sign * np.exp(value - total) * slope
        # 5. gradient; nothing pulls where all attention is on the selected token
        with np.errstate(invalid="ignore"):
            pull = np.where(
                np.isfinite(log_G)[:, None],
                self._sign * sign[:, None] * np.exp(terms - log_G[:, None]) - np.exp(log_s),
                0.0,
            )
        pulled = ((share[:, None] * pull)[:, None, :] @ self._keys)[:, 0]
        gradient: FloatArray = pulled.T @ self._queries
        return float(total) - math.log(len(value)), float(above), gradient

    def _log_excess(self, log_G: FloatArray, sign: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``log|e_i|`` and its derivative with respect to ``log|G_i|``; both have the same sign."""
        if isinstance(self._loss, Linear):
            return log_G, np.ones_like(log_G)
        # log(exp(G) - 1): G itself where it is large, log G where it is small
        G = np.where(sign < 0, -1.0, 1.0) * np.exp(np.maximum(log_G, _FIRST_ORDER))
        small = log_G < _FIRST_ORDER
        log_grown = np.where(G > 30.0, G, np.log(np.abs(np.expm1(np.minimum(G, 30.0)))))
        rate = G / -np.expm1(np.minimum(-G, 700.0))
        if isinstance(self._loss, Exponential):
            return np.where(small, log_G, log_grown) - self._best, np.where(small, 1.0, rate)
        # e = log(1 + t), t = expit(-best) (exp(G) - 1); for long heads expit underflows and exp
        # overflows, so what counts is log|t|
        log_t = self._log_slope + log_grown
        t = np.sign(G) * np.exp(np.clip(log_t, -30.0, 700.0))
        e = np.where(log_t > 700.0, log_t, np.log1p(t))
        tiny = small | (log_t < -30.0)
        value = np.where(tiny, np.where(small, self._log_slope + log_G, log_t), np.log(np.abs(e)))
        slope = rate * np.where(tiny, 1.0, t / (1.0 + t) / e)
        return value, np.where(small, 1.0, slope)


def _signed_log_sum(
    terms: FloatArray, signs: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Logarithm and sign of the sum of ``signs * exp(terms)`` over the last axis."""
    counted = terms if signs is None else np.where(signs == 0, -np.inf, terms)
    top = counted.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    scaled = np.exp(terms - top)
    total = (scaled if signs is None else signs * scaled).sum(axis=-1)
    with np.errstate(divide="ignore"):
        return top[..., 0] + np.log(np.abs(total)), np.sign(total)


class Sphere:
    """Free coordinates of the weights of one size: ``R x / ||x||`` in a norm; inside a cone those
    of ``x = u + tan(angle) y / sqrt(1 + |y|^2)``, ``y`` across the axis ``u``.
    """

    slack = None  # all points are allowed; see Factors

    def __init__(self, shape: tuple[int, int], norm: Norm, cone: Any = None) -> None:
        self._shape, self._norm, self._slope = shape, norm, 0.0
        self._axis: FloatArray | None = None
        if cone is not None:
            self._axis, self._slope = _axis(cone), math.tan(math.radians(cone.degrees))

    def weights(self, x: FloatArray, R: float) -> tuple[FloatArray, Pullback]:
        """The weights at coordinates ``x``, and what turns a gradient for them into one for
        ``x``.
        """
        point, back = (x, _identity) if self._axis is None else self._inside(x, self._axis)
        V = point.reshape(self._shape)
        size = float(self._norm.value(V))
        slope = np.asarray(self._norm.subgradient(V))

        def pull(gradient: FloatArray) -> FloatArray:
            along = float(np.sum(gradient * V)) / size
            return back((R / size) * (gradient - along * slope).reshape(-1))

        return (R / size) * V, pull

    def _inside(self, x: FloatArray, u: FloatArray) -> tuple[FloatArray, Pullback]:
        across = x - (u @ x) * u
        root = math.sqrt(1.0 + across @ across)
        point = u + (self._slope / root) * across

        def back(gradient: FloatArray) -> FloatArray:
            g = (self._slope / root) * (gradient - (gradient @ across / root**2) * across)
            return g - (u @ g) * u

        return point, back

    def random(self, rng: np.random.Generator) -> FloatArray:
        """Random coordinates."""
        spread = 1.0 if self._axis is None else 5.0  # most of a cone is near its boundary
        return spread * rng.standard_normal(self._shape[0] * self._shape[1])

    def at(self, W: FloatArray) -> FloatArray:
        """Coordinates of the direction of ``W``."""
        return W.reshape(-1) / np.linalg.norm(W)

    def centre(self) -> FloatArray:
        """Coordinates of the axis of the cone, or of a point close to it."""
        return np.zeros(self._shape[0] * self._shape[1])


class Factors:
    """Weights ``K Q^T`` with ``|K|^2 + |Q|^2 = 2 R``; for a cone in coordinates that are of order
    one across it, with a :attr:`slack`.
    """

    def __init__(self, shape: tuple[int, int], inner: int, cone: Any = None) -> None:
        self._shape, self._inner, self._cone = shape, inner, cone
        self._base, self._unit = np.zeros(sum(shape) * inner), 1.0
        if cone is not None:
            self._base, self._unit = (
                self._balanced(_axis(cone).reshape(shape)).reshape(-1),
                math.tan(math.radians(cone.degrees)),
            )

    @property
    def slack(self) -> Slack | None:
        """Slacks, not negative at allowed points, with their gradients; None without a cone.

        Cosine between the product and the axis of the cone, from 0 at the edge to 1 on the axis;
        and its nuclear norm, from 0 at half the size to 1 at all of it. (Factors bound the norm
        from above, and the local theorem speaks of large weights.) In a cone the loss of small ones
        may lie below that of the tokens that its axis selects.
        """
        if self._cone is None:
            return None
        u, edge = _axis(self._cone), math.cos(math.radians(self._cone.degrees))

        def values(x: FloatArray) -> tuple[FloatArray, FloatArray]:
            W, back = self.weights(x, 1.0)
            size = float(np.linalg.norm(W))
            unit = W.reshape(-1) / size
            across = ((u - (unit @ u) * unit) / (size * (1.0 - edge))).reshape(self._shape)
            U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
            return (
                np.array([(unit @ u - edge) / (1.0 - edge), 2.0 * sigma.sum() - 1.0]),
                np.stack([back(across), 2.0 * back(U @ Vt)]),
            )

        return values

    def weights(self, x: FloatArray, R: float) -> tuple[FloatArray, Pullback]:
        """See :class:`Sphere`."""
        point = self._base + self._unit * x
        both = point.reshape(-1, self._inner)
        K, Q = both[: self._shape[0]], both[self._shape[0] :]
        square = float(point @ point)
        factor = 2.0 * R / square
        W = factor * (K @ Q.T)

        def pull(gradient: FloatArray) -> FloatArray:
            raw = factor * np.concatenate([gradient @ Q, gradient.T @ K]).reshape(-1)
            return self._unit * (raw - (2.0 * float(np.sum(gradient * W)) / square) * point)

        return W, pull

    def random(self, rng: np.random.Generator) -> FloatArray:
        """See :class:`Sphere`."""
        if self._cone is None:
            return rng.standard_normal(sum(self._shape) * self._inner)
        inside = Sphere(self._shape, Frobenius(), self._cone)
        return self.at(inside.weights(inside.random(rng), 1.0)[0])

    def at(self, W: FloatArray) -> FloatArray:
        """See :class:`Sphere`: balanced factors, of all with this product those closest to the
        axis.
        """
        both = self._balanced(W)
        if self._cone is not None:
            left, _, right = np.linalg.svd(both.T @ self._base.reshape(both.shape))
            both = both @ (left @ right)
        return (both.reshape(-1) - self._base) / self._unit

    def _balanced(self, W: FloatArray) -> FloatArray:
        """Factors from the singular value decomposition, of squared norm 2, one above the other."""
        U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
        root = np.sqrt(sigma / sigma.sum())[: self._inner]
        return np.concatenate([U[:, : self._inner] * root, Vt[: self._inner].T * root])

    def centre(self) -> FloatArray:
        """See :class:`Sphere`: beside the axis, because a product of lower rank is a saddle of its
        factors.
        """
        inside = Sphere(self._shape, Frobenius(), self._cone)
        return self.at(inside.weights(0.02 * inside.random(np.random.default_rng(0)), 1.0)[0])


Chart = Sphere | Factors


def _axis(cone: Any) -> FloatArray:
    """The direction in the middle of a cone, as a unit vector."""
    axis: FloatArray = np.asarray(
        getattr(cone.direction, "W", cone.direction), dtype=np.float64
    ).reshape(-1)
    return axis / float(np.linalg.norm(axis))


class Pair:
    """Head and weights (a prompt is one column), each of its own size in one norm, in one vector of
    coordinates.
    """

    def __init__(
        self,
        data: AttentionData,
        keys: ArrayLike | None,
        norm: Norm | None = None,
        *,
        prompt: bool = True,
    ) -> None:
        self._problem = data, keys, prompt
        self.keys, self.queries = mapped_keys(data, keys), data.queries
        if prompt:
            self.queries = np.ones((data.n, 1))
        self.norm = Frobenius() if norm is None else norm
        shape = self.keys.shape[-1], self.queries.shape[-1]
        self.of_head, self.of_weights = Sphere((data.d_x, 1), self.norm), Sphere(shape, self.norm)
        self.size = data.d_x + shape[0] * shape[1]

    def split(self, x: FloatArray, r: float, R: float) -> tuple[FloatArray, FloatArray, Pullback]:
        """Head ``(d_x,)``, weights ``(d_k, d_z)``, and what turns gradients for both, end to end,
        into one for ``x``.
        """
        d = self._problem[0].d_x
        v, back = self.of_head.weights(x[:d], r)
        W, back_W = self.of_weights.weights(x[d:], R)

        def pull(gradient: FloatArray) -> FloatArray:
            gradients = back(gradient[:d, None]), back_W(gradient[d:].reshape(W.shape))
            return np.concatenate(gradients)

        return v[:, 0], W, pull

    def excess(self, v: FloatArray) -> Excess:
        """The logistic loss of the weights above its infimum for this head, in log space."""
        data, keys, prompt = self._problem
        return Excess(data, v, Logistic(), keys, prompt)

    def objective(self, r: float, R: float) -> Objective:
        r""":math:`\log\frac1n\sum_i\log(1+e^{-u_i})` of head and weights, the logarithm of one
        term being :math:`-u` once it is small.
        """
        data = self._problem[0]

        def value(x: FloatArray) -> tuple[float, FloatArray]:
            v, W, pull = self.split(x, r, R)
            logits = (self.keys @ (self.queries @ W.T)[:, :, None])[:, :, 0]
            logits = np.where(data.mask, logits, -np.inf)
            s = softmax_rows(logits)
            outputs = (s[:, None, :] @ data.tokens)[:, 0]
            scores = data.labels[:, None] * (data.tokens @ v)
            u = data.labels * (outputs @ v)
            large = u > 30.0
            losses = np.logaddexp(0.0, np.where(large, 0.0, -u))
            terms = np.where(large, -u, np.log(losses))
            slope = np.where(large, -1.0, -expit(-u) / losses)
            top = terms.max()
            shares = np.exp(terms - top)
            total = float(shares.sum())
            share = shares / total * slope
            pulled = ((share[:, None] * s * (scores - u[:, None]))[:, None, :] @ self.keys)[:, 0]
            of_head, of_weights = (share * data.labels) @ outputs, pulled.T @ self.queries
            gradient = pull(np.concatenate([of_head, of_weights.reshape(-1)]))
            return float(top) + math.log(total / len(terms)), gradient

        return value


def mapped_keys(data: AttentionData, keys: ArrayLike | None) -> FloatArray:
    """Centred keys ``(n, T, d_k)``."""
    centred = centred_tokens(data)
    if keys is None:
        return centred
    return centred @ reals("keys", keys, (None, data.d_x), f"(d_k, {data.d_x})").T


def _identity(gradient: FloatArray) -> FloatArray:
    return gradient
