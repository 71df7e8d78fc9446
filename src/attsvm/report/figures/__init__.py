"""The figures of a report, one function each; a function returns None when the run has nothing to
draw in it.
"""

from __future__ import annotations

from collections.abc import Callable

from attsvm.report.figures.accuracy import accuracy
from attsvm.report.figures.direction import direction
from attsvm.report.figures.margins import concentration, margins
from attsvm.report.figures.training import joint, loss, norm, selection
from attsvm.report.figures.weights import weights
from attsvm.report.folder import Run
from attsvm.report.style import Picture

FIGURES: tuple[Callable[[Run], Picture | None], ...] = (
    accuracy,
    joint,
    loss,
    selection,
    norm,
    direction,
    margins,
    concentration,
    weights,
)


def draw(run: Run) -> dict[str, Picture]:
    """Every figure that this run has the data for, by name."""
    pictures = (figure(run) for figure in FIGURES)
    return {picture.name: picture for picture in pictures if picture is not None}


__all__ = ["FIGURES", "draw"]
