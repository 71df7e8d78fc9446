"""Texts of words that are numbers, signed frequencies, and layers whose embeddings are trained."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from attsvm import AttentionData, InputError, train
from attsvm.attention import Attention, WordEmbeddings
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.optim import SteepestDescent
from attsvm.training import LogSpaced, Trajectory


class WordTexts(NamedTuple):
    """Texts as numbers of words.

    Attributes:
        words: ``(n, T)``.
        labels: ``(n,)`` of -1 and +1.
        mask: ``(n, T)``, which places hold a word.
        size: of the vocabulary.
    """

    words: IntArray
    labels: FloatArray
    mask: BoolArray
    size: int

    def frequencies(self, signed: bool = True) -> FloatArray:
        r"""The mean ``(size,)`` over texts of the share of a word in a text, times the label where
        it is ``signed``: :math:`\\alpha_s=\\frac1n\\sum_iY_i\\,m_{is}/T_i`.
        """
        share = self.mask / self.mask.sum(axis=1, keepdims=True)
        if signed:
            share = share * self.labels[:, None]
        return np.bincount(self.words.ravel(), share.ravel(), self.size) / len(self.labels)

    def data(self, E: FloatArray | None = None) -> AttentionData:
        """Numbers of words as tokens, or their embeddings."""
        tokens = self.words[..., None].astype(float) if E is None else E[self.words]
        return AttentionData(tokens, self.labels, mask=self.mask)


def texts_with_one_important_word(n: int, T: int, kinds: int, plain: int, seed: int) -> WordTexts:
    """Texts of ``T`` words: one at a random place says the label, of ``kinds`` words for either
    label, the numbers below ``2 * kinds``; the others are any of ``plain`` words.
    """
    rng = np.random.default_rng([94, seed])
    labels = np.where(np.arange(n) % 2, -1.0, 1.0)
    numbers = 2 * kinds + rng.integers(plain, size=(n, T))
    position, kind = rng.integers(T, size=n), rng.integers(kinds, size=n)
    numbers[np.arange(n), position] = np.where(labels < 0, kinds, 0) + kind
    return WordTexts(numbers, labels, np.ones((n, T), dtype=np.bool_), 2 * kinds + plain)


def texts_of_biased_words(n: int, T: int, size: int, seed: int) -> WordTexts:
    """Texts of words whose frequencies fall with their rank, each with a bias to either label of
    its own, which most have little of, the frequent ones least.
    """
    rng = np.random.default_rng([96, seed])
    rank = np.arange(size)
    bias = rng.choice([-1.0, 1.0], size) * rng.beta(0.3, 1.0, size) * (rank / size) ** 0.5
    labels = np.where(np.arange(n) % 2, -1.0, 1.0)
    chance = (1 + labels[:, None] * bias) / (rank + 10)
    chance = np.cumsum(chance / chance.sum(axis=1, keepdims=True), axis=1)
    draws = rng.random((n, T, 1))
    numbers = np.minimum((draws > chance[:, None]).sum(axis=-1), size - 1)
    return WordTexts(numbers, labels, np.ones((n, T), dtype=np.bool_), size)


def texts_of_file(path: str, n: int, T: int, size: int, seed: int) -> WordTexts:
    """``n`` texts at random of a file with lines ``{"text": ..., "label": ...}``: the first ``T``
    of their words that are among the ``size`` most frequent ones of these texts.

    Raises:
        InputError: the file cannot be read, has no two classes, or fewer words or texts.
    """
    texts, labels = _read_reviews(path)
    order = np.random.default_rng([97, seed]).permutation(len(texts))[: 2 * n]
    contents = [re.findall(r"[^\W\d_][\w']*", texts[k].lower()) for k in order]
    counts = Counter(word for content in contents for word in content)
    number = {word: k for k, (word, _) in enumerate(counts.most_common(size))}
    known = [[number[word] for word in content if word in number][:T] for content in contents]
    chosen = [k for k, text in enumerate(known) if len(text) > 1][:n]
    if len(number) < size or len(chosen) < n:
        raise InputError(
            f"{path} has {len(chosen)} texts and {len(number)} words; give a file with {n} and"
            f" {size} at least"
        )
    numbers = np.zeros((n, T), dtype=np.int64)
    mask = np.zeros((n, T), dtype=np.bool_)
    for row, k in enumerate(chosen):
        numbers[row, : len(known[k])], mask[row, : len(known[k])] = known[k], True
    return WordTexts(numbers, labels[order[chosen]], mask, size)


def _read_reviews(path: str) -> tuple[list[str], FloatArray]:
    """Texts and labels of -1 and +1 of a file with a line of JSON for each text."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line.strip()]
        texts, names = [str(row["text"]) for row in rows], [str(row["label"]) for row in rows]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file of labelled texts") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f'{path} has a line that is no {{"text": ..., "label": ...}}; give one for each text'
        ) from None
    classes = sorted(set(names))
    if len(classes) != 2:
        raise InputError(f"{path} has {len(classes)} classes; give a file with two")
    return texts, np.where(np.array(names) == classes[1], 1.0, -1.0)


class InitialEmbeddings(NamedTuple):
    """Embeddings ``(size, d)``, a prompt and a head ``(d,)``."""

    E: FloatArray
    prompt: FloatArray
    head: FloatArray


def random_start(size: int, d: int, seed: int) -> InitialEmbeddings:
    """Gaussian vectors of length one in the mean."""
    rng = np.random.default_rng([95, seed])
    shapes = ((size, d), (d,), (d,))
    return InitialEmbeddings(*(rng.normal(0.0, 1.0 / np.sqrt(d), shape) for shape in shapes))


def one_step(texts: WordTexts, start: InitialEmbeddings, lr: float) -> FloatArray:
    """Embeddings after one step of gradient descent on them, under the logistic loss."""
    E = WordEmbeddings(start.E)
    data = texts.data()
    model = Attention.prompt(data, start.head, init=start.prompt, keys=E, values=E)
    train(model, data, torch.optim.SGD([E.weight], lr=lr), 1)
    trained: FloatArray = E.weight.detach().numpy()
    return trained


def train_prompt(
    texts: WordTexts, E: FloatArray, start: InitialEmbeddings, steps: int
) -> Trajectory:
    """Normalised descent on the prompt alone, with steps of 0.5."""
    data = texts.data(E)
    model = Attention.prompt(data, start.head, init=start.prompt)
    return train(model, data, SteepestDescent([model.W], lr=0.5), steps, LogSpaced(30))
