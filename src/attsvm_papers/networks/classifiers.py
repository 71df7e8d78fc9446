"""Networks that are trained whole and whose attention can be read: a vision transformer and the
sentiment model of the mirror-descent paper. Their multi-head attention has its three maps apart, or
fused into one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.base.errors import InputError
from attsvm_papers.networks.dropout import Dropout, dropout

QueryKeyValue = tuple[Tensor, Tensor, Tensor]


class MultiHead(nn.Module):
    r"""Multi-head attention, :math:`\mathrm{softmax}\big(QK^\top/\sqrt{d_h}\big)V` per head, then
    one output map.

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

    def project(self, x: Tensor, first: int | None) -> QueryKeyValue:
        """Queries of the first tokens (of all for None), keys and values of all,
        ``(..., T, heads * head_width)``.
        """
        raise NotImplementedError

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

    def rows(self, x: Tensor, visible: Tensor | None = None, first: int | None = None) -> Tensor:
        """The attention of every token ``(..., heads, T, T)``, a row each, before dropout; rows sum
        to one.

        Args:
            x: tokens ``(..., T, width)``.
            visible: True at keys that may be attended, broadcast to ``(..., heads, T, T)``; all
                when left out.
            first: rows of this many tokens from the front; of all when left out.
        """
        query, key, _ = (self._split(projection) for projection in self.project(x, first))
        return _softmax_rows(query, key, visible)

    def forward(self, x: Tensor, visible: Tensor | None = None, first: int | None = None) -> Tensor:
        """Attention outputs ``(..., T, width)`` of tokens of that shape; arguments as in
        :meth:`rows`.
        """
        query, key, value = (self._split(projection) for projection in self.project(x, first))
        share = self.dropout if self.training else 0.0
        if share and x.device.type == "cpu":  # there torch's fused form cannot drop
            mixed = dropout(_softmax_rows(query, key, visible), share) @ value
        else:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=share
            )
        joined = self.output(mixed.transpose(-3, -2).flatten(-2))
        return dropout(joined, self.dropout, self.training)


