"""Pictures as functions: the docstring is the caption, the decorator has the words and the size."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attsvm.claims import Evidence
from attsvm.report.style import WIDTH, Picture, canvas, render
from attsvm_papers.kit.words import one_line


class Drawing:
    """A picture that is drawn from the evidence: ``drawing(evidence)`` is a
    :class:`~attsvm.report.style.Picture`.
    """

    def __init__(self, function: Callable[..., None], made: Callable[..., Picture]) -> None:
        self.function, self._made = function, made
        self.__doc__, self.__module__ = function.__doc__, function.__module__

    def __call__(self, evidence: Evidence) -> Picture:
        return self._made(evidence)


def picture(
    title: str,
    alt: str,
    height: float,
    rows: int = 1,
    columns: int | Callable[[Evidence], int] = 1,
    width: float | Callable[[Evidence], float] = WIDTH,
    *,
    name: str | None = None,
    **grid: Any,
) -> Callable[[Callable[..., None]], Drawing]:
    """Makes ``def name(evidence, axes)`` a picture of its figure; its docstring is the caption.

    Args:
        title: what the picture shows, a few words.
        alt: what a reader would see, for those who cannot.
        height: inches.
        rows: of panels.
        columns: of panels; a function of the evidence where that decides.
        width: inches; the same.
        name: of its files; the function's when left out.
        **grid: options of the panels, such as ``sharey``.
    """

    def decorate(function: Callable[..., None]) -> Drawing:
        def made(evidence: Evidence) -> Picture:
            across = columns(evidence) if callable(columns) else columns
            wide = width(evidence) if callable(width) else width
            with canvas(height, rows, across, wide, **grid) as (figure, axes):
                function(evidence, axes)
                caption = one_line(inspect.getdoc(function) or "")
                return render(figure, name or function.__name__, title, caption, alt)

        return Drawing(function, made)

    return decorate
