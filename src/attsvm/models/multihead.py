"""Multi-head softmax self-attention whose rows can be read, with its three maps apart or fused into
one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.models.dropout import dropout

Parts = tuple[Tensor, Tensor, Tensor]


class MultiHead(nn.Module):
    r"""What every multi-head attention shares:
    :math:`\mathrm{softmax}\big(QK^\top/\sqrt{d_h}\big)V` per head, then one output map.

    A subclass says how tokens become queries, keys and values.

    Attributes:
        output: map from the joined heads back to the width of a token.
        heads: number of heads.
        dropout: share of attention weights, and of outputs, that training drops.
    """

    output: nn.Linear

    def __init__(self, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout

    def project(self, x: Tensor, first: int | None) -> Parts:
        """Queries of the first tokens (of all for None), keys and values of all,
        ``(..., T, heads * head_width)``.
        """
        raise NotImplementedError

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

    def rows(self, x: Tensor, visible: Tensor | None = None, first: int | None = None) -> Tensor:
        """``(..., heads, T, T)``: the attention of every token, a row each, before dropout; rows
        sum to one.

        Args:
            x: tokens ``(..., T, width)``.
            visible: True at keys that may be attended, broadcast to ``(..., heads, T, T)``; all
                when left out.
            first: rows of this many tokens from the front; of all when left out.
        """
        query, key, _ = (self._split(part) for part in self.project(x, first))
        return _attention(query, key, visible)

    def forward(self, x: Tensor, visible: Tensor | None = None, first: int | None = None) -> Tensor:
        """``(..., T, width)``: attention outputs of tokens of that shape; arguments as in
        :meth:`rows`.
        """
        query, key, value = (self._split(part) for part in self.project(x, first))
        dropped = self.dropout if self.training else 0.0
        if dropped and x.device.type == "cpu":  # there torch's fused form cannot drop
            mixed = dropout(_attention(query, key, visible), dropped) @ value
        else:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=dropped
            )
        joined: Tensor = self.output(mixed.transpose(-3, -2).flatten(-2))
        return dropout(joined, self.dropout, self.training)


def _attention(query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    if visible is not None:  # a sum takes a tenth of the time of filling by a mask
        hidden = torch.zeros_like(visible, dtype=logits.dtype)
        logits = logits + hidden.masked_fill(~visible, -torch.inf)
    return torch.softmax(logits, dim=-1)


class SelfAttention(MultiHead):
    """Attention with a map each for queries, keys and values.

    Attributes:
        query: map without bias, weight ``(heads * head_width, width)``; so are ``key`` and
            ``value``.
    """

    def __init__(self, width: int, heads: int, head_width: int, dropout: float = 0.0) -> None:
        super().__init__(heads, dropout)
        inner = heads * head_width
        self.query, self.key, self.value = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.output = nn.Linear(inner, width)

    def project(self, x: Tensor, first: int | None) -> Parts:
        """See :meth:`MultiHead.project`."""
        return self.query(x if first is None else x[..., :first, :]), self.key(x), self.value(x)


class FusedSelfAttention(MultiHead):
    """Attention with one map to queries, keys and values, and no biases.

    Attributes:
        qkv: weight ``(3 * width, width)``: rows of the queries, then of the keys, then of the
            values.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(heads, dropout)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def project(self, x: Tensor, first: int | None) -> Parts:
        """See :meth:`MultiHead.project`."""
        if first is None:
            query, key, value = self.qkv(x).chunk(3, dim=-1)
        else:  # the other queries are not asked for, and cost a third of the map
            weight, width = self.qkv.weight, x.shape[-1]
            query = F.linear(x[..., :first, :], weight[:width])
            key, value = F.linear(x, weight[width:]).chunk(2, dim=-1)
        return query, key, value
