"""Pictures of trained networks: accuracy tables, their differences, learning courses and weight
histograms.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from attsvm_papers import kit
from attsvm_papers.networks.accuracy_table import PROTOCOLS, accuracies, difference
from attsvm_papers.networks.selectivity import BIN, PARTS
from attsvm_papers.networks.trained_networks import DATA, METHODS

NAMES = {
    "l1.1": "p = 1.1",
    "l2": "p = 2",
    "l3": "p = 3",
    "adam": "Adam",
    "spectral": "spectral",
}
_MARKERS = {"selected": "o", "last": "s", "published": "|"}
_COLUMNS = {"validation": 0.22, "last": 0.48, "best on test": 0.78, "epochs": 1.0}
COLOURS = dict(
    zip(METHODS, (kit.ATTENTION, kit.TRAINED, kit.BEST, kit.INK, kit.FAINT), strict=True)
)


def _panels(rows: kit.Evidence) -> list[tuple[str, str, kit.Evidence, list[str]]]:
    """Data, title, rows and optimisers of every panel."""
    panels = []
    for rows_of_panel in rows.by("data depth"):
        data, names = (
            DATA[int(rows_of_panel["data"][0])],
            [METHODS[int(k)] for k in rows_of_panel.levels("method")],
        )
        panels.append((data, f"{int(rows_of_panel['depth'][0])} blocks", rows_of_panel, names))
    return panels


def plot_accuracy(rows: kit.Evidence, titles: Mapping[str, str]) -> kit.Picture:
    """The accuracy table as a picture: three protocols per optimiser, with the numbers."""
    panels = _panels(rows)
    heights = [1.0 + len(names) for *_, names in panels]
    grid = {"width_ratios": (1, 1), "height_ratios": heights, "squeeze": False}
    quiet: dict[str, Any] = {"va": "center", "ha": "right", "fontsize": 8.5}
    with kit.canvas(0.5 + 0.32 * sum(heights), len(panels), 2, width=6.6, **grid) as (figure, axes):
        for (data, depth, rows_of_panel, names), (ax, table) in zip(panels, axes, strict=True):
            accuracies_by_protocol = accuracies(rows_of_panel)
            for position, name in enumerate(names):
                is_method = rows_of_panel["method"] == METHODS.index(name)
                style: dict[str, Any] = {"color": COLOURS[name], "fillstyle": "none"}
                for protocol, marker in _MARKERS.items():
                    values = accuracies_by_protocol[protocol][is_method]
                    ax.plot(values, [position] * len(values), marker, alpha=0.3, ms=4, **style)
                    ax.plot(values.mean(), position, marker, ms=11 if marker == "|" else 6, **style)
                values_by_protocol = (
                    accuracies_by_protocol[protocol][is_method] for protocol in PROTOCOLS
                )
                labels = [
                    f"{values.mean():.1f} ± {values.std():.1f}" for values in values_by_protocol
                ]
                star = "" if np.all(rows_of_panel["stopped"][is_method] == 0) else "*"
                labels.append(f"{rows_of_panel['epochs'][is_method].mean():.0f}{star}")
                for x, label in zip(_COLUMNS.values(), labels, strict=True):
                    table.text(x, position, label, **quiet)
            for label, x in _COLUMNS.items():
                table.text(x, -1, label, color=kit.FAINT, **quiet)
            table.axis("off")
            for panel in (ax, table):
                panel.set_ylim(len(names) - 0.5, -1.2)
            ax.set_yticks(range(len(names)), [NAMES[name] for name in names])
            ax.set_title(f"{titles[data]}, {depth}, {len(rows_of_panel.levels('seed'))} seeds")
        axes[-1, 0].set_xlabel("test accuracy, %")
        return kit.render(
            figure,
            "accuracy",
            "Test accuracy by optimiser",
            "Circles and first column: the epoch that is best on validation examples. Squares and"
            " second column: the last epoch. Bars and third column: the epoch that is best on the"
            " test set, the published protocol, which flatters. Mean ± deviation over seeds; faint"
            " marks are single runs. Epochs are those until the stopping rule; a star marks"
            " trainings that ended without reaching it.",
            "Test accuracies of each optimiser in three protocols, one panel per data set, with the"
            " numbers beside them.",
        )


def plot_differences(rows: kit.Evidence, titles: Mapping[str, str]) -> kit.Picture:
    """Accuracy of p = 1.1 minus every other optimiser's at the last epoch, with intervals."""
    panels = [panel for panel in _panels(rows) if "l1.1" in panel[3] and len(panel[3]) > 1]
    heights = [1.0 + len(names) for *_, names in panels]
    with kit.canvas(0.5 + 0.3 * sum(heights), len(panels), height_ratios=heights) as (figure, axes):
        for (data, depth, rows_of_panel, names), ax in zip(panels, axes, strict=True):
            others = [name for name in names if name != "l1.1"]
            for position, name in enumerate(others):
                mean, low, high = difference(rows_of_panel, data, "l1.1", name)
                ax.plot([low, high], [position, position], color=COLOURS[name], linewidth=2)
                ax.plot(mean, position, "o", color=COLOURS[name], markersize=5)
            ax.axvline(0, color=kit.RULE, linewidth=0.9, zorder=0)
            ax.set_yticks(range(len(others)), [f"over {NAMES[name]}" for name in others])
            ax.set(ylim=(len(others) - 0.5, -0.5), title=f"{titles[data]}, {depth}")
        axes[-1].set_xlabel("advantage of p = 1.1 at the last epoch, points")
        return kit.render(
            figure,
            "differences",
            "Is p = 1.1 more accurate?",
            "Test accuracy of p = 1.1 minus that of the optimiser named, at the last epoch, with"
            " its 95% interval over seeds and test examples: at each end the wider of a bootstrap"
            " over both and Student's t over seeds. An interval that contains 0 shows no"
            " difference.",
            "Intervals of accuracy differences between p = 1.1 and the other optimisers, one panel"
            " per data set.",
        )


