"""What many pictures draw: logarithmic axes, bands over trials, and the ends of curves by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.report.style import FAINT, logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def loglog(ax: Axes, x: ArrayLike, y: ArrayLike) -> None:
    """Both axes logarithmic, with ticks for these values."""
    logarithmic(ax.xaxis, np.asarray(x))
    logarithmic(ax.yaxis, np.asarray(y))


_QUIET: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "labelcolor": FAINT}


def legend(ax: Axes, **options: Any) -> None:
    """The names of a panel's curves, without a frame and in grey."""
    ax.legend(**_QUIET, **options)


def legend_below(ax: Axes, columns: int) -> None:
    """Those of one panel below all panels of its figure."""
    named = ax.get_legend_handles_labels()
    ax.figure.legend(*named, loc="outside lower center", ncols=columns, **_QUIET)


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


def bands(ax: Axes, x: ArrayLike, lines: Iterable[tuple[NDArray[Any], str, str]]) -> None:
    """Bands by step on logarithmic axes, each ``(trials, records)`` with its colour and its name in
    the legend.
    """
    told = list(lines)
    for rows, colour, words in told:
        band(ax, x, rows, colour, label=words)
    loglog(ax, x, np.concatenate([rows.ravel() for rows, *_ in told]))
    ax.set(xlabel="step")
