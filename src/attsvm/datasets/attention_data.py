"""Sequences of tokens, each with one query and one label: what a softmax-attention layer is trained
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import brief, load_arrays, save_arrays
from attsvm.base.presentation import plot
from attsvm.base.printable import kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def as_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """``value`` as a NumPy array; torch tensors are taken off their device and graph, and bfloat16,
    which NumPy lacks, is held by float32 exactly.

    Raises:
        InputError: rows of different lengths.
    """
    if hasattr(value, "detach"):
        tensor: Any = cast(Any, value).detach().cpu()
        value = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"{name} is not a rectangular array ({error}); pad it and give a mask, or use"
            " AttentionData.from_bags"
        ) from None
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array  # of ml_dtypes


def real_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """``value`` as a NumPy array of real numbers or booleans, whatever their width.

    Raises:
        InputError: rows of different lengths, or complex numbers, dates, texts or objects, none of
            which is ever converted.
    """
    array = as_array(name, value)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has dtype {array.dtype}; give real numbers")
    return array


def floats(name: str, value: ArrayLike) -> FloatArray:
    """:func:`real_array` in float64."""
    with np.errstate(invalid="ignore"):  # of a NaN that signals, which callers refuse
        return np.asarray(real_array(name, value), dtype=np.float64)


def broadcast(name: str, value: ArrayLike, shape: tuple[int, ...], least: int) -> FloatArray:
    """``value`` as a fresh float64 array of ``shape``; it has all of these axes, or the last
    ``least`` ones.

    Raises:
        InputError: another shape, or a value that is not finite.
    """
    array = floats(name, value)
    shortest = shape[len(shape) - least :]
    if array.shape not in (shape, shortest):
        shapes = f"{shortest or 'a number'}{f' or {shape}' if shape != shortest else ''}"
        raise InputError(f"{name} has shape {array.shape}; it must be {shapes}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} holds a value that is not finite; every value must be finite")
    return np.array(np.broadcast_to(array, shape), order="C")


def given_away(array: FloatArray) -> FloatArray:
    """A fresh array that nobody else writes to, marked so that :class:`AttentionData` keeps it
    instead of a copy.
    """
    array.setflags(write=False)
    return array


def _to_float(name: str, value: ArrayLike) -> FloatArray:
    array = real_array(name, value)
    if (
        array.dtype == np.float64
        and array.flags.c_contiguous
        and array.base is None
        and not array.flags.writeable
    ):
        return array  # nobody writes to it, so it is shared: large data needs no second copy
    # Otherwise a copy: the dataclass is frozen and must not change when the caller's array does.
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        return np.array(array, dtype=np.float64, order="C")


def _require_finite(name: str, array: FloatArray) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        where = np.argwhere(~finite)[0]
        value = array[tuple(where)]
        raise InputError(
            f"{name} of shape {array.shape} holds {value} at {where.tolist()}; every value must be"
            " finite"
        )


@dataclass(frozen=True)
class AttentionData:
    r"""Token sequences with queries and labels, :math:`(X_i, z_i, Y_i)_{i\le n}`.

    Shapes may carry any leading axes in front (independent instances, one per run).

    Attributes:
        tokens: ``(..., n, T, d_x)``, row ``tokens[i, t]`` is token :math:`x_{it}`. Masked tokens
            are stored as zeros.
        labels: ``(..., n)`` with values -1.0 or +1.0.
        queries: ``(..., n, d_z)``. When left out, the first visible token of each sequence
            (self-attention). ``d_z`` need not equal ``d_x``.
        mask: ``(..., n, T)`` booleans, True where the token exists. When left out, every token
            exists.

    All arrays are float64 copies and read-only.

    Raises:
        InputError: wrong rank or shape, a value that is not finite, a label other than -1 and +1,
            no sequence, no token, or a sequence whose mask hides everything.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[1.0, 0.0], [0.0, 2.0]]], labels=[1.0], queries=[[0.5]])
        >>> data
        AttentionData(1 sequences of 2 tokens, d_x=2, d_z=1, 1 of 1 labels +1)
        >>> attsvm.AttentionData.from_bags([[[1.0]], [[2.0], [3.0]]], labels=[1, -1]).mask.tolist()
        [[True, False], [True, True]]
    """

    tokens: FloatArray
    labels: FloatArray
    queries: FloatArray = field(default=None)  # type: ignore[arg-type]
    mask: BoolArray = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        tokens = _to_float("tokens", self.tokens)
        if tokens.ndim < 3:
            raise InputError(
                f"tokens has shape {tokens.shape}; it needs at least three axes (sequences, tokens,"
                " features)"
            )
        for axis, what in ((-3, "sequences"), (-2, "tokens"), (-1, "features")):
            if tokens.shape[axis] == 0:
                raise InputError(
                    f"tokens has shape {tokens.shape}, so there are no {what}; give at least one"
                )
        mask = self._checked_mask(self.mask, tokens.shape[:-1])
        with np.errstate(invalid="ignore"):  # of a NaN that signals
            hidden = tokens.any(axis=-1) & ~mask
        if hidden.any():
            tokens = tokens if tokens.flags.writeable else tokens.copy()
            tokens[~mask] = 0.0
        _require_finite("tokens", tokens)
        labels = self._checked_labels(self.labels, tokens.shape[:-2])
        queries = self._checked_queries(self.queries, tokens, mask)
        for name, array in (
            ("tokens", tokens),
            ("labels", labels),
            ("queries", queries),
            ("mask", mask),
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @staticmethod
    def _checked_mask(value: ArrayLike | None, shape: tuple[int, ...]) -> BoolArray:
        if value is None:
            return np.ones(shape, dtype=np.bool_)
        raw = real_array("mask", value)
        if raw.shape != shape:
            raise InputError(f"mask has shape {raw.shape}; it must be {shape}, one entry per token")
        if raw.dtype.kind != "b" and not np.isin(raw, (0, 1)).all():
            where = np.argwhere(~np.isin(raw, (0, 1)))[0]
            raise InputError(
                f"mask holds {raw[tuple(where)]} at {where.tolist()}; use booleans or 0 and 1"
            )
        mask: BoolArray = np.array(raw, dtype=np.bool_, order="C")
        hidden = ~mask.any(axis=-1)
        if hidden.any():
            raise InputError(
                f"mask hides every token of sequence {np.argwhere(hidden)[0].tolist()}; drop the"
                " sequence or show a token"
            )
        return mask

    @staticmethod
    def _checked_labels(value: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
        labels = _to_float("labels", value)
        if labels.shape != shape:
            raise InputError(
                f"labels has shape {labels.shape}; it must be {shape}, one label per sequence"
            )
        wrong = (labels != 1.0) & (labels != -1.0)
        if wrong.any():
            where = np.argwhere(wrong)[0]
            if np.isfinite(labels).all() and len(classes := np.unique(labels)) > 2:
                raise InputError(
                    f"labels holds {len(classes)} different values; labels must be -1 or +1: choose"
                    f" a class against the others, np.where(labels == {classes[-1]:g}, 1, -1)"
                )
            raise InputError(
                f"labels holds {labels[tuple(where)]:g} at {where.tolist()}; labels must be -1 or"
                " +1 (for 0 and 1, pass 2*y-1)"
            )
        return labels

    @staticmethod
    def _checked_queries(
        value: ArrayLike | None, tokens: FloatArray, mask: BoolArray
    ) -> FloatArray:
        if value is None:
            first = np.argmax(mask, axis=-1)[..., None, None]
            return np.ascontiguousarray(np.take_along_axis(tokens, first, axis=-2)[..., 0, :])
        queries = _to_float("queries", value)
        if queries.ndim != tokens.ndim - 1 or queries.shape[:-1] != tokens.shape[:-2]:
            leading = ", ".join(map(str, tokens.shape[:-2]))
            raise InputError(
                f"queries has shape {queries.shape}; it must be ({leading}, d_z), one query per"
                " sequence"
            )
        if queries.shape[-1] == 0:
            raise InputError(
                f"queries has shape {queries.shape}, so it has no features; give at least one"
            )
        _require_finite("queries", queries)
        return queries

    @classmethod
    def from_bags(
        cls, bags: Sequence[ArrayLike], labels: ArrayLike, queries: ArrayLike | None = None
    ) -> AttentionData:
        """Data from sequences of different lengths: ``bags[i]`` has shape ``(T_i, d_x)``.

        Raises:
            InputError: no bags, an empty bag, a bag of another rank or feature count, or what the
                class itself refuses.
        """
        if axes(bags) == 0 or isinstance(bags, AttentionData):
            raise InputError(
                f"bags is {kind(bags)}; give a list of arrays, each (tokens, features)"
            )
        if len(bags) == 0:
            raise InputError("bags is empty; give at least one sequence")
        if axes(bags) == 1 and axes(labels) > 1:
            raise InputError(
                "bags holds a number per sequence and labels an array per sequence; give the bags"
                " first and the labels second"
            )
        arrays = [real_array(f"bags[{i}]", bag) for i, bag in enumerate(bags)]
        width = arrays[0].shape[-1] if arrays[0].ndim == 2 else 0
        for i, array in enumerate(arrays):
            if array.ndim != 2:
                raise InputError(
                    f"bags[{i}] has shape {array.shape}; each sequence must be (tokens, features)"
                )
            if array.shape[0] == 0:
                raise InputError(f"bags[{i}] has no tokens; drop the sequence or give it a token")
            if array.shape[1] != width:
                raise InputError(
                    f"bags[{i}] has {array.shape[1]} features, bags[0] has {width}; all tokens need"
                    " the same number"
                )
        lengths = np.array([len(array) for array in arrays])
        mask = np.arange(lengths.max()) < lengths[:, None]
        tokens = np.zeros((*mask.shape, width))
        tokens[mask] = np.concatenate(arrays)
        return cls(tokens, labels, queries, mask)  # type: ignore[arg-type]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes in front of the sequences; ``()`` for one instance."""
        return self.tokens.shape[:-3]

    @property
    def n(self) -> int:
        """Number of sequences (per instance)."""
        return int(self.tokens.shape[-3])

    @property
    def T(self) -> int:
        """Length of the longest sequence."""
        return int(self.tokens.shape[-2])

    @property
    def d_x(self) -> int:
        """Features of a token."""
        return int(self.tokens.shape[-1])

    @property
    def d_z(self) -> int:
        """Features of a query."""
        return int(self.queries.shape[-1])

    @property
    def lengths(self) -> IntArray:
        """``(..., n)``: the number of visible tokens of each sequence."""
        return self.mask.sum(axis=-1)

    def instance(self, *index: int) -> AttentionData:
        """One instance out of the leading axes: ``data.instance(3)`` where
        ``batch_shape == (100,)``.

        Raises:
            InputError: the number of indices differs from the number of leading axes.
        """
        if len(index) != len(self.batch_shape):
            raise InputError(
                f"instance needs {len(self.batch_shape)} indices for leading axes"
                f" {self.batch_shape}, got {len(index)}"
            )
        return AttentionData(
            self.tokens[index], self.labels[index], self.queries[index], self.mask[index]
        )

    def take(self, sequences: ArrayLike) -> AttentionData:
        """The sequences at these positions (integers or a boolean mask), padding trimmed to the
        longest one left.
        """
        chosen = np.asarray(sequences)
        mask = self.mask[..., chosen, :]
        visible = np.flatnonzero(mask.reshape(-1, self.T).any(axis=0))
        stop = int(visible[-1]) + 1 if len(visible) else 1
        return AttentionData(
            given_away(self.tokens[..., chosen, :stop, :]),
            self.labels[..., chosen],
            self.queries[..., chosen, :],
            mask[..., :stop],
        )

    def duplicate_tokens(self) -> BoolArray:
        """``(..., n, T)``: True where a visible token equals an earlier visible token of its
        sequence, bit for bit.

        Equal tokens always have equal attention logits, so no weights can select one over the
        other.
        """
        duplicate = np.zeros(self.mask.shape, dtype=np.bool_)
        flat_tokens = self.tokens.reshape(-1, self.T, self.d_x)
        flat_mask, flat_out = self.mask.reshape(-1, self.T), duplicate.reshape(-1, self.T)
        for i in np.flatnonzero(_may_repeat(flat_tokens, flat_mask)):
            visible = np.flatnonzero(flat_mask[i])
            held = flat_tokens[i, visible] + 0.0  # -0.0 and 0.0 are the same token
            _, first, inverse = np.unique(held, axis=0, return_index=True, return_inverse=True)
            flat_out[i, visible] = first[inverse.reshape(-1)] != np.arange(len(visible))
        return duplicate

    def without_duplicates(self) -> AttentionData:
        """Data with every repeated token of a sequence masked, but for its first occurrence."""
        return AttentionData(
            self.tokens, self.labels, self.queries, self.mask & ~self.duplicate_tokens()
        )

    def __repr__(self) -> str:
        lengths = self.lengths
        least, most = int(lengths.min()), int(lengths.max())
        tokens = f"{most}" if least == most else f"{least} to {most}"
        lead = "" if self.tokens.ndim == 3 else f"{self.tokens.shape[:-3]} instances, "
        positive = f"{int((self.labels > 0).sum())} of {self.labels.size}"
        return (
            f"AttentionData({lead}{self.tokens.shape[-3]} sequences of {tokens} tokens,"
            f" d_x={self.d_x}, d_z={self.queries.shape[-1]}, {positive} labels +1)"
        )

    def plot(self, tokens: ArrayLike | None = None, ax: Axes | None = None) -> Axes:
        """A picture of tokens with two features: one colour per sequence, the selected tokens
        filled and joined to their rivals.

        Args:
            tokens: ``(n,)``, the selected token of each sequence; none when left out.
            ax: where to draw; new axes of pyplot when left out.

        Raises:
            InputError: tokens that do not lie in the plane, several instances, or positions that
                are not tokens.
        """
        return plot("data", self, ax, tokens=tokens)

    def save(self, path: str | Path) -> None:
        """Write arrays ``X``, ``y``, ``Z`` and ``mask`` to ``.npz`` or ``.safetensors``; see
        :func:`attsvm.base.files.save_arrays`.
        """
        save_arrays({key: getattr(self, name) for name, key in _KEYS.items()}, path)

    @classmethod
    def load(cls, path: str | Path) -> AttentionData:
        """The data of a file; see :meth:`read`."""
        return cls.read(path)[0]

    @classmethod
    def read(cls, path: str | Path) -> tuple[AttentionData, dict[str, NDArray[Any]]]:
        r"""Data and whatever else a file holds (a head ``v``, selected tokens, ...).

        Arrays: ``X`` :math:`(\ldots, n, T, d_x)` tokens, ``y`` :math:`(\ldots, n)` labels of -1 and
        +1, ``Z``
        :math:`(\ldots, n, d_z)` queries (default: the first visible token), ``mask``
        :math:`(\ldots, n, T)` (default: all visible).

        Raises:
            InputError: what :func:`attsvm.base.files.load_arrays` refuses, no ``X`` or no ``y``, or
                arrays that do not fit each other.
        """
        return cls.from_arrays(path, load_arrays(path))

    @classmethod
    def from_arrays(
        cls, path: str | Path, arrays: dict[str, NDArray[Any]]
    ) -> tuple[AttentionData, dict[str, NDArray[Any]]]:
        """Data and whatever else the arrays of a file hold; see :meth:`read`."""
        for key in ("X", "y"):
            if key not in arrays:
                held = brief(", ".join(sorted(arrays)) or "no arrays")
                raise InputError(
                    f"{path} has no array {key} (it holds {held}); store tokens as X and labels"
                    " as y"
                )
        known_arrays = {name: arrays.pop(key, None) for name, key in _KEYS.items()}
        try:
            return cls(**known_arrays), arrays  # type: ignore[arg-type]
        except InputError as error:
            name, _, rest = str(error).partition(" ")
            raise InputError(f"{path}: {_KEYS.get(name, name)} {rest}") from None


