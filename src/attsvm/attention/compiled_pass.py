"""Attention, a linear head and the loss in one compiled pass, with the gradients beside them; the
structs that it reads are made once for a :class:`~attsvm.attention.sequences.Sequences` and kept.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
from torch import Tensor

from attsvm import native
from attsvm.attention.sequences import Sequences
from attsvm.base.cores import WORTH_SHARING, shared_out, shares, threads
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray


class Fused:
    """The pass for so many runs.

    Args:
        sequences: what is attended to.
        runs: how many.
        trained: whether the readout has a gradient.
        has_intercept: whether its last entry is an intercept.
        matrix: whether the weights move the queries of ``sequences``, or moved queries are given.
    """

    def __init__(
        self, sequences: Sequences, runs: int, trained: bool, has_intercept: bool, matrix: bool
    ) -> None:
        parts = [
            _instance(sequences, k, matrix) for k in range(_instances(sequences, runs, matrix))
        ]
        first = parts[0]
        self._parts = parts * (runs // len(parts))
        self._matrix, self._trained = matrix, trained
        n, d_k, d_z, d_x = (int(getattr(first, name)) for name in ("n", "d_k", "d_z", "d_x"))
        self.width = d_x + has_intercept
        self._rows = np.zeros((runs, d_z if matrix else n, d_k))
        self._head = np.zeros((runs, d_x + 1))
        self._found = [np.zeros((runs, n), dtype) for dtype in (np.int64, float, float)]
        self._descents = (native.Descent * runs)()
        self._scored: list[Any] = []
        self._readout = b""
        for r, made in enumerate(self._descents):
            made.data = ctypes.pointer(self._parts[r])
            made.width = self.width if trained else 0
            rows = native.address(self._rows[r], np.float64, *self._rows.shape[1:])
            made.W, made.moved = (rows, None) if matrix else (None, rows)
            made.head = native.address(self._head[r], np.float64, d_x + 1)
            made.winner, made.margin, made.mass = (
                native.address(found[r], found.dtype.type, n) for found in self._found
            )
        self._size = max(native.library.descent_room(each) for each in self._descents)
        self._outputs = (
            np.empty(self._rows.shape),
            np.empty((runs, self.width if trained else 0)),
            np.empty((4, runs)),
        )
        self._room = np.empty(self._size)
        self._where = [each.ctypes.data for each in (*self._outputs, self._room)]
        operations = sum(int(s.N) * (60 + 4 * (d_k + d_x)) for s in self._parts)
        self._shared = operations > WORTH_SHARING and runs > 1
        self._lock = threading.Lock()

    def __call__(
        self, weights: FloatArray, readout: FloatArray, code: int, rescale: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradients ``(runs, d_k, d_z)`` of the weights or ``(runs, n, d_k)`` of the moved queries,
        those of the readout ``(runs, width)``, and ``(4, runs)``: losses, and logarithms of what
        was taken out: by the slopes, on top of it from the weights' gradient, in all from the
        readout's. Without ``rescale`` nothing is taken out and they say what would have been.

        Args:
            weights: ``(runs, d_k, d_z)``, or moved queries ``(runs, n, d_k)``.
            readout: ``(1 or runs, width)``.
            code: of the loss.
            rescale: whether gradients are divided by their factors.
        """
        runs = len(self._descents)
        rows = weights.swapaxes(-1, -2) if self._matrix else weights
        if rows.shape != self._rows.shape:
            raise InputError(
                f"the weights or moved queries have shape {weights.shape}; these sequences ask for"
                f" {self._rows.shape}"
            )
        if readout.shape not in ((1, self.width), (runs, self.width)):
            raise InputError(
                f"the readout has shape {readout.shape}; give one, or {runs}, of {self.width}"
                " entries"
            )

        def evaluate(part: tuple[int, int]) -> None:
            room = np.empty(self._size)
            where = (*self._where[:3], room.ctypes.data)
            native.library.losses(self._descents, *part, runs, rescale, *where)

        with self._lock:
            self._rows[...] = rows
            self._take_head(readout)
            if code != self._descents[0].loss:
                for made in self._descents:
                    made.loss = code
            if self._shared:
                shared_out(evaluate, shares(runs, threads()))
            else:
                native.library.losses(self._descents, 0, runs, runs, rescale, *self._where)
            gradients, columns, found = self._outputs
            gradients = gradients.swapaxes(-1, -2) if self._matrix else gradients
            return np.array(gradients, order="C"), columns.copy(), found.copy()

    def _take_head(self, readout: FloatArray) -> None:
        """The scores of a head that is not trained are kept while it stays the same, to the bit:
        memory may be written without torch's knowledge.
        """
        if self._trained:
            self._head[:, : self.width] = readout
            return
        written = readout.tobytes()
        if self._scored and written == self._readout:
            return
        self._readout = written
        self._head[:, : self.width] = readout
        self._scored.clear()
        for r, (made, s) in enumerate(zip(self._descents, self._parts, strict=True)):
            labels, start, (tokens, _, _) = s.arrays[2], s.arrays[3], s.arrays[5]
            values = native.products(tokens, self._head[r : r + 1, :-1])[:, 0]
            score = np.repeat(labels, np.diff(start)) * values
            shift = labels * self._head[r, -1]
            made.score = native.address(score, np.float64, s.N)
            made.shift = native.address(shift, np.float64, s.n)
            self._scored.append((score, shift))


