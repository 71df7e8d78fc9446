"""What every head selects in a text, small enough to be drawn on a page."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from attsvm.transformers.capture import Attended, Recording

BUDGET = 40_000
"""Queries times heads of all drawings together."""

LONGEST = 48
"""Tokens of a text that are drawn."""

LEAST = 0.05
"""Attention from which a token is drawn, whether or not it is selected."""

MOST = 4
"""Tokens that are drawn of one query."""

Lines = list[list[int]]
"""Per query its keys and their attention in percent, in turn: the selected key, then others. Keys
may lie behind the tokens that are drawn."""


@dataclass
class Drawing:
    """One text.

    Attributes:
        text: its number.
        words: its first tokens.
        tokens: how many it has in all.
        heads: the lines of every head, by ``"layer.head"``.
    """

    text: int
    words: list[str]
    tokens: int
    heads: dict[str, Lines] = field(default_factory=dict)


def drawings(recording: Recording) -> list[Drawing]:
    """The first texts, as many as fit into :data:`BUDGET`, one at least; without layers in which
    keys come from another text, and none where tokens have no names.
    """
    layers = [layer for layer in recording.layers if not layer.cross]
    heads, left = sum(layer.heads for layer in layers), BUDGET
    found: list[Drawing] = []
    for number, words in enumerate(recording.words if layers else ()):
        one = Drawing(number, words[:LONGEST], len(words))
        left -= heads * len(one.words)
        if found and left < 0:
            break
        for layer in layers:
            own = [t for t in layer.texts if t.text == number and t.keys.shape[1] == one.tokens]
            for text in own:
                for h, lines in zip(layer.numbers, _lines(text, len(one.words)), strict=True):
                    one.heads[f"{layer.number}.{h}"] = lines
        found.append(one)
    return found


def _lines(text: Attended, tokens: int) -> list[Lines]:
    """Per head the lines of the first tokens, none for queries that were not kept."""
    kept = int(np.searchsorted(text.positions, tokens))
    weights = text.logits(0, kept).softmax(dim=-1)
    top = torch.topk(weights, min(MOST, weights.shape[-1]), dim=-1)
    percents = (100 * top.values).round().long()
    pairs = torch.stack([top.indices, percents], dim=-1).flatten(2).tolist()
    counts = (percents >= round(100 * LEAST)).sum(dim=-1).clamp(min=1).tolist()
    found = []
    for own, shown in zip(pairs, counts, strict=True):
        lines: Lines = [[] for _ in range(tokens)]
        for place, pair, count in zip(text.positions[:kept].tolist(), own, shown, strict=True):
            lines[place] = pair[: 2 * count]
        found.append(lines)
    return found
