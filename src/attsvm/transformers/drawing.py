"""Selected tokens of every head in a text, few enough to be drawn on a page."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from attsvm.transformers.recording import Recording, TextAttention

Lines = list[list[int]]
"""Per query its keys and their attention in percent, in turn: the selected key, then others. Keys
may lie behind the tokens that are drawn."""


@dataclass(frozen=True)
class DrawingLimits:
    """How much of a recording is drawn, so that a page stays below half a megabyte.

    Attributes:
        budget: queries times heads of all drawings together.
        tokens: of a text that are drawn.
        attention: from which a token is drawn, whether or not it is selected.
        keys: that are drawn of one query, at most.
    """

    budget: int = 40_000
    tokens: int = 48
    attention: float = 0.05
    keys: int = 4


@dataclass
class Drawing:
    """The selections in one text.

    Attributes:
        text: its number.
        words: its first tokens.
        tokens: number of all of them.
        heads: the lines of every head, by ``"layer.head"``.
    """

    text: int
    words: list[str]
    tokens: int
    heads: dict[str, Lines] = field(default_factory=dict)


def drawings(recording: Recording, limits: DrawingLimits = DrawingLimits()) -> list[Drawing]:
    """Drawings of the first texts, as many as fit into the budget, one at least; without layers in
    which keys come from another text, and none where tokens have no names.
    """
    # lines go from a text to itself; a layer at a time, for they may lie on the disk
    heads = {n: layer.heads for n, layer in recording.layers.items() if not layer.cross}
    budget = limits.budget
    by_text: dict[int, Drawing] = {}
    for number, words in enumerate(recording.words if heads else ()):
        drawing = Drawing(number, words[: limits.tokens], len(words))
        budget -= sum(heads.values()) * len(drawing.words)
        if by_text and budget < 0:
            break
        by_text[number] = drawing
    for number in heads if by_text else ():
        layer = recording.layers[number]
        for text in layer.texts:
            if text.text not in by_text or text.keys.shape[1] != by_text[text.text].tokens:
                continue
            drawing = by_text[text.text]
            lines_of_heads = _lines_of_heads(text, len(drawing.words), limits)
            for h, lines in zip(layer.head_numbers, lines_of_heads, strict=True):
                drawing.heads[f"{number}.{h}"] = lines
    return list(by_text.values())


def _lines_of_heads(text: TextAttention, tokens: int, limits: DrawingLimits) -> list[Lines]:
    """Per head the lines of the first tokens, none for queries that were not recorded."""
    queries = int(np.searchsorted(text.positions, tokens))
    weights = text.weights(0, queries)
    # the selected key comes first
    top = torch.topk(weights, min(limits.keys, weights.shape[-1]), dim=-1)
    percents = (100 * top.values).round().long()
    pairs = torch.stack([top.indices, percents], dim=-1).flatten(2).tolist()
    # the selected key always, others from the limit on
    counts = (percents >= round(100 * limits.attention)).sum(dim=-1).clamp(min=1).tolist()
    lines_of_heads = []
    for pairs_of_head, counts_of_head in zip(pairs, counts, strict=True):
        lines: Lines = [[] for _ in range(tokens)]
        positions = text.positions[:queries].tolist()
        for position, pair, count in zip(positions, pairs_of_head, counts_of_head, strict=True):
            lines[position] = pair[: 2 * count]
        lines_of_heads.append(lines)
    return lines_of_heads