def axes(value: Any) -> int:
    """The axes of an array, or of arrays or lists in one another as far as their first entries
    tell; 0 for what is neither.
    """
    if isinstance(ndim := getattr(value, "ndim", None), int):
        nested = ndim > 0 and len(value) > 0 and getattr(value, "dtype", None) == np.dtype(object)
        return ndim + (axes(np.asarray(value).flat[0]) if nested else 0)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return 0
    return 1 + (axes(value[0]) if len(value) else 0)


def mean_tokens(data: AttentionData) -> FloatArray:
    """``(..., n, d_x)``: the mean of the visible tokens of each sequence (masked tokens are stored
    as zeros).
    """
    return data.tokens.sum(axis=-2) / data.lengths[..., None]


def centred_tokens(data: AttentionData) -> FloatArray:
    """Tokens minus the mean of the visible tokens of their sequence; hidden tokens stay zero."""
    return np.where(data.mask[..., None], data.tokens - mean_tokens(data)[..., None, :], 0.0)


def require_data(data: Any) -> None:
    """Refuse what is no :class:`AttentionData` where data are asked for."""
    if not isinstance(data, AttentionData):
        raise InputError(
            f"data is {kind(data)}; give attsvm.AttentionData(tokens, labels) or"
            " attsvm.AttentionData.from_bags(bags, labels)"
        )


def _may_repeat(tokens: FloatArray, mask: BoolArray) -> BoolArray:
    """``(k,)``: False only for sequences without equal tokens, which one number per token shows:
    equal rows have equal projections.
    """
    direction = np.cos(np.arange(1.0, tokens.shape[-1] + 1.0))
    with np.errstate(over="ignore", invalid="ignore"):
        keys = np.where(mask, np.einsum("ktd,d->kt", tokens, direction), np.nan)
    ordered = np.sort(keys, axis=1)
    return (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | (mask & ~np.isfinite(keys)).any(axis=1)


_KEYS = {"tokens": "X", "labels": "y", "queries": "Z", "mask": "mask"}
