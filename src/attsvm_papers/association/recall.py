r"""Noisy in-context recall, and one layer of linear attention with a feed-forward layer on it.

A sentence holds a *trigger* :math:`q` and behind it its *answer* :math:`y`, another trigger with a
word behind it, and words. With probability :math:`\alpha` it also holds :math:`q` with the noise
token :math:`\tau` behind it. It ends in :math:`q`, and what follows is :math:`y` with probability
:math:`1-\alpha`, else :math:`\tau`. No word occurs twice but :math:`q`. The Bayes risk is the
entropy :math:`H(\alpha)` in nats.

Word :math:`h` has the unit vectors of itself and of the one before it. Linear attention on it is
:math:`a_h=W_{q,z_{h-1}}+U_{q,z_h}`, and the logit of word :math:`v` is
:math:`\sum_{h:z_h=v}a_h+F_{v,q}`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import entr
from torch import Tensor

from attsvm.optim import SteepestDescent

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TRIGGERS, ANSWERS, HELD_OUT = 2, 18, 4
"""Triggers, words that are answers in training, and words that are not."""
NOISE = TRIGGERS + ANSWERS + HELD_OUT
START = NOISE + 1
"""The token before the first word."""
P = NOISE + 2
FILLERS = 5

RESTRICTED, FULL = "restricted", "full"
"""Of the current word attention knows whether it is noise, and the feed-forward layer speaks for
noise alone; or both have weights for all words.
"""


class Sentences(NamedTuple):
    """Last words ``(k, n)``, answers ``(k, n)``, and the words before the last one
    ``(k, n, T)``.
    """

    query: IntArray
    answer: IntArray
    words: IntArray


def draw_sentences(
    seeds: Sequence[int], n: int, alpha: float, stream: int, held_out: bool = False
) -> Sentences:
    """``n`` sentences for each seed; with ``held`` the answers are words that are none in training.
    ``stream`` tells samples of a seed apart.
    """
    rngs = [np.random.default_rng([72, stream, seed]) for seed in seeds]
    query = np.stack([rng.integers(TRIGGERS, size=n) for rng in rngs])
    score = np.stack([rng.random((n, ANSWERS + HELD_OUT)) for rng in rngs])
    order_keys = np.stack([rng.random((n, 3 + FILLERS)) for rng in rngs])
    noisy = np.stack([rng.random(n) < alpha for rng in rngs])
    is_training_answer = np.arange(ANSWERS + HELD_OUT) < ANSWERS
    for rank, is_allowed in (
        (3.0, ~is_training_answer if held_out else is_training_answer),
        (2.0, is_training_answer),
    ):
        best_word = np.where(is_allowed & (score < 1), score, -1.0).argmax(axis=-1)
        np.put_along_axis(score, best_word[..., None], rank, axis=-1)
    word = TRIGGERS + np.argsort(-score, axis=-1)
    third_pair = np.where(noisy[..., None], np.stack([query, np.full_like(query, NOISE)], -1),
                     word[..., 2:4])  # fmt: skip
    pairs = np.stack([query, word[..., 0], (query + 1) % TRIGGERS, word[..., 1]], axis=-1)
    blocks = np.concatenate([pairs, third_pair, word[..., 4 : 4 + FILLERS]], axis=-1)
    keys = np.concatenate(
        [np.repeat(order_keys[..., :3], 2, axis=-1), order_keys[..., 3:]], axis=-1
    )
    order = np.argsort(keys, axis=-1, kind="stable")
    return Sentences(query, word[..., 0], np.take_along_axis(blocks, order, axis=-1))


def weight_mask(kind: str, attention: bool = True, feed_forward: bool = True) -> Tensor:
    """The mask ``(3 P,)`` of the weights of a trigger, ``W``, ``U`` and ``F`` one behind the other,
    that a parametrisation has; zeros for a layer that is off.
    """
    has_weight = torch.zeros(3, P, dtype=torch.float64)
    has_weight[0], has_weight[1:, NOISE] = 1.0, 1.0
    if kind == FULL:
        has_weight[1:] = 1.0
    has_weight[:2] *= attention
    has_weight[2] *= feed_forward
    return has_weight.flatten()


class Risk:
    """Risk of weights ``(k, TRIGGERS, 3 P)`` on sentences, exact over what follows them."""

    def __init__(self, sentences: Sentences, alpha: float) -> None:
        query, answer, words = (torch.from_numpy(field) for field in sentences)
        before = torch.cat([torch.full_like(words[..., :1], START), words[..., :-1]], dim=-1)
        row = 3 * P * query[..., None]
        self._at = torch.stack([row + before, row + P + words]).flatten(2)
        self._voice = torch.nn.functional.one_hot(words, P).double()
        self._query = torch.nn.functional.one_hot(query, TRIGGERS).double()
        self.sentences, self._answer, self._alpha = sentences, answer, alpha

    def attention(self, theta: Tensor) -> Tensor:
        """Attention on every word ``(k, n, T)``."""
        flat = theta.flatten(1)
        scores = flat.gather(1, self._at[0]) + flat.gather(1, self._at[1])
        return scores.reshape(self._voice.shape[:-1])

    def logits(self, theta: Tensor) -> Tensor:
        """Logits of every word ``(k, n, P)``; nothing is the start."""
        from_attention = (self.attention(theta)[..., None, :] @ self._voice)[..., 0, :]
        logits = from_attention + self._query @ theta[..., 2 * P :]
        return torch.cat(
            [logits[..., :START], torch.full_like(logits[..., :1], -torch.inf)], dim=-1
        )

    def __call__(self, theta: Tensor) -> Tensor:
        """The mean cross entropy ``(k,)``, in nats."""
        logits = self.logits(theta)
        of_answer = logits.gather(-1, self._answer[..., None])[..., 0]
        expected = (1 - self._alpha) * of_answer + self._alpha * logits[..., NOISE]
        return (logits.logsumexp(dim=-1) - expected).mean(dim=-1)

    def share_of_largest(self, theta: Tensor, noise: bool) -> FloatArray:
        """The share ``(k,)`` of sentences whose largest logit is the answer's, or noise's."""
        expected = torch.full_like(self._answer, NOISE) if noise else self._answer
        return (self.logits(theta).argmax(dim=-1) == expected).double().mean(dim=-1).numpy()

    def mean_attention(self, path: Tensor) -> dict[str, FloatArray]:
        """Mean attention ``(k, records)`` along a path of weights: on the answer, and the largest
        one on another word.
        """
        _, answer, words = (torch.from_numpy(field) for field in self.sentences)
        is_answer = words == answer[..., None]
        attention = torch.stack([self.attention(theta) for theta in path], dim=1)
        is_answer = is_answer[:, None].expand_as(attention)
        on_answer = torch.where(is_answer, attention, 0.0).sum(dim=-1)
        on_other = torch.where(is_answer, -torch.inf, attention).amax(dim=-1)
        return {
            "on_answer": on_answer.mean(dim=-1).numpy(),
            "on_other": on_other.mean(dim=-1).numpy(),
        }


def descend_masked(
    risk: Risk, has_weight: Tensor, steps: int, lr: float, normalize: bool, marks: Sequence[int]
) -> Tensor:
    """Weights ``(records, k, TRIGGERS, 3 P)`` at the marked steps of gradient descent from zero, on
    the weights that the mask has.
    """
    k = len(risk.sentences.query)
    theta = torch.zeros(k, TRIGGERS, 3 * P, dtype=torch.float64, requires_grad=True)
    descent = SteepestDescent([theta], lr=lr, normalize=normalize)
    weights = []
    for step in range(steps + 1):
        if step in marks:
            weights.append((theta.detach() * has_weight).clone())
        descent.zero_grad()
        risk(theta * has_weight).sum().backward()
        descent.step()
    return torch.stack(weights)


def constructed(scale: float, alpha: float, deaf: bool = True) -> Tensor:
    r"""``(1, TRIGGERS, 3 P)``: :math:`W_{q,q}=\lambda`, :math:`U_{q,\tau}=-\lambda` if ``deaf`` to
    noise, and :math:`F_{\tau,q}=\lambda+\log\frac{\alpha}{1-\alpha}`.
    """
    theta = torch.zeros(1, TRIGGERS, 3, P, dtype=torch.float64)
    q = torch.arange(TRIGGERS)
    theta[0, q, 0, q] = scale
    theta[0, :, 1, NOISE] = -scale * deaf
    theta[0, :, 2, NOISE] = scale + float(np.log(alpha / (1 - alpha)))
    return theta.flatten(2)


def entropy(alpha: ArrayLike) -> FloatArray:
    """The Bayes risk."""
    shares = np.asarray(alpha, dtype=np.float64)
    return np.asarray(entr(shares) + entr(1 - shares))


def without_attention(alpha: float) -> float:
    r"""The least risk of a feed-forward layer that speaks for noise alone,
    :math:`H(\alpha)+(1-\alpha)\log(\text{other words})`.
    """
    return float(entropy(alpha) + (1 - alpha) * np.log(NOISE))


def without_feed_forward(alpha: float) -> float:
    r"""The least risk of attention alone. The :math:`M` words that are not in the sentence have
    logit zero, the other words none; with :math:`\lambda` for the answer and :math:`\mu` for noise
    that is in the sentence it is the least

    .. math:: \alpha\log(e^\lambda+e^\mu+M)+(1-\alpha)\log(e^\lambda+M-1)-(1-\alpha)\lambda
        -\alpha^2\mu.
    """
    absent = NOISE + 1 - (TRIGGERS + 3 + FILLERS)

    def risk(x: FloatArray) -> float:
        noisy = np.logaddexp(np.logaddexp(x[0], x[1]), np.log(absent))
        clean = np.logaddexp(x[0], np.log(absent - 1))
        return float(
            alpha * noisy + (1 - alpha) * clean - (1 - alpha) * x[0] - alpha * alpha * x[1]
        )

    return float(minimize(risk, np.zeros(2)).fun)
