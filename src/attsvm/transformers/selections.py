r"""What every head of a recording selects, and how firmly.

What is read of a single query stands in :mod:`attsvm.transformers.logits`. A margin grows with the
length of keys and queries, so margins of different heads compare only *scale-free*: divided by
:math:`s\,\mathrm{rms}(k)\,\mathrm{rms}(q)`, the typical size of a logit of that head.
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
from attsvm.transformers.capture import Attended, Layer, Recording
from attsvm.transformers.logits import Firmness, blocks, firmness

Classes = Callable[[int], ArrayLike] | Sequence[ArrayLike]
"""Per text ``(T,)`` integers, equal for equivalent tokens; a list, or a function of its number."""

KINDS = ("itself", "previous", "next", "first", "same token", "special", "other")
"""What a selected token can be, in the order in which it is asked; ``special`` is a separator."""

Favourite = tuple[str, float, float]
"""A word, the share of queries that select it, and that share under selection at random."""

_SPECIAL = {"[CLS]", "[SEP]", "<s>", "</s>", "<|endoftext|>", "<bos>", "<eos>", ".", ","}


@dataclass(frozen=True, eq=False)
class Selections:
    """What the heads of one layer select, query by query of all texts, end to end.

    Attributes:
        text, position: ``(q,)``, where the queries stand.
        selected: ``(heads, q)``, the position of the largest logit.
        runner: ``(heads, q)``, that of the best rival, -1 where there is none.
        margin: ``(heads, q)`` nats; ``inf`` where there is no rival.
        size: ``(heads,)``, the typical size of a logit; margins over it are scale-free.
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
    runner: IntArray
    margin: FloatArray
    size: FloatArray
    top: FloatArray
    entropy: FloatArray
    peak: FloatArray
    kind: IntArray
    chance: FloatArray

    @property
    def scale_free(self) -> FloatArray:
        """``(heads, q)``: margins in units of the typical logit of their head."""
        return self.margin / self.size[:, None]

    def sure(self, h: int, threshold: float) -> BoolArray:
        """``(q,)``: which queries of a head have top mass above ``threshold``, and a choice."""
        found: BoolArray = (self.top[h] > threshold) & (self.runner[h] >= 0)
        return found


def selections(
    recording: Recording,
    layer: Layer,
    classes: Classes | None = None,
) -> Selections:
    """What each head of ``layer`` selects at every kept query.

    Args:
        recording: the recording that the layer belongs to, for its tokens.
        layer: one of its layers.
        classes: equivalent tokens.

    Raises:
        InputError: classes that do not fit the text.
    """
    rows = [
        _text_rows(t, None if classes is None else labels(classes, t.text, t.keys.shape[1]))
        for t in layer.texts
    ]
    parts = [torch.cat(column, dim=1) for column in zip(*rows, strict=True)]
    found = Firmness(*parts)
    where = np.concatenate([each.positions for each in layer.texts])
    text = np.concatenate([np.full(len(each.positions), each.text) for each in layer.texts])
    selected = found.selected.numpy()
    kinds = [_kinds(recording, layer, each) for each in layer.texts]
    starts = np.cumsum([0, *(len(each) for each in kinds)])
    chosen = [
        np.take_along_axis(each, selected[:, start : start + len(each)].T, axis=1).T
        for each, start in zip(kinds, starts, strict=False)
    ]
    chance = np.zeros(len(KINDS))
    for each, t in zip(kinds, layer.texts, strict=True):
        share = t.visible / t.visible.sum(axis=1, keepdims=True)
        chance += np.bincount(each.ravel(), share.ravel(), len(KINDS))
    return Selections(
        text,
        where,
        selected,
        found.runner.numpy(),
        found.margin.double().numpy(),
        _sizes(layer),
        found.top.double().numpy(),
        found.entropy.double().numpy(),
        found.peak.double().numpy(),
        np.concatenate(chosen, axis=1).astype(np.int64),
        chance / len(where),
    )


def _text_rows(text: Attended, classes: IntArray | None) -> Firmness:
    heads, T = len(text.queries), text.keys.shape[1]
    group = None if classes is None else torch.from_numpy(classes)
    rows = [
        firmness(text.logits(some.start, some.stop), group)
        for some in blocks(len(text.positions), heads * T)
    ]
    return Firmness(*(torch.cat(column, dim=1) for column in zip(*rows, strict=True)))


def labels(classes: Classes | None, text: int, T: int) -> IntArray:
    """``(T,)``: the class of every token of a text, each its own when none are declared.

    Raises:
        InputError: classes that do not fit the text.
    """
    if classes is None:
        return np.arange(T)
    found = np.asarray(classes(text) if callable(classes) else classes[text])
    if found.shape != (T,) or found.dtype.kind not in "iu":
        raise InputError(
            f"classes of text {text} have shape {found.shape} and dtype {found.dtype}; they must"
            f" be integers ({T},)"
        )
    return found.astype(np.int64)


def _sizes(layer: Layer) -> FloatArray:
    """The typical size of a logit per head, from root mean squares of keys and queries."""
    keys = torch.cat([text.keys.float() for text in layer.texts], dim=1)
    queries = torch.cat([text.queries.float() for text in layer.texts], dim=1)
    sizes = [each.square().sum(dim=-1).mean(dim=1).sqrt() for each in (keys, queries)]
    k = sizes[0].repeat_interleave(layer.heads // len(sizes[0]))
    found = (layer.texts[0].scale * k * sizes[1]).double().numpy()
    return np.maximum(found, np.finfo(np.float64).tiny)


def _kinds(recording: Recording, layer: Layer, text: Attended) -> NDArray[np.int8]:
    """``(q, T)``: what every key of a text is to every kept query."""
    place, T = text.positions[:, None], text.keys.shape[1]
    kind = np.full((len(place), T), KINDS.index("other"), dtype=np.int8)
    if layer.cross:
        return kind
    if len(words := _of(recording.words, text)) == T:
        kind[:, [word in _SPECIAL for word in words]] = KINDS.index("special")
    if len(ids := _of(recording.tokens, text)) == T:
        kind[ids == ids[text.positions][:, None]] = KINDS.index("same token")
    kind[:, 0] = KINDS.index("first")
    for name, step in (("next", 1), ("previous", -1), ("itself", 0)):
        kind[np.arange(T) == place + step] = KINDS.index(name)
    return kind


def _of(every: Sequence[Any], text: Attended) -> Any:
    """What a recording holds for a text; the other text of a decoder has no names or numbers."""
    return every[text.text] if text.text < len(every) else ()


def favourite(recording: Recording, layer: Layer, seen: Selections, h: int) -> Favourite | None:
    """The word that head ``h`` of ``layer`` selects most often; ``None`` where tokens have no
    names.
    """
    texts = [t for t in layer.texts if len(_of(recording.words, t)) == t.keys.shape[1]]
    if layer.cross or not texts:
        return None
    names, sights, picks = [], [], []
    for each in texts:
        names += recording.words[each.text]
        sights.append((each.visible / each.visible.sum(axis=1, keepdims=True)).sum(axis=0))
        own = seen.selected[h][seen.text == each.text]
        picks.append(np.bincount(own, minlength=each.keys.shape[1]))
    words, number = np.unique(names, return_inverse=True)
    picked = np.bincount(number, np.concatenate(picks))
    best = int(picked.argmax())
    chance = float(np.concatenate(sights)[number == best].sum() / picked.sum())
    return str(words[best]), float(picked[best] / picked.sum()), chance
