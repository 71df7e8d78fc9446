"""Keys, queries and tokens that were recorded of a model, layer by layer and text by text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class TextAttention:
    """Keys and queries of one text in one attention layer.

    Attributes:
        queries: ``(heads, q, d)``, in the model's precision, after any rotation of positions.
        keys: ``(key heads, T, d)``; query heads share them in groups of equal size.
        positions: ``(q,)``, where the recorded queries stand in the text.
        visible: ``(q, T)``, whether a query sees a key.
        bias: ``(heads, q, T)``, the term that the model adds to the logits; ``None`` when nothing.
        scale: factor of the products of keys and queries.
        text: number of the text in the recording.
        queries_of_text: number of queries of the text; more than ``q`` where some were not
            recorded.
        softcap: bound ``c`` of logits, which are ``c tanh(products / c)``; ``None`` without.
        sinks: ``(heads,)``, logits that take attention and give no value; ``None`` without.
    """

    queries: Tensor
    keys: Tensor
    positions: IntArray
    visible: BoolArray
    bias: Tensor | None
    scale: float
    text: int
    queries_of_text: int
    softcap: float | None = None
    sinks: Tensor | None = None

    def logits(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Logits of these queries, ``(heads, q, T)`` in float32, minus infinity on hidden keys."""
        q = self.queries[:, start:stop].float()
        # heads of a group share their keys
        k = self.keys.float().repeat_interleave(len(q) // len(self.keys), dim=0)
        logits = self.scale * (q @ k.mT)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if self.bias is not None:
            logits = logits + self.bias[:, start:stop].float()
        return logits.masked_fill(~torch.from_numpy(self.visible[start:stop]), -torch.inf)

    def weights(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Attention of these queries, ``(heads, q, T)``; sinks take what is missing to one."""
        logits = self.logits(start, stop)
        if self.sinks is None:
            return logits.softmax(dim=-1)
        # a sink is one more column of the softmax, which no value belongs to
        sinks = self.sinks.float()[:, None, None].expand(*logits.shape[:2], 1)
        return torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]

    def continued_by(self, later: TextAttention) -> TextAttention:
        """This text with later tokens, whose queries see the keys of both.

        Args:
            later: the queries and keys of the new tokens alone; ``visible`` and ``bias`` are over
                the keys of both.
        """
        # queries of before see none of the new keys
        T_new = later.keys.shape[1]
        hidden = np.zeros((len(self.visible), T_new), dtype=np.bool_)
        visible = np.concatenate([self.visible, hidden], axis=1)
        bias = None
        # a text may get its first bias late, where its queries come from a cache
        if self.bias is not None or later.bias is not None:
            old, new = (
                torch.zeros(len(self.queries), *text.visible.shape)
                if text.bias is None
                else text.bias
                for text in (self, later)
            )
            bias = torch.cat([torch.nn.functional.pad(old, (0, T_new)), new], dim=1)
        return replace(
            self,
            queries=torch.cat([self.queries, later.queries], dim=1),
            keys=torch.cat([self.keys, later.keys], dim=1),
            positions=np.concatenate([self.positions, later.positions]),
            visible=np.concatenate([visible, later.visible]),
            bias=bias,
            queries_of_text=self.queries_of_text + later.queries_of_text,
        )


@dataclass(frozen=True, eq=False)
class Projection:
    r"""The linear maps from a layer's inputs to its keys and queries, where it has them.

    Attributes:
        W_K, W_Q: ``(heads * d, width)``, in the model's precision; for grouped heads ``W_K`` is
            repeated for its group.
        b_Q: ``(heads * d,)``, zero where there is none. A bias of the keys moves all logits of a
            query alike and plays no part.
        key_inputs: per text ``(T, width)``, in the model's precision.
        query_inputs: per text ``(q, width)``, those of the recorded queries.
    """

    W_K: Tensor
    W_Q: Tensor
    b_Q: Tensor
    key_inputs: list[Tensor]
    query_inputs: list[Tensor]


@dataclass(eq=False)
class Layer:
    """One attention layer of the model.

    Attributes:
        number: of its block in the model, where that is the layer's alone; else the next free one
            in the order of the forward pass (:class:`CallObserver`).
        name: the module that called attention.
        head_numbers: of the recorded query heads, in the model's counting.
        cross: True where keys come from another text than queries.
        causal: True where no query sees a later key.
        texts: keys and queries of each text.
        projection: ``None`` where keys and queries are no linear maps of the inputs (rotary
            positions, normalised keys).
    """

    number: int
    name: str
    head_numbers: list[int]
    cross: bool
    causal: bool
    texts: list[TextAttention] = field(default_factory=list)
    projection: Projection | None = None

    @property
    def heads(self) -> int:
        """Number of recorded query heads."""
        return len(self.head_numbers)


@dataclass(eq=False, repr=False)
class Recording(Compact):
    """Keys, queries and tokens of all texts, as :func:`capture` records them.

    Attributes:
        layers: by their number, in the order of the forward pass; on the disk where
            :func:`capture` was given a folder.
        tokens: per text the numbers of its tokens, padding left out; empty where the model was not
            called with ``input_ids``.
        words: per text its tokens as strings; empty until :meth:`name_tokens`.
        separators: numbers and names of tokens that separate sentences or texts; those of the
            tokenizer, and punctuation.
        differences: numbers of the layers that subtract the second half of their heads from the
            first.
    """

    layers: Mapping[int, Layer] = field(default_factory=dict)
    tokens: list[IntArray] = field(default_factory=list)
    words: list[list[str]] = field(default_factory=list)
    separators: frozenset[int | str] = frozenset(".,;:!?")
    differences: list[int] = field(default_factory=list)

    @property
    def texts(self) -> int:
        """Number of texts."""
        return max((len(layer.texts) for layer in self.layers.values()), default=0)

    def without_layers(self) -> Recording:
        """What a page needs of a recording: names of tokens and layers, no keys and queries."""
        return replace(self, layers={})

    def name_tokens(self, tokenizer: Any) -> Recording:
        """Write every token as ``tokenizer`` does, and take its special tokens as separators;
        return this recording.
        """
        self.words = [list(tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in self.tokens]
        # a tokenizer says which tokens are special; others may have none
        special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        self.separators = self.separators | special
        return self
