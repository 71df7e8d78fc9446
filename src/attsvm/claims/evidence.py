"""Measured arrays with one row per trial: what a claim looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.errors import InputError


class Evidence(Mapping[str, NDArray[Any]]):
    """Named arrays of equal first length, the trials; parameters that vary are columns like any
    other.

    ``evidence["gap"]`` is a column, ``evidence.where(n=4, d=8)["gap"]`` its rows where those
    columns have those values. The names that were looked up are kept in :attr:`used`, so that a
    verdict can say what it rests on.

    Args:
        columns: arrays; a scalar or an array of another length than the rest is an error.

    Raises:
        InputError: no columns, or columns of different lengths.
    """

    def __init__(self, columns: Mapping[str, ArrayLike], used: set[str] | None = None) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        lengths = {
            name: len(column) if column.ndim else None for name, column in self._columns.items()
        }
        if not lengths or None in lengths.values() or len(set(lengths.values())) > 1:
            raise InputError(
                f"evidence needs columns with one row per trial; these have lengths {lengths}"
            )
        self.used: set[str] = set() if used is None else used

    @classmethod
    def of(cls, evidence: Evidence | Mapping[str, ArrayLike]) -> Evidence:
        """``evidence`` itself, or a mapping of arrays as evidence."""
        return evidence if isinstance(evidence, Evidence) else cls(evidence)

    @classmethod
    def concatenate(cls, parts: Sequence[Mapping[str, ArrayLike]]) -> Evidence:
        """The rows of all parts below each other. A column that a part lacks holds NaN
        there, or nothing where it holds words.

        Raises:
            InputError: a column has rows of different shapes.
        """
        tables = [cls(part) for part in parts]
        columns: dict[str, Any] = {}
        for name in dict.fromkeys(name for table in tables for name in table):
            shapes = {table._columns[name].shape[1:] for table in tables if name in table}
            if len(shapes) > 1:
                raise InputError(
                    f"column {name!r} has rows of shapes {sorted(shapes)}; give them different"
                    " names"
                )
            shape = shapes.pop()
            held = [table._columns[name] for table in tables if name in table]
            missing: Any = "" if held[0].dtype.kind == "U" else np.nan
            pieces = [
                table._columns[name] if name in table else np.full((table.rows, *shape), missing)
                for table in tables
            ]
            columns[name] = np.concatenate(pieces)
        return cls(columns)

    @property
    def rows(self) -> int:
        """Number of trials."""
        return len(next(iter(self._columns.values())))

    def where(self, **values: Any) -> Evidence:
        """The rows whose columns equal the given values.

        Raises:
            InputError: no row does.
        """
        keep = np.ones(self.rows, dtype=bool)
        for name, value in values.items():
            keep &= self[name] == value
        if not keep.any():
            raise InputError(
                f"no trial has {', '.join(f'{name}={value!r}' for name, value in values.items())}"
            )
        return self.take(keep)

    def take(self, rows: ArrayLike) -> Evidence:
        """The rows that an index or mask array picks."""
        index = np.asarray(rows)
        return Evidence({name: column[index] for name, column in self._columns.items()}, self.used)

    def but(self, columns: Mapping[str, ArrayLike]) -> Evidence:
        """The same trials with these columns, in place of those of the same names."""
        return Evidence({**self._columns, **columns})

    def levels(self, name: str) -> list[Any]:
        """The distinct values of a column, sorted."""
        return np.unique(self[name]).tolist()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All columns as plain numbers; of a column of words the positions in :meth:`words`."""
        words = self.words()
        return {
            name: np.searchsorted(words[name], column) if name in words else column
            for name, column in self._columns.items()
        }

    def words(self) -> dict[str, list[str]]:
        """The distinct values of every column of words, sorted."""
        return {
            name: np.unique(column).tolist()
            for name, column in self._columns.items()
            if column.dtype.kind == "U"
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise InputError(
                f"there is no column {name!r} in the evidence; there are:"
                f" {', '.join(sorted(self._columns))}"
            )
        self.used.add(name)
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
