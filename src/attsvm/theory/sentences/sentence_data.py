"""Sentences with the token that comes next: what next-token prediction is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.theory.sentences.embeddings import identity


class Distinct(NamedTuple):
    """``tokens`` ``(N, J)``, the distinct tokens of every sentence in increasing order, and
    ``multiplicities`` ``(N, J)``.

    Rows are padded to the longest with the sentence's own query and multiplicity 0: a padded score
    is never larger than the largest one that counts, so ``multiplicities * exp(scores - largest)``
    needs no mask.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> data = NextTokenData.from_words(["a b b c", "c c"], ["a", "c"])
        >>> data.distinct().tokens.tolist(), data.distinct().multiplicities.tolist()
        ([[0, 1, 2], [2, 2, 2]], [[1, 2, 1], [2, 0, 0]])
    """

    tokens: IntArray
    multiplicities: IntArray


class Occurrences(NamedTuple):
    """The distinct tokens of all sentences, flat: ``token[k]`` occurs ``multiplicity[k]`` times in
    ``sentence[k]``; sorted by both.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> data = NextTokenData.from_words(["a b b c", "c c"], ["a", "c"])
        >>> [part.tolist() for part in data.occurrences]
        [[0, 0, 0, 1], [0, 1, 2, 2], [1, 2, 1, 2]]
    """

    sentence: IntArray
    token: IntArray
    multiplicity: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class NextTokenData(Compact):
    r"""Weighted sentences :math:`X_n=(v_1,\dots,v_L)` with labels :math:`y_n` over a vocabulary of
    K embedded tokens.

    The query of a sentence is its last token. A realizable sentence has one **winner** among its
    tokens: the token with
    :math:`n(x_\star)=y`, where :math:`n` is the collocation, which sentences of one token show
    (Huang, Liang and Yang 2024). With
    :math:`n` the identity the label is the winner itself: token-priority data (Li et al. 2024).
    Attributes are read-only copies.

    Many seeds are a list of such data; :func:`stack` pads them to arrays with a leading axis of
    runs.

    Attributes:
        tokens: ``(total,)``, the sentences one after the other, numbers of the vocabulary.
        offsets: ``(N + 1,)``; sentence n is ``tokens[offsets[n]:offsets[n + 1]]``.
        labels: ``(N,)``, the next tokens.
        weights: ``(N,)``, positive, divided by their sum; all equal when left out.
        embeddings: ``(K, d)``, row v is :math:`e_v`; a number K stands for the identity.
        vocabulary: K names of the tokens, or None.
        following: ``(K,)``, :math:`n(x)`, -1 where it is unknown. When left out it is read from the
            one-token sentences; where they contradict each other it is the label of largest total
            weight (the smallest on a tie), and
            :func:`check_realizable` says so. :meth:`select` keeps it.

    Raises:
        InputError: no sentence, an empty one, a token or label outside the vocabulary, a weight
            that is not positive, embeddings that are not a finite matrix, or names that are not K.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "runs"])
        >>> data.vocabulary, data.following.tolist()
        (('hen', 'eats', 'fox', 'runs'), [1, -1, 3, -1])
        >>> data.names(data.queries)
        ['hen', 'fox', 'fox']
    """

    tokens: IntArray
    offsets: IntArray
    labels: IntArray
    weights: FloatArray = field(default=None)  # type: ignore[arg-type]
    embeddings: FloatArray = field(default=None)  # type: ignore[arg-type]
    vocabulary: tuple[str, ...] | None = None
    following: IntArray = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        tokens, offsets, labels = (
            _token_numbers(name, getattr(self, name)) for name in ("tokens", "offsets", "labels")
        )
        if len(labels) == 0:
            raise InputError("there is no sentence; give at least one")
        if len(offsets) != len(labels) + 1 or offsets[0] != 0 or offsets[-1] != len(tokens):
            raise InputError(
                f"offsets of {len(offsets)} entries do not cut {len(tokens)} tokens into"
                f" {len(labels)} sentences; they must start at 0, end at the number of tokens and"
                " be one more than labels"
            )
        lengths = np.diff(offsets)
        if (lengths < 1).any():
            raise InputError(f"sentence {int(np.argmax(lengths < 1))} is empty; drop it")
        E = self._embedded(tokens, labels)
        K = len(E)
        wrong = (tokens < 0) | (tokens >= K)
        if wrong.any():
            k = int(np.argmax(wrong))
            n = int(np.searchsorted(offsets, k, side="right")) - 1
            raise InputError(
                f"sentence {n} holds token {tokens[k]}; tokens are numbered 0 to {K - 1}"
            )
        wrong = (labels < 0) | (labels >= K)
        if wrong.any():
            n = int(np.argmax(wrong))
            raise InputError(f"labels[{n}] is {labels[n]}; tokens are numbered 0 to {K - 1}")
        if self.vocabulary is not None:
            names = tuple(map(str, self.vocabulary))
            if len(names) != K:
                raise InputError(
                    f"vocabulary has {len(names)} names; there are {K} rows of embeddings"
                )
            object.__setattr__(self, "vocabulary", names)
        weights = _normalised_weights(self.weights, len(labels))
        collocation: Any = self.following
        if collocation is None:
            single = lengths == 1
            following = _collocation(
                tokens[offsets[:-1][single]], labels[single], weights[single], K
            )
        else:
            following = _token_numbers("following", collocation)
            if following.shape != (K,) or (following < -1).any() or (following >= K).any():
                raise InputError(
                    f"following must hold {K} numbers of the vocabulary, -1 where the following"
                    " token is unknown"
                )
        arrays = {
            "tokens": tokens,
            "offsets": offsets,
            "labels": labels,
            "weights": weights,
            "embeddings": E,
            "following": following,
        }
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def _embedded(self, tokens: IntArray, labels: IntArray) -> FloatArray:
        embeddings: Any = self.embeddings
        if embeddings is None:
            embeddings = (
                len(self.vocabulary)
                if self.vocabulary is not None
                else int(max(tokens.max(), labels.max())) + 1
            )
        if isinstance(embeddings, (int, np.integer)):
            return identity(int(embeddings))
        E = np.asarray(embeddings)
        if E.ndim != 2 or 0 in E.shape or E.dtype.kind not in "fiu":
            raise InputError(
                f"embeddings has shape {E.shape} and dtype {E.dtype}; it must be real (K, d), one"
                " row per token"
            )
        if E.dtype != np.float64 or E.flags.writeable:
            E = np.array(E, dtype=np.float64, order="C")
        if not np.isfinite(E).all():
            v = int(np.argmin(np.isfinite(E).all(axis=1)))
            raise InputError(f"embeddings[{v}] holds a value that is not finite; clean that row")
        return E

    @classmethod
    def from_sentences(
        cls,
        sentences: Sequence[ArrayLike],
        labels: ArrayLike,
        weights: ArrayLike | None = None,
        embeddings: ArrayLike | int | None = None,
        vocabulary: Sequence[str] | None = None,
        following: ArrayLike | None = None,
    ) -> NextTokenData:
        """Data from a list of token lists; without ``embeddings`` one-hot rows for the names, or
        for the tokens that occur.

        Raises:
            InputError: see :class:`NextTokenData`, or as many labels as sentences are missing.
        """
        token_arrays = []
        for n, sentence in enumerate(sentences):
            token_array = np.asarray(sentence)
            if token_array.ndim != 1 or len(token_array) == 0:
                raise InputError(
                    f"sentence {n} has shape {token_array.shape}; give a list of at least one token"
                )
            token_arrays.append(_token_numbers(f"sentence {n}", token_array))
        y = _token_numbers("labels", labels)
        if len(y) != len(token_arrays):
            raise InputError(
                f"there are {len(y)} labels for {len(token_arrays)} sentences; give one per"
                " sentence"
            )
        tokens = np.concatenate(token_arrays) if token_arrays else np.zeros(0, dtype=np.int64)
        offsets = np.concatenate(
            [[0], np.cumsum([len(token_array) for token_array in token_arrays], dtype=np.int64)]
        )
        names = None if vocabulary is None else tuple(vocabulary)
        arguments = tokens, offsets, y, weights, embeddings, names, following
        return cls(*arguments)  # type: ignore[arg-type]

    @classmethod
    def from_words(
        cls, sentences: Sequence[str], labels: Sequence[str], **more: Any
    ) -> NextTokenData:
        """Data from sentences of words with white space between them and one word each as label.

        The vocabulary lists the words in the order of first occurrence, sentence by sentence, a
        label after its sentence.

        Args:
            sentences: such as ``"hen fox eats"``.
            labels: such as ``"runs"``.
            more: further arguments of :meth:`from_sentences`, without the vocabulary.

        Raises:
            InputError: see :class:`NextTokenData`; another number of labels, or a label of several
                words.
        """
        if len(labels) != len(sentences):
            raise InputError(
                f"there are {len(labels)} labels for {len(sentences)} sentences; give one per"
                " sentence"
            )
        numbers: dict[str, int] = {}
        rows, last = [], []
        for n, (sentence, label) in enumerate(zip(sentences, labels, strict=True)):
            if len(label.split()) != 1:
                raise InputError(f"labels[{n}] is {label!r}; give one word")
            *row, y = (
                numbers.setdefault(word, len(numbers))
                for word in [*sentence.split(), label.strip()]
            )
            rows.append(np.array(row, dtype=np.int64))
            last.append(y)
        return cls.from_sentences(rows, last, vocabulary=tuple(numbers), **more)

    @property
    def N(self) -> int:
        """Number of sentences."""
        return len(self.labels)

    @property
    def K(self) -> int:
        """Size of the vocabulary."""
        return len(self.embeddings)

    @property
    def d(self) -> int:
        """Dimension of the embeddings."""
        return int(self.embeddings.shape[1])

    @property
    def lengths(self) -> IntArray:
        """Tokens per sentence ``(N,)``, repeats counted."""
        return np.diff(self.offsets)

    @property
    def queries(self) -> IntArray:
        """The last token of every sentence ``(N,)``."""
        return self.tokens[self.offsets[1:] - 1]

    @property
    def sentences(self) -> list[IntArray]:
        """The sentences as a list of views."""
        return np.split(self.tokens, self.offsets[1:-1])

    @cached_property
    def occurrences(self) -> Occurrences:
        """The distinct tokens of all sentences, flat."""
        sentence = np.repeat(np.arange(self.N), self.lengths)
        keys, counts = np.unique(sentence * self.K + self.tokens, return_counts=True)
        return Occurrences(keys // self.K, keys % self.K, counts.astype(np.int64))

    def distinct(self) -> Distinct:
        """The distinct tokens of every sentence as padded ``(N, J)`` arrays."""
        sentence, token, count = self.occurrences
        starts = np.searchsorted(sentence, np.arange(self.N + 1))
        slot = np.arange(len(sentence)) - starts[sentence]
        shape = (self.N, int(np.diff(starts).max()))
        tokens = np.broadcast_to(self.queries[:, None], shape).copy()
        multiplicities = np.zeros(shape, dtype=np.int64)
        tokens[sentence, slot] = token
        multiplicities[sentence, slot] = count
        return Distinct(tokens, multiplicities)

    def select(self, rows: ArrayLike) -> NextTokenData:
        """The sentences at these positions, or where booleans are True, with their weights divided
        by their sum.

        Raises:
            InputError: booleans of another length, a position outside the data, or no sentence
                left.
        """
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_:
            if chosen.shape != (self.N,):
                raise InputError(
                    f"rows has shape {chosen.shape}; as booleans it must be ({self.N},), one per"
                    " sentence"
                )
            chosen = np.flatnonzero(chosen)
        chosen = _token_numbers("rows", chosen)
        if len(chosen) == 0:
            raise InputError("rows selects no sentence; select at least one")
        if chosen.min() < 0 or chosen.max() >= self.N:
            raise InputError(
                f"rows holds a position outside 0 to {self.N - 1}; sentences are numbered from 0"
            )
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        return replace(
            self,
            tokens=self.tokens[at],
            offsets=offsets,
            labels=self.labels[chosen],
            weights=self.weights[chosen],
        )

    def numbers(self, words: str) -> IntArray:
        """The numbers of words of the vocabulary with white space between them.

        Raises:
            InputError: a word outside the vocabulary, or data without one.
        """
        known = {name: k for k, name in enumerate(self.vocabulary or ())}
        lost = [word for word in words.split() if word not in known]
        if lost:
            raise InputError(
                f"{lost[0]!r} is not in the vocabulary of {len(known)} names; use its words"
            )
        return np.array([known[word] for word in words.split()], dtype=np.int64)

    def names(self, tokens: ArrayLike) -> list[str]:
        """The names of these tokens; their numbers where the data has no vocabulary."""
        numbers = np.atleast_1d(tokens).tolist()
        return [str(v) if self.vocabulary is None else self.vocabulary[v] for v in numbers]


def _token_numbers(name: str, value: ArrayLike) -> IntArray:
    array: NDArray[Any] = np.asarray(value)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; give a list of integers")
    if array.size and array.dtype.kind not in "iu":
        raise InputError(
            f"{name} has dtype {array.dtype}; give integers, numbers of the vocabulary"
        )
    return array.astype(np.int64)


def _collocation(x: IntArray, y: IntArray, weights: FloatArray, K: int) -> IntArray:
    n = np.full(K, -1, dtype=np.int64)
    pairs, inverse = np.unique(x * K + y, return_inverse=True)
    total = np.zeros(len(pairs))
    np.add.at(total, inverse, weights)
    token, label = pairs // K, pairs % K
    # the last entry of a token is its heaviest, then smallest, label
    order = np.lexsort((-label, total, token))
    n[token[order]] = label[order]
    return n


def _normalised_weights(value: ArrayLike | None, n: int) -> FloatArray:
    if value is None:
        return np.full(n, 1.0 / n)
    weights = np.array(value, dtype=np.float64)
    if weights.shape != (n,):
        raise InputError(f"weights has shape {weights.shape}; it must be ({n},), one per sentence")
    wrong: BoolArray = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        k = int(np.argmax(wrong))
        raise InputError(f"weights[{k}] is {weights[k]:g}; weights must be finite and positive")
    return weights / weights.sum()
