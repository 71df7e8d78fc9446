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
class PictureFunction:
    """A function from the evidence to a :class:`~attsvm.report.style.Picture` of it."""

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
) -> Callable[[Callable[..., None]], PictureFunction]:
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

    def decorate(function: Callable[..., None]) -> PictureFunction:
        def draw(evidence: Evidence) -> Picture:
            across = columns(evidence) if callable(columns) else columns
            inches = width(evidence) if callable(width) else width
            with canvas(height, rows, across, inches, **grid) as (figure, axes):
                function(evidence, axes)
                for ax in figure.axes:
                    _label_logarithmic(ax)
                caption = one_line(inspect.getdoc(function) or "")
                return render(figure, name or function.__name__, title, caption, alt)

        return PictureFunction(draw)

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
) -> Callable[[Callable[..., None]], PictureFunction]:
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
    heading = head or f"{by} = {{}}"

    def decorate(function: Callable[..., None]) -> PictureFunction:
        def draw(e: Evidence, axes: NDArray[Any]) -> None:
            for column, value in zip(axes.T, e.levels(by), strict=True):
                label = f"{value:g}" if isinstance(value, float) else value
                column[0].set_title(
                    heading.format(label) if isinstance(heading, str) else heading(value)
                )
                function(e.where(**{by: value}), *column)
            if legend:
                legend_below(axes[0, 0], legend)

        draw.__name__, draw.__doc__ = function.__name__, function.__doc__
        defaults: dict[str, Any] = {
            "sharey": "row",
            "squeeze": False,
            "columns": lambda e: len(e.levels(by)),
        }
        return picture(title, alt, height, rows, **defaults | options)(draw)

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
    curves = {name: e[name].mean(axis=0) for name in lines}
    for colour, (name, label) in zip(COLOURS, lines.items(), strict=False):
        ax.plot(e[x][0], curves[name], style, color=colour, label=label)
        if at:
            ax.plot(at[0], at[1][name], "x", color=colour, clip_on=False)
    ax.set(xlabel=x, yscale="log" if log else "linear")


def dots(
    ax: Axes,
    positions: Iterable[float],
    values: Iterable[ArrayLike],
    *,
    label: str | None = None,
    **options: Any,
) -> None:
    """A dot per value, side by side at each position; one name for all in the legend."""
    for position, column in zip(positions, values, strict=True):
        heights = np.ravel(column)
        ax.plot(
            position + np.linspace(-0.2, 0.2, len(heights)), heights, "o", label=label, **options
        )
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
    """The names of one panel's curves below all panels of its figure, in as many columns as fit."""
    figure = ax.figure
    while True:
        box = figure.legend(
            *ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **_QUIET
        )
        if columns == 1 or box.get_window_extent().width < figure.bbox.width:
            return
        box.remove()
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
    for rows, colour, label in lines:
        band(ax, x, rows, colour, label=label)
    ax.set(xlabel="step", **{f"{axis}scale": "log" for axis in log})
