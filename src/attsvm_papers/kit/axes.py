"""The run of a figure: which cells of work there are, and the columns that say so.

``@kit.run(method=["W", "KQ"], seeds=kit.seeds(100, by=50), quick={"seeds": 10})`` over ``def
run(method, seeds, steps=2000)`` makes a cell of every method and block of seeds. What the decorator
names is an axis, and becomes a column of the evidence; the function's defaults are parameters.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm import InputError

Cell = Mapping[str, Any]
"""The keyword arguments of a run for one piece of work: JSON values only, because they name the
cached result.
"""
Columns = dict[str, NDArray[Any]]
Axis = Iterable[Any] | Callable[[Any], Any]
"""The values of an axis, or a function of the parameters and of the axes before it."""

VERDICT = 10_000
"""Seeds from here on judge; thresholds are set before on the smaller ones, the tuning seeds."""
SEARCH = 1_000_000
"""Seeds from here on belong to searches, as of a learning rate, that no verdict rests on."""


@dataclass(frozen=True)
class SharedValue:
    """A value that all rows of a cell share; the kit repeats it for each of them."""

    value: ArrayLike


def same(value: ArrayLike) -> Any:
    """The value, marked to be repeated for every row of the cell: one array, such as the steps."""
    return SharedValue(value)


@dataclass(frozen=True)
class seeds:  # noqa: N801 - reads as a function
    """An axis of random trials.

    Attributes:
        count: how many there are: the parameter ``name`` of the figure.
        by: seeds in a cell, a list; one seed in each, a number, when left out. Every block but the
            last is full, so that a later run with more seeds finds the full ones in the cache.
        start: the first one, before ``first`` is added.
        name: of the parameter.
        first: what is added to all of them.
    """

    count: int
    by: int | None = None
    start: int = 0
    name: str = "seeds"
    first: int = VERDICT

    def __call__(self, at: Any) -> list[Any]:
        trials = range(self.start, self.start + getattr(at, self.name))
        if self.by is None:
            return list(trials)
        return [list(trials[k : k + self.by]) for k in range(0, len(trials), self.by)]


@dataclass(frozen=True)
class until(seeds):  # noqa: N801 - reads as a function
    """Blocks of seeds, enough for ``count`` trials where only a share of the seeds gives one; all
    but a single one are full.

    Attributes:
        share: of the seeds that give a trial, from below, by the value of another axis.
        axis: its name.
    """

    share: Mapping[Any, float] = field(default_factory=dict)
    axis: str = ""

    def __call__(self, at: Any) -> list[Any]:
        assert self.by is not None
        share = self.share.get(getattr(at, self.axis), min(self.share.values()))
        needed = math.ceil(getattr(at, self.name) / share)
        full = self.by * math.ceil(needed / self.by)
        blocks = replace(self, count=needed if needed < self.by else full)
        return seeds.__call__(blocks, SimpleNamespace(**{self.name: blocks.count}))


def stacked(measurements: Sequence[Mapping[str, Any]]) -> Columns:
    """A column for every name of these measurements, with a row for each of them."""
    return {
        name: np.array([measurement[name] for measurement in measurements])
        for name in (measurements[0] if measurements else ())
    }


class rows:  # noqa: N801 - reads as a function
    """Axes that vary together: ``rows("n T", [(5, 5), (10, 5)])`` is the parameter ``n_T``."""

    def __init__(self, names: str, values: Axis) -> None:
        self.names, self.values = tuple(names.split()), values


class RunTable:
    """A run with its axes, which computes one table of the evidence.

    Args:
        function: from the arguments of a cell to named arrays with one row per trial; a scalar, or
            what :func:`same` marks, is repeated for all rows. Arguments with defaults are
            parameters of the figure.
        axes: names to values, or to a function of the parameters and of the axes before it; the
            last varies fastest. Several names, between underscores, vary together.
        when: whether a point of the grid is computed, called with its values; all when left out.
        scales: what is different at ``quick``, ``medium`` and ``paper``: parameters and axes.
        name: its value in the column ``part``; the function's name when left out.
    """

    def __init__(
        self,
        function: Callable[..., Mapping[str, Any]],
        axes: Mapping[tuple[str, ...], Axis],
        when: Callable[..., bool] | None,
        scales: Mapping[str, Mapping[str, Any] | None],
        name: str | None = None,
    ) -> None:
        self.name = name or function.__name__
        self.function, self._axes, self._when = function, axes, when
        self.scales = {
            name: dict(changes) for name, changes in scales.items() if changes is not None
        }
        self.axes = tuple(name for names in axes for name in names)
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__signature__ = inspect.signature(function)
        arguments = self.__signature__.parameters
        changed = {name for changes in self.scales.values() for name in changes}
        # parameters: arguments with defaults, numbers of seeds, axes that scales change
        self.parameters = {
            name: argument.default
            for name, argument in arguments.items()
            if argument.default is not argument.empty
        }
        first = [VERDICT] if "seed" in self.parameters else []
        for names, axis in axes.items():
            if isinstance(axis, seeds):
                self.parameters[axis.name] = axis.count
                first.append(axis.first)
            elif (name := "_".join(names)) in changed:
                self.parameters[name] = axis
        if any(first):
            self.parameters["first_seed"] = max(first)

    def cells(self, parameters: Any) -> list[dict[str, Any]]:
        """The cells at these parameters, each with all arguments of the function.

        1. Axis after axis, every point of the grid so far is continued by every value of the axis,
           which may depend on the point.
        2. Points that ``when`` refuses are left out.
        3. Parameters that are no axes are the same in all cells.
        """
        settings = vars(parameters)
        points: list[dict[str, Any]] = [{}]
        for names, axis in self._axes.items():
            name = "_".join(names)
            is_parameter = name in self.parameters and not isinstance(axis, seeds)
            values = settings[name] if is_parameter else axis
            # 1. the grid, continued by this axis; the last one varies fastest
            points = [
                point
                | (dict(zip(names, value, strict=True)) if len(names) > 1 else {names[0]: value})
                for point in points
                for value in (
                    values(SimpleNamespace(**settings | point)) if callable(values) else values
                )
            ]
        # 3. what does not vary
        constants = {
            name: settings[name] for name in self.__signature__.parameters if name in settings
        }
        return [
            {key: _json_value(value) for key, value in (constants | point).items()}
            for point in points
            # 2. the points that take part
            if self._when is None or self._when(**point)
        ]

    def __call__(self, *arguments: Any, **keywords: Any) -> Columns:
        return repeat_shared(self.function(*arguments, **keywords))


class RunTables:
    """The run of a figure with several tables: ``part`` in a cell is the name of its table. They
    may be written in other modules than the figure's.
    """

    def __init__(self, tables: Mapping[str, RunTable], module: str) -> None:
        self._tables = tables
        self.__module__ = module
        arguments = {
            name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for table in tables.values()
            for name, parameter in table.__signature__.parameters.items()
        }
        self.__signature__ = inspect.Signature(list(arguments.values()))

    def __call__(self, **cell: Any) -> Columns:
        return self._tables[cell.pop("part")](**cell)

    def cells(self, parameters: Any) -> list[Cell]:
        """The cells of all tables."""
        return [
            {"part": name, **cell}
            for name, table in self._tables.items()
            for cell in table.cells(parameters)
        ]


def run(
    *tables: rows,
    when: Callable[..., bool] | None = None,
    quick: Mapping[str, Any] | None = None,
    medium: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    name: str | None = None,
    **axes: Axis,
) -> Callable[[Callable[..., Mapping[str, Any]]], RunTable]:
    """A decorator that makes a function the run of its figure, a :class:`RunTable`; see there.

    A figure's only table is called ``run``; where there are several, their names are the column
    ``part``: ``name``, or that of the function. ``quick`` says what is different in a run of
    seconds, ``medium`` in one of hours, ``paper`` where published sizes need an accelerator.
    """
    axes_by_names = {table.names: table.values for table in tables}
    axes_by_names |= {(name,): axis for name, axis in axes.items()}
    scales = {"quick": quick, "medium": medium, "paper": paper}
    return lambda function: RunTable(function, axes_by_names, when, scales, name)


def repeat_shared(measurements: Mapping[str, Any]) -> Columns:
    """The measurements of a cell, with scalars and :func:`same` values repeated for every row.

    Raises:
        InputError: nothing says how many rows there are.
    """
    per_row = {
        name: value for name, value in measurements.items() if not isinstance(value, SharedValue)
    }
    if not measurements:  # no trial counts
        return {}
    lengths = [len(np.asarray(value)) for value in per_row.values() if np.ndim(value)]
    if not lengths:
        raise InputError("a run returned no column with a row per trial; give it one at least")
    return {
        name: np.tile(value.value, (lengths[0], *[1] * np.ndim(value.value)))
        if isinstance(value, SharedValue)
        else np.asarray(value if np.ndim(value) else np.full(lengths[0], value))
        for name, value in measurements.items()
    }


def with_axis_columns(
    cell: Cell, measurements: Mapping[str, ArrayLike], names: Iterable[str]
) -> dict[str, Any]:
    """The measurements of a cell, and before them its arguments that are axes, as columns.

    ``seeds`` is the column ``seed`` where there is a row for each.
    """
    length = len(np.asarray(next(iter(measurements.values()))))
    axis_columns: dict[str, Any] = {}
    for name in names:
        value = cell.get(name)
        if name == "seeds" and isinstance(value, list) and len(value) == length:
            axis_columns["seed"] = np.array(value)
        elif isinstance(value, str | bool | int | float):
            axis_columns[name] = np.full(length, value)
    return {**axis_columns, **measurements}


def _json_value(value: Any) -> Any:
    return (
        [_json_value(member) for member in value]
        if isinstance(value, tuple | list | range)
        else value
    )
