"""Pictures as functions: the docstring is the caption, the decorator has the words and the size.
Below them what many pictures draw.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.claims import Evidence
from attsvm.report.style import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    TRAINED,
    WIDTH,
    Picture,
    canvas,
    logarithmic,
    render,
)
from attsvm_papers.kit.captions import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BEST, TRAINED, ATTENTION, INK)


@dataclass(frozen=True)
class Drawing:
    """What makes a :class:`~attsvm.report.style.Picture` of the evidence."""

    draw: Callable[[Evidence], Picture]

    def __call__(self, evidence: Evidence) -> Picture:
        return self.draw(evidence)


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
                for ax in figure.axes:
                    _label_logarithmic(ax)
                caption = one_line(inspect.getdoc(function) or "")
                return render(figure, name or function.__name__, title, caption, alt)

        return Drawing(made)

    return decorate


def _label_logarithmic(ax: Axes) -> None:
    """The house's labels on logarithmic axes that have matplotlib's."""
    from matplotlib.ticker import LogFormatter

    for axis in (ax.xaxis, ax.yaxis):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            limits = axis.get_view_interval()
            logarithmic(axis, np.asarray(limits))
            axis.set_view_interval(*limits, ignore=True)


def panels(
    title: str,
    alt: str,
    height: float,
    *,
    by: str,
    rows: int = 1,
    head: str | Callable[..., str | None] = "",
    legend: int = 4,
    **options: Any,
) -> Callable[[Callable[..., None]], Drawing]:
    """Makes ``def name(evidence, *axes)`` a picture with a column of panels for every value of a
    column of the evidence, and a legend of the first below them.

    Args:
        title: what the picture shows, a few words.
        alt: what a reader would see, for those who cannot.
        height: inches.
        by: the column.
        rows: of panels, the axes that the function gets.
        head: what stands above a column of panels; ``{}`` in it is the value.
        legend: columns of the legend at most; none with 0.
        **options: those of :func:`picture`.
    """
    words = head or f"{by} = {{}}"

    def decorate(function: Callable[..., None]) -> Drawing:
        def draw(e: Evidence, axes: NDArray[Any]) -> None:
            for column, value in zip(axes.T, e.levels(by), strict=True):
                told = f"{value:g}" if isinstance(value, float) else value
                column[0].set_title(words.format(told) if isinstance(words, str) else words(value))
                function(e.where(**{by: value}), *column)
            if legend:
                legend_below(axes[0, 0], legend)

        draw.__name__, draw.__doc__ = function.__name__, function.__doc__
        wide: dict[str, Any] = {
            "sharey": "row",
            "squeeze": False,
            "columns": lambda e: len(e.levels(by)),
        }
        return picture(title, alt, height, rows, **wide | options)(draw)

    return decorate


def means(
    ax: Axes,
    e: Evidence,
    x: str,
    lines: Mapping[str, str],
    *,
    style: str = "-",
    log: bool = False,
    at: tuple[float, Mapping[str, float]] | None = None,
) -> None:
    """Means over trials of some columns, a line each with its name in the legend; ``at=(x, {column:
    value})`` marks values of others with crosses.
    """
    drawn = {name: e[name].mean(axis=0) for name in lines}
    for colour, (name, label) in zip(COLOURS, lines.items(), strict=False):
        ax.plot(e[x][0], drawn[name], style, color=colour, label=label)
        if at:
            ax.plot(at[0], at[1][name], "x", color=colour, clip_on=False)
    ax.set(xlabel=x, yscale="log" if log else "linear")


def dots(
    ax: Axes,
    places: Iterable[float],
    values: Iterable[ArrayLike],
    *,
    label: str | None = None,
    **options: Any,
) -> None:
    """A dot per value, beside each other at each place; one name for all in the legend."""
    for place, each in zip(places, values, strict=True):
        shown = np.ravel(each)
        ax.plot(place + np.linspace(-0.2, 0.2, len(shown)), shown, "o", label=label, **options)
        label = None


def loglog(ax: Axes, x: ArrayLike, y: ArrayLike) -> None:
    """Both axes logarithmic, with ticks for these values."""
    logarithmic(ax.xaxis, np.asarray(x))
    logarithmic(ax.yaxis, np.asarray(y))


_QUIET: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "labelcolor": FAINT}


def legend(ax: Axes, **options: Any) -> None:
    """The names of a panel's curves, without a frame and in grey."""
    ax.legend(**_QUIET, **options)


def legend_below(ax: Axes, columns: int) -> None:
    """Those of one panel below all panels of its figure, in as many columns as fit."""
    figure = ax.figure
    while True:
        placed = figure.legend(
            *ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **_QUIET
        )
        if columns == 1 or placed.get_window_extent().width < figure.bbox.width:
            return
        placed.remove()
        columns -= 1


def band(
    ax: Axes,
    x: ArrayLike,
    rows: NDArray[Any],
    colour: str,
    style: str = "-",
    shares: tuple[float, float] = (0.0, 1.0),
    *,
    label: str | None = None,
    shade: float = 0.15,
) -> None:
    """The median over trials ``(trials, records)`` as a line, and between two quantiles, the whole
    range when left out, a band.
    """
    low, middle, high = np.quantile(rows, (shares[0], 0.5, shares[1]), axis=0)
    ax.fill_between(np.asarray(x), low, high, color=colour, alpha=shade, linewidth=0)
    ax.plot(x, middle, style, color=colour, label=label)


def bands(
    ax: Axes, x: ArrayLike, lines: Iterable[tuple[NDArray[Any], str, str]], log: str = "xy"
) -> None:
    """Bands by step, each ``(trials, records)`` with its colour and its name in the legend; the
    axes that ``log`` names are logarithmic.
    """
    for rows, colour, words in lines:
        band(ax, x, rows, colour, label=words)
    ax.set(xlabel="step", **{f"{axis}scale": "log" for axis in log})
