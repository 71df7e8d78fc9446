r"""Texts as sequences of words, each the hidden state that a pretrained encoder gives it.

The state of a word is the mean of the states of its sub-words, in one layer. States are centred by
the mean over the training texts and divided by their length; wider ones than ``dim`` are kept in
the directions in which those of the training texts vary most. A state holds more than its word: the
encoder has read the whole text. So the same word twice is two tokens here, and what a *random*
word's state says of the label belongs beside what the chosen one says.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import digest
from attsvm.base.pretrained import check_folder, check_tokeniser, told_of_model
from attsvm.base.store import code_digest, entry_path, load_entry, save_entry
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, given_away
from attsvm.datasets.documents import (
    Query,
    Span,
    check_options,
    fixed_signs,
    occurrences,
    text_dataset,
    text_view,
    unit_rows,
)
from attsvm.datasets.queries import bag_queries
from attsvm.datasets.readers import read_texts, texts_digest
from attsvm.datasets.source import Dataset, Encoded, View, Views

States = NDArray[np.float16]
Ticks = Callable[[str, int, int], None]

_CHUNK = 512  # texts of one file of the cache: what a killed run loses at most
_BATCH = 2048  # sub-words, with padding, that go through the encoder at a time
_BLOCK = 1 << 16  # words projected at a time
_LARGEST = float(np.finfo(np.float16).max)
_LEFT_OUT = 0.15  # of the training texts: where layers are compared
_PENALTIES = (0.1, 1.0, 10.0, 100.0)  # inverse, of which the best counts for a layer
_DEPTHS = (2 / 3, 5 / 6, 1.0)
"""Where in an encoder the layers lie that are tried: the last ones belong to the task that it was
trained for, the first ones know little of the sentence.
"""


def encoder_text(
    path: str | Path,
    encoder: str | Path,
    *,
    layer: int | None = None,
    text: str | None = None,
    label: str | None = None,
    test: str | Path | None = None,
    dim: int = 96,
    max_tokens: int = 128,
    query: Query = "mean",
    cache: Path | None = None,
    progress: Ticks | None = None,
) -> Dataset:
    """Labelled texts as sequences of words, each its state in a layer of a pretrained encoder.

    Args:
        path: a file or folder, see :func:`attsvm.datasets.readers.read_texts`.
        encoder: a folder with a saved model and tokeniser, or a name on the Hugging Face hub.
        layer: whose states, 0 for the embeddings, 1 for the first layer. By default the one of
            :func:`candidates` that tells a part of the training texts best by the mean of their
            words.
        text: column of the texts.
        label: column of the labels.
        test: more texts of the same form, held out for evaluation.
        dim: numbers of a state that are kept at most.
        max_tokens: only the first words of a text, this many.
        query: see :func:`attsvm.datasets.text`.
        cache: a folder in which states are kept; made when missing. None: nowhere.
        progress: called with what is done, texts done, texts in all.

    Raises:
        InputError: what the reader refuses, a model that cannot be loaded, a layer that it does not
            have, or a tokeniser that does not tell where sub-words stand.
        MissingExtraError: transformers is not installed.
    """
    check_options(dim=dim, max_tokens=max_tokens, query=query)
    source = read_texts(path, text=text, label=label, test=test)
    network = _Network(str(encoder))
    if layer is not None and not 0 <= layer <= network.layers:
        raise InputError(
            f"layer is {layer}; {encoder} has layers 0 (its embeddings) to {network.layers}"
        )
    tried = [layer] if layer is not None else candidates(network.layers)

    def encode(train: IntArray) -> Encoded:
        table = _encoded(network, source.texts, tried, max_tokens, cache, progress)
        losses = {}
        if len(tried) > 1:
            losses = {
                k: _validation_loss(table, k, train, source.labels, dim) for k in table.states
            }
        best = min(losses, key=lambda k: losses[k]) if losses else tried[0]
        tokens, mask, width = _tokens(table, best, train, dim)
        notes = [_which(network, best, losses)]
        if width > dim:
            notes.append(f"Of their {width} directions the {dim} of largest variance are kept.")
        notes += _left_out(table, max_tokens, network)

        light = replace(table, states={})  # what views need

        def view(i: int) -> View:
            spans = [span for _, span in occurrences(source.texts[i])]
            ranges: list[list[Span]] = [[spans[place]] for place in light.places_of(i)]
            return text_view(source.texts[i], ranges or [[]])

        queries = bag_queries(tokens, mask, query)
        data = AttentionData(given_away(tokens), source.labels, queries, mask)
        return Encoded(data, Views(len(source.texts), view), notes)

    vectors = {
        "vectors": f"states of {encoder}",
        "encoder": network.digest,
        "layer": layer,
        "dim": dim,
        "max_tokens": max_tokens,
        "query": query,
        "columns": [text, label],
    }
    return text_dataset(
        Path(path),
        source,
        encode,
        vectors,
        "A token is a word of a text, as its encoder reads it there; the same word twice is two"
        " tokens.",
    )


def candidates(layers: int) -> list[int]:
    """The layers that are tried: at two thirds and five sixths of the depth, and the last."""
    return sorted({max(1, round(share * layers)) for share in _DEPTHS})


@dataclass(frozen=True, eq=False)
class _Words:
    """The words of texts with a state, one after the other.

    Attributes:
        states: ``(N, d)`` of each layer.
        offsets: ``(n + 1,)``: where each text begins.
        places: ``(N,)``: which word of its text each one is.
        cut: texts of which the encoder did not read the end.
        longer: texts that have more words than were kept.
    """

    states: dict[int, States]
    offsets: IntArray
    places: NDArray[np.int32]
    cut: int
    longer: int

    def places_of(self, i: int) -> list[int]:
        return self.places[self.offsets[i] : self.offsets[i + 1]].tolist()

    def rows(self, texts: IntArray) -> NDArray[np.bool_]:
        """``(N,)``: whether a word is of one of these texts."""
        chosen = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        chosen[texts] = True
        return np.repeat(chosen, np.diff(self.offsets))


class _Network:
    """A pretrained encoder with its tokeniser, loaded when states are asked for that are nowhere
    kept.

    Raises:
        InputError: it cannot be loaded, or its tokeniser does not tell where sub-words stand.
        MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.transformers = imported(
            "transformers", "words as a pretrained encoder reads them", "transformers", "hub"
        )
        check_folder(name)
        self.config = self._load("AutoConfig")
        self.layers = int(getattr(self.config, "num_hidden_layers", 0))
        if not self.layers:
            raise InputError(f"{name} does not say how many layers it has; choose another encoder")
        self.tokenizer = self._load("AutoTokenizer")
        check_tokeniser(self.tokenizer, name)
        self.longest = min(
            int(self.tokenizer.model_max_length),
            int(getattr(self.config, "max_position_embeddings", 0) or 512),
        )
        if getattr(self.config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            self.longest = min(self.longest, 512)  # two of their positions are not for tokens
        self.digest = self._digest()
        self._model: Any = None

    def _load(self, kind: str) -> Any:
        with told_of_model(self.name), _silent(self.transformers):
            return getattr(self.transformers, kind).from_pretrained(self.name)

    def _digest(self) -> str:
        """What stands for the weights: of a folder its files, of a hub name the commit."""
        commit = getattr(self.config, "_commit_hash", None) or ""
        if not Path(self.name).is_dir():
            return digest(self.name, str(commit))
        files = sorted(Path(self.name).glob("*"))
        suffixes = (".json", ".safetensors", ".bin", ".txt", ".model")
        contents = [bytes.fromhex(digest(file)) for file in files if file.suffix in suffixes]
        return digest(str(commit), *contents)

    @property
    def model(self) -> Any:
        """The network itself, or the encoder of one that has a decoder behind it."""
        if self._model is None:
            model = self._load("AutoModel").eval()
            whole = getattr(self.config, "is_encoder_decoder", False)
            self._model = model.get_encoder() if whole else model
        return self._model

    def states(self, texts: Sequence[str], layers: Sequence[int], most: int) -> dict[str, Any]:
        """States of the first ``most`` words of each text: ``layer K`` ``(N, d)``, ``lengths``
        ``(n,)``, ``places`` ``(N,)``, and ``cut`` and ``longer`` ``(n,)``, see :class:`_Words`.
        """
        coded = self.tokenizer(
            list(texts),
            return_offsets_mapping=True,
            truncation=True,
            max_length=self.longest,
            verbose=False,
        )
        ids, pieces = coded["input_ids"], coded["offset_mapping"]
        spans = [[span for _, span in occurrences(text)] for text in texts]
        owners = [
            _owners(offsets, words[:most]) for offsets, words in zip(pieces, spans, strict=True)
        ]
        found: list[Any] = [None] * len(texts)
        for rows in _batches([len(row) for row in ids]):
            hidden = self._forward([ids[i] for i in rows], layers)
            for k, i in enumerate(rows):
                found[i] = _joined(hidden[:, k], owners[i], min(len(spans[i]), most))
        kept = [np.flatnonzero(count) for _, count in found]
        states = np.concatenate(
            [
                sums[:, have] / count[have, None]
                for (sums, count), have in zip(found, kept, strict=True)
            ],
            axis=1,
        )
        states = np.clip(states, -_LARGEST, _LARGEST).astype(np.float16)
        ends = [max((end for _, end in offsets), default=0) for offsets in pieces]
        last = [words[-1][1] if words else 0 for words in spans]
        return {
            **{f"layer {k}": part for k, part in zip(layers, states, strict=True)},
            "lengths": np.array([len(have) for have in kept], dtype=np.int32),
            "places": np.concatenate(kept).astype(np.int32),
            "cut": np.array(ends) < np.array(last),
            "longer": np.array([len(words) > most for words in spans]),
        }

    def _forward(self, ids: list[list[int]], layers: Sequence[int]) -> FloatArray:
        """``(layers, n, T, d)`` hidden states."""
        import torch

        mask = np.arange(max(map(len, ids))) < np.array([len(row) for row in ids])[:, None]
        numbers = np.zeros(mask.shape, dtype=np.int64)
        numbers[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in ids])
        with torch.inference_mode():
            hidden = self.model(
                torch.from_numpy(numbers),
                attention_mask=torch.from_numpy(mask.astype(np.int64)),
                output_hidden_states=True,
            ).hidden_states
        return np.stack([hidden[k].float().numpy() for k in layers])


