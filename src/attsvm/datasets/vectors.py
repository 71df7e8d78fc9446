r"""Word vectors learned from the training texts themselves.

Count which words stand within a window of each other, take the positive pointwise mutual
information

.. math:: M_{wc} = \max\Big(0, \log\frac{N_{wc}}{N_w\, p_c}\Big), \qquad p_c \propto N_c^{3/4},

(Levy and Goldberg 2014; Levy, Goldberg and Dagan 2015), factor :math:`M \approx U \Sigma V^\top` by
a randomised singular value decomposition with a fixed seed, and give word w the unit vector along
row w of :math:`U\Sigma`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.errors import InputError

_SMOOTHING = 0.75
_BLOCK = 1 << 22  # pairs counted at a time: bounds the memory of a large corpus

Vocabulary = dict[str, int]


def vocabulary(texts: Iterable[Sequence[str]], min_count: int) -> Vocabulary:
    """The words that occur at least ``min_count`` times, numbered by falling count (equal counts in
    order of the alphabet).
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    kept = sorted((-count, word) for word, count in counts.items() if count >= min_count)
    return {word: number for number, (_, word) in enumerate(kept)}


def cooccurrence(texts: Sequence[Sequence[str]], numbers: Vocabulary, window: int) -> Any:
    """Sparse symmetric ``(V, V)`` counts of pairs of known words at most ``window`` places apart in
    the same text.
    """
    from scipy.sparse import coo_array, csr_array

    lengths = np.array([len(text) for text in texts])
    ids = np.fromiter(
        (numbers.get(word, -1) for text in texts for word in text),
        dtype=np.int32,
        count=int(lengths.sum()),
    )
    text_of = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
    size, window = len(numbers), min(window, int(lengths.max(initial=1)) - 1)
    total = csr_array((size, size), dtype=np.float64)
    step = max(1, _BLOCK // max(window, 1))
    for start in range(0, len(ids) if window else 0, step):
        stop = min(len(ids), start + step)
        left, right = [], []
        for distance in range(1, window + 1):
            here, there = (
                slice(start, min(stop, len(ids) - distance)),
                slice(start + distance, min(stop + distance, len(ids))),
            )
            a, b = ids[here], ids[there]
            pair = (text_of[here] == text_of[there]) & (a >= 0) & (b >= 0)
            left.append(a[pair])
            right.append(b[pair])
        rows, columns = np.concatenate(left), np.concatenate(right)
        total = total + coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size)).tocsr()
    return (total + total.T).tocsr()


def positive_information(counts: Any) -> Any:
    r"""Sparse :math:`\max(0, \log N_{wc} - \log N_w - \log p_c)` of a sparse count matrix."""
    from scipy.sparse import csr_array

    pairs = counts.tocoo()
    words = np.asarray(counts.sum(axis=1)).ravel()
    contexts = words**_SMOOTHING
    contexts /= contexts.sum()
    information = np.log(pairs.data) - np.log(words[pairs.row]) - np.log(contexts[pairs.col])
    kept = information > 0
    return csr_array((information[kept], (pairs.row[kept], pairs.col[kept])), shape=counts.shape)


def word_vectors(
    texts: Sequence[Sequence[str]],
    *,
    dim: int = 64,
    min_count: int = 2,
    window: int = 10,
    seed: int = 0,
) -> tuple[Vocabulary, FloatArray]:
    """Unit vectors for the words of these tokenised texts; the same texts and seed give the same
    bits.

    Args:
        texts: words of each training text, in order.
        dim: length of a vector.
        min_count: words seen less often get no vector.
        window: how many places apart two words may stand to count as a pair.
        seed: of the randomised decomposition.

    Returns:
        the vocabulary and ``(V, dim)`` vectors of unit length; words that never stand beside a
        known word are left out.

    Raises:
        InputError: fewer words than dimensions.
    """
    numbers = vocabulary(texts, min_count)
    if len(numbers) <= dim:
        raise InputError(
            f"the training texts have {len(numbers)} words that occur {min_count} times or more,"
            f" too few for vectors of length {dim}; lower dim or min_count, or give more texts"
        )
    from sklearn.decomposition import TruncatedSVD

    information = positive_information(cooccurrence(texts, numbers, window))
    vectors: FloatArray = TruncatedSVD(dim, n_iter=5, random_state=seed).fit_transform(information)
    informed = np.flatnonzero(
        information.sum(axis=1) > 0
    )  # a word that no other word tells anything about has no direction
    kept = set(informed.tolist())
    words = [word for word, number in numbers.items() if number in kept]
    return {word: number for number, word in enumerate(words)}, unit_rows(
        _fixed_signs(vectors[informed])
    )


def principal_part(vectors: FloatArray, counts: IntArray, dim: int) -> FloatArray:
    """``(V, min(dim, d))``: rows of ``(V, d)`` in the directions in which they vary most, each row
    counted ``(V,)`` times; as they are when ``dim`` is not below ``d``.
    """
    if dim >= vectors.shape[1]:
        return vectors
    seen = counts > 0
    spread = (vectors[seen].T * counts[seen]) @ vectors[seen]
    directions = np.linalg.eigh(spread)[1][:, : -dim - 1 : -1]
    return vectors @ _fixed_signs(directions)


def unit_rows(vectors: FloatArray) -> FloatArray:
    """Each row divided by its length; zero rows stay zero."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def _fixed_signs(vectors: FloatArray) -> FloatArray:
    """Each column with its largest entry positive: a decomposition leaves the signs open."""
    largest: IntArray = np.argmax(np.abs(vectors), axis=0)
    return vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
