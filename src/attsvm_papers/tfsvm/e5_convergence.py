"""Global and local convergence against dimension, sequences and tokens.

Random tokens, queries and head on the unit sphere; normalised gradient descent on W from zero with
step 0.1. A run is saturated when every sequence gives one token more than 0.99; it is global when
these are the tokens of highest score, and local when its selection is feasible and every selected
token beats its neighbours at the margin.

Source: Transformers as Support Vector Machines, bars of global and local convergence (recalled);
specification E2.5

Notes: The paper's own sizes and number of trials are not known to us; the protocol is the
specification's.
"""

from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    LogSpaced,
    gradient_alignment,
    optimal_tokens,
    selection_margins,
    train,
)
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    TRAINED,
    Evidence,
    at_least,
    at_most,
    blocks,
    claim,
    grid,
    picture,
    rows,
    scales,
    setting,
)
from attsvm_papers.tfsvm.convergence import outcomes

# Instances of :func:`attsvm.datasets.unit_sphere`; normalised gradient descent on W from zero.
SCALES = scales(
    cells=(
        *((4, 5, d) for d in (2, 4, 6, 8, 10, 15, 20)),
        *((4, T, 8) for T in (3, 8, 12)),
        *((n, 5, 8) for n in (2, 8, 12)),
    ),
    steps=3000,
    lr=0.1,
    seeds=500,
    quick={
        "cells": ((4, 5, 2), (4, 5, 8), (4, 5, 20), (4, 12, 8), (2, 5, 8), (12, 5, 8)),
        "seeds": 50,
    },
)

# length of the first step that the theorem on aligned gradients asks to be long enough: 20 was not
# for 1 instance of 1 523
FAR = 1e6

# Shares of 100 instances measured for the specification: (n, T, d): feasible, global, local
# including global, all support, aligned.
REFERENCE = {
    (4, 5, 2): (58, 45, 70, 0, 11),
    (4, 5, 4): (100, 77, 100, 0, 16),
    (4, 5, 6): (100, 85, 100, 0, 17),
    (4, 5, 8): (100, 94, 100, 0, 28),
    (4, 5, 10): (100, 92, 99, 0, 30),
    (4, 5, 15): (100, 97, 100, 1, 40),
    (4, 5, 20): (100, 98, 100, 1, 41),
    (4, 3, 8): (100, 98, 100, 42, 51),
    (4, 8, 8): (100, 82, 100, 0, 10),
    (4, 12, 8): (100, 71, 99, 0, 9),
    (2, 5, 8): (100, 98, 100, 4, 53),
    (8, 5, 8): (100, 65, 100, 0, 2),
    (12, 5, 8): (100, 32, 94, 0, 0),
}


@grid(rows("n T d", setting("cells")), seeds=blocks(100))
def run(n, T, d, seeds, steps, lr, self_attention=False):
    data, heads = unit_sphere(n, T, d, seeds, self_attention=self_attention)
    model = Attention.cross(data, heads)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=lr), steps, LogSpaced(2))
    columns = outcomes(data, heads, trajectory, selection_margins)
    aligned = gradient_alignment(data, heads) > 0
    far = _far(data, heads, aligned & columns["feasible"], steps, lr)
    return {**columns, "aligned": aligned, "far_global": far}


def _far(data: Any, heads: Any, chosen: Any, steps: int, lr: float) -> Any:
    """Whether runs end at the optimal tokens after a first step of length FAR from zero; NaN where
    not chosen.
    """
    found, kept = np.full(len(chosen), np.nan), np.flatnonzero(chosen)
    if len(kept):
        subset = AttentionData(
            data.tokens[kept], data.labels[kept], data.queries[kept], data.mask[kept]
        )
        model = Attention.cross(subset, heads[kept])
        train(model, subset, SteepestDescent(model.parameters(), lr=FAR), 1, AtSteps(()))
        course = train(
            model, subset, SteepestDescent(model.parameters(), lr=lr), steps, AtSteps(())
        )
        found[kept] = (course.selected[-1] == optimal_tokens(subset, heads[kept])).all(axis=-1)
    return found


