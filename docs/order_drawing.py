"""Priority graphs as pictures: winners above losers, tied tokens side by side in one frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.report.style import ATTENTION, BEST, FAINT, INK
from attsvm.theory.sentences import components, transitive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_APART = 0.18  # inches between neighbours of a row
_ROW = 0.62  # inches between rows
_FRAME = 0.23  # inches from the middle of a frame to its edge
_LETTER = 0.085  # inches of a letter


def draw_order(
    axes: Axes, arcs: ArrayLike, names: Sequence[str], notes: Sequence[str] | None = None
) -> tuple[float, float]:
    """Draw the graph of one query and return its width and height in inches.

    Arcs that follow from others by transitivity are left out. A strongly connected component is a
    frame; inside it no token comes first.

    Args:
        axes: emptied, without scales.
        arcs: ``(k, 2)``, rows ``(winner, loser)``.
        names: of all tokens of the vocabulary.
        notes: a second line for every token of the vocabulary, such as its score.
    """
    pairs = np.asarray(arcs, dtype=np.int64).reshape(-1, 2)
    _, nodes, component = components(np.column_stack([np.zeros(len(pairs), dtype=np.int64), pairs]))
    groups = np.unique(component)
    members = [np.flatnonzero(component == group) for group in groups]
    ends = np.searchsorted(groups, component[np.searchsorted(nodes, pairs)])
    below = np.zeros((len(groups), len(groups)), dtype=np.bool_)
    below[ends[:, 0], ends[:, 1]] = True
    np.fill_diagonal(below, False)
    labels = [names[v] for v in nodes]
    widths = np.array(
        [
            _LETTER * max(len(label), len(notes[v]) if notes else 0) + 0.16
            for label, v in zip(labels, nodes, strict=True)
        ]
    )
    spans = np.array([widths[group].sum() + _APART * (len(group) - 1) for group in members])
    centre, row = _placed(_reduced(below), spans)
    x = np.zeros(len(nodes))
    for g, group in enumerate(members):
        starts = np.concatenate([[0.0], np.cumsum(widths[group] + _APART)[:-1]])
        x[group] = centre[g] - spans[g] / 2 + starts + widths[group] / 2
    apart = _ROW if notes is None else 1.25 * _ROW
    y = -apart * row.astype(float)
    framed = np.array([len(group) > 1 for group in members], dtype=np.bool_)
    _arrows(axes, _reduced(below), framed, centre, y, apart, 10 if notes is None else 16)
    _frames(axes, members, spans, centre, y)
    of = np.searchsorted(groups, component)
    for k, label in enumerate(labels):
        colour = ATTENTION if framed[of[k]] else INK if below[:, of[k]].any() else BEST
        box = {
            "boxstyle": "round,pad=0.25",
            "facecolor": "#ffffff",
            "edgecolor": colour,
            "linewidth": 0.8,
        }
        text = label if notes is None else f"{label}\n{notes[nodes[k]]}"
        axes.text(
            x[k],
            y[of[k]],
            text,
            ha="center",
            va="center",
            fontsize=9,
            color=colour,
            bbox=box,
            linespacing=1.1,
            zorder=3,
        )
    width, height = float(x.max() - x.min() + widths.max()), float(apart * (row.max() + 1))
    axes.set_xlim(x.min() - widths.max() / 2 - 0.12, x.max() + widths.max() / 2 + 0.12)
    axes.set_ylim(y.min() - 0.36, y.max() + 0.36)
    axes.axis("off")
    return width, height


def _reduced(below: BoolArray) -> BoolArray:
    """The arcs of an acyclic graph that do not follow from others."""
    closed = transitive(below)
    steps = closed.astype(np.float32)
    return closed & ~(steps @ steps > 0)


def _placed(reduced: BoolArray, spans: FloatArray) -> tuple[FloatArray, IntArray]:
    """Centres and rows: a node lies one row above the highest of its losers, near the mean of its
    neighbours above.

    Rows count from the bottom while they are assigned: a lone winner then stands next to what it
    wins against, and its arrows pass behind no names between.
    """
    size = len(reduced)
    row = np.zeros(size, dtype=np.int64)
    for _ in range(size):
        higher = np.max(np.where(reduced, row[None, :] + 1, 0), axis=1, initial=0)
        if (higher == row).all():
            break
        row = higher
    row = row.max(initial=0) - row
    centre = np.zeros(size)
    for level in range(int(row.max(initial=0)) + 1):
        here = np.flatnonzero(row == level)
        above = reduced[:, here]
        wanted = np.where(
            above.any(axis=0),
            (above * centre[:, None]).sum(axis=0) / np.maximum(above.sum(axis=0), 1),
            0.0,
        )
        here = here[np.argsort(wanted, kind="stable")]
        places = np.cumsum(spans[here] + _APART) - _APART - spans[here] / 2
        centre[here] = (
            places - (places[0] - spans[here[0]] / 2 + places[-1] + spans[here[-1]] / 2) / 2
        )
    return centre, row


def _arrows(
    axes: Axes,
    reduced: BoolArray,
    framed: BoolArray,
    centre: FloatArray,
    y: FloatArray,
    apart: float,
    box: float,
) -> None:
    for g, h in np.argwhere(reduced):
        start, stop = (centre[g], y[g] - _FRAME * framed[g]), (centre[h], y[h] + _FRAME * framed[h])
        shrink = {"shrinkA": 1 if framed[g] else box, "shrinkB": 2 if framed[h] else box + 1}
        # around the names of the rows between, on the outer side
        bow = 0.3 * (y[g] - y[h] > 1.5 * apart)
        bend = f"arc3,rad={-bow if centre[h] + centre[g] > 0 else bow}"
        style = {
            "arrowstyle": "-|>",
            "connectionstyle": bend,
            "color": FAINT,
            "linewidth": 0.9,
            "mutation_scale": 9,
            **shrink,
        }
        axes.annotate("", stop, start, arrowprops=style, zorder=1)


def _frames(
    axes: Axes, members: Sequence[IntArray], spans: FloatArray, centre: FloatArray, y: FloatArray
) -> None:
    from matplotlib.patches import FancyBboxPatch

    for g, group in enumerate(members):
        if len(group) > 1:
            corner = (centre[g] - spans[g] / 2 - 0.04, y[g] - _FRAME + 0.03)
            shape = "round,pad=0.03,rounding_size=0.08"
            box = (corner, spans[g] + 0.08, 2 * _FRAME - 0.06)
            axes.add_patch(
                FancyBboxPatch(
                    *box, boxstyle=shape, facecolor=ATTENTION, alpha=0.12, linewidth=0, zorder=0
                )
            )
