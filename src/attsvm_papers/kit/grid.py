"""The grid of a figure: which cells of work there are, and the columns that say so.

``@grid(method=["W", "KQ"], seeds=blocks(50))`` over ``def run(method, seeds, steps)`` makes a cell
of every method and block of seeds. What the grid does not name, here ``steps``, is taken from the
figure's ``SCALES``; what it names becomes a column of the evidence, so ``run`` returns
measurements alone.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm import InputError

Cell = Mapping[str, Any]
"""The keyword arguments of a run for one piece of work: JSON values only, because they name the
cached result.
"""
Columns = dict[str, NDArray[Any]]
Deferred = Callable[[Any], Any]
"""What is known when the scale is: a function of the parameters."""


@dataclass(frozen=True)
class Same:
    """A value that every row of a cell shares; the kit repeats it."""

    value: ArrayLike


def same(value: ArrayLike) -> Any:
    """One array, such as the recorded steps, for every row of the cell."""
    return Same(value)


def setting(name: str) -> Deferred:
    """The parameter of that name, as an axis of a grid."""
    return lambda parameters: getattr(parameters, name)


def blocks(size: int, start: int = 0) -> Deferred:
    """The parameter ``seeds`` as an axis of lists of at most ``size`` seeds, from ``start`` on.

    Every block but the last is full, so a later run with more seeds finds the full ones in the
    cache.
    """

    def axis(parameters: Any) -> list[list[int]]:
        return [list(range(low, low + count)) for low, count in cut(parameters.seeds, size, start)]

    return axis


def cut(count: int, size: int, start: int = 0) -> list[tuple[int, int]]:
    """``count`` seeds from ``start`` on as ``(first, how many)``, at most ``size`` in each."""
    end = start + count
    return [(first, min(size, end - first)) for first in range(start, end, size)]


def stacked(found: Sequence[Mapping[str, Any]]) -> Columns:
    """A column for every name of these measurements, with a row for each of them."""
    return {name: np.array([one[name] for one in found]) for name in found[0]}


class rows:  # noqa: N801 - reads as a function in a grid
    """Axes that vary together, such as ``rows("n T", [(5, 5), (10, 5)])``."""

    def __init__(self, names: str, values: Iterable[Sequence[Any]] | Deferred) -> None:
        self.names, self._values = tuple(names.split()), values

    def __call__(self, parameters: Any) -> list[dict[str, Any]]:
        listed = self._values(parameters) if callable(self._values) else self._values
        return [dict(zip(self.names, row, strict=True)) for row in listed]


class Part:
    """A run with its grid: one table of the evidence.

    Args:
        function: from the arguments of a cell to named arrays with one row per trial; a scalar, or
            what :func:`same` marks, is repeated for all rows. A parameter ``folder`` is given a
            folder for checkpoints.
        tables: groups of axes that vary together, see :func:`rows`.
        axes: name of each axis to its values, or to a function of the parameters; the last varies
            fastest.
        when: whether a point is kept, called with its values; all of them when left out.
    """

    def __init__(
        self,
        function: Callable[..., Mapping[str, Any]],
        tables: Sequence[rows] = (),
        axes: Mapping[str, Any] | None = None,
        when: Callable[..., bool] | None = None,
    ) -> None:
        self.function, self.tables, self.axes, self.when = function, tables, axes or {}, when
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__signature__ = inspect.signature(function)
        self.functions = (function,)  # whose code decides the numbers

    def cells(self, parameters: Any) -> list[dict[str, Any]]:
        """The cells at these parameters, each with all arguments of the function."""
        factors = [table(parameters) for table in self.tables]
        for name, axis in self.axes.items():
            factors.append(
                [{name: value} for value in (axis(parameters) if callable(axis) else axis)]
            )
        wanted = [
            name
            for name in self.__signature__.parameters
            if hasattr(parameters, name) and name != "folder"
        ]
        given = {name: getattr(parameters, name) for name in wanted}
        points = [
            {key: value for point in chosen for key, value in point.items()}
            for chosen in itertools.product(*factors)
        ]
        return [
            {key: _plain(value) for key, value in (given | point).items()}
            for point in points
            if self.when is None or self.when(**point)
        ]

    def __call__(self, *arguments: Any, **named: Any) -> Columns:
        return columns(self.function(*arguments, **named))


class Runs:
    """The run of a figure with several parts: ``part`` says which."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self.functions = tuple(part.function for part in parts.values())
        (self.__module__,) = {part.__module__ for part in parts.values()}
        found = {
            name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for part in parts.values()
            for name, parameter in part.__signature__.parameters.items()
        }
        self.__signature__ = inspect.Signature(list(found.values()))

    def __call__(self, *, part: str, **arguments: Any) -> Columns:
        return self._parts[part](**arguments)

    def cells(self, parameters: Any) -> list[Cell]:
        """The cells of all parts."""
        return [
            {"part": name, **cell}
            for name, part in self._parts.items()
            for cell in part.cells(parameters)
        ]


def grid(
    *tables: rows, when: Callable[..., bool] | None = None, **axes: Any
) -> Callable[[Callable[..., Mapping[str, Any]]], Part]:
    """Makes a function a :class:`Part` of its figure; see there for the arguments.

    A figure's only part is called ``run``; where there are several, their names are the column
    ``part``.
    """
    return lambda function: Part(function, tables, axes, when)


def columns(found: Mapping[str, Any]) -> Columns:
    """What a run returned, with scalars and :func:`same` values repeated for every row.

    Raises:
        InputError: nothing says how many rows there are.
    """
    own = {name: value for name, value in found.items() if not isinstance(value, Same)}
    lengths = [len(np.asarray(value)) for value in own.values() if np.ndim(value)]
    if not lengths:
        raise InputError("a run returned no column with a row per trial; give it one at least")
    return {
        name: np.tile(value.value, (lengths[0], *[1] * np.ndim(value.value)))
        if isinstance(value, Same)
        else np.asarray(value if np.ndim(value) else np.full(lengths[0], value))
        for name, value in found.items()
    }


def described(cell: Cell, found: Mapping[str, ArrayLike], names: Iterable[str]) -> dict[str, Any]:
    """The columns of a cell, and before them those arguments of it that are an axis of the grid.

    ``seeds`` is the column ``seed`` where there is a row for each.
    """
    length = len(np.asarray(next(iter(found.values()))))
    told: dict[str, Any] = {}
    for name in names:
        value = cell.get(name)
        if name == "seeds" and isinstance(value, list) and len(value) == length:
            told["seed"] = np.array(value)
        elif isinstance(value, str | bool | int | float):
            told[name] = np.full(length, value)
    return {**told, **found}


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple | list | range) else value
