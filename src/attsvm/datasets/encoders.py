r"""Texts as bags of words or sentences, each the hidden state that a pretrained encoder gives it.

The state of a word is the mean of the states of its sub-words, in one layer; that of a sentence is
the mean over its words. States are centred by the mean over the training texts and divided by their
length; wider ones than ``dim`` are kept in the directions in which those of the training texts vary
most. A state holds more than its word: the encoder has read the whole text. So the same word twice
is two tokens here, and what a *random* word's state says of the label belongs beside what the
chosen one says.

States lie on disk (:class:`~attsvm.datasets.state_table.StateTable`), and so do the rows of the
bags, in float16; memory holds a block of them at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.freed import return_freed_memory
from attsvm.base.store import code_digest, entry_path, load_entry, save_entry
from attsvm.base.store.entries import alone
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.documents import (
    Query,
    check_options,
    principal_directions,
    text_dataset,
    text_view,
)
from attsvm.datasets.encoder_network import INSTANCES, EncoderNetwork, Instances, SubWords
from attsvm.datasets.readers import TextReading, provenance_of, read_texts, texts_digest
from attsvm.datasets.sentences import Span, occurrences, sentence_spans
from attsvm.datasets.source import Dataset, Encoded, Learned, View, Views
from attsvm.datasets.state_table import States, StateTable, temporary_rows

Ticks = Callable[[str, int, int], None]


@dataclass(frozen=True)
class EncoderOptions:
    """How states of an encoder are computed, kept and compared.

    Attributes:
        batch: sub-words, with padding, that go through the encoder at a time; bounds memory.
        chunk: texts after which the table is brought to disk: what a killed run loses at most.
        block: rows that are projected at a time; bounds memory.
        sampled: rows, evenly spread over the training texts, that mean and directions are learned
            from at most; both are then right to a few thousandths.
        compared: training texts, evenly spread, on which layers are compared at most.
        beginning: sub-words of each of them that are read for this.
        left_out: share of these texts on which the layers are compared; untuned.
        penalties: inverse penalties of the regressions that compare layers; the best counts.
        depths: shares of the layers of an encoder at which layers are tried. The last ones belong
            to the task that it was trained for, the first ones know little of the sentence.
    """

    batch: int = 4096
    chunk: int = 512
    block: int = 1 << 15
    sampled: int = 1 << 18
    compared: int = 1000
    beginning: int = 128
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
    max_tokens: int | None = None,
    instances: Instances = "words",
    query: Query = "mean",
    device: str = "cpu",
    dtype: str = "float32",
    cache: Path | None = None,
    progress: Ticks | None = None,
    options: EncoderOptions = _OPTIONS,
    **reading: Unpack[TextReading],
) -> Dataset:
    """Labelled texts as bags of words or sentences, each its state in a layer of a pretrained
    encoder.

    Args:
        path: a file or folder, see :func:`attsvm.datasets.readers.read_texts`.
        encoder: a folder with a saved model and tokeniser, or a name on the Hugging Face hub.
        layer: whose states, 0 for the embeddings, 1 for the first layer. By default the one of
            :func:`candidates` that tells a part of the training texts best by the mean of their
            words.
        dim: numbers of a state that are kept at most.
        max_tokens: only the first instances of a text, this many; by default as far as the encoder
            reads.
        instances: ``"words"``, or ``"sentences"``, each the mean of the states of its words.
        query: see :func:`attsvm.datasets.text`.
        device: where the encoder runs, see :func:`attsvm.datasets.devices.check_device`.
        dtype: floating-point type in which it runs: float32, bfloat16 or float16.
        cache: a folder in which states are kept; made when missing. None: they are computed anew in
            every process.
        progress: called with what is done, texts done, texts in all.
        options: see :class:`EncoderOptions`.
        **reading: columns, labels and format, see :func:`attsvm.datasets.readers.read_texts`.

    Raises:
        InputError: what the reader refuses, a device that is not here, a model that cannot be
            loaded, a layer that it does not have, a tokeniser that does not tell where sub-words
            stand, or a disk without room for the states.
        MissingExtraError: transformers, or for sentences syntok, is not installed.
    """
    check_options(dim=dim, max_tokens=1 if max_tokens is None else max_tokens, query=query)
    if instances not in INSTANCES:
        raise InputError(f"instances is {instances!r}; choose {' or '.join(INSTANCES)}")
    if instances == "sentences":
        sentence_spans("")  # is syntok here?
    network = EncoderNetwork(str(encoder), device, dtype)
    if layer is not None and not 0 <= layer <= network.layers:
        raise InputError(
            f"layer is {layer}; {encoder} has layers 0 (its embeddings) to {network.layers}"
        )
    source = read_texts(path, **reading)
    states = _TextStates(network, source.texts, instances, max_tokens, cache, progress, options)
    losses: dict[int, float] = {}

    def learn(train: IntArray) -> Learned:
        losses.clear()
        if layer is None:
            losses.update(states.layer_losses(train, source.labels[train]))
        best = min(losses, key=lambda k: losses[k]) if layer is None else layer
        return {"layer": np.array(best), **_learn(states.table(best), train, dim, options)}

    def apply(learned: Learned) -> Encoded:
        best = int(learned["layer"])
        table = states.table(best)
        rows = _project(table, learned, cache, options.block)
        notes = [_layer_note(network, best, losses, instances)]
        if table.shape[1] > rows.shape[1]:
            notes.append(
                f"Of their {table.shape[1]} directions the {rows.shape[1]} of largest variance are"
                " kept."
            )
        notes += _cut_notes(table, network, instances, max_tokens)
        offsets, positions = table.offsets, table.positions

        def view(i: int) -> View:
            text = source.texts[i]
            spans = instance_spans(text, instances)
            chosen = positions[offsets[i] : offsets[i + 1]].tolist()
            return text_view(
                text,
                [[spans[k]] if k >= 0 else [] for k in chosen],
                [k + 1 if k >= 0 else None for k in chosen],
            )

        bags = Bags(rows, offsets, None, np.arange(len(rows)))
        return Encoded(bags, Views(len(source.texts), view), notes, query)

    vectors = {
        "vectors": f"states of {encoder}",
        "encoder": network.digest,
        "layer": layer,
        "dim": dim,
        "max_tokens": max_tokens,
        "instances": instances,
        "dtype": dtype,
        "query": query,
        **provenance_of(reading),
    }
    token = {
        "words": "A token is a word of a text, as its encoder reads it there; the same word twice"
        " is two tokens.",
        "sentences": "A token is a sentence of a text, as its encoder reads it there.",
    }
    return text_dataset(Path(path), source, learn, apply, vectors, token[instances])


def candidates(layers: int, depths: Sequence[float] = _OPTIONS.depths) -> list[int]:
    """The layers that are tried: by default at two thirds and five sixths of the depth, and the
    last.
    """
    return sorted({max(1, round(depth * layers)) for depth in depths})


def instance_spans(text: str, instances: Instances) -> list[Span]:
    """The characters of each word or sentence of a text."""
    if instances == "sentences":
        return sentence_spans(text)
    return [span for _, span in occurrences(text)]


class _TextStates:
    """The states of texts in the layers of an encoder, computed where no table has them.

    Args:
        network: the encoder.
        texts: to be read.
        instances: words or sentences.
        most: of a text; None for all.
        cache: the folder of the tables; None for temporary files.
        progress: see :func:`encoder_text`.
        options: see :class:`EncoderOptions`.
    """

    def __init__(
        self,
        network: EncoderNetwork,
        texts: list[str],
        instances: Instances,
        most: int | None,
        cache: Path | None,
        progress: Ticks | None,
        options: EncoderOptions,
    ) -> None:
        self._network, self._texts, self._instances, self._most = network, texts, instances, most
        self._cache, self._progress, self._options = cache, progress, options
        self._tables: dict[int, StateTable] = {}

    def table(self, layer: int) -> StateTable:
        """The finished table of a layer."""
        if layer not in self._tables:
            path = self._path("states", self._texts, layer=layer, instances=self._instances)
            table = None if path is None else _finished_table(path)
            if table is None:
                with contextlib.nullcontext() if path is None else alone(path):
                    table = self._filled(path, layer)
            self._tables = {layer: table}
        return self._tables[layer]

    def _path(self, kind: str, texts: list[str], **of_kind: object) -> Path | None:
        """The file of the cache for something that is computed from texts."""
        if self._cache is None:
            return None
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the states cannot be kept in {self._cache} ({error.strerror or error}); choose"
                " another folder for the run"
            ) from None
        key = {
            "kind": kind,
            "encoder": self._network.digest,
            "dtype": self._network.dtype,
            "most": self._most,
            "batch": self._options.batch,
            "texts": texts_digest(texts),
            **of_kind,
        }
        return entry_path(self._cache, key, code_digest())

    def _filled(self, path: Path | None, layer: int) -> StateTable:
        """The table at a path, with the batches that it lacks.

        1. Cut the texts into sub-words.
        2. Take up the table where it is, or begin one.
        3. Write the states of one batch after the other; say now and then how many there are.
        """
        # 1: sub-words
        pieces = self._network.sub_words(self._texts, self._instances, self._most)
        batches = pieces.batches(self._options.batch)
        # 2: the table
        table = None if path is None else _intact_table(path)
        if table is None:
            unread = np.array([pieces.is_cut.sum(), pieces.is_long.sum()])
            width = int(self._network.config.hidden_size)
            table = StateTable.create(path, pieces.offsets, pieces.positions, unread, width)
        if table.is_finished:  # by another process
            return table
        # 3: batches
        done = int(sum(map(len, batches[: table.done])))
        saved = done
        for k in range(table.done, len(batches)):
            self._tick(done)
            states = _float16(self._network.states(pieces, batches[k], [layer])[0].numpy())
            sizes = np.diff(pieces.offsets)[batches[k]]
            for i, rows in zip(batches[k], np.split(states, np.cumsum(sizes)[:-1]), strict=True):
                table.write(int(i), rows)
            done += len(batches[k])
            if done - saved >= self._options.chunk:
                table.save(k + 1)
                return_freed_memory()
                saved = done
        table.finish()
        return_freed_memory()
        self._tick(done)
        return table

    def _tick(self, done: int) -> None:
        if self._progress is not None:
            self._progress("encoding", done, len(self._texts))

    def layer_losses(self, train: IntArray, labels: IntArray) -> dict[int, float]:
        """The loss of mean pooling in each of the :func:`candidates`, fitted to most of a sample of
        the training texts, on the rest of it.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import log_loss
        from sklearn.model_selection import train_test_split

        layers = candidates(self._network.layers, self._options.depths)
        if len(layers) == 1:
            return {layers[0]: 0.0}
        sample = _spread(len(train), self._options.compared)
        texts = [self._texts[i] for i in train[sample]]
        means = self._mean_states(texts, layers)
        classes, counts = np.unique(labels[sample], return_counts=True)
        fitted, left_out = train_test_split(
            np.arange(len(sample)),
            test_size=max(self._options.left_out, len(classes) / len(sample)),
            random_state=0,
            stratify=labels[sample] if counts.min() > 1 else None,
        )
        losses = {}
        for layer, mean in zip(layers, means, strict=True):
            centred = mean - mean[fitted].mean(axis=0)
            rows = centred / (np.sqrt((centred[fitted] ** 2).sum(axis=1).mean()) or 1.0)
            heads = [
                LogisticRegression(C=C, max_iter=1000).fit(rows[fitted], labels[sample][fitted])
                for C in self._options.penalties
            ]
            losses[layer] = min(
                float(log_loss(labels[sample][left_out], p, labels=heads[0].classes_))
                for p in (head.predict_proba(rows[left_out]) for head in heads)
            )
        return losses

    def _mean_states(self, texts: list[str], layers: list[int]) -> FloatArray:
        """``(layers, n, d)``: the mean state of the words at the beginning of each text."""
        path = self._path("means", texts, layers=layers, beginning=self._options.beginning)
        if path is not None and path.exists():
            with contextlib.suppress(InputError, KeyError, ValueError):
                return load_entry(path)[0]["means"]
        pieces = self._network.sub_words(texts, longest=self._options.beginning)
        means = np.zeros((len(layers), len(texts), int(self._network.config.hidden_size)))
        done = 0
        for batch in pieces.batches(self._options.batch):
            if self._progress is not None:
                self._progress("choosing the layer", done, len(texts))
            means[:, batch] = _means(self._network, pieces, batch, layers)
            done += len(batch)
        return_freed_memory()
        if self._progress is not None:
            self._progress("choosing the layer", done, len(texts))
        if path is not None:
            save_entry(path, {"means": means})
        return means


