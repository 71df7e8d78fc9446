"""Texts as sets of words: every distinct word of a text is one token."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.datasets.base import Dataset, Encoded, View, Views
from attsvm.datasets.readers import BYTE_LIMIT, LabelledTexts, read_texts
from attsvm.datasets.vectors import word_vectors
from attsvm.errors import InputError
from attsvm.printable import name_of
from attsvm.queries import bag_queries

Span = tuple[int, int]
_WORD = re.compile(r"<br\s*/?>|([^\W_]+(?:['’\-][^\W_]+)*)", re.IGNORECASE)
Query = Literal["mean", "constant"]

VIEW_LIMIT = 20_000  # characters of the beginning of a text that a view keeps
_AROUND = 120  # characters kept on either side of the beginning of a token that occurs later
_GAP = " … "


def text(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    dim: int = 64,
    min_count: int = 2,
    window: int = 10,
    max_tokens: int = 128,
    query: Query = "mean",
    byte_limit: int = BYTE_LIMIT,
) -> Dataset:
    r"""Labelled texts as sequences of word vectors that are learned from the training texts.

    A text becomes its distinct known words in the order of first occurrence: equal words would be
    equal tokens, which no attention can tell apart. Words without a vector are dropped; a text
    without any known word keeps one zero token. Vectors have unit length (see
    :mod:`attsvm.datasets.vectors`). The query is :math:`z_i = (1, \bar x_i / \|\bar x_i\|)/\sqrt 2`
    with
    :math:`\bar x_i` the mean token, so W holds a direction that is the same for all texts and one
    that depends on the topic.

    Args:
        path: a file or folder, see :func:`attsvm.datasets.readers.read_texts`.
        text: column of the texts.
        label: column of the labels.
        dim: length of a word vector.
        min_count: words seen less often in the training texts have no vector.
        window: how many places apart two words may stand to inform about each other.
        max_tokens: only the first distinct words of a text, this many.
        query: ``"mean"`` as above, or ``"constant"`` for the query 1 of length one (attention then
            is a prompt).
        byte_limit: refuse more decompressed bytes than this.

    Raises:
        InputError: what the reader refuses, a size below one, or another query.
    """
    check_options(
        dim=dim,
        min_count=min_count,
        window=window,
        max_tokens=max_tokens,
        byte_limit=byte_limit,
        query=query,
    )
    source = read_texts(path, text=text, label=label, byte_limit=byte_limit)

    def encode(train: IntArray) -> Encoded:
        tokenised = [words(content) for content in source.texts]
        numbers, vectors = word_vectors(
            [tokenised[i] for i in train], dim=dim, min_count=min_count, window=window
        )
        bags = [
            [numbers[word] for word in dict.fromkeys(text_words) if word in numbers]
            for text_words in tokenised
        ]
        dropped = sum(word not in numbers for text_words in tokenised for word in text_words)
        share = f"{dropped} of {sum(map(len, tokenised))} words"
        note = (
            f"{share} have no vector and are dropped: they occur fewer than {min_count} times, or"
            " always alone, in the training texts."
        )
        return encode_bags(
            bags, vectors, source, query, max_tokens, partial(_spans, numbers, max_tokens), [note]
        )

    return text_dataset(
        Path(path),
        source,
        encode,
        {"vectors": "PPMI-SVD", "dim": dim, "min_count": min_count, "window": window},
    )


def text_dataset(
    path: Path, source: LabelledTexts, encode: Any, vectors: dict[str, Any]
) -> Dataset:
    """A data set of these texts."""
    provenance = {
        "source": name_of(path),
        "sha256": source.sha256,
        "rows": len(source.texts),
        **vectors,
    }
    notes = ["A token is a distinct word of a text; repeated words are one token."]
    name = name_of(path.name)
    return Dataset(
        name,
        f"Texts of {name}",
        "text",
        source.labels,
        source.class_names,
        provenance,
        notes,
        encode,
    )


def check_options(query: str, **sizes: int) -> None:
    """Refuse sizes below one and unknown queries."""
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} is {size}; it must be at least 1")
    if query not in ("mean", "constant"):
        raise InputError(f"query is {query!r}; choose 'mean' or 'constant'")


def encode_bags(
    bags: Sequence[Sequence[int]],
    vectors: FloatArray,
    source: LabelledTexts,
    query: Query,
    max_tokens: int,
    spans: Any,
    notes: list[str],
) -> Encoded:
    """Bags of distinct token numbers as data.

    Args:
        bags: token numbers of each text, in the order of first occurrence.
        vectors: ``(V, d)``, row ``k`` is the vector of token ``k``.
        source: the texts and labels.
        query: see :func:`text`.
        max_tokens: longer bags are cut.
        spans: ``spans(text)`` lists the character ranges of each token of a text, in the order of
            its bag.
        notes: sentences to put in front.
    """
    cut, empty = sum(len(bag) > max_tokens for bag in bags), sum(not bag for bag in bags)
    if cut:
        notes = [
            *notes,
            f"{cut} of {len(bags)} texts are cut to their first {max_tokens} distinct words.",
        ]
    if empty:
        notes = [
            *notes,
            f"{empty} of {len(bags)} texts have no known word and keep one zero token.",
        ]
    longest = max(1, min(max_tokens, max(map(len, bags))))
    tokens = np.zeros((len(bags), longest, vectors.shape[1]))
    mask = np.zeros((len(bags), longest), dtype=np.bool_)
    mask[:, 0] = True
    for i, bag in enumerate(bags):
        kept = bag[:max_tokens]
        tokens[i, : len(kept)] = vectors[kept]
        mask[i, : len(kept)] = True

    def view(i: int) -> View:
        content = source.texts[i]
        ranges = spans(content)[:max_tokens] if bags[i] else [[]]
        return text_view(content, ranges)

    tokens.setflags(write=False)  # lets AttentionData keep the array instead of a copy
    data = AttentionData(tokens, source.labels, bag_queries(tokens, mask, query), mask)
    return Encoded(data, Views(len(bags), view), notes)


def text_view(content: str, ranges: Sequence[Sequence[Span]]) -> View:
    """How a text with its tokens is shown: the first :data:`VIEW_LIMIT` characters of a long one,
    then the surroundings of the tokens that occur only later.

    Args:
        content: the text.
        ranges: the character ranges of each token in it, in the order of occurrence.
    """
    if len(content) <= VIEW_LIMIT:
        spans = [[[start, end] for start, end in token] for token in ranges]
        return {"kind": "text", "text": content, "spans": spans}
    pieces = [(0, VIEW_LIMIT)]
    later = [token[0][0] for token in ranges if token and token[0][1] > VIEW_LIMIT]
    for start in sorted(later)[: VIEW_LIMIT // (2 * _AROUND)]:
        first, last = max(0, start - _AROUND), min(len(content), start + _AROUND)
        if first <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(last, pieces[-1][1]))
        else:
            pieces.append((first, last))
    starts = [first for first, _ in pieces]
    places = np.cumsum([0, *(last - first + len(_GAP) for first, last in pieces)]).tolist()
    spans = []
    for token in ranges:
        kept = []
        for start, end in token:
            k = bisect.bisect_right(starts, start) - 1
            first, last = pieces[k]
            if start < last:
                kept.append([places[k] + start - first, places[k] + min(end, last) - first])
        spans.append(kept)
    text = _GAP.join(content[first:last] for first, last in pieces)
    if pieces[-1][1] < len(content):
        text += _GAP
    return {"kind": "text", "text": text, "spans": spans, "characters": len(content)}


def _spans(numbers: dict[str, int], most: int, content: str) -> list[list[Span]]:
    """Ranges of the words that have numbers; of a long text only as far as a view looks: to the
    first occurrence of the last of its ``most`` tokens.
    """
    found: dict[str, list[Span]] = {}
    for word, span in occurrences(content):
        if len(found) >= most and span[0] >= VIEW_LIMIT:
            break
        if word in numbers:
            found.setdefault(word, []).append(span)
    return list(found.values())


def words(text: str) -> list[str]:
    """The words of a text in order, in lower case; ``<br />`` is no word."""
    return [_plain(word) for word in _WORD.findall(text) if word]


def occurrences(text: str) -> Iterator[tuple[str, Span]]:
    """The words of :func:`words` one by one, each with its characters ``[start, end)``."""
    for match in _WORD.finditer(text):
        if match[1]:
            yield _plain(match[1]), match.span()


def places(text: str) -> dict[str, list[Span]]:
    """Each distinct word of :func:`words` in the order of first occurrence, with the characters
    ``[start, end)`` of every occurrence.
    """
    found: dict[str, list[Span]] = {}
    for word, span in occurrences(text):
        found.setdefault(word, []).append(span)
    return found


def _plain(word: str) -> str:
    return word.lower().replace("’", "'")
