"""Experiments: cells of work that can be computed anywhere in any order, and claims and pictures of
all their measurements. A figure's module is read as one by :func:`read_experiment`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike

from attsvm import InputError
from attsvm.base.nearest import did_you_mean
from attsvm.claims import Claim, Evidence
from attsvm_papers.kit.axes import (
    SEARCH,
    Cell,
    FigureParameters,
    RunTable,
    RunTables,
    with_axis_columns,
)
from attsvm_papers.kit.captions import parse_docstring
from attsvm_papers.kit.claims import Claims
from attsvm_papers.kit.pictures import PictureFunction

if TYPE_CHECKING:
    from attsvm.report.style import Picture

Plot = Callable[[Evidence], "Iterable[Picture]"]
Then = Callable[[Any, Evidence], "Iterable[Cell]"]

SCALES = ("smoke", "small", "medium", "paper")
"""Seconds on data that comes with the experiment; minutes on two CPU cores; hours on them; the
published sizes, whatever they need.
"""


class Scales(NamedTuple):
    """The parameters of a figure at its scales; see :class:`Experiment`."""

    parameters: Any
    quick: Any
    published: Any = None
    medium: Any = None


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, as the papers' readers know it.

    Attributes:
        id: name on the command line, such as ``tfsvm-3``.
        title: what is shown, a few words.
        reference: paper and figure, such as ``tfsvm, Figure 3 (number recalled)``.
        protocol: what is done, as a caption would say it; a few sentences.
        parameters: everything that decides the result, at the scale that runs when none is asked
            for: the paper's where that takes minutes on two CPU cores. A frozen dataclass of the
            figure's own, or the :class:`~attsvm_papers.kit.axes.FigureParameters` of its decorated
            functions. ``seeds`` in it is the number of trials, ``first_seed`` what is added to all
            their seeds.
        quick: the same for a run of seconds, small enough for continuous integration.
        cells: from parameters to cells, each a dict of keyword arguments of ``run``. Raises
            :class:`~attsvm.base.errors.UnavailableError` where this machine lacks what they need.
        run: one cell's measurements: named arrays with one row per trial. Experiments that share a
            ``run`` share its results.
        claims: what the evidence is held against.
        plot: the figures.
        notes: what a reader should know: what was recalled, where the published figure has an
            artefact.
        then: from parameters and the evidence so far to further cells, for what can only be asked
            when others are known; or several such, each asked when the cells of the one before are
            known.
        published: the paper's scale where that needs an accelerator; ``parameters`` are then the
            small one.
        medium: between the small one and the paper's, where there is one.
        axes: the arguments of ``run`` that are columns of the evidence.
        file: where it is written, for one that is not of the laboratory.
    """

    id: str
    title: str
    reference: str
    protocol: str
    parameters: Any
    quick: Any
    cells: Callable[[Any], Iterable[Cell]]
    run: Callable[..., Mapping[str, ArrayLike]]
    claims: tuple[Claim, ...]
    plot: Plot
    notes: str = ""
    then: Then | tuple[Then, ...] | None = None
    published: Any = None
    medium: Any = None
    axes: tuple[str, ...] = ()
    file: str = ""

    @property
    def paper(self) -> str:
        """Key of the paper, ``tfsvm`` of ``tfsvm-3``; ``own`` for a file of the reader's."""
        return "own" if self.file else self.id.rsplit("-", 1)[0]

    @property
    def request(self) -> str:
        """The argument that names it on the command line: its identifier, or its file."""
        return self.file or self.id

    @property
    def has_trials(self) -> bool:
        """True where it has random trials, so that a number of seeds means something."""
        return hasattr(self.parameters, "seeds")

    def scale(self, name: str | None = None) -> str:
        """The scale that runs when ``name`` is asked for: the largest one that the experiment has
        up to it; its own for None.

        Raises:
            InputError: there is no such scale.
        """
        scales = self._scales()
        if name is None:
            return "small" if "small" in scales else "paper"
        if name not in SCALES:
            raise InputError(f"there is no scale {name!r}; choose from: {', '.join(SCALES)}")
        below = [scale for scale in scales if SCALES.index(scale) <= SCALES.index(name)]
        return below[-1] if name == "smoke" or len(below) > 1 else "paper"

    def _scales(self) -> dict[str, Any]:
        """The parameters of every scale there is, the smallest first."""
        single_scale = self.published is None and self.medium is None
        scales = {
            "smoke": self.quick,
            "small": None if single_scale else self.parameters,
            "medium": self.medium,
            "paper": self.parameters if single_scale else self.published,
        }
        return {name: value for name, value in scales.items() if value is not None}

    def at(
        self,
        *,
        quick: bool = False,
        scale: str | None = None,
        seeds: int | None = None,
        sizes: tuple[int, ...] | None = None,
        text: str | None = None,
        tuning: bool = False,
        values: Mapping[str, str] | None = None,
    ) -> Any:
        """The parameters at a scale (``quick`` is short for ``smoke``), with another number of
        trials, on tuning seeds, networks with other numbers of blocks, another text, or other
        ``values`` of parameters, where they are asked for.

        Where the published sizes take minutes, ``small`` and ``medium`` are ``paper``.

        Raises:
            InputError: there is no such scale, the experiment has no seeds, no sizes or no text to
                choose, or a value that its parameter does not take.
        """
        chosen = self._scales()[self.scale("smoke" if quick else scale)]
        if seeds is not None and not self.has_trials:
            raise InputError(
                f"{self.id} has no random trials, so seeds do not apply to it; leave them out"
            )
        if sizes is not None and not hasattr(chosen, "sizes"):
            raise InputError(
                f"{self.id} trains no networks of several sizes, so sizes do not apply to it;"
                " leave them out"
            )
        if text is not None and not hasattr(chosen, "text"):
            raise InputError(f"{self.id} reads no text; leave the text out")
        first = 0 if tuning and hasattr(chosen, "first_seed") else None
        requested = {"seeds": seeds, "sizes": sizes, "text": text, "first_seed": first}
        changes = {name: value for name, value in requested.items() if value is not None}
        changes |= read_values(self.id, settings_of(chosen), values or {})
        return (
            chosen.changed(changes)
            if isinstance(chosen, FigureParameters)
            else replace(chosen, **changes)
        )

    def first_seed(self, parameters: Any) -> int:
        """The number that these parameters add to every seed."""
        return int(getattr(parameters, "first_seed", 0))

    def evidence(
        self, cells: Sequence[Cell], results: Sequence[Mapping[str, ArrayLike]]
    ) -> Evidence:
        """The rows of all cells, with the arguments that tell them apart as columns."""
        return Evidence.concatenate(
            [
                with_axis_columns(cell, arrays, self.axes)
                for cell, arrays in zip(cells, results, strict=True)
                if arrays
            ]
        )

    @property
    def stages(self) -> tuple[Then, ...]:
        """The functions in :attr:`then`, in order."""
        return (
            self.then if isinstance(self.then, tuple) else () if self.then is None else (self.then,)
        )

    def work(
        self,
        parameters: Any,
        shift: int = 0,
        evidence: Evidence | None = None,
        stage: int = 0,
    ) -> list[Cell]:
        """The cells, or those that a stage makes of the evidence so far, with the parameters'
        ``first_seed`` and ``shift`` added to every seed: every ``first``, ``seed`` and member of
        ``seeds`` in them below :data:`SEARCH`.

        A threshold that was set on some seeds is judged on others.

        Raises:
            InputError: there are no seeds to shift.
            UnavailableError: this machine lacks what the cells need.
        """
        if evidence is None:
            cells = list(self.cells(parameters))
        else:
            cells = [
                cell
                for then in self.stages[stage : stage + 1]
                for cell in then(parameters, evidence)
            ]
        offset = shift + self.first_seed(parameters)
        shifted: list[Cell] = [_shift_seeds(cell, offset) for cell in cells] if offset else cells
        if shift and evidence is None and self.then is None and shifted == cells:
            raise InputError(f"{self.id} has no seeds that could be shifted; leave the shift out")
        return shifted