def _means(
    network: EncoderNetwork, pieces: SubWords, batch: IntArray, layers: list[int]
) -> FloatArray:
    """``(layers, texts, d)``: the mean state of the words of each text."""
    states = network.states(pieces, batch, layers).numpy().astype(np.float64)
    sizes = np.diff(pieces.offsets)[batch]
    sums = np.add.reduceat(states, np.cumsum(sizes) - sizes, axis=1)
    return sums / sizes[:, None]


def _intact_table(path: Path) -> StateTable | None:
    """The table at a path, finished or not; None where there is none, or no whole file."""
    if path.exists():
        with contextlib.suppress(InputError):
            return StateTable.open(path)
    return None


def _finished_table(path: Path) -> StateTable | None:
    table = _intact_table(path)
    return table if table is not None and table.is_finished else None


def _float16(states: NDArray[np.float32]) -> States:
    """States in float16, those beyond its range at its ends."""
    largest = float(np.finfo(np.float16).max)
    return np.clip(states, -largest, largest).astype(np.float16)


def _spread(size: int, most: int) -> IntArray:
    """At most so many positions below ``size``, evenly spread."""
    return np.linspace(0, size - 1, min(size, most)).round().astype(np.int64)


def _learn(table: StateTable, train: IntArray, dim: int, options: EncoderOptions) -> Learned:
    """The ``mean`` ``(d,)`` of the states of the training texts and, where ``dim`` is below ``d``,
    the ``directions`` ``(d, dim)`` in which they vary most about it; of a sample of many texts.
    """
    width = table.shape[1]
    lengths = np.diff(table.offsets)
    most = max(1, int(options.sampled / lengths[train].mean()))
    texts = train[_spread(len(train), most)]
    texts = texts[table.positions[table.offsets[texts]] >= 0]  # those with an instance
    mean, count = np.zeros(width), 0
    for i in texts:
        states = table.rows(table.offsets[i], table.offsets[i + 1])
        mean += states.sum(axis=0, dtype=np.float64)
        count += len(states)
    mean /= max(count, 1)
    if dim >= width:
        return {"mean": mean}
    spread = np.zeros((width, width))
    for i in texts:
        units = _units(table.rows(table.offsets[i], table.offsets[i + 1]), mean)
        spread += units.T @ units
    return {"mean": mean, "directions": principal_directions(spread, dim)}


