"""Labelled tensors, and the order in which training sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attsvm.data import IntArray
from attsvm.errors import InputError

# lengths are rounded up to it: what attention kernels of accelerators want, and few lengths to
# compile for
_MULTIPLE = 8


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs of a classifier with their classes; arrays become tensors.

    Attributes:
        inputs: ``(n, ...)``: token ids ``(n, T)``, images ``(n, channels, height, width)``, or what
            else the model takes.
        labels: ``(n,)`` classes from 0 on; of two classes also -1 and +1.
        mask: ``(n, T)``, True at tokens; padding follows the tokens of a text. None where every
            position counts.

    Raises:
        InputError: no examples, other lengths, labels that are not classes, a text without a token
            or with padding inside.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        inputs, labels = _tensor(self.inputs), _tensor(self.labels)
        n = len(inputs) if inputs.ndim else 0
        if not n or labels.shape != (n,):
            raise InputError(
                f"inputs have shape {tuple(inputs.shape)} and labels {tuple(labels.shape)}; give"
                " one label per input"
            )
        whole = labels.long()
        if (
            not torch.equal(whole.to(labels.dtype), labels)
            or whole.min() < -1
            or (whole.min() == -1 and not bool((whole.abs() == 1).all()))
        ):
            raise InputError("labels are not classes; give whole numbers from 0 on, or -1 and +1")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "labels", torch.where(whole < 0, 0, whole))
        if self.mask is not None:
            mask = _tensor(self.mask).bool()
            if mask.shape != inputs.shape[:2]:
                raise InputError(
                    f"the mask has shape {tuple(mask.shape)}, inputs {tuple(inputs.shape)}; give"
                    " one entry per token"
                )
            if not mask[:, 0].all() or bool((mask[:, 1:] & ~mask[:, :-1]).any()):
                raise InputError(
                    "the mask has padding before a token; texts begin at position 0 and padding"
                    " follows them"
                )
            object.__setattr__(self, "mask", mask)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: slice | ArrayLike) -> Examples:
        """Some of the examples."""
        index = rows if isinstance(rows, slice) else torch.as_tensor(np.asarray(rows))
        return Examples(
            self.inputs[index], self.labels[index], None if self.mask is None else self.mask[index]
        )

    @property
    def lengths(self) -> IntArray:
        """``(n,)``: tokens of each text; without a mask the second side of the inputs."""
        if self.mask is None:
            return np.full(
                len(self), self.inputs.shape[1] if self.inputs.ndim > 1 else 1, dtype=np.int64
            )
        return self.mask.sum(dim=1).cpu().numpy().astype(np.int64)

    def digest(self) -> str:
        """SHA-256 of shapes and values."""
        digest = hashlib.sha256()
        for tensor in (self.inputs, self.labels, self.mask):
            if tensor is not None:
                array = np.ascontiguousarray(tensor.detach().cpu().numpy())
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(array.data)
        return digest.hexdigest()


class Placed:
    """Examples on a device, handed out in pieces that are trimmed to their longest text."""

    def __init__(self, examples: Examples, device: torch.device) -> None:
        self.inputs, self.labels = examples.inputs.to(device), examples.labels.to(device)
        self.mask = None if examples.mask is None else examples.mask.to(device)
        self.lengths = examples.lengths
        self.classes = int(examples.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, index: Tensor, longest: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Arguments of the model, and labels, of the rows ``index``, of which no text has more than
        ``longest`` tokens.
        """
        if self.mask is None:
            return (self.inputs[index],), self.labels[index]
        length = min(-(-longest // _MULTIPLE) * _MULTIPLE, self.inputs.shape[1])
        return (self.inputs[:, :length][index], self.mask[:, :length][index]), self.labels[index]


class Schedule:
    """Which rows every step takes, cut into pieces of similar length, all of it on the device
    before the first step.

    Args:
        examples: what the rows are of.
        steps: rows of every step.
        parts: pieces of one step; sizes differ by one at most, and empty ones are left out.
        rank: this process takes every ``size``-th row of a step, in order of length, from this one
            on.
        size: number of processes.
    """

    def __init__(
        self, examples: Placed, steps: list[IntArray], parts: int, rank: int = 0, size: int = 1
    ) -> None:
        lengths = examples.lengths
        mine = [rows[np.argsort(-lengths[rows], kind="stable")][rank::size] for rows in steps]
        self._index = torch.from_numpy(np.concatenate(mine)).to(examples.inputs.device)
        self._cuts: list[list[tuple[int, int, int]]] = []
        start = 0
        for rows in mine:
            bounds = start + np.linspace(0, len(rows), parts + 1).round().astype(int)
            pairs = [(a, b) for a, b in pairwise(bounds.tolist()) if a < b]
            # longest first
            self._cuts.append([(a, b, int(lengths[rows[a - start]])) for a, b in pairs])
            start += len(rows)

    def pieces(self, step: int) -> Iterator[tuple[Tensor, int]]:
        """Rows, and the length of their longest text, of every piece of a step."""
        return ((self._index[a:b], longest) for a, b, longest in self._cuts[step])


def shuffled(n: int, batch: int, seed: int, epoch: int) -> list[IntArray]:
    """The rows of every step of an epoch: a permutation that depends on seed and epoch alone, cut
    in pieces; the last may be short.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n).astype(np.int64)
    return [order[start : start + batch] for start in range(0, n, batch)]


def _tensor(values: Tensor | ArrayLike) -> Tensor:
    return values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
