"""Data as a model reads it: tensors, keys measured from their mean, and one row per query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import AttentionData, BoolArray, FloatArray, centred_tokens
from attsvm.errors import InputError


@dataclass(frozen=True)
class Sequences:
    """An :class:`~attsvm.AttentionData` as torch tensors, plus the keys minus their sequence's
    mean.

    Logits matter only up to a constant per sequence, so they are computed from the centred keys: a
    large common part then costs no digits. Each of the ``n`` sequences has ``q`` queries (one, or
    one per position); ``N = n q`` rows in all.

    Attributes:
        tokens: ``(..., n, T, d_x)``, what attention averages.
        centred: ``(..., n, T, d_k)``, centred keys (the tokens themselves without a key map).
        queries: ``(..., N, d_z)``.
        labels: ``(..., N)``.
        mask: ``(..., n, q, T)``, which tokens a query sees.
        weights: ``(..., N)``, weights of the rows in the loss; None for the plain mean.
    """

    tokens: Tensor
    centred: Tensor
    queries: Tensor
    labels: Tensor
    mask: Tensor
    weights: Tensor | None = None

    @cached_property
    def arrays(self) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray, FloatArray]:
        """Keys, tokens, mask, labels and weights (empty for the plain mean) as a compiled pass
        takes them, with one axis of instances.

        Raises:
            InputError: shapes that do not belong together.
        """
        n, q, T = self.mask.shape[-3:]
        weights = self.labels.new_empty((0, n * q)) if self.weights is None else self.weights
        return (
            self._array("centred", self.centred, (n, T, self.centred.shape[-1])),
            self._array("tokens", self.tokens, (n, T, self.tokens.shape[-1])),
            self._array("mask", self.mask, (n, q, T)),
            self._array("labels", self.labels, (n * q,)),
            self._array("weights", weights, (n * q,)),
        )

    def _array(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> Any:
        front = tuple(tensor.shape[: max(tensor.ndim - len(shape), 0)])
        if tuple(tensor.shape[len(front) :]) != shape or 0 in shape:
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)} beside a mask of shape"
                f" {tuple(self.mask.shape)}; give (..., {', '.join(map(str, shape))}), none of"
                " them 0"
            )
        if tensor.dtype not in (torch.float64, torch.bool):
            raise InputError(f"{name} is {tensor.dtype}; the compiled passes take torch.float64")
        return tensor.detach().reshape(math.prod(front), *shape).contiguous().numpy()

    @cached_property
    def instances(self) -> int:
        """How many instances the arrays hold: one, or one per run.

        Raises:
            InputError: arrays of different numbers.
        """
        counts = {len(array) for array in self.arrays[:4]} | {1}
        counts |= {len(self.arrays[4])} - {0}
        if len(counts) > 2 or 0 in counts:
            raise InputError(
                f"keys, tokens, mask, labels and weights are of {sorted(counts)} instances; give"
                " one for all runs, or one per run"
            )
        return max(counts)

    def scores(self, readout: FloatArray) -> FloatArray:
        r"""``(k, n, T)``: values :math:`v^\top x_{it}` of all tokens; kept while the readout stays
        the same, as a fixed head does.

        Args:
            readout: ``(runs or 1, d_x)``, or with an intercept as the last entry, which plays no
                part.
        """
        instances, rows = self.instances, len(readout) if readout.ndim == 2 else 0
        width = self.tokens.shape[-1]
        if rows == 0 or readout.shape[1] not in (width, width + 1) or 1 < instances != rows > 1:
            raise InputError(
                f"the readout has shape {readout.shape} for {instances} instances; give (1 or runs,"
                f" {width}), or one more with an intercept"
            )
        known: tuple[bytes, FloatArray] | None = self.__dict__.get("_scored")
        asked = readout.tobytes()  # bits, for memory may be written without torch's knowledge
        if known is None or known[0] != asked:
            from attsvm.models.compiled import token_scores

            tokens = self.arrays[1]
            known = asked, np.empty((max(len(tokens), len(readout)), *tokens.shape[1:3]))
            token_scores(tokens, readout, known[1])
            self.__dict__["_scored"] = known  # where cached_property keeps its values too
        return known[1]


@dataclass(frozen=True)
class Reading:
    """How a model reads data.

    Attributes:
        keys: ``(d_k, d_x)``, the fixed map from tokens to keys; None for the identity.
        prompt: whether one prompt takes the place of the queries (they count as one-dimensional
            ones).
        labels: ``(..., n, T)`` labels of positions, when every position is a query; None when the
            data's queries ask.
        causal: whether a position sees only the positions up to its own.
    """

    keys: FloatArray | None = None
    prompt: bool = False
    labels: FloatArray | None = None
    causal: bool = False

    def dimensions(self, data: AttentionData) -> tuple[int, int]:
        """``(d_k, d_z)``: the shape of the combined weights."""
        d_k = data.d_x if self.keys is None else int(self.keys.shape[0])
        return d_k, 1 if self.prompt else data.d_x if self.labels is not None else data.d_z

    def read(self, data: AttentionData, like: Tensor) -> Sequences:
        """The data with the dtype and on the device of ``like``.

        Raises:
            InputError: tokens of another size than the key map takes, labels of another shape than
                the positions.
        """

        def tensor(array: FloatArray) -> Tensor:
            return torch.tensor(array, dtype=like.dtype, device=like.device)

        if self.keys is not None and self.keys.shape[1] != data.d_x:
            raise InputError(
                f"the data has d_x={data.d_x} but the model's key map takes tokens of"
                f" {self.keys.shape[1]} features"
            )
        centred = centred_tokens(data)
        centred = centred if self.keys is None else centred @ self.keys.T
        queries, labels, mask, weights = data.queries, data.labels, data.mask[..., None, :], None
        if self.prompt:
            queries = np.ones((*labels.shape, 1))
        if self.labels is not None:
            queries, labels, mask, weights = _positions(data, self.labels, self.causal)
        return Sequences(
            tensor(data.tokens),
            tensor(centred),
            tensor(queries),
            tensor(labels),
            torch.tensor(mask, device=like.device),
            None if weights is None else tensor(weights),
        )


def _positions(
    data: AttentionData, labels: FloatArray, causal: bool
) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray | None]:
    """Queries, labels, mask and weights of a model in which every position asks. A hidden position
    sees only itself and weighs nothing.
    """
    shape = data.mask.shape
    if labels.shape not in (shape, shape[len(data.batch_shape) :]):
        raise InputError(
            f"the model has labels for positions {labels.shape} but the data has positions {shape};"
            " they must be equal"
        )
    sees = data.mask[..., None, :] & data.mask[..., :, None]
    if causal:
        sees = sees & np.tri(data.T, dtype=np.bool_)
    sees = sees | (np.eye(data.T, dtype=np.bool_) & ~data.mask[..., :, None])
    flat = (*data.batch_shape, data.n * data.T)
    weights = None
    if not data.mask.all():
        weights = (data.mask / data.lengths.sum(axis=-1)[..., None, None]).reshape(flat)
    signs = np.broadcast_to(labels, shape).reshape(flat)
    return data.tokens.reshape(*flat, data.d_x), signs, sees, weights
