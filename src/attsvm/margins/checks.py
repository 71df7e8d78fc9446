"""What every constructor asks of its arguments, refused in one sentence; and whether the arrays of
a programme fit together, which compiled code takes for granted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    as_array,
    require_data,
)

_REAL, _WHOLE = np.dtype(np.float64), np.dtype(np.int64)
_KINDS = ("selection", "set", "ratio", "label", "position", "class", "support", "order")
_FORMS = {  # kinds of numbers, their name, axes, and what there is one row for
    "differences": ("fiub", "real numbers", 2, ""),
    "queries": ("fiub", "real numbers", 2, ""),
    "rhs": ("fiub", "real numbers", 1, "constraint"),
    "token": ("iu", "integers", 1, "constraint"),
    "selected": ("iu", "integers", 1, "sequence"),
    "offsets": ("iu", "integers", 1, ""),
    "equality": ("b", "booleans", 1, "constraint"),
    "origin": ("iu", "integers", 2, "sequence"),
    "numbers": ("iu", "integers", 1, "sequence"),
    "instances": ("iu", "integers", 1, ""),
}


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


def check_arrays(margins: Any) -> dict[str, NDArray[Any]]:
    """Refuse arrays of :class:`~attsvm.margins.Margins` that do not fit together.

    Returns:
        Those that had to be made into arrays first, by name.

    Raises:
        InputError: numbers that are not real, positions that are not integers, a shape that differs
            from the others, or offsets that do not cut the rows into sequences.
    """
    optional = (margins.equality, margins.origin, margins.numbers)
    if all(array is None for array in optional) and _is_canonical(margins):
        return {}
    changed, _ = _check_fields(margins)
    if margins.kind not in _KINDS:
        raise InputError(f"margins.kind is {margins.kind!r}; use one of {', '.join(_KINDS)}")
    return changed


def check_batch(batch: Any) -> dict[str, NDArray[Any]]:
    """Refuse arrays of a :class:`~attsvm.margins.MarginsBatch` that do not fit together.

    Returns:
        Those that had to be made into arrays first, by name.

    Raises:
        InputError: see :func:`check_arrays`.
    """
    changed, arrays = _check_fields(batch)
    instances = arrays["instances"]
    programmes = max(len(instances) - 1, 0)
    _check_offsets("margins.instances", instances, programmes, len(arrays["queries"]), "sequences")
    return changed


def _is_canonical(margins: Any) -> bool:
    """Whether everything is as the constructors make it, seen at a glance: this is asked before
    every solve.
    """
    D, Z, offsets = margins.differences, margins.queries, margins.offsets
    b, token, selected = margins.rhs, margins.token, margins.selected
    for array, dtype in ((D, _REAL), (Z, _REAL), (b, _REAL), (offsets, _WHOLE), (token, _WHOLE)):
        if type(array) is not np.ndarray or array.dtype is not dtype:
            return False
    if type(selected) is not np.ndarray or selected.dtype is not _WHOLE:
        return False
    m, n = len(D), len(Z)
    shapes = b.shape, token.shape, selected.shape, offsets.shape
    if (D.ndim, Z.ndim, *shapes) != (2, 2, (m,), (m,), (n,), (n + 1,)):
        return False
    ends = offsets.tolist()
    fits = ends[0] == 0 and ends[-1] == m and ends == sorted(ends)
    return bool(fits and margins.kind in _KINDS)


def _check_fields(owner: Any) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The arrays that had to be made, and all arrays, by name."""
    changed: dict[str, NDArray[Any]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, (kinds, what, axes, unit) in _FORMS.items():
        array = getattr(owner, name, None)
        if array is None:
            continue
        if type(array) is not np.ndarray:
            try:
                array = changed[name] = np.array(array)
            except (ValueError, TypeError) as error:
                raise InputError(f"margins.{name} is not an array ({error})") from None
        arrays[name] = array
        if array.dtype.kind not in kinds and array.size > 0:
            raise InputError(f"margins.{name} has dtype {array.dtype}; give {what}")
        if array.ndim != axes:
            raise InputError(
                f"margins.{name} has shape {array.shape}; it must have"
                f" {'one axis' if axes == 1 else 'two axes'}"
            )
        count = len(arrays["differences" if unit == "constraint" else "queries"]) if unit else None
        if count is not None and len(array) != count:
            raise InputError(
                f"margins.{name} has {len(array)} rows; it must have {count}, one per {unit}"
            )
    n, m = len(arrays["queries"]), len(arrays["differences"])
    _check_offsets("margins.offsets", arrays["offsets"], n, m, "constraints")
    return changed, arrays


def _check_offsets(name: str, offsets: NDArray[Any], count: int, total: int, what: str) -> None:
    """Refuse offsets that do not cut ``total`` into ``count`` ranges, one after the other."""
    if len(offsets) != count + 1:
        raise InputError(f"{name} has {len(offsets)} entries; it must have {count + 1}")
    if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
        raise InputError(f"{name} must rise from 0 to {total}, the number of {what}")
