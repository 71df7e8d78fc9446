"""What an experiment is: cells of work that can be computed anywhere in any order, and what is read
off them together. A figure's module is read as one by :func:`read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike

from attsvm import InputError
from attsvm.claims import Claim, Evidence
from attsvm_papers.kit.claims import Claims
from attsvm_papers.kit.grid import Cell, Part, Runs, described
from attsvm_papers.kit.pictures import Drawing
from attsvm_papers.kit.words import words

if TYPE_CHECKING:
    from attsvm.report.style import Picture

Plot = Callable[[Evidence], "Iterable[Picture]"]
Then = Callable[[Any, Evidence], "Iterable[Cell]"]

SCALES = ("smoke", "small", "medium", "paper")
"""Seconds on data that comes with the experiment; minutes on two CPU cores; hours on them; the
published sizes, whatever they need.
"""

VERDICT = 10_000
"""Seeds from here on judge; thresholds are set before on the smaller ones, the tuning seeds."""
SEARCH = 1_000_000
"""Seeds from here on belong to searches, as of a learning rate, that no verdict rests on."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, as the papers' readers know it.

    Attributes:
        id: name on the command line, such as ``tfsvm-3``.
        title: what is shown, a few words.
        reference: paper and figure, such as ``P2, Figure 3 (number recalled)``.
        protocol: what is done, as a caption would say it; a few sentences.
        parameters: the frozen dataclass of everything that decides the result, at the scale that
            runs when none is asked for: the paper's where that takes minutes on two CPU cores. A
            field ``seeds`` is the number of trials, a field ``first_seed`` what is added to all
            their seeds.
        quick: the same for a run of seconds, small enough for continuous integration.
        cells: from parameters to cells, each a dict of keyword arguments of ``run``. Raises
            :class:`~attsvm.errors.UnavailableError` where this machine lacks what they need.
        run: one cell's measurements: named arrays with one row per trial. A parameter ``folder``,
            None by default, is given a folder for checkpoints that lasts until the cell is
            finished. Experiments that share a ``run`` share its results.
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
    def asked(self) -> str:
        """What it is asked for by: its name, or its file."""
        return self.file or self.id

    @property
    def random(self) -> bool:
        """Whether it has random trials, so that a number of seeds means something."""
        return hasattr(self.parameters, "seeds")

    def scale(self, name: str | None = None) -> str:
        """The scale that runs when ``name`` is asked for: the largest one that the experiment has
        up to it; its own for None.

        Raises:
            InputError: there is no such scale.
        """
        known = self._scales()
        if name is None:
            return "small" if "small" in known else "paper"
        if name not in SCALES:
            raise InputError(f"there is no scale {name!r}; choose from: {', '.join(SCALES)}")
        below = [each for each in known if SCALES.index(each) <= SCALES.index(name)]
        return below[-1] if name == "smoke" or len(below) > 1 else "paper"

    def _scales(self) -> dict[str, Any]:
        """The parameters of every scale there is, the smallest first."""
        one = self.published is None and self.medium is None
        known = {
            "smoke": self.quick,
            "small": None if one else self.parameters,
            "medium": self.medium,
            "paper": self.parameters if one else self.published,
        }
        return {name: value for name, value in known.items() if value is not None}

    def at(
        self,
        *,
        quick: bool = False,
        scale: str | None = None,
        seeds: int | None = None,
        sizes: tuple[int, ...] | None = None,
        tuning: bool = False,
    ) -> Any:
        """The parameters at a scale (``quick`` is short for ``smoke``), with another number of
        trials, on tuning seeds, or networks with other numbers of blocks, where they are asked
        for.

        Where the published sizes take minutes, ``small`` and ``medium`` are ``paper``.

        Raises:
            InputError: there is no such scale, or the experiment has no seeds, or no sizes, to
                choose.
        """
        chosen = self._scales()[self.scale("smoke" if quick else scale)]
        if seeds is not None and not self.random:
            raise InputError(
                f"{self.id} has no random trials, so seeds do not apply to it; leave them out"
            )
        if sizes is not None and not hasattr(chosen, "sizes"):
            raise InputError(
                f"{self.id} trains no networks of several sizes, so sizes do not apply to it;"
                " leave them out"
            )
        first = 0 if tuning and hasattr(chosen, "first_seed") else None
        asked = {"seeds": seeds, "sizes": sizes, "first_seed": first}
        return replace(
            chosen, **{name: value for name, value in asked.items() if value is not None}
        )

    def first_seed(self, parameters: Any) -> int:
        """What these parameters add to every seed."""
        return int(getattr(parameters, "first_seed", 0))

    def evidence(
        self, cells: Sequence[Cell], results: Sequence[Mapping[str, ArrayLike]]
    ) -> Evidence:
        """The rows of all cells, with the arguments that tell them apart as columns."""
        return Evidence.concatenate(
            [described(cell, found, self.axes) for cell, found in zip(cells, results, strict=True)]
        )

    @property
    def stages(self) -> tuple[Then, ...]:
        """What :attr:`then` holds, one after the other."""
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

        What was settled after a look at some seeds, a threshold above all, is judged on others.

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
        by = shift + self.first_seed(parameters)
        found: list[Cell] = [_moved(cell, by) for cell in cells] if by else cells
        if shift and evidence is None and self.then is None and found == cells:
            raise InputError(f"{self.id} has no seeds that could be shifted; leave the shift out")
        return found


