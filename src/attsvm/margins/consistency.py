"""Whether the arrays of a programme fit together, which compiled code takes for granted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.errors import InputError

_REAL, _WHOLE = np.dtype(np.float64), np.dtype(np.int64)
_KINDS = ("selection", "set", "ratio", "label", "position", "class", "support", "order")


def check_arrays(margins: Any) -> dict[str, NDArray[Any]]:
    """Refuse arrays of :class:`~attsvm.margins.Margins` that do not fit together.

    Returns:
        Those that had to be made into arrays first, by name.

    Raises:
        InputError: numbers that are not real, positions that are not integers, a shape that differs
            from the others, or offsets that do not cut the rows into sequences.
    """
    optional = (margins.equality, margins.origin, margins.numbers)
    if all(each is None for each in optional) and _plain(margins):
        return {}
    arrays = _Arrays(margins)
    m, n = arrays.rows_and_queries()
    if margins.equality is not None:
        arrays.of("equality", "b", "booleans", 1, m, "constraint")
    if margins.origin is not None:
        arrays.of("origin", "iu", "integers", 2, n, "sequence")
    if margins.numbers is not None:
        arrays.of("numbers", "iu", "integers", 1, n, "sequence")
    if margins.kind not in _KINDS:
        raise InputError(f"margins.kind is {margins.kind!r}; use one of {', '.join(_KINDS)}")
    return arrays.changed


def _plain(margins: Any) -> bool:
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
    if D.ndim != 2 or Z.ndim != 2 or margins.kind not in _KINDS:
        return False
    m, n = len(D), len(Z)
    if b.shape != (m,) or token.shape != (m,) or selected.shape != (n,):
        return False
    if offsets.shape != (n + 1,):
        return False
    ends = offsets.tolist()
    return bool(ends[0] == 0 and ends[-1] == m and ends == sorted(ends))


def check_batch(batch: Any) -> dict[str, NDArray[Any]]:
    """The same for :class:`~attsvm.margins.MarginsBatch`.

    Raises:
        InputError: see :func:`check_arrays`.
    """
    arrays = _Arrays(batch)
    _, n = arrays.rows_and_queries()
    instances = arrays.of("instances", "iu", "integers", 1)
    _check_offsets("margins.instances", instances, max(len(instances) - 1, 0), n, "sequences")
    return arrays.changed


class _Arrays:
    """The arrays of a programme, checked one by one; ``changed`` holds those made into arrays."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.changed: dict[str, NDArray[Any]] = {}

    def rows_and_queries(self) -> tuple[int, int]:
        """How many there are, after a look at everything that goes with them."""
        m = len(self.of("differences", "fiub", "real numbers", 2))
        n = len(self.of("queries", "fiub", "real numbers", 2))
        self.of("rhs", "fiub", "real numbers", 1, m, "constraint")
        self.of("token", "iu", "integers", 1, m, "constraint")
        self.of("selected", "iu", "integers", 1, n, "sequence")
        offsets = self.of("offsets", "iu", "integers", 1)
        _check_offsets("margins.offsets", offsets, n, m, "constraints")
        return m, n

    def of(
        self,
        name: str,
        kinds: str,
        what: str,
        axes: int,
        count: int | None = None,
        each: str = "",
    ) -> NDArray[Any]:
        """The array of this name, of one of these kinds and of ``count`` rows."""
        array: NDArray[Any] = getattr(self.owner, name)
        if type(array) is not np.ndarray:
            try:
                array = self.changed[name] = np.array(array)
            except (ValueError, TypeError) as error:
                raise InputError(f"margins.{name} is not an array ({error})") from None
        if array.dtype.kind not in kinds and array.size > 0:
            raise InputError(f"margins.{name} has dtype {array.dtype}; give {what}")
        if array.ndim != axes:
            raise InputError(
                f"margins.{name} has shape {array.shape}; it must have"
                f" {'one axis' if axes == 1 else 'two axes'}"
            )
        if count is not None and len(array) != count:
            raise InputError(
                f"margins.{name} has {len(array)} rows; it must have {count}, one per {each}"
            )
        return array


def _check_offsets(name: str, offsets: NDArray[Any], parts: int, total: int, what: str) -> None:
    """Refuse offsets that do not cut ``total`` into ``parts``, one after the other."""
    if len(offsets) != parts + 1:
        raise InputError(f"{name} has {len(offsets)} entries; it must have {parts + 1}")
    if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
        raise InputError(f"{name} must rise from 0 to {total}, the number of {what}")