def settings_of(parameters: Any) -> dict[str, Any]:
    """The parameters of an experiment by name."""
    return (
        dict(vars(parameters)) if isinstance(parameters, FigureParameters) else asdict(parameters)
    )


def read_values(
    experiment: str, parameters: Mapping[str, Any], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Values of parameters from how they are written (``12``, ``0.1``, ``3,4,6``), each of the type
    that the parameter has.

    Args:
        experiment: its identifier, for errors.
        parameters: those of the experiment, with their values.
        texts: names of parameters, and the values to read.

    Raises:
        InputError: no parameter has this name, or it does not take such a value.
    """
    values = {}
    for name, text in texts.items():
        if name not in parameters:
            raise InputError(
                f"{experiment} has no parameter {name!r}{did_you_mean(name, parameters)}; its"
                f" parameters are {', '.join(parameters)}"
            )
        value = _read_value(text, parameters[name])
        if value is None:
            raise InputError(
                f"{experiment} does not take {name}={text}; its value is {parameters[name]!r}, so"
                f" give one of that kind"
            )
        values[name] = value
    return values


def _read_value(text: str, current: Any) -> Any:
    """The value of a text of the same type as ``current``; None where it is none."""
    if isinstance(current, str):
        return text
    if isinstance(current, list | tuple):
        read = [_read_value(member, current[0]) for member in text.split(",")] if current else []
        return None if None in read or not read else type(current)(read)
    if isinstance(current, bool):
        return {"true": True, "false": False}.get(text.lower())
    if not isinstance(current, int | float):
        return None
    try:
        number = type(current)(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shift_seeds(cell: Mapping[str, Any], offset: int) -> dict[str, Any]:
    def shift(key: str, value: Any) -> Any:
        if key in ("first", "seed"):
            return value + offset if value < SEARCH else value
        if key == "seeds":
            return [shift("seed", seed) for seed in value]
        return _shift_seeds(value, offset) if isinstance(value, Mapping) else value

    return {key: shift(key, value) for key, value in cell.items()}


def read_experiment(identifier: str, module: ModuleType) -> Experiment:
    """The experiment that a figure's module describes.

    Its docstring is title, protocol, ``Source:`` and ``Notes:``; every :class:`RunTable` is a table
    of evidence (or it has ``cells`` and ``run``, with ``SCALES``, and ``then``); every claim and
    every picture in it is one of the figure's, in their order.

    Raises:
        InputError: it computes nothing, or its tables disagree about a parameter.
    """
    names = vars(module)
    # words, tables, claims and pictures, each in the order of the file
    title, protocol, reference, notes = parse_docstring(module.__doc__ or identifier)
    # a function's own name gives way to the one its decorator states; an alias keeps its own
    tables = {
        value.name if name == value.function.__name__ else name: value
        for name, value in names.items()
        if isinstance(value, RunTable)
    }
    claims = [
        claim
        for value in names.values()
        for claim in (value.claims if isinstance(value, Claims) else (value,))
        if isinstance(claim, Claim)
    ]
    drawings = [value for value in names.values() if isinstance(value, PictureFunction)]
    function: Any = names.get("run")
    if tables and list(tables) != ["run"]:
        function = RunTables(tables, module.__name__)
    cells = function.cells if tables else names.get("cells")
    if function is None or cells is None:
        raise InputError(
            f"{module.__file__} computes nothing; decorate a function `run` with `@kit.run(...)`"
        )
    scale = names.get("SCALES") or _scales_of_tables(list(tables.values()))
    return Experiment(
        id=identifier,
        title=title,
        reference=reference,
        protocol=protocol,
        parameters=scale.parameters,
        quick=scale.quick,
        cells=cells,
        run=function,
        claims=tuple(claims),
        plot=names.get("plot") or (lambda evidence: (draw(evidence) for draw in drawings)),
        notes=notes,
        then=names.get("then"),
        published=scale.published,
        medium=scale.medium,
        axes=tuple(
            dict.fromkeys(["part", *(name for table in tables.values() for name in table.columns)])
        ),
    )


def _scales_of_tables(tables: Sequence[RunTable[...]]) -> Scales:
    """The parameters of all tables, and what is different at each scale."""
    parameters = FigureParameters(**_merge_parameters([table.parameters for table in tables]))
    scales = {
        name: parameters.changed(
            _merge_parameters([table.scales.get(name, {}) for table in tables])
        )
        for name in ("quick", "medium", "paper")
        if name == "quick" or any(name in table.scales for table in tables)
    }
    return Scales(parameters, scales["quick"], scales.get("paper"), scales.get("medium"))


def _merge_parameters(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of several tables' parameters.

    Raises:
        InputError: two tables give a parameter different values.
    """
    merged: dict[str, Any] = {}
    for name, value in (entry for group in groups for entry in group.items()):
        if merged.setdefault(name, value) != value:
            raise InputError(f"two parts of a figure have a parameter {name!r} of their own")
    return merged
