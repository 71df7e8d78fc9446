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
class Same:
    """A value that every row of a cell shares; the kit repeats it."""

    value: ArrayLike


def same(value: ArrayLike) -> Any:
    """One array, such as the recorded steps, for every row of the cell."""
    return Same(value)


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
        every = range(self.start, self.start + getattr(at, self.name))
        if self.by is None:
            return list(every)
        return [list(every[k : k + self.by]) for k in range(0, len(every), self.by)]


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
        one = replace(self, count=needed if needed < self.by else full)
        return seeds.__call__(one, SimpleNamespace(**{self.name: one.count}))


def stacked(found: Sequence[Mapping[str, Any]]) -> Columns:
    """A column for every name of these measurements, with a row for each of them."""
    return {name: np.array([one[name] for one in found]) for name in (found[0] if found else ())}


class rows:  # noqa: N801 - reads as a function
    """Axes that vary together: ``rows("n T", [(5, 5), (10, 5)])`` is the parameter ``n_T``."""

    def __init__(self, names: str, values: Axis) -> None:
        self.names, self.values = tuple(names.split()), values


class Part:
    """A run with its axes: one table of the evidence.

    Args:
        function: from the arguments of a cell to named arrays with one row per trial; a scalar, or
            what :func:`same` marks, is repeated for all rows. Arguments with defaults are
            parameters of the figure.
        axes: names to values, or to a function of the parameters and of the axes before it; the
            last varies fastest. Several names, between underscores, vary together.
        when: whether a point is kept, called with its values; all of them when left out.
        scales: what is different at ``quick``, ``medium`` and ``paper``: parameters and axes.
    """

    def __init__(
        self,
        function: Callable[..., Mapping[str, Any]],
        axes: Mapping[tuple[str, ...], Axis],
        when: Callable[..., bool] | None,
        scales: Mapping[str, Mapping[str, Any] | None],
    ) -> None:
        self.function, self._axes, self._when = function, axes, when
        self.scales = {name: dict(each) for name, each in scales.items() if each is not None}
        self.axes = tuple(name for names in axes for name in names)
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__signature__ = inspect.signature(function)
        known = self.__signature__.parameters
        changed = {name for each in self.scales.values() for name in each}
        self.parameters = {
            name: each.default for name, each in known.items() if each.default is not each.empty
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
        """The cells at these parameters, each with all arguments of the function."""
        known = vars(parameters)
        points: list[dict[str, Any]] = [{}]
        for names, axis in self._axes.items():
            name = "_".join(names)
            own = name in self.parameters and not isinstance(axis, seeds)
            values = known[name] if own else axis
            points = [
                point
                | (dict(zip(names, value, strict=True)) if len(names) > 1 else {names[0]: value})
                for point in points
                for value in (
                    values(SimpleNamespace(**known | point)) if callable(values) else values
                )
            ]
        given = {name: known[name] for name in self.__signature__.parameters if name in known}
        return [
            {key: _plain(value) for key, value in (given | point).items()}
            for point in points
            if self._when is None or self._when(**point)
        ]

    def __call__(self, *arguments: Any, **named: Any) -> Columns:
        return columns(self.function(*arguments, **named))


class Runs:
    """The run of a figure with several parts: ``part`` says which. They may be written in other
    modules than the figure's.
    """

    def __init__(self, parts: Mapping[str, Part], module: str) -> None:
        self._parts = parts
        self.__module__ = module
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


def run(
    *tables: rows,
    when: Callable[..., bool] | None = None,
    quick: Mapping[str, Any] | None = None,
    medium: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    **axes: Axis,
) -> Callable[[Callable[..., Mapping[str, Any]]], Part]:
    """Makes a function the run of its figure, or a :class:`Part` of it; see there.

    A figure's only part is called ``run``; where there are several, their names are the column
    ``part``. ``quick`` says what is different in a run of seconds, ``medium`` in one of hours, and
    ``paper`` where the published sizes need an accelerator.
    """
    known = {table.names: table.values for table in tables}
    known |= {(name,): axis for name, axis in axes.items()}
    scales = {"quick": quick, "medium": medium, "paper": paper}
    return lambda function: Part(function, known, when, scales)


def columns(found: Mapping[str, Any]) -> Columns:
    """What a run returned, with scalars and :func:`same` values repeated for every row.

    Raises:
        InputError: nothing says how many rows there are.
    """
    own = {name: value for name, value in found.items() if not isinstance(value, Same)}
    if not found:  # no trial counts
        return {}
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