def fused(
    sequences: Sequences, runs: int, trained: bool, has_intercept: bool, matrix: bool
) -> Fused:
    """The pass for these sequences, which they keep."""
    kept: dict[Any, Fused] = sequences.__dict__.setdefault("_fused", {})
    key = runs, trained, has_intercept, matrix
    if key not in kept:
        kept[key] = Fused(sequences, *key)
    return kept[key]


def _instances(sequences: Sequences, runs: int, matrix: bool) -> int:
    """How many instances the tensors hold: one, or one per run.

    Raises:
        InputError: tensors that do not belong together.
    """
    n, T = sequences.mask.shape[-2:]
    d_k, d_x, d_z = (
        each.shape[-1] for each in (sequences.keys, sequences.values, sequences.queries)
    )
    wanted: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("keys", sequences.keys, (n, T, d_k)),
        ("values", sequences.values, (n, T, d_x)),
        ("mask", sequences.mask, (n, T)),
        ("labels", sequences.labels, (n,)),
        ("queries", sequences.queries if matrix else None, (n, d_z)),
    ]
    counts = {1}
    for name, tensor, shape in wanted:
        if tensor is None:
            continue
        front = tuple(tensor.shape[: max(tensor.ndim - len(shape), 0)])
        if tuple(tensor.shape[len(front) :]) != shape or 0 in shape or len(front) > 1:
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)} beside a mask of shape"
                f" {tuple(sequences.mask.shape)}; give (..., {', '.join(map(str, shape))}), none of"
                " them 0"
            )
        counts |= {int(np.prod(front))}
    if not counts <= {1, runs}:
        raise InputError(
            f"the sequences are of {sorted(counts)} instances for {runs} runs; give one for all"
            " runs, or one per run"
        )
    return max(counts)


def _instance(sequences: Sequences, k: int, matrix: bool) -> native.Sequences:
    """One instance: the tokens that each query sees."""

    def of(tensor: Tensor, axes: int) -> Any:
        array = tensor.detach().numpy()
        array = array.reshape(-1, *array.shape[array.ndim - axes :])
        return array[k if len(array) > 1 else 0]

    mask = of(sequences.mask, 2)
    if mask.dtype != np.bool_ or not mask.any(axis=-1).all():
        raise InputError("the mask must be of truth values, and every query see a token")
    start = np.concatenate([[0], np.cumsum(mask.sum(axis=-1))]).astype(np.int64)
    tokens = np.ascontiguousarray(of(sequences.values, 3)[mask])
    values = tokens, np.zeros((len(mask), tokens.shape[1])), (tokens == 0.0).all(axis=1)
    queries = of(sequences.queries, 2).copy() if matrix else np.zeros((len(mask), 0))
    keys, labels = of(sequences.keys, 3)[mask], of(sequences.labels, 1).copy()
    return native.sequences(keys, queries, labels, start, values, chunks=1)