def _units(states: States, mean: FloatArray) -> NDArray[np.float32]:
    """Centred states of unit length."""
    centred = states.astype(np.float32) - mean.astype(np.float32)
    length = np.sqrt(np.einsum("ij,ij->i", centred, centred))
    centred /= np.where(length > 0, length, 1.0)[:, None]
    return centred


def _project(
    table: StateTable, learned: Learned, cache: Path | None, block: int
) -> NDArray[np.float16]:
    """Centred states of unit length ``(N, d)``, in the learned directions where there are any; the
    row of a text without an instance is zero.
    """
    directions = learned.get("directions")
    width = table.shape[1] if directions is None else directions.shape[1]
    rows = temporary_rows(cache, (table.shape[0], width))
    for start, states in table.blocks(block):
        units = _units(states, np.asarray(learned["mean"], dtype=np.float64))
        if directions is not None:
            units = units @ np.asarray(directions, dtype=np.float32)
        units[table.positions[start : start + len(units)] < 0] = 0.0
        rows[start : start + len(units)] = units
    return rows


def _layer_note(
    network: EncoderNetwork, layer: int, losses: dict[int, float], instances: Instances
) -> str:
    """A sentence on the layer of the states and how it was chosen."""
    joined = (
        "sub-words joined by their mean"
        if instances == "words"
        else "the mean of the words of each, and a word the mean of its sub-words"
    )
    note = (
        f"{instances.capitalize()} are states of {network.name}, layer {layer} of {network.layers},"
        f" {joined}, centred over the training texts, of length one."
    )
    if len(losses) > 1:
        others = ", ".join(f"{loss:.3f} in layer {k}" for k, loss in losses.items())
        note += (
            " The layer was chosen by the loss of mean pooling on a part of the training texts:"
            f" {others}."
        )
    return note


def _cut_notes(
    table: StateTable, network: EncoderNetwork, instances: Instances, most: int | None
) -> list[str]:
    """A sentence on the texts that were not read to their end, and one on those with nothing to
    read.
    """
    n, (cut, long) = len(table.offsets) - 1, table.unread
    ends = []
    if cut:
        ends.append(f"{cut} are longer than the {network.longest} sub-words that it reads")
    if long:
        ends.append(f"{long} have more than {most} {instances}")
    notes = [f"Of {n} texts {' and '.join(ends)}; their ends are left out."] if ends else []
    empty = int((table.positions < 0).sum())
    if empty:
        notes.append(f"{empty} of {n} texts have no word and are predicted as the largest class.")
    return notes
