"""Labelled texts and images, and the order in which training sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attsvm.datasets.attention_data import IntArray

_MULTIPLE = 8  # lengths are rounded up to it: few lengths to compile for
Piece = tuple[Tensor, int]
"""Rows, and the length of their longest text."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs of a classifier with their classes.

    Attributes:
        inputs: ``(n, T)`` token ids, or ``(n, channels, height, width)`` images.
        labels: ``(n,)`` classes from 0 on.
        mask: ``(n, T)``, True at tokens; padding follows the tokens of a text. None for images.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | ArrayLike) -> Examples:
        """Some of the examples."""
        index = rows if isinstance(rows, slice) else torch.as_tensor(np.asarray(rows))
        mask = None if self.mask is None else self.mask[index]
        return Examples(self.inputs[index], self.labels[index], mask)

    def to(self, device: torch.device) -> Examples:
        """The examples on a device."""
        mask = None if self.mask is None else self.mask.to(device)
        return Examples(self.inputs.to(device), self.labels.long().to(device), mask)

    @property
    def lengths(self) -> IntArray:
        """Numbers of tokens of the texts ``(n,)``; of images the number of channels."""
        if self.mask is None:
            return np.full(len(self), self.inputs.shape[1], dtype=np.int64)
        return self.mask.sum(dim=1).cpu().numpy().astype(np.int64)

    def take(self, piece: Piece) -> tuple[tuple[Tensor, ...], Tensor]:
        """Arguments of the model, trimmed to the longest text, and labels."""
        index, longest = piece
        if self.mask is None:
            return (self.inputs[index],), self.labels[index]
        length = min(-(-longest // _MULTIPLE) * _MULTIPLE, self.inputs.shape[1])
        return (self.inputs[:, :length][index], self.mask[:, :length][index]), self.labels[index]

    def pieces(self, steps: Sequence[IntArray], count: int) -> list[list[Piece]]:
        """The rows of every step in ``count`` pieces of texts of similar length, longest first;
        sizes differ by one at most, and empty ones are left out.
        """
        lengths, pieces = self.lengths, []
        for rows in steps:
            ordered = rows[np.argsort(-lengths[rows], kind="stable")]
            index = torch.from_numpy(ordered).to(self.inputs.device)
            bounds = np.linspace(0, len(rows), count + 1).round().astype(int).tolist()
            cuts = [(a, b) for a, b in pairwise(bounds) if a < b]
            pieces.append([(index[a:b], int(lengths[ordered[a]])) for a, b in cuts])
        return pieces


def shuffled_steps(n: int, batch: int, seed: int, epoch: int) -> list[IntArray]:
    """The rows of every step of an epoch: a permutation that depends on seed and epoch alone, cut
    in pieces; the last may be short.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n).astype(np.int64)
    return [order[start : start + batch] for start in range(0, n, batch)]