def _shapes(evidence: Evidence) -> list[tuple[int, int, int]]:
    return sorted(
        {
            (int(n), int(T), int(d))
            for n, T, d in zip(evidence["n"], evidence["T"], evidence["d"], strict=True)
        }
    )


def _share(evidence: Evidence, column: str, n: int, T: int, d: int) -> float:
    return float(np.mean(evidence.where(n=n, T=T, d=d)[column]))


def _measure_trend(evidence: Evidence, vary: int, sign: int, column: str = "global") -> Any:
    """Differences of a share between neighbouring sizes along one axis, with the others as in (4,
    5, 8); made positive by ``sign``.
    """
    line = [
        shape
        for shape in _shapes(evidence)
        if all(shape[k] == (4, 5, 8)[k] for k in range(3) if k != vary)
    ]
    return sign * np.diff([_share(evidence, column, *shape) for shape in line])


def _cell_feasible(evidence: Evidence) -> Any:
    """Which rows belong to a cell (n, T, d) that is not near infeasibility: its optimal tokens can
    always be selected.
    """
    cells = np.stack([evidence[name] for name in ("n", "T", "d")], axis=1)
    return np.array([evidence["feasible"][(cells == cell).all(axis=1)].all() for cell in cells])


TREND = (
    "sampling error of a share of 100 instances, two standard deviations of a difference near 0.9"
)


@claim(
    at_least(
        1.0,
        "the specification allows 1 in 100, more near infeasibility; exceptions are runs that"
        " are still moving, most of them at n = 12",
        share=0.99,
    ),
    "recalled",
    "P1 Theorem 3, P2 (numbers recalled)",
    assumes={
        "the run is saturated": lambda e: e["saturated"],
        "its selection is feasible": lambda e: e["separable"],
        "every instance of the cell is feasible": _cell_feasible,
    },
)
def T6(e):
    """A saturated run ends at a locally optimal selection wherever its selection is feasible."""
    return e["local"]


@claim(
    at_least(1.0, "holds for almost every data set"),
    "recalled",
    "P2, Theorem 1",
    assumes={"d >= max(T - 1, n)": lambda e: e["d"] >= np.maximum(e["T"] - 1, e["n"])},
)
def T10(e):
    """With d >= max(T - 1, n) the optimal tokens can be selected."""
    return e["feasible"]


@claim(
    at_least(1.0, f"a first step of {FAR:g}; the theorem asks for a long enough one"),
    "recalled",
    "P2 (number recalled)",
    assumes={"aligned and feasible": lambda e: np.isfinite(e["far_global"])},
)
def T15(e):
    """Where the first gradient ranks every optimal token first, a long first step along it leads to
    the global solution.
    """
    return e["far_global"]


@claim(
    at_least(
        1.0,
        "not covered by the theorem, which starts far out; about 1 in 100 is lost",
        share=0.98,
    ),
    assumes={"aligned": lambda e: e["aligned"], "feasible": lambda e: e["feasible"]},
)
def T15b(e):
    """Nearly all such runs get there with small steps from zero, too."""
    return e["global"]


@claim(
    at_least(-0.06, TREND),
    "paper",
)
def E2_5a(e):
    """The share of global convergence grows with d."""
    return _measure_trend(e, 2, 1)


@claim(
    at_least(-0.06, TREND),
    "recalled",
)
def E2_5b(e):
    """It falls with n."""
    return _measure_trend(e, 0, -1)


@claim(
    at_least(-0.06, TREND),
    "recalled",
)
def E2_5c(e):
    """It falls with T."""
    return _measure_trend(e, 1, -1)


@claim(
    at_least(0.98, "the specification's bar"),
    "recalled",
)
def E2_5d(evidence):
    """With d >= max(T - 1, n) at least 98 % of the runs end at a locally optimal selection."""
    return np.array(
        [
            _share(evidence, "local", *shape)
            for shape in _shapes(evidence)
            if shape[2] >= max(shape[1] - 1, shape[0])
        ]
    )


