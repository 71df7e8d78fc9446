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
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import digest
from attsvm.base.pretrained import check_folder, check_tokeniser, told_of_model
from attsvm.base.store import code_digest, entry_path, load_entry, save_entry
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
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
from attsvm.datasets.readers import TextReading, provenance_of, read_texts, texts_digest
from attsvm.datasets.source import Dataset, Encoded, View, Views

States = NDArray[np.float16]
Ticks = Callable[[str, int, int], None]


@dataclass(frozen=True)
class EncoderOptions:
    """How states of an encoder are computed, kept and compared.

    Attributes:
        chunk: texts of one file of the cache: what a killed run loses at most.
        batch: sub-words, with padding, that go through the encoder at a time; bounds memory.
        block: words that are projected at a time; bounds memory.
        left_out: share of the training texts on which layers are compared; untuned.
        penalties: inverse penalties of the regressions that compare layers; the best counts.
        depths: shares of the layers of an encoder at which layers are tried. The last ones belong
            to the task that it was trained for, the first ones know little of the sentence.
    """

    chunk: int = 512
    batch: int = 2048
    block: int = 1 << 16
    left_out: float = 0.15
    penalties: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    depths: tuple[float, ...] = (2 / 3, 5 / 6, 1.0)


_OPTIONS = EncoderOptions()


def encoder_text(
    path: str | Path,
    encoder: str | Path,
    *,
    layer: int | None = None,
    dim: int = 96,
    max_tokens: int = 128,
    query: Query = "mean",
    cache: Path | None = None,
    progress: Ticks | None = None,
    options: EncoderOptions = _OPTIONS,
    **reading: Unpack[TextReading],
) -> Dataset:
    """Labelled texts as sequences of words, each its state in a layer of a pretrained encoder.

    Args:
        path: a file or folder, see :func:`attsvm.datasets.readers.read_texts`.
        encoder: a folder with a saved model and tokeniser, or a name on the Hugging Face hub.
        layer: whose states, 0 for the embeddings, 1 for the first layer. By default the one of
            :func:`candidates` that tells a part of the training texts best by the mean of their
            words.
        dim: numbers of a state that are kept at most.
        max_tokens: only the first words of a text, this many.
        query: see :func:`attsvm.datasets.text`.
        cache: a folder in which states are kept; made when missing. None: nowhere.
        progress: called with what is done, texts done, texts in all.
        options: see :class:`EncoderOptions`.
        **reading: columns, labels and format, see :func:`attsvm.datasets.readers.read_texts`.

    Raises:
        InputError: what the reader refuses, a model that cannot be loaded, a layer that it does not
            have, or a tokeniser that does not tell where sub-words stand.
        MissingExtraError: transformers is not installed.
    """
    check_options(dim=dim, max_tokens=max_tokens, query=query)
    source = read_texts(path, **reading)
    network = _Network(str(encoder))
    if layer is not None and not 0 <= layer <= network.layers:
        raise InputError(
            f"layer is {layer}; {encoder} has layers 0 (its embeddings) to {network.layers}"
        )
    layers = [layer] if layer is not None else candidates(network.layers, options.depths)

    def encode(train: IntArray) -> Encoded:
        words = _encode(network, source.texts, layers, max_tokens, cache, progress, options)
        losses = {}
        if len(layers) > 1:
            losses = {
                k: _validation_loss(words, k, train, source.labels, dim, options)
                for k in words.states
            }
        best = min(losses, key=lambda k: losses[k]) if losses else layers[0]
        rows, offsets, width = _tokens(words, best, train, dim, options.block)
        notes = [_layer_note(network, best, losses)]
        if width > dim:
            notes.append(f"Of their {width} directions the {dim} of largest variance are kept.")
        notes += _cut_notes(words, max_tokens, network)

        stateless = replace(words, states={})  # views outlive the states

        def view(i: int) -> View:
            spans = [span for _, span in occurrences(source.texts[i])]
            ranges: list[list[Span]] = [[spans[k]] for k in stateless.positions_of(i)]
            return text_view(source.texts[i], ranges or [[]])

        bags = Bags(rows, offsets, None, np.arange(len(rows)))
        return Encoded(bags, Views(len(source.texts), view), notes, query)

    vectors = {
        "vectors": f"states of {encoder}",
        "encoder": network.digest,
        "layer": layer,
        "dim": dim,
        "max_tokens": max_tokens,
        "query": query,
        **provenance_of(reading),
    }
    return text_dataset(
        Path(path),
        source,
        encode,
        vectors,
        "A token is a word of a text, as its encoder reads it there; the same word twice is two"
        " tokens.",
    )


def candidates(layers: int, depths: Sequence[float] = _OPTIONS.depths) -> list[int]:
    """The layers that are tried: by default at two thirds and five sixths of the depth, and the
    last.
    """
    return sorted({max(1, round(depth * layers)) for depth in depths})


