"""The run of a figure: which cells of work there are, and the columns that say so.

``@kit.run(method=["W", "KQ"], seeds=kit.seeds(100, by=50), quick={"seeds": 10})`` over ``def
run(method, seeds, steps=2000)`` makes a cell of every method and block of seeds. What the decorator
names is an axis, and becomes a column of the evidence; the function's defaults are the figure's
:class:`FigureParameters`, and ``quick`` says which of them differ in a short run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Generic, ParamSpec

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


class FigureParameters(SimpleNamespace):
    """Everything that decides the results of a figure, by name: the defaults of its functions, the
    numbers of seeds, the axes that differ between scales, and ``first_seed``.
    """

    def changed(self, changes: Mapping[str, Any]) -> FigureParameters:
        """A copy with other values.

        Raises:
            InputError: a name that is no parameter.
        """
        for name in changes:
            if not hasattr(self, name):
                raise InputError(f"a scale changes {name!r}, which is no parameter of the figure")
        return FigureParameters(**vars(self) | dict(changes))


P = ParamSpec("P")


class RunTable(Generic[P]):
    """A function with its axes, which computes one table of the evidence. Calling it computes a
    cell.

    Attributes:
        function: from the arguments of a cell to named arrays with one row per trial; a scalar, or
            what :func:`same` marks, is repeated for all rows. Arguments with defaults are
            parameters of the figure.
        axes: names to values, or to a function of the parameters and of the axes before it; the
            last varies fastest. Several names vary together.
        when: whether a point of the grid is computed, called with its values; all when left out.
        scales: what is different at ``quick``, ``medium`` and ``paper``: parameters and axes.
        name: its value in the column ``part``; the function's name when left out.
        arguments: of the function, with their defaults.
        parameters: the figure's parameters that this table reads.
    """

    def __init__(
        self,
        function: Callable[P, Mapping[str, Any]],
        axes: Mapping[tuple[str, ...], Axis],
        when: Callable[..., bool] | None,
        scales: Mapping[str, Mapping[str, Any] | None],
        name: str | None = None,
    ) -> None:
        self.name = name or function.__name__
        self.function, self.axes, self.when = function, axes, when
        self.scales = {
            name: dict(changes) for name, changes in scales.items() if changes is not None
        }
        self.arguments = inspect.signature(function).parameters
        self.parameters = self._parameters()
        self.__doc__, self.__module__ = function.__doc__, function.__module__

    def _parameters(self) -> dict[str, Any]:
        """Arguments with defaults, numbers of seeds, axes that scales change, the first seed."""
        parameters = {
            name: argument.default
            for name, argument in self.arguments.items()
            if argument.default is not argument.empty
        }
        changed = {name for changes in self.scales.values() for name in changes}
        first_seeds = [VERDICT] if "seed" in parameters else []
        for names, axis in self.axes.items():
            if isinstance(axis, seeds):
                parameters[axis.name] = axis.count
                first_seeds.append(axis.first)
            elif (name := "_".join(names)) in changed:
                parameters[name] = axis
        if any(first_seeds):
            parameters["first_seed"] = max(first_seeds)
        return parameters

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the axes, which are columns of the evidence."""
        return tuple(name for names in self.axes for name in names)

    def cells(self, parameters: FigureParameters) -> list[dict[str, Any]]:
        """The cells at these parameters, each with all arguments of the function.

        1. Axis after axis, every point of the grid so far is continued by every value of the axis,
           which may depend on the point.
        2. Points that ``when`` refuses are left out.
        3. Parameters that are no axes are the same in all cells.
        """
        settings = vars(parameters)
        points: list[dict[str, Any]] = [{}]
        for names, axis in self.axes.items():
            # 1. the grid, continued by this axis; the last one varies fastest
            points = [
                point | value
                for point in points
                for value in self._axis_values(names, axis, settings | point)
            ]
        # 3. what does not vary
        constants = {name: settings[name] for name in self.arguments if name in settings}
        return [
            {key: _json_value(value) for key, value in (constants | point).items()}
            for point in points
            # 2. the points that take part
            if self.when is None or self.when(**point)
        ]

    def _axis_values(
        self, names: tuple[str, ...], axis: Axis, settings: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The arguments that an axis gives, in order: its values, or those of the parameter of its
        name, or those of its function at these settings.
        """
        parameter = "_".join(names)
        if parameter in self.parameters and not isinstance(axis, seeds):
            axis = settings[parameter]
        values = axis(SimpleNamespace(**settings)) if callable(axis) else axis
        if len(names) == 1:
            return [{names[0]: value} for value in values]
        return [dict(zip(names, value, strict=True)) for value in values]

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> Columns:
        return repeat_shared(self.function(*arguments, **keywords))


class RunTables:
    """The run of a figure with several tables: ``part`` in a cell is the name of its table. They
    may be written in other modules than the figure's.
    """

    def __init__(self, tables: Mapping[str, RunTable[...]], module: str) -> None:
        self.tables = tables
        self.__module__ = module

    def __call__(self, **cell: Any) -> Columns:
        return self.tables[cell.pop("part")](**cell)

    def cells(self, parameters: FigureParameters) -> list[Cell]:
        """The cells of all tables."""
        return [
            {"part": name, **cell}
            for name, table in self.tables.items()
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
) -> Callable[[Callable[P, Mapping[str, Any]]], RunTable[P]]:
    """A decorator that makes a function the run of its figure, a :class:`RunTable`; see there.

    A figure's only table is called ``run``; where there are several, their names are the column
    ``part``: ``name``, or that of the function. ``quick`` says what is different in a run of
    seconds, ``medium`` in one of hours, ``paper`` where published sizes need an accelerator.
    """
    axes_by_names = {table.names: table.values for table in tables}
    axes_by_names |= {(name,): axis for name, axis in axes.items()}
    scales = {"quick": quick, "medium": medium, "paper": paper}

    def decorate(function: Callable[P, Mapping[str, Any]]) -> RunTable[P]:
        return RunTable(function, axes_by_names, when, scales, name)

    return decorate


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
