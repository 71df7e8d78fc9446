r"""Selected tokens of every head of a recording, and how firmly they are selected.

The statistics of a single query stand in :mod:`attsvm.transformers.logit_statistics`. A margin
grows with the length of keys and queries, so margins of different heads compare only *scale-free*:
divided by :math:`s\,\mathrm{rms}(k)\,\mathrm{rms}(q)`, the typical size of a logit of that
head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.transformers.logit_statistics import LogitStatistics, logit_statistics, query_blocks
from attsvm.transformers.recording import Layer, Recording, TextAttention

Classes = Callable[[int], ArrayLike] | Sequence[ArrayLike]
"""Per text ``(T,)`` integers, equal for equivalent tokens; a list, or a function of its number."""

KINDS = ("itself", "previous", "next", "first", "same token", "special", "other")
"""What a selected token can be; the first that holds counts, ``special`` is a separator."""

FavouriteToken = tuple[str, float, float]
"""A word, the share of queries that select it, and that share under selection at random."""


@dataclass(frozen=True, eq=False)
class HeadSelections:
    """What a head selects, as far as its programme needs it.

    Attributes:
        selected: ``(q,)``, the position of the largest logit, queries of all texts end to end.
        sure: numbers of the queries that it is sure of, ascending.
    """

    selected: IntArray
    sure: IntArray


@dataclass(frozen=True, eq=False)
class Selections:
    """Selected tokens of the heads of one layer, query by query of all texts, end to end.

    Attributes:
        text, position: ``(q,)``, where the queries stand.
        selected: ``(heads, q)``, the position of the largest logit.
        rival: ``(heads, q)``, that of the best rival, -1 where there is none.
        margin: ``(heads, q)`` nats; ``inf`` where there is no rival.
        logit_size: ``(heads,)``, the typical size of a logit; margins over it are scale-free.
        top: ``(heads, q)``, softmax weight of the selected token's class.
        entropy: ``(heads, q)`` nats.
        peak: ``(heads, q)``, the largest logit.
        kind: ``(heads, q)``, numbers of :data:`KINDS`.
        chance: ``(kinds,)``, the shares that they have when every query selects one of the keys
            that it sees at random.
    """

    text: IntArray
    position: IntArray
    selected: IntArray
    rival: IntArray
    margin: FloatArray
    logit_size: FloatArray
    top: FloatArray
    entropy: FloatArray
    peak: FloatArray
    kind: IntArray
    chance: FloatArray

    @property
    def scale_free(self) -> FloatArray:
        """Margins in units of the typical logit of their head, ``(heads, q)``."""
        return self.margin / self.logit_size[:, None]

    def sure(self, h: int, threshold: float) -> BoolArray:
        """Whether each query of a head has top mass above ``threshold`` and a rival, ``(q,)``."""
        is_sure: BoolArray = (self.top[h] > threshold) & (self.rival[h] >= 0)
        return is_sure

    def of_head(self, h: int, threshold: float) -> HeadSelections:
        """Selections of one head, which hold nothing of the others."""
        return HeadSelections(self.selected[h].copy(), np.flatnonzero(self.sure(h, threshold)))


def compute_selections(
    recording: Recording,
    layer: Layer,
    classes: Classes | None = None,
) -> Selections:
    """Selected token, margin and kind of every recorded query, for each head of ``layer``.

    1. Statistics of the logits, text by text.
    2. The kind of every key for every query; that of the selected key is looked up.
    3. The shares of the kinds when all keys that a query sees are equally likely.

    Args:
        recording: the recording that the layer belongs to, for its tokens.
        layer: one of its layers.
        classes: equivalent tokens.

    Raises:
        InputError: classes that do not fit the text.
    """
    # 1. statistics, joined end to end
    statistics = _concatenated(
        [
            _statistics_of_text(
                text,
                None if classes is None else token_classes(classes, text.text, text.keys.shape[1]),
            )
            for text in layer.texts
        ]
    )
    selected = statistics.selected.numpy()
    position = np.concatenate([text.positions for text in layer.texts])
    # 2. and 3.
    start, selected_kinds, chance = 0, [], np.zeros(len(KINDS))
    for text in layer.texts:
        kinds = _kinds_of_keys(recording, layer, text)
        keys = selected[:, start : start + len(kinds)].T
        selected_kinds.append(np.take_along_axis(kinds, keys, axis=1).T)
        uniform = text.visible / text.visible.sum(axis=1, keepdims=True)
        chance += np.bincount(kinds.ravel(), uniform.ravel(), len(KINDS))
        start += len(kinds)
    return Selections(
        np.concatenate([np.full(len(text.positions), text.text) for text in layer.texts]),
        position,
        selected,
        statistics.rival.numpy(),
        statistics.margin.double().numpy(),
        _typical_logits(layer),
        statistics.top.double().numpy(),
        statistics.entropy.double().numpy(),
        statistics.peak.double().numpy(),
        np.concatenate(selected_kinds, axis=1).astype(np.int64),
        chance / len(position),
    )


def _statistics_of_text(text: TextAttention, classes: IntArray | None) -> LogitStatistics:
    heads, T = len(text.queries), text.keys.shape[1]
    class_of_key = None if classes is None else torch.from_numpy(classes)
    # a block of queries at a time, so that no T x T matrix is held
    return _concatenated(
        [
            logit_statistics(text.logits(block.start, block.stop), class_of_key, text.sinks)
            for block in query_blocks(len(text.positions), heads * T)
        ]
    )


def _concatenated(statistics: Sequence[LogitStatistics]) -> LogitStatistics:
    """Statistics of one run of queries after the other, ``(heads, q)`` each."""
    columns = zip(*statistics, strict=True)
    return LogitStatistics(*(torch.cat(column, dim=1) for column in columns))


def token_classes(classes: Classes | None, text: int, T: int) -> IntArray:
    """The class of every token of a text, ``(T,)``; a class for each when none are declared.

    Raises:
        InputError: classes that do not fit the text.
    """
    if classes is None:
        return np.arange(T)
    # a function makes them when they are needed: of many texts not all lie in memory
    labels = np.asarray(classes(text) if callable(classes) else classes[text])
    if labels.shape != (T,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"classes of text {text} have shape {labels.shape} and dtype {labels.dtype}; they must"
            f" be integers ({T},)"
        )
    return labels.astype(np.int64)


def _typical_logits(layer: Layer) -> FloatArray:
    r"""The typical size of a logit per head, :math:`s\,\mathrm{rms}(k)\,\mathrm{rms}(q)`."""
    # over all texts, so that a head has one size
    keys = torch.cat([text.keys.float() for text in layer.texts], dim=1)
    queries = torch.cat([text.queries.float() for text in layer.texts], dim=1)
    rms_k, rms_q = (vectors.square().sum(dim=-1).mean(dim=1).sqrt() for vectors in (keys, queries))
    rms_k = rms_k.repeat_interleave(layer.heads // len(rms_k))
    sizes = (layer.texts[0].scale * rms_k * rms_q).double().numpy()
    return np.maximum(sizes, np.finfo(np.float64).tiny)


def _kinds_of_keys(recording: Recording, layer: Layer, text: TextAttention) -> NDArray[np.int8]:
    """The kind that every key of a text has for every recorded query, ``(q, T)``."""
    positions, T = text.positions[:, None], text.keys.shape[1]
    kind = np.full((len(positions), T), KINDS.index("other"), dtype=np.int8)
    if layer.cross:
        return kind
    # from the last kind to the first, so that the first one that holds stays
    is_separator = np.zeros(T, dtype=np.bool_)
    for names in (_entry_of_text(recording.words, text), _entry_of_text(recording.tokens, text)):
        if len(names) == T:
            is_separator |= [_bare(name) in recording.separators for name in names]
    kind[:, is_separator] = KINDS.index("special")
    if len(ids := _entry_of_text(recording.tokens, text)) == T:
        kind[ids == ids[text.positions][:, None]] = KINDS.index("same token")
    kind[:, 0] = KINDS.index("first")
    for name, offset in (("next", 1), ("previous", -1), ("itself", 0)):
        kind[np.arange(T) == positions + offset] = KINDS.index(name)
    return kind


def _bare(token: str | int) -> str | int:
    """A token without the mark that its tokenizer puts before words; its number as it is."""
    return token.lstrip("Ġ▁") if isinstance(token, str) else int(token)


def _entry_of_text(entries: Sequence[Any], text: TextAttention) -> Any:
    """The entry of a recording for a text; empty for a decoder's text, which has no names."""
    return entries[text.text] if text.text < len(entries) else ()


def favourite_token(
    recording: Recording, layer: Layer, selections: Selections, h: int
) -> FavouriteToken | None:
    """The word that head ``h`` of ``layer`` selects most often; ``None`` where tokens have no
    names.
    """
    # the other text of a decoder has no names, and cross attention none to select
    texts = [
        text
        for text in layer.texts
        if len(_entry_of_text(recording.words, text)) == text.keys.shape[1]
    ]
    if layer.cross or not texts:
        return None
    names, chances, counts = [], [], []
    for text in texts:
        names += recording.words[text.text]
        chances.append((text.visible / text.visible.sum(axis=1, keepdims=True)).sum(axis=0))
        selected = selections.selected[h][selections.text == text.text]
        counts.append(np.bincount(selected, minlength=text.keys.shape[1]))
    # join the positions at which the same word stands
    words, number = np.unique(names, return_inverse=True)
    count_of_word = np.bincount(number, np.concatenate(counts))
    best, queries = int(count_of_word.argmax()), count_of_word.sum()
    chance = float(np.concatenate(chances)[number == best].sum() / queries)
    return str(words[best]), float(count_of_word[best] / queries), chance