@dataclass(frozen=True, eq=False)
class _Words:
    """The words of texts with a state, one after the other.

    Attributes:
        states: ``(N, d)`` of each layer.
        offsets: ``(n + 1,)``: where each text begins.
        positions: ``(N,)``: which word of its text each one is.
        cut: texts of which the encoder did not read the end.
        longer: texts that have more words than were kept.
    """

    states: dict[int, States]
    offsets: IntArray
    positions: NDArray[np.int32]
    cut: int
    longer: int

    def positions_of(self, i: int) -> list[int]:
        """Which words of a text have a state."""
        return self.positions[self.offsets[i] : self.offsets[i + 1]].tolist()

    def rows(self, texts: IntArray) -> NDArray[np.bool_]:
        """Whether each word ``(N,)`` is of one of these texts."""
        is_chosen = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        is_chosen[texts] = True
        return np.repeat(is_chosen, np.diff(self.offsets))


class _Network:
    """A pretrained encoder with its tokeniser; its weights are loaded when states are computed.

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
        """The digest of the weights: of a folder by its files, of a hub name by the commit."""
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
            is_encoder_decoder = getattr(self.config, "is_encoder_decoder", False)
            self._model = model.get_encoder() if is_encoder_decoder else model
        return self._model

    def states(
        self, texts: Sequence[str], layers: Sequence[int], most: int, batch: int
    ) -> dict[str, Any]:
        """States of the first ``most`` words of each text: ``layer K`` ``(N, d)``, ``lengths``
        ``(n,)``, ``places`` ``(N,)``, and ``cut`` and ``longer`` ``(n,)``, see :class:`_Words`.

        1. Cut the texts into sub-words, and say which word each belongs to.
        2. Run the encoder on batches of texts of like lengths.
        3. Average the sub-words of each word.
        """
        # 1: sub-words and their words
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
        # 2: sums of states and numbers of sub-words, word by word
        totals: list[Any] = [None] * len(texts)
        for rows in _batches([len(row) for row in ids], batch):
            hidden = self._forward([ids[i] for i in rows], layers)
            for k, i in enumerate(rows):
                totals[i] = _word_sums(hidden[:, k], owners[i], min(len(spans[i]), most))
        # 3: means of the words that the encoder has read
        read = [np.flatnonzero(count) for _, count in totals]
        states = np.concatenate(
            [
                sums[:, words] / count[words, None]
                for (sums, count), words in zip(totals, read, strict=True)
            ],
            axis=1,
        )
        largest = float(np.finfo(np.float16).max)
        states = np.clip(states, -largest, largest).astype(np.float16)
        ends = [max((end for _, end in offsets), default=0) for offsets in pieces]
        last = [words[-1][1] if words else 0 for words in spans]
        return {
            **{f"layer {k}": of_layer for k, of_layer in zip(layers, states, strict=True)},
            "lengths": np.array([len(words) for words in read], dtype=np.int32),
            "places": np.concatenate(read).astype(np.int32),
            "cut": np.array(ends) < np.array(last),
            "longer": np.array([len(words) > most for words in spans]),
        }

    def _forward(self, ids: list[list[int]], layers: Sequence[int]) -> FloatArray:
        """Hidden states ``(layers, n, T, d)``."""
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
    """The word ``(T,)`` that each sub-word belongs to, -1 for none."""
    owner, w = np.full(len(offsets), -1, dtype=np.int64), 0
    for t, (start, end) in enumerate(offsets):
        while w < len(words) and words[w][1] <= start:
            w += 1
        if start < end and w < len(words) and words[w][0] < end:
            owner[t] = w
    return owner


def _batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Texts in groups of nearly equal length; padded, none has more than ``most`` sub-words."""
    groups: list[list[int]] = [[]]
    for i in np.argsort(lengths, kind="stable").tolist():
        if groups[-1] and (len(groups[-1]) + 1) * lengths[i] > most:
            groups.append([])
        groups[-1].append(i)
    return groups


def _word_sums(states: Any, owner: IntArray, words: int) -> tuple[Any, Any]:
    """Sums ``(layers, words, d)`` over the sub-words of each word, and their number."""
    sums = np.zeros((words, len(states), states.shape[-1]), dtype=np.float32)
    of_words = np.flatnonzero(owner >= 0)
    np.add.at(sums, owner[of_words], states[:, of_words].swapaxes(0, 1))
    return sums.swapaxes(0, 1), np.bincount(owner[of_words], minlength=words)


def _encode(
    network: _Network,
    texts: list[str],
    layers: Sequence[int],
    most: int,
    cache: Path | None,
    progress: Ticks | None,
    options: EncoderOptions,
) -> _Words:
    """The states of all texts, read from the cache where they are there."""
    code = code_digest()
    chunks = []
    for start in range(0, len(texts), options.chunk):
        if progress is not None:
            progress("encoding", start, len(texts))
        chunk = texts[start : start + options.chunk]
        chunks.append(_states(network, chunk, layers, most, cache, code, options.batch))
    if progress is not None:
        progress("encoding", len(texts), len(texts))
    lengths = np.concatenate([chunk["lengths"] for chunk in chunks])
    return _Words(
        {k: np.concatenate([chunk[f"layer {k}"] for chunk in chunks]) for k in layers},
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([chunk["places"] for chunk in chunks]),
        sum(int(chunk["cut"].sum()) for chunk in chunks),
        sum(int(chunk["longer"].sum()) for chunk in chunks),
    )


