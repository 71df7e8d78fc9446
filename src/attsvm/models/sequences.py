"""Data as a model reads it: tensors, keys measured from their mean, and one row per query."""

from __future__ import annotations

from dataclasses import dataclass

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
