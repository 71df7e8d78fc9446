"""Attention, a linear head and the loss in one compiled pass, with the gradients beside them; the
structs that it reads are made once for a :class:`~attsvm.attention.sequences.Sequences`, which
holds them in ``compiled_passes``.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attsvm import native
from attsvm.attention.sequences import Sequences
from attsvm.base.cores import WORTH_SHARING, map_on_threads, task_ranges, threads
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray


class PassResult(NamedTuple):
    """The losses of all runs with their gradients.

    Attributes:
        weights: gradients ``(runs, d_k, d_z)`` of the weights, or ``(runs, n, d_k)`` of the moved
            queries.
        readout: gradients ``(runs, width)``; no columns for a fixed head.
        losses: ``(runs,)``.
        factors: ``(3, runs)``, logarithms of what the gradients were divided by: by the slopes of
            the loss, on top of it that of the weights, in all that of the readout. Without
            ``rescale`` nothing was divided and they say what would have been.
    """

    weights: FloatArray
    readout: FloatArray
    losses: FloatArray
    factors: FloatArray


class CompiledPass:
    """The pass over some sequences, for a number of runs.

    Args:
        sequences: what is attended to.
        runs: how many.
        trained: whether the readout has a gradient.
        has_intercept: whether its last entry is an intercept.
        is_matrix: whether the weights move the queries of ``sequences``, or moved queries are
            passed.
    """

    def __init__(
        self, sequences: Sequences, runs: int, trained: bool, has_intercept: bool, is_matrix: bool
    ) -> None:
        count = _instance_count(sequences, runs, is_matrix)
        instances = [_instance_arrays(sequences, k, is_matrix) for k in range(count)]
        self._instances = instances * (runs // count)  # one per run
        self._is_matrix, self._trained = is_matrix, trained
        first = instances[0]
        n, d_k, d_z, d_x = (int(getattr(first, name)) for name in ("n", "d_k", "d_z", "d_x"))
        self.width = d_x + has_intercept
        # inputs and outputs of the pass, to which the structs point
        self._rows = np.zeros((runs, d_z if is_matrix else n, d_k))
        self._head = np.zeros((runs, d_x + 1))
        self._runs = [
            native.DescentRun(
                instance,
                head=self._head[r],
                winner=np.zeros(n, np.int64),
                margin=np.zeros(n),
                softmax_sum=np.zeros(n),
                head_width=self.width if trained else 0,
                **{"W" if is_matrix else "moved_queries": self._rows[r]},
            )
            for r, instance in enumerate(self._instances)
        ]
        self._pointers = native.pointers(self._runs)
        self._outputs = (
            np.empty(self._rows.shape),
            np.empty((runs, self.width if trained else 0)),
            np.empty((4, runs)),
        )
        self._room_size = max(native.library.descent_room(run) for run in self._runs)
        self._room = np.empty(self._room_size)
        self._output_addresses = [array.ctypes.data for array in self._outputs]
        self._room_address = self._room.ctypes.data
        operations = sum(int(s.N) * (60 + 4 * (d_k + d_x)) for s in self._instances)
        self._worth_sharing = operations > WORTH_SHARING and runs > 1
        self._scored_readout: bytes | None = None
        self._lock = threading.Lock()

    def __call__(
        self, weights: FloatArray, readout: FloatArray, code: int, rescale: bool
    ) -> PassResult:
        """Losses and gradients at these weights.

        Args:
            weights: ``(runs, d_k, d_z)``, or moved queries ``(runs, n, d_k)``.
            readout: ``(1 or runs, width)``.
            code: of the loss.
            rescale: whether gradients are divided by their factors.
        """
        runs = len(self._runs)
        rows = weights.swapaxes(-1, -2) if self._is_matrix else weights
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

        def evaluate(share: tuple[int, int]) -> None:
            room = np.empty(self._room_size)
            native.library.loss_gradients(
                self._pointers, *share, runs, rescale, *self._output_addresses, room.ctypes.data
            )

        with self._lock:  # one call at a time: all write to the same arrays
            self._rows[...] = rows
            self._set_head(readout)
            for run in self._runs:
                run.loss = code
            if self._worth_sharing:
                map_on_threads(evaluate, task_ranges(runs, threads()))
            else:
                native.library.loss_gradients(
                    *(self._pointers, 0, runs, runs, rescale),
                    *self._output_addresses,
                    self._room_address,
                )
            gradients, columns, figures = self._outputs
            gradients = gradients.swapaxes(-1, -2) if self._is_matrix else gradients
            figures = figures.copy()
            return PassResult(
                np.array(gradients, order="C"), columns.copy(), figures[0], figures[1:]
            )

    def _set_head(self, readout: FloatArray) -> None:
        """Take over the readout, and compute the scores of one that is not trained.

        Those stay while the readout is the same to the bit; comparing bytes sees what is written
        to its memory without torch's knowledge.
        """
        if self._trained:
            self._head[:, : self.width] = readout
            return
        if readout.tobytes() == self._scored_readout:
            return
        self._scored_readout = readout.tobytes()
        self._head[:, : self.width] = readout
        for r, (run, instance) in enumerate(zip(self._runs, self._instances, strict=True)):
            labels, start = instance.arrays["labels"], instance.arrays["start"]
            tokens = instance.arrays["values"]
            values = native.products_by_row(tokens, self._head[r : r + 1, :-1])[:, 0]
            run.fix_scores(np.repeat(labels, np.diff(start)) * values, labels * self._head[r, -1])


def compiled_pass_over(
    sequences: Sequences, runs: int, trained: bool, has_intercept: bool, is_matrix: bool
) -> CompiledPass:
    """The pass over these sequences, made at the first such call and held by them."""
    key = runs, trained, has_intercept, is_matrix
    if key not in sequences.compiled_passes:
        sequences.compiled_passes[key] = CompiledPass(sequences, *key)
    compiled: CompiledPass = sequences.compiled_passes[key]
    return compiled


def _instance_count(sequences: Sequences, runs: int, is_matrix: bool) -> int:
    """The number of instances that the tensors hold: one, or one per run.

    Raises:
        InputError: tensors that do not belong together.
    """
    n, T = sequences.mask.shape[-2:]
    d_k, d_x, d_z = (
        tensor.shape[-1] for tensor in (sequences.keys, sequences.values, sequences.queries)
    )
    expected: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("keys", sequences.keys, (n, T, d_k)),
        ("values", sequences.values, (n, T, d_x)),
        ("mask", sequences.mask, (n, T)),
        ("labels", sequences.labels, (n,)),
        ("queries", sequences.queries if is_matrix else None, (n, d_z)),
    ]
    counts = {1}
    for name, tensor, shape in expected:
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


def _instance_arrays(sequences: Sequences, k: int, is_matrix: bool) -> native.SequenceArrays:
    """Instance ``k``: the tokens that each query sees, end to end."""

    def instance_of(tensor: Tensor, axes: int) -> Any:
        array = tensor.detach().numpy()
        array = array.reshape(-1, *array.shape[array.ndim - axes :])
        return array[k if len(array) > 1 else 0]

    mask = instance_of(sequences.mask, 2)
    if mask.dtype != np.bool_ or not mask.any(axis=-1).all():
        raise InputError("the mask must be of truth values, and every query see a token")
    start = np.concatenate([[0], np.cumsum(mask.sum(axis=-1))]).astype(np.int64)
    tokens = np.ascontiguousarray(instance_of(sequences.values, 3)[mask])
    values = tokens, np.zeros((len(mask), tokens.shape[1])), (tokens == 0.0).all(axis=1)
    queries = instance_of(sequences.queries, 2).copy() if is_matrix else np.zeros((len(mask), 0))
    return native.SequenceArrays(
        instance_of(sequences.keys, 3)[mask],
        queries,
        instance_of(sequences.labels, 1).copy(),
        start,
        values,
        chunks=1,
    )
