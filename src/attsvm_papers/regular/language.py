r"""Words of the letters 0 and 1, and attention with a linear layer that is trained on them.

Letter :math:`a` at place :math:`t` is the unit vector :math:`e_{2t+a}`, the last letter is the
query, and :math:`f=v^\top X^\top\mathrm{softmax}(XWz)`. A word has *even pairs* where 01 and 10
occur in it an even number of times together: where its first letter is its last. Its *parity* is
that of its ones.

A chain of thought adds to a word :math:`a_0\dots a_{L-1}` the letters
:math:`a_{L+k}=a_k\oplus a_{L+k-1}`, of which :math:`a_{2L-2}` is its parity. Each asks whether a
letter equals the last one: letter 0, as even pairs do, when letters already used are dropped, and
letter :math:`k` when all are kept.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from attsvm import (
    AttentionData,
    SolutionBatch,
    Trajectory,
    decoder_margins,
    max_margin_batch,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit

EVEN, CHAIN, PARITY = "even pairs", "chain", "parity"
"""What is asked of a word: its even pairs, the next letter of its chain, its parity at once."""


class LetterSequences(NamedTuple):
    """Letters ``(..., T)`` of words, of which the first ``lengths`` ``(...)`` are there."""

    letters: IntArray
    lengths: IntArray


def all_words(size: int) -> IntArray:
    """All words of one length ``(2^size, size)``."""
    return np.arange(2**size)[:, None] >> np.arange(size) & 1


def draw_words(task: str, size: int, n: int, seeds: Sequence[int]) -> LetterSequences:
    """``n`` words for each seed, of lengths that are uniform from 1 to ``size``, or to
    ``2 size - 2`` with letters of the chain.
    """
    longest = 2 * size - 2 if task == CHAIN else size
    rngs = [np.random.default_rng([71, seed]) for seed in seeds]
    lengths = np.stack([rng.integers(1, longest + 1, n) for rng in rngs])
    letters = np.stack([rng.integers(0, 2, (n, longest)) for rng in rngs])
    for position in range(size, longest):
        letters[..., position] = letters[..., position - size] ^ letters[..., position - 1]
    return LetterSequences(letters, lengths)


def words_as_data(task: str, size: int, words: LetterSequences) -> AttentionData:
    """The words as sequences; a label is positive where the answer is yes."""
    letters, lengths = words
    T = letters.shape[-1]
    position = 2 * np.arange(T) + letters
    is_letter = np.arange(T) < lengths[..., None]
    if task == PARITY:
        is_yes = (letters * is_letter).sum(axis=-1) % 2 == 0
    else:
        is_yes = _letters_at(letters, np.maximum(lengths - size, 0)) == _letters_at(
            letters, lengths - 1
        )
    units = np.eye(2 * T)
    tokens = units[position] * is_letter[..., None]
    return AttentionData(
        tokens, np.where(is_yes, 1, -1), units[_letters_at(position, lengths - 1)], is_letter
    )


def _letters_at(values: IntArray, index: IntArray) -> IntArray:
    entries: IntArray = np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
    return entries


def softmax_weights(data: AttentionData, W: FloatArray) -> FloatArray:
    """Attention weights ``(..., n, T)``, of weights ``(..., d, d)``."""
    logits = np.where(
        data.mask,
        (data.tokens @ (W @ data.queries.swapaxes(-1, -2)).swapaxes(-1, -2)[..., None])[..., 0],
        -np.inf,
    )
    weights: FloatArray = softmax(logits, axis=-1)
    return weights


def outputs(data: AttentionData, W: FloatArray) -> FloatArray:
    """The outputs of attention ``(..., n, d)``, inputs of the linear layer."""
    outputs_of_words: FloatArray = (softmax_weights(data, W)[..., None, :] @ data.tokens)[..., 0, :]
    return outputs_of_words


def hyperplanes(signed: FloatArray) -> SolutionBatch:
    """The certified largest margins of outputs times labels ``(k, n, d)``, without intercept. Words
    that were drawn twice are one row.
    """
    rows = [np.unique(points, axis=0)[:, None] for points in signed]
    return max_margin_batch(
        [
            decoder_margins(
                AttentionData(points, np.ones(len(points))), np.zeros(len(points), dtype=int)
            )
            for points in rows
        ]
    )


def parities(task: str, W: FloatArray, v: FloatArray, size: int) -> FloatArray:
    """Share of all words of this length whose parity a chain of answers gets right, weights
    ``(..., d, d)`` and ``(..., d)``. One answer is the next letter; of a parity at once the only
    one.
    """
    words = all_words(size)
    letters = np.broadcast_to(words, (*v.shape[:-1], *words.shape))
    for _ in range(1 if task == PARITY else size - 1):
        read_letters = letters[..., -size:] if task == EVEN else letters
        padded = np.zeros((*read_letters.shape[:-1], v.shape[-1] // 2), dtype=int)
        padded[..., : read_letters.shape[-1]] = read_letters
        lengths = np.full(read_letters.shape[:-1], read_letters.shape[-1])
        data = words_as_data(EVEN, size, LetterSequences(padded, lengths))
        is_no = (outputs(data, W) @ v[..., None])[..., 0] < 0
        letters = np.concatenate([letters, is_no[..., None]], axis=-1)
    return np.asarray((letters[..., -1] == words.sum(axis=-1) % 2).mean(axis=-1))


def train_on_words(
    task: str, seeds: Sequence[int], steps: int, n: int, size: int, rates: tuple[float, float]
) -> tuple[AttentionData, Trajectory]:
    """Gradient descent on attention and linear layer from zero, with a step size for each; a part
    with step zero stays.
    """
    data = words_as_data(task, size, draw_words(task, size, n, seeds))
    model = Attention.cross(data, np.zeros((len(seeds), data.d_x)), None, train_head=True)
    descent = SteepestDescent(model.parameters(), lr=1.0, normalize=False)
    scale = {"W": np.full(len(seeds), rates[0]), "head.readout": np.full(len(seeds), rates[1])}
    marks = np.unique(np.rint(np.geomspace(1, steps, 31)).astype(int)).tolist()
    return data, train(model, data, descent, steps, AtSteps(marks), step_scale=scale)


def columns_of_training(
    task: str, size: int, data: AttentionData, trajectory: Trajectory
) -> dict[str, Any]:
    """Columns of both figures, with a row for every run and its records.

    ``share`` is the margin of the linear layer, of the largest that any has on the same outputs;
    zero where a word is on the wrong side, and ``share_mean`` that of the mean of outputs times
    labels.
    ``moved`` is the largest difference of any attention to the last record's.
    """
    W, v = trajectory.W, trajectory.head
    signed = outputs(data, W) * data.labels[..., None]
    best = hyperplanes(signed.reshape(-1, *signed.shape[-2:]))
    separable = best.optimal.reshape(v.shape[:2])
    widest = np.where(separable, best.norm.reshape(v.shape[:2]), 0.0)

    def share(direction: FloatArray) -> FloatArray:
        least = np.maximum((signed @ direction[..., None])[..., 0].min(axis=-1), 0.0)
        length = np.linalg.norm(direction, axis=-1)
        shares: FloatArray = (least * widest / np.where(length > 0, length, 1.0)).T
        return shares

    weights = softmax_weights(data, W)
    return {
        "step": kit.same(trajectory.steps),
        "loss": trajectory.loss.T,
        "norm": np.linalg.norm(v, axis=-1).T,
        "norm_attention": trajectory.norm.T,
        "separable": separable.T,
        "widest": widest.T,
        "share": share(v),
        "share_mean": share(signed.mean(axis=-2)),
        "moved": np.abs(weights - weights[-1]).max(axis=(-1, -2)).T,
        "right": parities(task, W, v, size).T,
    }