def _softmax_rows(query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    if visible is not None:  # a sum takes a tenth of the time of filling by a mask
        penalty = torch.zeros_like(visible, dtype=logits.dtype)
        logits = logits + penalty.masked_fill(~visible, -torch.inf)
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

    def project(self, x: Tensor, first: int | None) -> QueryKeyValue:
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

    def project(self, x: Tensor, first: int | None) -> QueryKeyValue:
        """See :meth:`MultiHead.project`."""
        if first is None:
            query, key, value = self.qkv(x).chunk(3, dim=-1)
        else:  # the other queries are not asked for, and cost a third of the map
            weight, width = self.qkv.weight, x.shape[-1]
            query = F.linear(x[..., :first, :], weight[:width])
            key, value = F.linear(x, weight[width:]).chunk(2, dim=-1)
        return query, key, value


class PreNormBlock(nn.Module):
    """A pre-norm block: tokens plus attention of normed tokens, then plus a GELU network of normed
    tokens.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, hidden: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, head_width, dropout)
        drop = Dropout(dropout)
        self.network = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, hidden),
            nn.GELU(),
            drop,
            nn.Linear(hidden, width),
            drop,
        )

    def rows(self, x: Tensor) -> Tensor:
        """Attention rows of this block ``(..., heads, T, T)``, see :meth:`SelfAttention.rows`."""
        return self.attention.rows(self.before_attention(x))

    def forward(self, x: Tensor) -> Tensor:
        """The next block's tokens ``(..., T, width)``."""
        x = x + self.attention(self.before_attention(x))
        return x + self.network(x)


class VisionTransformer(nn.Module):
    r"""Images to class scores: patches, a [CLS] token, learned positions, pre-norm blocks, a linear
    read-out of [CLS].

    With ``side=48, patch=4, channels=3, width=512, depth=6, heads=8, hidden=512, dropout=0.1`` it
    is the architecture of the vision experiment of *Optimizing Attention with Mirror Descent*, 9.56
    million parameters. Weights start as PyTorch's layers do, [CLS] and positions standard normal;
    seed with :func:`torch.manual_seed`.

    Args:
        side: pixels of a side of the square images.
        patch: pixels of a side of a patch; divides ``side``.
        channels: 1 for grey, 3 for colour.
        classes: number of classes.
        width: size of a token.
        depth: number of blocks.
        heads: attention heads of each block; divides ``width``.
        hidden: width of the network inside a block; ``2 * width`` when left out.
        dropout: share dropped in training, of embeddings, attention weights, and outputs of
            attention and network.

    Raises:
        InputError: patches that do not tile the image, heads that do not divide the width, a size
            below one.

    Source: Dosovitskiy et al., *An Image is Worth 16x16 Words* (2021).
    """

    blocks: Any  # a ModuleList of Block, which torch types as a list of modules

    def __init__(
        self,
        side: int,
        patch: int,
        channels: int = 1,
        classes: int = 10,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_sizes(width, heads, side=side, patch=patch, channels=channels, depth=depth)
        if side % patch:
            raise InputError(
                f"patches of {patch} pixels do not tile a side of {side}; choose a divisor of"
                f" {side}"
            )
        self.side, self.patch, self.channels = side, patch, channels
        self.length = (side // patch) ** 2 + 1
        size = channels * patch * patch
        self.embedding = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, width), nn.LayerNorm(width)
        )
        self.cls = nn.Parameter(torch.randn(width))
        self.positions = nn.Parameter(torch.randn(self.length, width))
        self.dropout = Dropout(dropout)
        blocks = (
            PreNormBlock(
                width, heads, width // heads, 2 * width if hidden is None else hidden, dropout
            )
            for _ in range(depth)
        )
        self.blocks = nn.ModuleList(blocks)
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def tokens(self, images: Tensor) -> Tensor:
        """[CLS] and the embedded patches ``(n, T + 1, width)``, row by row, of ``images``
        ``(n, channels, side, side)``.

        Raises:
            InputError: images of another shape.
        """
        if images.ndim != 4 or images.shape[1:] != (self.channels, self.side, self.side):
            expected = f"(n, {self.channels}, {self.side}, {self.side})"
            raise InputError(
                f"images have shape {tuple(images.shape)}; this model takes {expected}"
            )
        patches = F.unfold(images, self.patch, stride=self.patch).mT
        embedded = torch.cat([self.cls.expand(len(images), 1, -1), self.embedding(patches)], dim=1)
        return self.dropout(embedded + self.positions)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (logits) ``(n, classes)`` of ``images`` ``(n, channels, side, side)``."""
        x = self.tokens(images)
        for block in self.blocks:
            x = block(x)
        return self.readout(x[:, 0])

    def cls_rows(self, images: Tensor) -> Tensor:
        """Attention of [CLS] on itself and on the patches, in every block and head
        ``(n, depth, heads, T + 1)``.
        """
        x = self.tokens(images)
        rows = []
        for block in self.blocks:
            rows.append(block.rows(x)[:, :, 0])
            x = block(x)
        return torch.stack(rows, dim=1)

    def query_key_norms(self) -> Tensor:
        r"""The norm :math:`\sqrt{\|W_Q\|_F^2+\|W_K\|_F^2}` of every block, all heads together
        ``(depth,)``.
        """
        maps = [block.attention for block in self.blocks]
        return torch.stack(
            [
                torch.hypot(attention.query.weight.norm(), attention.key.weight.norm())
                for attention in maps
            ]
        )


def _check_sizes(width: int, heads: int, **sizes: int) -> None:
    """Raise for a size below one, and for heads that do not divide the width."""
    for name, size in {**sizes, "width": width, "heads": heads}.items():
        if size < 1:
            raise InputError(f"{name} is {size}; give at least 1")
    if width % heads:
        raise InputError(
            f"{heads} heads do not divide the width {width}; choose a divisor of {width}"
        )


def soft_sparsity(rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""Effective numbers of tokens of an attention row, :math:`1/\|s\|_\infty` and
    :math:`1/\|s\|_2^2`, for rows along the last axis.

    Both are 1 for a single selected token and T for uniform attention; the second is never below
    the first.
    """
    return 1.0 / rows.amax(dim=-1), 1.0 / rows.square().sum(dim=-1)


class PostNormBlock(nn.Module):
    r"""A post-norm block without biases: :math:`x\leftarrow\mathrm{LN}(x+\mathrm{Attn}(x))`, then
    the same with a GELU network.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = FusedSelfAttention(width, heads, dropout)
        self.after_attention = nn.LayerNorm(width, bias=False)
        self.network = nn.Sequential(
            nn.Linear(width, hidden, bias=False),
            nn.GELU(),
            nn.Linear(hidden, width, bias=False),
            Dropout(dropout),
        )
        self.after_network = nn.LayerNorm(width, bias=False)

    def forward(self, x: Tensor, visible: Tensor | None = None, first: int | None = None) -> Tensor:
        """The next block's tokens ``(..., T, width)``; the ``first`` ones alone where that is a
        number.
        """
        residual = x if first is None else x[..., :first, :]
        x = self.after_attention(residual + self.attention(x, visible, first))
        return self.after_network(x + self.network(x))


class TextClassifier(nn.Module):
    r"""Token ids to one logit per text: embedding and learned positions, post-norm blocks, a linear
    read-out of [CLS].

    The defaults are the smallest model of the sentiment experiment of *Optimizing Attention with
    Mirror Descent*, 17.23 million parameters; 4 and 6 blocks, with as many heads, have 19.00 and
    22.54 million. No map and no normalisation has a bias. Weights start as PyTorch's layers do,
    embeddings and positions standard normal; seed with :func:`torch.manual_seed`.

    The published code hides padding from queries and keys, and leaves key 0 visible to all. What a
    padded query attends to reaches no other token, so here padding is hidden as a key alone, with
    the same logits; for the same reason the last block computes [CLS] only.

    Args:
        vocabulary: number of token ids; 0 is [PAD].
        length: most tokens of a text.
        width: size of a token.
        depth: number of blocks.
        heads: attention heads of each block; divides ``width``.
        hidden: width of the network inside a block.
        dropout: share dropped in training, of attention weights and of the outputs of attention and
            network.
    """

    blocks: Any  # a ModuleList of PostNormBlock, which torch types as a list of modules

    def __init__(
        self,
        vocabulary: int = 30522,
        length: int = 512,
        width: int = 384,
        depth: int = 3,
        heads: int = 3,
        hidden: int = 1536,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.blocks = nn.ModuleList(
            PostNormBlock(width, heads, hidden, dropout) for _ in range(depth)
        )
        self.readout = nn.Linear(width, 1, bias=False)

    def _start(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Embedded tokens, and the mask of visible keys ``(n, 1, 1, T)``."""
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        if mask is None:
            return x, None
        return x, F.pad(mask[:, 1:].bool(), (1, 0), value=True)[:, None, None]

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the positive class ``(n,)``.

        Args:
            ids: ``(n, T)`` token ids, [CLS] first.
            mask: ``(n, T)``, nonzero at tokens that are not padding; none is padding when left out.
        """
        x, visible = self._start(ids, mask)
        for block in self.blocks[:-1]:
            x = block(x, visible)
        x = self.blocks[-1](x, visible, 1)
        return self.readout(x[:, 0])[:, 0]

    def cls_rows(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of [CLS], before dropout, in all blocks and heads ``(n, depth, heads, T)``;
        zero at padding.
        """
        x, visible = self._start(ids, mask)
        rows = []
        for block in self.blocks:
            rows.append(block.attention.rows(x, visible, 1)[:, :, 0])
            x = block(x, visible)
        return torch.stack(rows, dim=1)
