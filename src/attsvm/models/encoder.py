"""A small vision transformer whose attention can be read: what the theory's selection looks like in
a trained network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.errors import InputError
from attsvm.models.multihead import SelfAttention


class Block(nn.Module):
    """A pre-norm block: tokens plus attention of normed tokens, then plus a GELU network of normed
    tokens.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, hidden: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, head_width, dropout)
        drop = nn.Dropout(dropout)
        layers = (
            nn.LayerNorm(width),
            nn.Linear(width, hidden),
            nn.GELU(),
            drop,
            nn.Linear(hidden, width),
            drop,
        )
        self.network = nn.Sequential(*layers)

    def rows(self, x: Tensor) -> Tensor:
        """``(..., heads, T, T)``: the attention rows of this block, see
        :meth:`SelfAttention.rows`.
        """
        return self.attention.rows(self.before_attention(x))

    def forward(self, x: Tensor) -> Tensor:
        """``(..., T, width)``: the next block's tokens."""
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
        for name, size in (
            ("side", side),
            ("patch", patch),
            ("channels", channels),
            ("width", width),
            ("depth", depth),
            ("heads", heads),
        ):
            if size < 1:
                raise InputError(f"{name} is {size}; give at least 1")
        if side % patch:
            raise InputError(
                f"patches of {patch} pixels do not tile a side of {side}; choose a divisor of"
                f" {side}"
            )
        if width % heads:
            raise InputError(
                f"{heads} heads do not divide the width {width}; choose a divisor of {width}"
            )
        self.side, self.patch, self.channels = side, patch, channels
        self.length = (side // patch) ** 2 + 1
        size = channels * patch * patch
        self.embedding = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, width), nn.LayerNorm(width)
        )
        self.cls = nn.Parameter(torch.randn(width))
        self.positions = nn.Parameter(torch.randn(self.length, width))
        self.dropout = nn.Dropout(dropout)
        blocks = (
            Block(width, heads, width // heads, 2 * width if hidden is None else hidden, dropout)
            for _ in range(depth)
        )
        self.blocks = nn.ModuleList(blocks)
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def tokens(self, images: Tensor) -> Tensor:
        """``(n, T + 1, width)``: [CLS] and the embedded patches, row by row, of ``images``
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
        """``(n, classes)``: class scores (logits) of ``images`` ``(n, channels, side, side)``."""
        x = self.tokens(images)
        for block in self.blocks:
            x = block(x)
        return self.readout(x[:, 0])

    def cls_rows(self, images: Tensor) -> Tensor:
        """``(n, depth, heads, T + 1)``: how [CLS] divides its attention over [CLS] itself and the
        patches, in every block and head.
        """
        x = self.tokens(images)
        rows = []
        for block in self.blocks:
            rows.append(block.rows(x)[:, :, 0])
            x = block(x)
        return torch.stack(rows, dim=1)

    def query_key_norms(self) -> Tensor:
        r"""``(depth,)``: :math:`\sqrt{\|W_Q\|_F^2+\|W_K\|_F^2}` of every block, all heads
        together.
        """
        pairs = [
            (block.attention.query.weight, block.attention.key.weight) for block in self.blocks
        ]
        return torch.stack([torch.hypot(query.norm(), key.norm()) for query, key in pairs])


def soft_sparsity(rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""How many tokens an attention row is spread over, :math:`1/\|s\|_\infty` and
    :math:`1/\|s\|_2^2`, for rows along the last axis.

    Both are 1 for a single selected token and T for uniform attention; the second is never below
    the first.
    """
    return 1.0 / rows.amax(dim=-1), 1.0 / rows.square().sum(dim=-1)