@claim(
    at_least(0.9976, "the smallest cell mean measured for the specification, on the same seeds"),
)
def E2_5e(evidence):
    """The final direction is the max-margin direction of its selection."""
    rows = [evidence.where(n=n, T=T, d=d, saturated=True) for n, T, d in _shapes(evidence)]
    return np.array([np.nanmean(cell["cosine"]) for cell in rows])


@claim(
    at_most(
        8.0,
        "points; the same 100 seeds and more, so two standard deviations of 100 instances is"
        " generous",
    ),
    assumes={"100 instances in every cell": lambda e: e.rows >= 100 * len(_shapes(e))},
)
def E2_5f(evidence):
    """All shares are those measured for the specification."""
    # Largest distance of the five shares of each cell to the specification's, in points.
    names = ("feasible", "global", "local", "all_support", "aligned")
    return np.array(
        [
            max(
                abs(100 * _share(evidence, name, *shape) - value)
                for name, value in zip(names, REFERENCE[shape], strict=True)
            )
            for shape in _shapes(evidence)
            if shape in REFERENCE
        ]
    )


@claim(
    at_most(0.95, "at least 1 in 20 feasible instances"),
    "recalled",
)
def N2(e):
    """Gradient descent misses the optimal tokens in a sizeable share of feasible instances with
    small d.
    """
    return np.mean(
        e.where(T=5, n=4).take(e.where(T=5, n=4)["feasible"] & (e.where(T=5, n=4)["d"] <= 8))[
            "global"
        ]
    )


@claim(
    at_most(0.0, "logits that rank every selected token first are themselves feasible weights"),
    assumes={"its selection is infeasible": lambda e: ~e["separable"].astype(bool)},
)
def N4(e):
    """A run whose selection no weights can make keeps a mixed softmax in some sequence."""
    return e["saturated"]


@claim(
    at_most(0.0, "as above"),
    assumes={"the optimal tokens cannot be selected": lambda e: ~e["feasible"].astype(bool)},
)
def N4b(e):
    """Where no weights select the optimal tokens, no run ends there."""
    return e["global"]


@picture(
    "Where gradient descent ends",
    "The share of global convergence rises with d to near 100 % and falls with n and T,"
    " while nearly all runs end locally optimal.",
    2.8,
    1,
    3,
    width=8.2,
    sharey=True,
)
def convergence(evidence, axes):
    """Over-parameterisation (large d) leaves the global solution as the only one that attracts;
    more sequences or tokens do not. Grey dashes: share of instances whose optimal tokens can be
    selected at all.
    """
    figure = axes.flat[0].figure
    panels = (("d", 2, "n = 4, T = 5"), ("n", 0, "T = 5, d = 8"), ("T", 1, "n = 4, d = 8"))
    for ax, (letter, vary, title) in zip(axes, panels, strict=True):
        line = [
            shape
            for shape in _shapes(evidence)
            if all(shape[k] == (4, 5, 8)[k] for k in range(3) if k != vary)
        ]
        place = np.arange(len(line))
        for offset, (column, colour, label) in enumerate(
            (
                ("global", TRAINED, "global"),
                ("local", BEST, "local, incl. global"),
                ("aligned", ATTENTION, "first gradient aligned"),
            )
        ):
            shares = [100 * _share(evidence, column, *shape) for shape in line]
            ax.bar(place + 0.27 * (offset - 1), shares, 0.25, color=colour, label=label)
        ax.plot(
            place,
            [100 * _share(evidence, "feasible", *shape) for shape in line],
            "_",
            color=FAINT,
            markersize=26,
            label="feasible",
        )
        ax.set_xticks(place, [str(shape[vary]) for shape in line])
        ax.set(xlabel=letter, title=title)
    axes[0].set_ylabel("share of instances, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8.5,
        labelcolor=FAINT,
    )