@contextlib.contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Without bars of weights that are loaded and warnings of heads that are not used here."""
    logging = transformers.utils.logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bars:
            logging.enable_progress_bar()


def _owners(offsets: Sequence[Span], words: Sequence[Span]) -> IntArray:
    """``(T,)``: the word that each sub-word belongs to, -1 for none."""
    owner, w = np.full(len(offsets), -1, dtype=np.int64), 0
    for t, (start, end) in enumerate(offsets):
        while w < len(words) and words[w][1] <= start:
            w += 1
        if start < end and w < len(words) and words[w][0] < end:
            owner[t] = w
    return owner


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Texts in groups of equal length, nearly: padded, none has more sub-words than a batch."""
    groups: list[list[int]] = [[]]
    for i in np.argsort(lengths, kind="stable").tolist():
        if groups[-1] and (len(groups[-1]) + 1) * lengths[i] > _BATCH:
            groups.append([])
        groups[-1].append(i)
    return groups


def _joined(states: Any, owner: IntArray, words: int) -> tuple[Any, Any]:
    """Sums ``(layers, words, d)`` over the sub-words of each word, and their number."""
    sums = np.zeros((words, len(states), states.shape[-1]), dtype=np.float32)
    own = np.flatnonzero(owner >= 0)
    np.add.at(sums, owner[own], states[:, own].swapaxes(0, 1))
    return sums.swapaxes(0, 1), np.bincount(owner[own], minlength=words)