def plot_courses(rows: kit.Evidence, titles: Mapping[str, str]) -> kit.Picture:
    """Training and test accuracy epoch by epoch."""
    panels = _panels(rows)
    size = (0.9 + 2.2 * len(panels), len(panels), 2)
    with kit.canvas(*size, width=6.0, squeeze=False) as (figure, axes):
        for (data, depth, rows_of_panel, names), pair in zip(panels, axes, strict=True):
            for kind, ax in zip(("train", "test"), pair, strict=True):
                for name in names:
                    trajectories = (
                        100 * rows_of_panel.where(method=METHODS.index(name))[f"{kind}_accuracy"]
                    )
                    epochs = np.arange(1, trajectories.shape[1] + 1)
                    lines = ax.plot(epochs, trajectories.T, color=COLOURS[name], linewidth=1.1)
                    lines[0].set_label(NAMES[name])
                last = max(float(rows_of_panel["epochs"].max()), 2.0)
                kit.logarithmic(ax.xaxis, np.array([1.0, last]))
                ax.set_xlim(1.0, last)
                ax.set(title=f"{titles[data]}, {depth}", ylabel=f"{kind} accuracy, %")
        for ax in axes[-1]:
            ax.set_xlabel("epoch")
        most = max(range(len(panels)), key=lambda k: len(panels[k][-1]))
        kit.legend_below(axes[most, 0], 5)
        return kit.render(
            figure,
            "courses",
            "Accuracy epoch by epoch",
            "Left: accuracy on the training examples, measured while training. Right: on test"
            " examples. One line per seed.",
            "Training accuracy rises to its stopping value for each optimiser; test accuracy levels"
            " off.",
        )


def plot_histograms(rows: kit.Evidence, names: Sequence[str], title: str) -> kit.Picture:
    """Sizes of the query, key and value weights, one panel each.

    Args:
        rows: trainings on one data set.
        names: the optimisers that are drawn.
        title: of the data and network.
    """
    with kit.canvas(2.9, 1, 3, width=6.6, sharey=True) as (figure, axes):
        for matrix, ax in enumerate(axes):
            end, heights = 1.0, []
            for name in names:
                runs = rows.where(method=METHODS.index(name))
                counts = np.nansum(runs["histogram"][:, matrix], axis=0)
                share = counts / counts.sum()
                last_bin = np.flatnonzero(share)[-1] + 1
                # Neighbouring bins are joined further out, where counts are small.
                edges = np.unique(
                    np.concatenate([np.arange(0, 12), np.geomspace(12, len(share), 22).astype(int)])
                )
                edges = edges[edges <= last_bin + 30]
                height = [share[a:b].sum() / (b - a) for a, b in pairwise(edges)]
                heights += height
                style: dict[str, Any] = {"color": COLOURS[name]}
                ax.stairs(height, edges * BIN, linewidth=1.4, label=NAMES[name], **style)
                largest = float(np.nanmean(runs["largest"][:, matrix]))
                style |= {"clip_on": False, "transform": ax.get_xaxis_transform()}
                ax.plot(largest, 0, "o", markersize=5, **style)
                end = max(end, largest)
            kit.logarithmic(ax.yaxis, np.array(heights))
            ax.axvline(1.0, color=kit.RULE, linewidth=0.9, zorder=0)
            ax.set(xlim=(0, end * 1.05), title=PARTS[matrix])
        axes[0].set_ylabel("share of weights per bin")
        axes[1].set_xlabel("modulus of a weight, in units of its initial bound")
        axes[-1].legend(frameon=False, fontsize=8)
        return kit.render(
            figure,
            "weights",
            f"Query, key and value weights: {title}",
            f"How many weights have which size, all blocks and seeds together; a bin is {BIN:.3f}"
            " of the initial bound wide. Weights start spread evenly up to the grey line. Dots:"
            " the largest weight, mean over seeds.",
            "Histograms of weight sizes for queries, keys and values by optimiser, on a logarithmic"
            " scale of counts.",
        )
