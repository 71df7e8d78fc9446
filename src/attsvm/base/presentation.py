"""What results look like: their pictures and their notebook cells.

A solution or a trajectory knows nothing of pages. It asks here, by name and on first use, for the
room that draws, so that solving and training load neither it nor matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PICTURES, _CELLS = "attsvm.report.plots", "attsvm.report.notebook_cells"


def plot(kind: str, of: Any, ax: Axes | None, **options: Any) -> Axes:
    """The axes with the picture of ``of``, drawn by the function ``kind`` of
    :mod:`attsvm.report.plots`.
    """
    plots = importlib.import_module(_PICTURES)
    axes: Axes = plots.axes_of(ax)
    getattr(plots, kind)(axes, of, **options)
    return axes


def html_cell(of: Any) -> str:
    """The HTML of ``of`` in a notebook; see :mod:`attsvm.report.notebook_cells`."""
    return str(importlib.import_module(_CELLS).cell(of))