def _encoded(
    network: _Network,
    texts: list[str],
    layers: Sequence[int],
    most: int,
    cache: Path | None,
    progress: Ticks | None,
) -> _Words:
    """The states of all texts, read where they are kept."""
    code = code_digest()
    parts = []
    for start in range(0, len(texts), _CHUNK):
        if progress is not None:
            progress("encoding", start, len(texts))
        chunk = texts[start : start + _CHUNK]
        parts.append(_kept(network, chunk, layers, most, cache, code))
    if progress is not None:
        progress("encoding", len(texts), len(texts))
    lengths = np.concatenate([part["lengths"] for part in parts])
    return _Words(
        {k: np.concatenate([part[f"layer {k}"] for part in parts]) for k in layers},
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([part["places"] for part in parts]),
        sum(int(part["cut"].sum()) for part in parts),
        sum(int(part["longer"].sum()) for part in parts),
    )


def _kept(
    network: _Network,
    texts: list[str],
    layers: Sequence[int],
    most: int,
    cache: Path | None,
    code: str,
) -> dict[str, Any]:
    if cache is None:
        return network.states(texts, layers, most)
    key = {
        "kind": "states",
        "encoder": network.digest,
        "layers": list(layers),
        "words": most,
        "texts": texts_digest(texts),
    }
    path = entry_path(cache, key, code)
    if path.exists():
        with contextlib.suppress(InputError, KeyError, ValueError):
            return load_entry(path)[0]
    found = network.states(texts, layers, most)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the states cannot be kept in {cache} ({error.strerror or error}); choose another"
            " folder for the run"
        ) from None
    save_entry(path, found)
    return found


