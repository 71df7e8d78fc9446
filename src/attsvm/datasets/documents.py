r"""Texts as sets of words, every distinct word of a text one token, and word vectors learned from
the training texts themselves.

Vectors: count which words stand within a window of each other, take the positive pointwise mutual
information

.. math:: M_{wc} = \max\Big(0, \log\frac{N_{wc}}{N_w\, p_c}\Big), \qquad p_c \propto N_c^{3/4},

(Levy and Goldberg 2014; Levy, Goldberg and Dagan 2015), factor :math:`M \approx U \Sigma V^\top` by
a randomised singular value decomposition with a fixed seed, and give word w the unit vector along
row w of :math:`U\Sigma`.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import name_of
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.readers import LabelledTexts, TextReading, provenance_of, read_texts
from attsvm.datasets.sentences import Span, occurrences, words
from attsvm.datasets.source import Dataset, Encoded, Learned, View, Views
from attsvm.datasets.tables import kind_of

Vocabulary = dict[str, int]
Query = Literal["mean", "constant"]

VIEW_LIMIT = 20_000  # characters of the beginning of a text that a view keeps
_AROUND = 120  # characters kept on either side of the beginning of a token that occurs later
_GAP = " … "
LENGTH = 64
"""Length of learned word vectors, where there are words enough."""


def text(
    path: str | Path,
    *,
    dim: int | None = None,
    min_count: int = 2,
    window: int = 10,
    max_tokens: int = 128,
    query: Query = "mean",
    **reading: Unpack[TextReading],
) -> Dataset:
    r"""Labelled texts as sequences of word vectors that are learned from the training texts.

    A text becomes its distinct known words in the order of first occurrence: equal words would be
    equal tokens, which no attention can tell apart. Words without a vector are dropped; a text
    without any known word keeps one zero token. Vectors have unit length. The
    query is :math:`z_i = (1, \bar x_i / \|\bar x_i\|)/\sqrt 2` with
    :math:`\bar x_i` the mean token, so W holds a direction that is the same for all texts and one
    that depends on the topic.

    Args:
        path: a file or folder, see :func:`attsvm.datasets.readers.read_texts`.
        dim: length of a word vector; by default 64, or one less than the training texts have words.
        min_count: words seen less often in the training texts have no vector.
        window: how many places apart two words may stand to inform about each other.
        max_tokens: only the first distinct words of a text, this many.
        query: ``"mean"`` as above, or ``"constant"`` for the query 1 of length one (attention then
            is a prompt).
        **reading: columns, labels and format, see :func:`attsvm.datasets.readers.read_texts`.

    Raises:
        InputError: what the reader refuses, a size below one, or another query.
    """
    check_options(
        dim=LENGTH if dim is None else dim,
        min_count=min_count,
        window=window,
        max_tokens=max_tokens,
        query=query,
    )
    source = read_texts(path, **reading)

    def learn(train: IntArray) -> Learned:
        tokenised = [words(source.texts[i]) for i in train]
        fitting = min(LENGTH, max(1, len(vocabulary(tokenised, min_count)) - 1))
        length = fitting if dim is None else dim
        numbers, vectors = word_vectors(tokenised, dim=length, min_count=min_count, window=window)
        return {"words": np.frombuffer("\n".join(numbers).encode(), np.uint8), "vectors": vectors}

    def apply(learned: Learned) -> Encoded:
        tokenised = [words(content) for content in source.texts]
        known_words = learned["words"].tobytes().decode().split("\n")
        numbers = {word: number for number, word in enumerate(known_words)}
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
            bags,
            learned["vectors"],
            source,
            query,
            max_tokens,
            partial(_spans, numbers, max_tokens),
            [note] if dropped else [],
        )

    return text_dataset(
        Path(path),
        source,
        learn,
        apply,
        {
            "vectors": "PPMI-SVD",
            "dim": dim,
            "min_count": min_count,
            "window": window,
            "max_tokens": max_tokens,
            "query": query,
            **provenance_of(reading),
        },
    )


def text_dataset(
    path: Path,
    source: LabelledTexts,
    learn: Callable[[IntArray], Learned],
    apply: Callable[[Learned], Encoded],
    vectors: dict[str, Any],
    token: str = "A token is a distinct word of a text; repeated words are one token.",
) -> Dataset:
    """A data set of these texts; ``token`` is the sentence that says what a token is."""
    provenance = {
        "source": name_of(path),
        "sha256": source.sha256,
        "rows": len(source.texts),
        **vectors,
    }
    name, notes = name_of(path.name), [token]
    if source.delimiter not in (None, ","):
        provenance["delimiter"] = source.delimiter
        if kind_of(path)[0] != ".tsv":
            what = {";": "semicolons", "\t": "tabs"}.get(source.delimiter, repr(source.delimiter))
            notes.append(f"Fields of {name} are separated by {what}.")
    if source.skipped:
        total, were = len(source.texts) + source.skipped, "was" if source.skipped == 1 else "were"
        notes.append(
            f"{source.skipped} of {total} rows {were} left out: without a text or a label."
        )
    if source.repeated and source.held is not None:
        share = f"{source.repeated} of the {len(source.held)} texts held out"
        notes.append(f"{share} are among the others too.")
    elif source.repeated:
        share = f"{source.repeated} of {len(source.texts)} texts"
        notes.append(f"{share} repeat others, and may be held out while these are fitted to.")
    notes += [
        f"The labels {' and '.join(names)} differ in capitals or spaces alone; they are"
        f" {len(names)} classes."
        for names in source.alike
    ]
    return Dataset(
        name,
        f"Texts of {name}",
        "text",
        source.labels,
        source.class_names,
        provenance,
        notes,
        learn,
        apply,
        source.held,
        source.positive,
        source.ids,
        source.numbers,
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
            its bag, and where its first one stands among the words, from 1.
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
            f"{empty} of {len(bags)} texts have no known word and are predicted as the largest"
            " class.",
        ]
    zero = len(vectors)  # the number of the token of a text without any
    numbers = [bag[:max_tokens] or [zero] for bag in bags]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in numbers])])
    table = np.vstack([vectors, np.zeros((1, vectors.shape[1]))])
    rows = table[np.concatenate([np.asarray(row, dtype=np.int64) for row in numbers])]

    def view(i: int) -> View:
        content = source.texts[i]
        ranges, positions = spans(content) if bags[i] else ([[]], [None])
        return text_view(content, ranges[:max_tokens], positions[:max_tokens])

    sequences = Bags(rows, offsets, None, np.arange(len(rows)))
    return Encoded(sequences, Views(len(bags), view), notes, query)


def text_view(
    content: str, ranges: Sequence[Sequence[Span]], positions: Sequence[int | None]
) -> View:
    """How a text with its tokens is shown: the first :data:`VIEW_LIMIT` characters of a long one,
    then the surroundings of the tokens that occur only later.

    Args:
        content: the text.
        ranges: the character ranges of each token in it, in the order of occurrence.
        positions: where each token stands first among the words, or sentences, from 1; None where
            it stands nowhere.
    """
    if len(content) <= VIEW_LIMIT:
        spans = [[[start, end] for start, end in token] for token in ranges]
        return {"kind": "text", "text": content, "spans": spans, "positions": [*positions]}
    pieces = [(0, VIEW_LIMIT)]
    later = [token[0][0] for token in ranges if token and token[0][1] > VIEW_LIMIT]
    for start in sorted(later)[: VIEW_LIMIT // (2 * _AROUND)]:
        first, last = max(0, start - _AROUND), min(len(content), start + _AROUND)
        if first <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(last, pieces[-1][1]))
        else:
            pieces.append((first, last))
    firsts = [first for first, _ in pieces]
    starts = np.cumsum([0, *(last - first + len(_GAP) for first, last in pieces)]).tolist()
    spans = []
    for token in ranges:
        shown_ranges = []
        for start, end in token:
            k = bisect.bisect_right(firsts, start) - 1
            first, last = pieces[k]
            if start < last:
                shown_ranges.append([starts[k] + start - first, starts[k] + min(end, last) - first])
        spans.append(shown_ranges)
    text = _GAP.join(content[first:last] for first, last in pieces)
    if pieces[-1][1] < len(content):
        text += _GAP
    return {
        "kind": "text",
        "text": text,
        "spans": spans,
        "positions": [*positions],
        "characters": len(content),
    }


def _spans(numbers: dict[str, int], most: int, content: str) -> tuple[list[list[Span]], list[int]]:
    """Ranges of the words that have numbers, and where each stands first among all, from 1; of a
    long text only as far as a view looks: to the first occurrence of the last of its ``most``
    tokens.
    """
    spans_of_word: dict[str, list[Span]] = {}
    positions = []
    for position, (word, span) in enumerate(occurrences(content), start=1):
        if len(spans_of_word) >= most and span[0] >= VIEW_LIMIT:
            break
        if word in numbers:
            if word not in spans_of_word:
                positions.append(position)
            spans_of_word.setdefault(word, []).append(span)
    return list(spans_of_word.values()), positions


def vocabulary(texts: Iterable[Sequence[str]], min_count: int) -> Vocabulary:
    """The words that occur at least ``min_count`` times, numbered by falling count (equal counts in
    order of the alphabet).
    """
    counts = Counter(itertools.chain.from_iterable(texts))
    frequent = sorted((-count, word) for word, count in counts.items() if count >= min_count)
    return {word: number for number, (_, word) in enumerate(frequent)}


def cooccurrence(
    texts: Sequence[Sequence[str]], numbers: Vocabulary, window: int, block: int = 1 << 22
) -> Any:
    """Sparse symmetric counts ``(V, V)`` of pairs of known words at most ``window`` places apart in
    the same text; ``block`` pairs are counted at a time, which bounds the memory of a large corpus.
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
    step = max(1, block // max(window, 1))
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


def positive_information(counts: Any, smoothing: float = 0.75) -> Any:
    r"""Sparse :math:`\max(0, \log N_{wc} - \log N_w - \log p_c)` of a sparse count matrix, with
    :math:`p_c` proportional to :math:`N_c` to the power of ``smoothing``.
    """
    from scipy.sparse import csr_array

    pairs = counts.tocoo()
    words = np.asarray(counts.sum(axis=1)).ravel()
    contexts = words**smoothing
    contexts /= contexts.sum()
    information = np.log(pairs.data) - np.log(words[pairs.row]) - np.log(contexts[pairs.col])
    positive = information > 0
    return csr_array(
        (information[positive], (pairs.row[positive], pairs.col[positive])), shape=counts.shape
    )


def word_vectors(
    texts: Sequence[Sequence[str]],
    *,
    dim: int = LENGTH,
    min_count: int = 2,
    window: int = 10,
) -> tuple[Vocabulary, FloatArray]:
    """Unit vectors for the words of these tokenised texts; the same texts give the same bits.

    Args:
        texts: words of each training text, in order.
        dim: length of a vector.
        min_count: words seen less often get no vector.
        window: how many places apart two words may stand to count as a pair.

    Returns:
        the vocabulary and ``(V, dim)`` vectors of unit length; words that never stand beside a
        known word are left out.

    Raises:
        InputError: fewer words than dimensions, or none beside another.
    """
    numbers = vocabulary(texts, min_count)
    if len(numbers) <= dim:
        smaller = "a smaller one (option dim), or " if dim > 1 else ""
        raise InputError(
            f"the training texts have {len(numbers)} words that occur {min_count} times or more,"
            f" too few for vectors of length {dim}; give {smaller}more texts, of words of letters"
        )
    from sklearn.decomposition import TruncatedSVD

    counts = cooccurrence(texts, numbers, window)
    if not counts.nnz:
        raise InputError(
            f"no two words that occur {min_count} times or more stand together in the training"
            " texts, so there are no vectors to learn; read them by an encoder (option encoder)"
        )
    information = positive_information(counts)
    vectors: FloatArray = TruncatedSVD(dim, n_iter=5, random_state=0).fit_transform(information)
    # a word that no other word tells anything about has no direction
    informed = np.flatnonzero(information.sum(axis=1) > 0)
    informed_numbers = set(informed.tolist())
    words = [word for word, number in numbers.items() if number in informed_numbers]
    return {word: number for number, word in enumerate(words)}, unit_rows(
        fixed_signs(vectors[informed])
    )


def principal_directions(spread: FloatArray, dim: int) -> FloatArray:
    """``(d, dim)``: the directions of largest variance, of a ``(d, d)`` sum of products."""
    return fixed_signs(np.linalg.eigh(spread)[1][:, : -dim - 1 : -1])


def unit_rows(vectors: FloatArray) -> FloatArray:
    """Each row divided by its length; zero rows stay zero."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def fixed_signs(vectors: FloatArray) -> FloatArray:
    """Each column with its largest entry positive: a decomposition leaves the signs open."""
    largest: IntArray = np.argmax(np.abs(vectors), axis=0)
    return vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
