"""One softmax-attention layer with one query per sequence, many runs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.models.heads import LinearHead
from attsvm.models.losses import LogScale, logistic_loss
from attsvm.models.softmax import Selection, attend, select

Init = ArrayLike | Literal["zeros"] | tuple[Literal["uniform"], int]


@dataclass(frozen=True)
class Sequences:
    """An :class:`~attsvm.AttentionData` as torch tensors, plus the tokens minus their sequence's mean.

    Logits matter only up to a constant per sequence, so they are computed from the centred tokens: a large common part
    then costs no digits.
    """

    tokens: Tensor
    centred: Tensor
    queries: Tensor
    labels: Tensor
    mask: Tensor

    @classmethod
    def of(cls, data: AttentionData, like: Tensor) -> Sequences:
        """The data with the dtype and on the device of ``like``."""
        mean = data.tokens.sum(axis=-2, keepdims=True) / data.lengths[..., None, None]
        centred = np.where(data.mask[..., None], data.tokens - mean, 0.0)
        tokens, middle, queries, labels = (
            torch.tensor(array, dtype=like.dtype, device=like.device) for array in (data.tokens, centred, data.queries, data.labels)
        )
        return cls(tokens, middle, queries, labels, torch.tensor(data.mask, device=like.device))


class Attention(nn.Module):
    r"""Cross-attention in the combined parameterisation, :math:`f_i=h\big(X_i^\top\mathrm{softmax}(X_iWz_i)\big)`.

    There is no :math:`1/\sqrt d` in the logits. Build it with :meth:`cross`.

    Attributes:
        W: parameter ``(d_x, d_z)``, or ``(runs, d_x, d_z)``.
        head: the head ``h``; ``head.readout`` is a parameter when it is trained.
        runs: number of runs, ``None`` for a model without run axis.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines*, the model with weights W.
    """

    def __init__(self, W: Tensor, head: LinearHead) -> None:
        super().__init__()
        self.W = nn.Parameter(W)
        self.head = head
        self.runs = int(W.shape[0]) if W.ndim == 3 else None

    @classmethod
    def cross(
        cls,
        data: AttentionData,
        head: ArrayLike,
        intercept: ArrayLike | None = 0.0,
        runs: int | None = None,
        init: Init = "zeros",
        train_head: bool = False,
    ) -> Attention:
        r"""A model that fits ``data`` in shape. Only shapes are read; the data itself is passed again to every method.

        Args:
            data: one instance for all runs, or with one leading axis: one instance per run.
            head: :math:`v`, ``(d_x,)`` or ``(runs, d_x)``.
            intercept: :math:`b`, a number or ``(runs,)``; None for a head that has none (and trains none).
            runs: number of runs; read from the leading axis of ``data`` when left out.
            init: ``"zeros"``; an array ``(d_x, d_z)`` or ``(runs, d_x, d_z)``; or ``("uniform", seed)``, entries uniform on
                :math:`[-1/\sqrt{d_x}, 1/\sqrt{d_x}]`, run ``r`` drawn from its own generator ``(seed, r)``.
            train_head: whether the head is a parameter, beside ``W``.

        Raises:
            InputError: shapes that do not match, more than one leading axis, values that are not finite, an unknown ``init``.
        """
        count = _runs(data, runs)
        lead = () if count is None else (count,)
        shape = (*lead, data.d_x, data.d_z)
        W = _spread("init", init, shape, 2) if not isinstance(init, (str, tuple)) else _initial(init, shape)
        v = _spread("head", head, (*lead, data.d_x), 1)
        b = None if intercept is None else torch.from_numpy(_spread("intercept", intercept, lead, 0))
        return cls(torch.from_numpy(W), LinearHead(torch.from_numpy(v), b, train_head))

    def sequences(self, data: AttentionData | Sequences) -> Sequences:
        """``data`` as tensors beside ``W``; convert once when calling many times.

        Raises:
            InputError: the data does not match the model's dimensions or runs.
        """
        if isinstance(data, Sequences):
            return data
        if (data.d_x, data.d_z) != tuple(self.W.shape[-2:]):
            raise InputError(
                f"the data has d_x={data.d_x}, d_z={data.d_z} but the model's W is {tuple(self.W.shape[-2:])}; use data of that shape"
            )
        if data.batch_shape not in ((), (self.runs,)):
            raise InputError(
                f"the data has leading axes {data.batch_shape} but the model has runs={self.runs}; give one instance, or one per run"
            )
        return Sequences.of(data, self.W)

    def logits(self, data: AttentionData | Sequences) -> Tensor:
        r"""``([runs], n, T)``: :math:`a_{it}=x_{it}^\top Wz_i`, measured from their mean over the sequence; hidden tokens hold zeros."""
        sequences = self.sequences(data)
        moved = sequences.queries @ self.W.mT
        return (sequences.centred @ moved[..., None])[..., 0]

    def selection(self, data: AttentionData | Sequences) -> Selection:
        """Selected tokens and log-probabilities."""
        sequences = self.sequences(data)
        return select(self.logits(sequences), sequences.mask)

    def probabilities(self, data: AttentionData | Sequences) -> Tensor:
        """``([runs], n, T)``: attention probabilities."""
        return self.selection(data).probability

    def selected(self, data: AttentionData | Sequences) -> Tensor:
        """``([runs], n)``: position of the token with the largest logit, the first one on ties."""
        return self.selection(data).winner

    def forward(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        """``([runs], n)``: decision values of soft attention; ``scale`` as in :func:`~attsvm.models.attend`."""
        sequences = self.sequences(data)
        values: Tensor = self.head(attend(self.logits(sequences), sequences.tokens, sequences.mask, scale))
        return values

    def hard_values(self, data: AttentionData | Sequences) -> Tensor:
        """``([runs], n)``: decision values when each sequence is reduced to its selected token."""
        sequences = self.sequences(data)
        winner = self.selected(sequences)
        tokens = sequences.tokens.expand(*winner.shape, *sequences.tokens.shape[-2:])
        chosen = tokens.gather(-2, winner[..., None, None].expand(*winner.shape, 1, tokens.shape[-1]))[..., 0, :]
        values: Tensor = self.head(chosen)
        return values

    def loss(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        r"""``([runs],)``: mean logistic loss :math:`\frac1n\sum_i\log(1+e^{-Y_if_i})` of each run.

        Args:
            data: what to evaluate on.
            scale: when given, ``loss.sum().backward()`` stores gradients divided by a positive factor per run, so that they
                neither underflow nor overflow, and writes the logarithms of the factors into ``scale``. For optimisers
                that normalise. Without it the gradients are the true ones.
        """
        sequences = self.sequences(data)
        return logistic_loss(sequences.labels * self(sequences, scale), scale)


def _runs(data: AttentionData, runs: int | None) -> int | None:
    if len(data.batch_shape) > 1:
        raise InputError(f"data has leading axes {data.batch_shape}; a model takes at most one, the runs")
    if runs is not None and runs < 1:
        raise InputError(f"runs is {runs}; ask for at least one run, or None for a model without run axis")
    if data.batch_shape and runs not in (None, data.batch_shape[0]):
        raise InputError(f"runs is {runs} but data holds {data.batch_shape[0]} instances; leave runs out or make them equal")
    return data.batch_shape[0] if data.batch_shape else runs


def _spread(name: str, value: Any, shape: tuple[int, ...], own: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``value`` as a fresh float64 array of ``shape``, of which the last ``own`` axes must be given."""
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    if array.shape not in (shape, shape[len(shape) - own :]):
        raise InputError(f"{name} has shape {array.shape}; it must be {shape[len(shape) - own :]} or {shape}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} holds a value that is not finite; every value must be finite")
    return np.array(np.broadcast_to(array, shape), order="C")


def _initial(init: str | tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    if init == "zeros":
        return np.zeros(shape)
    if isinstance(init, tuple) and len(init) == 2 and init[0] == "uniform":
        width = 1.0 / np.sqrt(shape[-2])
        count = shape[0] if len(shape) == 3 else 1
        drawn = np.stack([np.random.default_rng([int(init[1]), r]).uniform(-width, width, shape[-2:]) for r in range(count)])
        return drawn.reshape(shape)
    raise InputError(f"init is {init!r}; use 'zeros', an array, or ('uniform', seed)")
