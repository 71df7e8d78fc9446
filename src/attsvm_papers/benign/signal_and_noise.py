r"""A signal that tells the class of its sequence, and tokens of noise; some labels are wrong.

Signals are :math:`\mu_+\perp\mu_-` of length :math:`\rho`, noise is Gaussian in the :math:`d-2`
dimensions that are orthogonal to both. Of the noise, training sees the products of its vectors
alone. So tokens are written in the dimensions that they span, ``n + 2`` for two tokens: rows of
the factor of a Wishart matrix (Bartlett, 1933) have products distributed as those of Gaussian
vectors in any number of dimensions, and ``d`` costs nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri

from attsvm import AttentionData, Trajectory, train
from attsvm.attention import Attention
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps

SIGNAL, NOISE = 0, 1  # where the tokens of a sequence stand
QUANTILES = (np.arange(2000) + 0.5) / 2000


class NoisyInstances(NamedTuple):
    """One instance per seed.

    Attributes:
        data: ``(seeds, n, T, n (T - 1) + 2)``, labels as training sees them; coordinates 0 and 1
            are those of the signals.
        classes: ``(seeds, n)``: 0 where the right label is one, 1 where it is minus one.
        flipped: ``(seeds, n)``: whose label is wrong.
    """

    data: AttentionData
    classes: IntArray
    flipped: BoolArray

    def tokens(self, noise: ArrayLike) -> IntArray:
        """Tokens ``(seeds, n)``: the noise of sequences with wrong labels; of the others the
        signal, or their noise in the classes where ``noise``, ``(seeds, 2)`` or ``(2,)``, is true.
        """
        of_class = np.broadcast_to(np.asarray(noise), (len(self.classes), 2))
        takes_noise = np.take_along_axis(of_class, self.classes, axis=1)
        return np.where(self.flipped | takes_noise, NOISE, SIGNAL)

    def counts(self) -> tuple[IntArray, IntArray]:
        """Numbers ``(seeds, 2)`` of sequences of each class with right and with wrong labels."""
        is_class = self.classes[..., None] == np.arange(2)
        wrong = (is_class & self.flipped[..., None]).sum(axis=1)
        return is_class.sum(axis=1) - wrong, wrong


def signal_length(snr: float, n: int, d: int) -> float:
    r"""The length of the signals at which :math:`\rho/\sqrt d` is ``snr`` over the root of n."""
    return snr * float(np.sqrt(d / n))


def draw_noisy(
    n: int,
    d: int,
    eta: float,
    rho: float,
    seeds: Sequence[int],
    T: int = 2,
    weak: float = 0.0,
) -> NoisyInstances:
    r"""Sequences of uniform classes, :math:`\eta n` of them, rounded, with the wrong label.

    Args:
        n: sequences.
        d: dimension, at least n (T - 1) + 2.
        eta: share of wrong labels.
        rho: length of the signals; the noise is about as long as the root of d.
        seeds: one instance for each.
        T: tokens of a sequence, one of them its signal.
        weak: how much of the other class's signal the first token of noise has.
    """
    noises = n * (T - 1)
    tokens = np.zeros((len(seeds), n, T, noises + 2))
    classes = np.empty((len(seeds), n), dtype=np.int64)
    flipped = np.zeros((len(seeds), n), dtype=bool)
    for k, seed in enumerate(seeds):
        rng = np.random.default_rng([79, seed])
        classes[k] = rng.integers(2, size=n)
        flipped[k, rng.permutation(n)[: round(eta * n)]] = True
        tokens[k, np.arange(n), SIGNAL, classes[k]] = rho
        tokens[k, np.arange(n), NOISE, 1 - classes[k]] = weak * rho
        lengths = np.sqrt(rng.chisquare(d - 2 - np.arange(noises)))
        factor = np.diag(lengths) + np.tril(rng.standard_normal((noises, noises)), -1)
        tokens[k, :, NOISE:, 2:] = factor.reshape(n, T - 1, noises)
    labels = np.where((classes == 0) ^ flipped, 1.0, -1.0)
    return NoisyInstances(
        AttentionData(tokens, labels, np.ones((*labels.shape, 1))), classes, flipped
    )


def train_prompt_and_head(
    data: AttentionData, lr: float, steps: int, due: Sequence[int], normalize: bool = True
) -> Trajectory:
    """Prompt and head trained together from zero, each normalised by itself or neither."""
    zeros = np.zeros((len(data.tokens), data.d_x))
    model = Attention.prompt(data, zeros, init="zeros", train_head=True)
    descent = SteepestDescent(model.parameters(), lr=lr, normalize=normalize)
    return train(model, data, descent, steps, AtSteps(due))


def attention_to_signal(data: AttentionData, prompts: FloatArray) -> FloatArray:
    """The probability of the signal ``(..., seeds, n)``, for prompts ``(..., seeds, n + 2)``."""
    logits = np.einsum("sntd,...sd->...snt", data.tokens, prompts)
    probability: FloatArray = expit(logits[..., SIGNAL] - logits[..., NOISE])
    return probability


def label_margins(data: AttentionData, prompts: FloatArray, heads: FloatArray) -> FloatArray:
    r"""Margins :math:`Y_if_i` ``(..., seeds, n)``, positive where the label is fitted."""
    share = attention_to_signal(data, prompts)
    values = np.einsum("sntd,...sd->...snt", data.tokens, heads)
    margins: FloatArray = data.labels * (
        share * values[..., SIGNAL] + (1.0 - share) * values[..., NOISE]
    )
    return margins


def clean_error(prompts: FloatArray, heads: FloatArray, rho: float) -> FloatArray:
    r"""The probability ``(...)`` that a fresh sequence is misclassified, its label being right, for
    prompts and heads ``(..., n + 2)``.

    Its noise :math:`\xi` counts by two numbers, :math:`p^\top\xi` and :math:`v^\top\xi`, which are
    Gaussian together. A sequence of class y is misclassified where
    :math:`y\,(e^{p^\top\mu_y-p^\top\xi}\,v^\top\mu_y+v^\top\xi)<0`. Given the first number the
    probability of this is a normal distribution function; its mean is over 2000 quantiles.
    """
    normals = ndtri(QUANTILES)
    size = np.linalg.norm(prompts[..., 2:], axis=-1)
    along = (heads[..., 2:] * prompts[..., 2:]).sum(axis=-1) / np.where(size > 0, size, 1.0)
    across = np.sqrt(np.maximum((heads[..., 2:] ** 2).sum(axis=-1) - along**2, 0.0))
    errors = []
    for coordinate, label in enumerate((1.0, -1.0)):
        ahead = rho * prompts[..., coordinate, None] - size[..., None] * normals
        value = rho * heads[..., coordinate, None] * np.exp(np.minimum(ahead, 300.0))
        mean = label * (value + along[..., None] * normals)
        spread = np.maximum(across, 1e-300)[..., None]  # a head of zeros decides nothing
        errors.append(ndtr(-np.clip(mean / spread, -40.0, 40.0)).mean(axis=-1))
    error: FloatArray = (errors[0] + errors[1]) / 2
    return error
