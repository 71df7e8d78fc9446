"""What every constructor asks of its arguments, refused in one sentence."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    as_array,
    require_data,
)


def one_instance(data: AttentionData) -> None:
    """Refuse data with leading axes, and what is no data."""
    require_data(data)
    if data.batch_shape:
        raise InputError(
            f"data has leading axes {data.batch_shape}; choose one instance with data.instance(k)"
        )


def integers(name: str, value: ArrayLike) -> IntArray:
    """``value`` as int64, refused unless it holds integers."""
    array = as_array(name, value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} has dtype {array.dtype}; give integer positions")
    return array.astype(np.int64)


def reals(name: str, value: ArrayLike, shape: tuple[int | None, ...], meaning: str) -> FloatArray:
    """``value`` as finite float64 of this shape (``None`` leaves an axis open, but not empty)."""
    array = as_array(name, value)
    fits = array.ndim == len(shape) and all(
        k == expected or (expected is None and k > 0)
        for k, expected in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise InputError(f"{name} has shape {array.shape}; it must be {meaning}")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has dtype {array.dtype}; give real numbers")
    out = np.ascontiguousarray(array, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.vdot(out, out))  # one quick look, which squares may spoil
    if not finite and not np.isfinite(out).all():
        where = np.argwhere(~np.isfinite(out))[0].tolist()
        raise InputError(f"{name} holds {out[tuple(where)]} at {where}; every value must be finite")
    return out


def selected_tokens(data: AttentionData, tokens: ArrayLike) -> IntArray:
    """One visible position per sequence, ``(n,)``."""
    one_instance(data)
    selected = as_array("tokens", tokens)
    if selected.shape != (data.n,):
        raise InputError(
            f"tokens has shape {selected.shape}; it must be ({data.n},), one selected token per"
            " sequence"
        )
    selected = integers("tokens", selected)
    outside = (selected < 0) | (selected >= data.T)
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"tokens[{i}] is {selected[i]}; sequence {i} has positions 0 to {data.T - 1}"
        )
    rows = np.arange(data.n)
    if not data.mask[rows, selected].all():
        i = int(np.flatnonzero(~data.mask[rows, selected])[0])
        raise InputError(
            f"tokens[{i}] is {selected[i]}, which the mask of sequence {i} hides; select a visible"
            " token"
        )
    return selected


def chosen_sequences(name: str, value: ArrayLike, n: int) -> BoolArray:
    """``(n,)`` booleans from booleans or from positions."""
    array = as_array(name, value)
    if array.dtype == np.bool_:
        if array.shape != (n,):
            raise InputError(
                f"{name} has shape {array.shape}; as booleans it must be ({n},), one per sequence"
            )
        return array.astype(np.bool_)
    where = integers(name, array)
    if where.ndim != 1:
        raise InputError(
            f"{name} has shape {where.shape}; give booleans ({n},) or a list of positions"
        )
    outside = (where < 0) | (where >= n)
    if outside.any():
        raise InputError(f"{name} holds {where[outside][0]}; sequences are numbered 0 to {n - 1}")
    chosen = np.zeros(n, dtype=np.bool_)
    chosen[where] = True
    return chosen


def token_sets(data: AttentionData, sets: ArrayLike) -> BoolArray:
    """``(n, T)`` booleans: a non-empty set of visible tokens in every sequence."""
    one_instance(data)
    array = as_array("sets", sets)
    if array.shape != data.mask.shape or array.dtype != np.bool_:
        raise InputError(
            f"sets has shape {array.shape} and dtype {array.dtype}; it must be booleans"
            f" {data.mask.shape}, True on the selected tokens"
        )
    hidden = array & ~data.mask
    if hidden.any():
        i, t = (int(k) for k in np.argwhere(hidden)[0])
        raise InputError(
            f"sets holds token {t} of sequence {i}, which the mask hides; select visible tokens"
        )
    empty = ~array.any(axis=1)
    if empty.any():
        raise InputError(
            f"sets selects no token of sequence {int(np.flatnonzero(empty)[0])}; every sequence"
            " needs at least one"
        )
    return array.astype(np.bool_)
