"""A text of one's own as next-token data: every window of tokens is a sentence, and the token after
it is its label.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from attsvm.data import IntArray
from attsvm.datasets.next_token.embeddings import identity
from attsvm.datasets.next_token.sentence_data import NextTokenData
from attsvm.datasets.readers import BYTE_LIMIT, kind_of, text_lines
from attsvm.errors import InputError
from attsvm.files import require_memory
from attsvm.printable import Compact

Level = Literal["word", "char"]
Explanation = Literal["copy", "bigram"]
UNKNOWN = "<unk>"

_BYTES = 4 * 8  # of a token of a sentence, while sentences are laid end to end

# "<unk>" and the like, a word with apostrophes and hyphens inside, or one mark of punctuation
_TOKEN = re.compile(r"<\w+>|\w+(?:['’\-]\w+)*|[^\w\s]")


@dataclass(frozen=True, eq=False, repr=False)
class Corpus(Compact):
    """A text as next-token data.

    Attributes:
        data: one sentence per window, equally weighted, with the vocabulary as names and one-hot
            embeddings.
        position: ``(N,)``, the position in the text, in tokens, of the last token of each sentence.
        length: tokens in the text.
        words: distinct tokens in the text, of which ``data`` names the most frequent.
        unknown: tokens of the text that are outside the vocabulary.
        left_out: windows that are no sentence, because their query or their label is unknown.
        cut: windows beyond the limit.
    """

    data: NextTokenData
    position: IntArray
    length: int
    words: int
    unknown: int
    left_out: int
    cut: int


def corpus(
    path: str | Path,
    *,
    level: Level = "word",
    context: int = 8,
    vocabulary: int = 1000,
    limit: int = 1_000_000,
    explanation: Explanation = "copy",
    byte_limit: int = BYTE_LIMIT,
) -> Corpus:
    r"""Read a text file.

    Words are lower-case, marks of punctuation are words, and white space only separates; characters
    are taken as they are. The K most frequent tokens are the vocabulary (of equally frequent ones,
    those that occur first); when there are more, the last place is that of ``<unk>``, which stands
    for all others. A window whose query or label is unknown is no sentence.

    Args:
        path: a UTF-8 text file, plain, ``.gz`` or ``.xz``.
        level: ``"word"`` or ``"char"``.
        context: tokens of a sentence; those at the beginning of the text are shorter.
        vocabulary: most tokens in the vocabulary, K.
        limit: most sentences; the first ones are kept.
        explanation: what a label says about its winner. ``"copy"``: it is the winner
            (token-priority data, n is the identity). ``"bigram"``: it follows the winner,
            :math:`y=n(x_\star)`, where :math:`n` is injective and matches frequent pairs of
            neighbours first, so that a winner is a token whose usual successor comes next.
        byte_limit: refuse more decompressed bytes than this.

    Raises:
        InputError: a file that cannot be read, is not UTF-8, or has fewer than two tokens; sizes
            below one, a vocabulary below two, an unknown level or explanation; no window whose
            query and label are known.
    """
    if level not in ("word", "char") or explanation not in ("copy", "bigram"):
        raise InputError(
            f"level is {level!r} and explanation {explanation!r}; choose 'word' or 'char', and"
            " 'copy' or 'bigram'"
        )
    for name, size, least in (
        ("context", context, 1),
        ("vocabulary", vocabulary, 2),
        ("limit", limit, 1),
    ):
        if size < least:
            raise InputError(f"{name} is {size}; it must be at least {least}")
    tokens, names = _tokens(_read(Path(path), byte_limit), level)
    if len(tokens) < 2:
        raise InputError(f"{path} holds {len(tokens)} tokens; a text needs at least two")
    numbers, kept, unknown = _limited(tokens, names, vocabulary)
    K, missing = len(kept), kept.index(UNKNOWN) if UNKNOWN in kept else -1
    last = np.arange(len(numbers) - 1)
    known = (numbers[last] != missing) & (numbers[last + 1] != missing)
    position = last[known][:limit]
    if len(position) == 0:
        raise InputError(
            f"{path} holds no two neighbouring tokens of the vocabulary; raise vocabulary above {K}"
        )
    lengths = np.minimum(position + 1, context)
    require_memory(_BYTES * float(lengths.sum()), f"{len(position)} sentences of {context} tokens")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    at = np.arange(offsets[-1]) + np.repeat(position + 1 - lengths - offsets[:-1], lengths)
    following = np.arange(K) if explanation == "copy" else _successors(numbers, missing, K)
    data = NextTokenData(
        numbers[at],
        offsets,
        numbers[position + 1],
        embeddings=identity(K),
        vocabulary=tuple(kept),
        following=following,
    )
    left_out = int((~known).sum())
    return Corpus(
        data,
        position,
        len(tokens),
        len(names),
        unknown,
        left_out,
        len(last) - left_out - len(position),
    )


def _read(path: Path, byte_limit: int) -> str:
    return "".join(text_lines(path, kind_of(path)[1], byte_limit))


def _tokens(text: str, level: Level) -> tuple[IntArray, list[str]]:
    """Numbers in the order of first occurrence, and the names."""
    if level == "word":
        first: dict[str, int] = {}
        found = _TOKEN.findall(text.lower())
        return np.array(
            [first.setdefault(word, len(first)) for word in found], dtype=np.int64
        ), list(first)
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    distinct, first_at, at = np.unique(points, return_index=True, return_inverse=True)
    order = np.argsort(first_at)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[at], [chr(point) for point in distinct[order]]


def _limited(
    tokens: IntArray, names: list[str], vocabulary: int
) -> tuple[IntArray, list[str], int]:
    """Numbers by frequency, the names kept, and how many tokens became the unknown one."""
    counts = np.bincount(tokens, minlength=len(names))
    if UNKNOWN in names:  # a corpus that has replaced rare words already
        counts[names.index(UNKNOWN)] = 0
    order = np.argsort(-counts, kind="stable")
    rest = len(names) > vocabulary or UNKNOWN in names
    size = min(vocabulary - 1, len(names) - (UNKNOWN in names)) if rest else len(names)
    rank = np.full(len(names), size)
    rank[order[:size]] = np.arange(size)
    numbers = rank[tokens]
    return (
        numbers,
        [names[k] for k in order[:size]] + [UNKNOWN] * rest,
        int((numbers == size).sum()),
    )


def _successors(numbers: IntArray, missing: int, K: int) -> IntArray:
    """An injective n that takes the most frequent pairs of neighbours first; -1 for tokens whose
    successors are all taken.
    """
    pairs, counts = np.unique(numbers[:-1] * K + numbers[1:], return_counts=True)
    n, taken = np.full(K, -1, dtype=np.int64), np.zeros(K, dtype=np.bool_)
    for pair in pairs[np.argsort(-counts, kind="stable")].tolist():
        x, y = divmod(pair, K)
        if n[x] < 0 and not taken[y] and missing not in (x, y):
            n[x], taken[y] = y, True
    return n