def _projected(table: _Words, layer: int, train: IntArray, dim: int) -> FloatArray:
    """``(N, min(dim, d))``: centred states of unit length, in the directions in which those of the
    training texts vary most.
    """
    states, rows = table.states[layer], np.flatnonzero(table.rows(train))
    if not len(rows):
        return np.zeros((len(states), min(dim, states.shape[1])))
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in _blocks(states, rows)) / len(rows)

    def units(block: States) -> FloatArray:
        return unit_rows(block.astype(np.float64) - mean)

    if dim >= states.shape[1]:
        return units(states)
    spread = np.zeros((states.shape[1], states.shape[1]))
    for block in _blocks(states, rows):
        some = units(block)
        spread += some.T @ some
    directions = fixed_signs(np.linalg.eigh(spread)[1][:, : -dim - 1 : -1])
    every = np.arange(len(states))
    return np.concatenate([units(block) @ directions for block in _blocks(states, every)])


def _blocks(states: States, rows: IntArray) -> list[States]:
    return [states[rows[start : start + _BLOCK]] for start in range(0, len(rows), _BLOCK)]


def _tokens(
    table: _Words, layer: int, train: IntArray, dim: int
) -> tuple[FloatArray, NDArray[np.bool_], int]:
    """Padded tokens ``(n, T, d)`` with their mask, and the width of the states."""
    lengths = np.diff(table.offsets)
    have = np.arange(max(1, int(lengths.max()))) < lengths[:, None]
    tokens = np.zeros((*have.shape, min(dim, table.states[layer].shape[1])))
    tokens[have] = _projected(table, layer, train, dim)
    mask = have.copy()
    mask[:, 0] = True  # a text without any word keeps one zero token
    return tokens, mask, int(table.states[layer].shape[1])


def _validation_loss(
    table: _Words, layer: int, train: IntArray, labels: FloatArray, dim: int
) -> float:
    """Of mean pooling in a layer, fitted to most of the training texts, on the rest of them."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split

    tokens, mask, _ = _tokens(table, layer, train, dim)
    means = tokens[train].sum(axis=1) / mask[train].sum(axis=1, keepdims=True)
    X, ahead, y, told = train_test_split(
        means, labels[train], test_size=_LEFT_OUT, random_state=0, stratify=labels[train]
    )
    heads = [LogisticRegression(C=C, max_iter=1000).fit(X, y) for C in _PENALTIES]
    return float(min(log_loss(told, head.predict_proba(ahead)) for head in heads))


def _which(network: _Network, layer: int, losses: dict[int, float]) -> str:
    said = (
        f"Words are states of {network.name}, layer {layer} of {network.layers}, sub-words joined"
        " by their mean, centred over the training texts, of length one."
    )
    if len(losses) > 1:
        others = ", ".join(f"{loss:.3f} in layer {k}" for k, loss in losses.items())
        said += (
            " The layer was chosen by the loss of mean pooling on a part of the training texts:"
            f" {others}."
        )
    return said


def _left_out(table: _Words, most: int, network: _Network) -> list[str]:
    """Sentences about what of the texts was not used."""
    n, empty = len(table.offsets) - 1, int((np.diff(table.offsets) == 0).sum())
    told = [
        (table.longer, f"are cut to their first {most} words"),
        (table.cut, f"are longer than the {network.longest} sub-words that {network.name} reads"),
        (empty, "have no word and keep one zero token"),
    ]
    return [f"{count} of {n} texts {what}." for count, what in told if count]
