"""What an experiment is: cells of work that can be computed anywhere in any order, and what is read off them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from attsvm.claims import Claim, Evidence
from attsvm.errors import InputError

if TYPE_CHECKING:
    from attsvm.report.style import Picture

Cell = Mapping[str, Any]
"""The keyword arguments of ``run`` for one piece of work: JSON values only, because they name the cached result."""

Plot = Callable[[Evidence], "Iterable[Picture]"]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, as the papers' readers know it.

    Attributes:
        id: name on the command line, such as ``tfsvm-3``.
        title: what is shown, a few words.
        reference: paper and figure, such as ``P2, Figure 3 (number recalled)``, and the specification's name.
        protocol: what is done, as a caption would say it; a few sentences.
        parameters: the frozen dataclass of everything that decides the result, at the paper's scale. A field ``seeds`` is the
            number of trials.
        quick: the same for a run of seconds, small enough for continuous integration.
        cells: from parameters to cells, each a dict of keyword arguments of ``run``.
        run: one cell's measurements: named arrays with one row per trial.
        claims: what the evidence is held against.
        plot: the figures.
        notes: what a reader should know: what was recalled, where the published figure has an artefact.
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

    @property
    def paper(self) -> str:
        """Key of the paper, ``tfsvm`` of ``tfsvm-3``."""
        return self.id.rsplit("-", 1)[0]

    def at(self, *, quick: bool = False, seeds: int | None = None) -> Any:
        """The parameters at a scale, with another number of trials where one is asked for.

        Raises:
            InputError: the experiment has no seeds to choose.
        """
        chosen = self.quick if quick else self.parameters
        if seeds is None:
            return chosen
        if not hasattr(chosen, "seeds"):
            raise InputError(f"{self.id} has no random trials, so --seeds does not apply to it; leave it out")
        return replace(chosen, seeds=seeds)


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """``count`` seeds from 0 on as ``(first, how many)``, at most ``size`` in each.

    Every block but the last is full, so a later run with more seeds finds the full ones in the cache.
    """
    return [(first, min(size, count - first)) for first in range(0, count, size)]