def _moved(cell: Mapping[str, Any], by: int) -> dict[str, Any]:
    def moved(key: str, value: Any) -> Any:
        if key in ("first", "seed"):
            return value + by if value < SEARCH else value
        if key == "seeds":
            return [moved("seed", seed) for seed in value]
        return _moved(value, by) if isinstance(value, Mapping) else value

    return {key: moved(key, value) for key, value in cell.items()}


class Scales(NamedTuple):
    """The parameters of a figure at its scales; see :class:`Experiment`."""

    parameters: Any
    quick: Any
    published: Any = None
    medium: Any = None


def scales(
    *,
    quick: Mapping[str, Any] | None = None,
    published: Mapping[str, Any] | None = None,
    medium: Mapping[str, Any] | None = None,
    **own: Any,
) -> Scales:
    """Everything that decides a figure's numbers, and what is different when it runs in seconds, at
    published sizes, or in hours.

    A parameter ``seeds`` is the number of random trials, and ``first_seed`` what is added to their
    seeds: ``first_seed=VERDICT`` judges on seeds that no threshold was set on.
    """
    chosen = make_dataclass("Parameters", own, frozen=True)(**own)
    return Scales(
        chosen,
        replace(chosen, **(quick or {})),
        None if published is None else replace(chosen, **published),
        None if medium is None else replace(chosen, **medium),
    )


def read(identifier: str, module: ModuleType) -> Experiment:
    """The experiment that a figure's module describes.

    Its docstring is title, protocol, ``Source:`` and ``Notes:``; ``SCALES`` are its parameters;
    every :class:`Part` a table of evidence (or ``cells`` and ``run`` of its own, and ``then``);
    every claim and every picture in it is one of the figure's, in their order.
    """
    known = vars(module)
    title, protocol, reference, notes = words(module.__doc__ or identifier)
    scale = known.get("SCALES") or scales()
    parts = {name: each for name, each in known.items() if isinstance(each, Part)}
    claims = [
        one
        for each in known.values()
        for one in (
            each.claims
            if isinstance(each, Claims)
            else each
            if isinstance(each, tuple | list)
            else (each,)
        )
        if isinstance(one, Claim)
    ]
    drawings = [each for each in known.values() if isinstance(each, Drawing)]
    run, cells, axes = known.get("run"), known.get("cells"), ["part"]
    if isinstance(run, Part) and len(parts) == 1:
        cells = run.cells
    elif parts:
        run = Runs(parts)
        cells = run.cells
    if run is None or cells is None:
        raise InputError(
            f"{module.__file__} computes nothing; decorate a function `run` with `@grid(...)`"
        )
    for part in parts.values():
        axes += [*part.axes, *(name for table in part.tables for name in table.names)]
    return Experiment(
        id=identifier,
        title=title,
        reference=reference,
        protocol=protocol,
        parameters=scale.parameters,
        quick=scale.quick,
        cells=cells,
        run=run,
        claims=tuple(claims),
        plot=known.get("plot") or (lambda evidence: [draw(evidence) for draw in drawings]),
        notes=notes,
        then=known.get("then"),
        published=scale.published,
        medium=scale.medium,
        axes=tuple(dict.fromkeys(axes)),
    )
