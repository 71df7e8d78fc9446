"""A post-norm encoder that classifies texts by their [CLS] token: the sentiment model of the
mirror-descent paper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.errors import InputError
from attsvm.models.multihead import FusedSelfAttention


class PostNormBlock(nn.Module):
    r"""A post-norm block without biases: :math:`x\leftarrow\mathrm{LN}(x+\mathrm{Attn}(x))`, then
    the same with a GELU network.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = FusedSelfAttention(width, heads, dropout)
        self.after_attention = nn.LayerNorm(width, bias=False)
        layers = (
            nn.Linear(width, hidden, bias=False),
            nn.GELU(),
            nn.Linear(hidden, width, bias=False),
            nn.Dropout(dropout),
        )
        self.network = nn.Sequential(*layers)
        self.after_network = nn.LayerNorm(width, bias=False)

    def forward(self, x: Tensor, visible: Tensor | None = None, first: int | None = None) -> Tensor:
        """``(..., T, width)``: the next block's tokens; of the ``first`` ones alone when that is
        given.
        """
        kept = x if first is None else x[..., :first, :]
        x = self.after_attention(kept + self.attention(x, visible, first))
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

    Raises:
        InputError: heads that do not divide the width, a size below one, a dropout outside
            ``[0, 1)``.
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
        sizes = {
            "vocabulary": vocabulary,
            "length": length,
            "width": width,
            "depth": depth,
            "heads": heads,
            "hidden": hidden,
        }
        for name, size in sizes.items():
            if size < 1:
                raise InputError(f"{name} is {size}; give at least 1")
        if width % heads:
            raise InputError(
                f"{heads} heads do not divide the width {width}; choose a divisor of {width}"
            )
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout}; give a share of at least 0 and below 1")
        self.length = length
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.blocks = nn.ModuleList(
            PostNormBlock(width, heads, hidden, dropout) for _ in range(depth)
        )
        self.readout = nn.Linear(width, 1, bias=False)

    def _start(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Embedded tokens, and which keys are visible, ``(n, 1, 1, T)``."""
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= self.length:
            raise InputError(
                f"ids have shape {tuple(ids.shape)}; this model takes (n, T) with T from 1 to"
                f" {self.length}"
            )
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        if mask is None:
            return x, None
        if mask.shape != ids.shape:
            raise InputError(
                f"the mask has shape {tuple(mask.shape)} and the ids {tuple(ids.shape)}; give one"
                " mask entry per id"
            )
        return x, F.pad(mask[:, 1:].bool(), (1, 0), value=True)[:, None, None]

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(n,)``: logits of the positive class.

        Args:
            ids: ``(n, T)`` token ids, [CLS] first.
            mask: ``(n, T)``, nonzero at tokens that are not padding; none is padding when left out.

        Raises:
            InputError: ids or mask of another shape.
        """
        x, visible = self._start(ids, mask)
        for block in self.blocks[:-1]:
            x = block(x, visible)
        x = self.blocks[-1](x, visible, 1)
        logits: Tensor = self.readout(x[:, 0])
        return logits[:, 0]

    def cls_rows(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(n, depth, heads, T)``: how [CLS] divides its attention, before dropout, in every block
        and head; zero at padding.
        """
        x, visible = self._start(ids, mask)
        rows = []
        for block in self.blocks:
            rows.append(block.attention.rows(x, visible, 1)[:, :, 0])
            x = block(x, visible)
        return torch.stack(rows, dim=1)