def _states(
    network: _Network,
    texts: list[str],
    layers: Sequence[int],
    most: int,
    cache: Path | None,
    code: str,
    batch: int,
) -> dict[str, Any]:
    """The states of a chunk of texts, see :meth:`_Network.states`; read from the cache, or computed
    and saved in it.
    """
    if cache is None:
        return network.states(texts, layers, most, batch)
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
    states = network.states(texts, layers, most, batch)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the states cannot be kept in {cache} ({error.strerror or error}); choose another"
            " folder for the run"
        ) from None
    save_entry(path, states)
    return states


def _project(words: _Words, layer: int, train: IntArray, dim: int, block_size: int) -> FloatArray:
    """Centred states of unit length, ``(N, min(dim, d))``, in the directions in which those of the
    training texts vary most.
    """
    states, rows = words.states[layer], np.flatnonzero(words.rows(train))
    if not len(rows):
        return np.zeros((len(states), min(dim, states.shape[1])))
    mean = sum(
        block.sum(axis=0, dtype=np.float64) for block in _blocks(states, rows, block_size)
    ) / len(rows)

    def units(block: States) -> FloatArray:
        return unit_rows(block.astype(np.float64) - mean)

    if dim >= states.shape[1]:
        return units(states)
    covariance = np.zeros((states.shape[1], states.shape[1]))
    for block in _blocks(states, rows, block_size):
        unit_block = units(block)
        covariance += unit_block.T @ unit_block
    directions = fixed_signs(np.linalg.eigh(covariance)[1][:, : -dim - 1 : -1])
    every_row = np.arange(len(states))
    return np.concatenate(
        [units(block) @ directions for block in _blocks(states, every_row, block_size)]
    )


def _blocks(states: States, rows: IntArray, size: int) -> list[States]:
    """The states at these rows, so many at a time."""
    return [states[rows[start : start + size]] for start in range(0, len(rows), size)]


def _tokens(
    words: _Words, layer: int, train: IntArray, dim: int, block_size: int
) -> tuple[FloatArray, IntArray, int]:
    """Tokens ``(N, d)`` text after text, where each text begins ``(n + 1,)``, and the width of the
    states; a text without any word keeps one zero token.
    """
    lengths, width = np.diff(words.offsets), int(words.states[layer].shape[1])
    tokens = _project(words, layer, train, dim, block_size)
    tokens = np.insert(tokens, words.offsets[:-1][lengths == 0], 0.0, axis=0)
    return tokens, np.concatenate([[0], np.cumsum(np.maximum(lengths, 1))]), width


def _validation_loss(
    words: _Words,
    layer: int,
    train: IntArray,
    labels: IntArray,
    dim: int,
    options: EncoderOptions,
) -> float:
    """The loss of mean pooling in a layer, fitted to most of the training texts, on the rest."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split

    tokens, offsets, _ = _tokens(words, layer, train, dim, options.block)
    means = np.add.reduceat(tokens, offsets[:-1], axis=0) / np.diff(offsets)[:, None]
    X_train, X_valid, y_train, y_valid = train_test_split(
        means[train],
        labels[train],
        test_size=options.left_out,
        random_state=0,
        stratify=labels[train],
    )
    heads = [
        LogisticRegression(C=C, max_iter=1000).fit(X_train, y_train) for C in options.penalties
    ]
    return float(min(log_loss(y_valid, head.predict_proba(X_valid)) for head in heads))


def _layer_note(network: _Network, layer: int, losses: dict[int, float]) -> str:
    """A sentence on the layer of the states and how it was chosen."""
    note = (
        f"Words are states of {network.name}, layer {layer} of {network.layers}, sub-words joined"
        " by their mean, centred over the training texts, of length one."
    )
    if len(losses) > 1:
        others = ", ".join(f"{loss:.3f} in layer {k}" for k, loss in losses.items())
        note += (
            " The layer was chosen by the loss of mean pooling on a part of the training texts:"
            f" {others}."
        )
    return note


def _cut_notes(words: _Words, most: int, network: _Network) -> list[str]:
    """Sentences on the texts that were not used to their end."""
    n, empty = len(words.offsets) - 1, int((np.diff(words.offsets) == 0).sum())
    counts = [
        (words.longer, f"are cut to their first {most} words"),
        (words.cut, f"are longer than the {network.longest} sub-words that {network.name} reads"),
        (empty, "have no word and keep one zero token"),
    ]
    return [f"{count} of {n} texts {sentence}." for count, sentence in counts if count]
