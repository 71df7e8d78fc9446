"""Next-token data of a text, as the theory defines it."""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from attsvm import InputError
from attsvm.base.files import digest
from attsvm.datasets.attention_data import IntArray
from attsvm.theory.sentences import NextTokenData

LONGEST = 6  # tokens of a sentence
_MOST = 200_000  # words that are read


class Windows(NamedTuple):
    """Every word of a text with the words before it.

    Attributes:
        names: the vocabulary, most frequent first.
        sentences: up to :data:`LONGEST` tokens each, two at least.
        labels: the token that followed each.
    """

    names: tuple[str, ...]
    sentences: list[list[int]]
    labels: IntArray

    def block(self, k: int, count: int) -> "Windows":
        """Block ``k`` of ``count`` consecutive ones of the text."""
        cut = [len(self.labels) * j // count for j in (k, k + 1)]
        return Windows(self.names, self.sentences[slice(*cut)], self.labels[slice(*cut)])

    def collocation(self) -> IntArray:
        """The token that follows each token: the injective map that most words of the text obey."""
        K = len(self.names)
        last = np.array([sentence[-1] for sentence in self.sentences], dtype=np.int64)
        counts = np.bincount(K * last + self.labels, minlength=K * K).reshape(K, K)
        following: IntArray = linear_sum_assignment(-counts)[1]
        return following

    def data(self, following: IntArray, labels: IntArray | None = None) -> NextTokenData:
        """The collocations as sentences of one token each, then the sentences."""
        single = [[token] for token in range(len(self.names))]
        labels = self.labels if labels is None else labels
        return NextTokenData.from_sentences(
            [*single, *self.sentences], np.concatenate([following, labels]), vocabulary=self.names
        )


def digest_of_windows(path: str, K: int) -> str:
    """A digest of the windows that are read of a text; empty for the one without a path.

    Raises:
        InputError: as :func:`text_windows`.
    """
    if not path:
        return ""
    names, sentences, labels = text_windows(path, K)
    return digest(repr((names, sentences, labels.tolist())))[:12]


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a text file in UTF-8") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8; give a text file in UTF-8") from None


def words_of_text(path: str) -> list[str]:
    """The words and marks of a text file, in lower case; without a path, of the reference of the
    Python language that comes with every Python.

    Raises:
        InputError: the file cannot be read, or is no text.
    """
    if not path:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
    else:
        text = _read_text(path)
    return re.findall(r"[^\W\d_][\w']*|[.,;:!?]", text.lower())[:_MOST]


def text_windows(path: str, K: int) -> Windows:
    """The windows of a text over its ``K`` most frequent words; rarer ones end a stretch.

    Raises:
        InputError: the text has fewer words, or cannot be read.
    """
    tokens = words_of_text(path)
    names = tuple(word for word, _ in Counter(tokens).most_common(K))
    if len(names) < K:
        raise InputError(
            f"{path}: the text has {len(names)} different words; give one with {K} at least"
        )
    number = {word: k for k, word in enumerate(names)}
    sentences, labels, stretch = [], [], [0][:0]
    for word in tokens:
        if (token := number.get(word)) is None:
            stretch = []
            continue
        if len(stretch) > 1:
            sentences.append(stretch[-LONGEST:])
            labels.append(token)
        stretch.append(token)
    return Windows(names, sentences, np.array(labels, dtype=np.int64))
