"""Global and local convergence against dimension, sequences and tokens.

Random tokens, queries and head on the unit sphere, also with the first token as the query
(self-attention); normalised gradient descent on W from zero with
step 0.1. A run is saturated when every sequence gives one token more than 0.99. It is global when
these are the tokens of highest score, and local when its selection is feasible and every selected
token beats its neighbours at the margin.

Source: Transformers as Support Vector Machines, chart of global and local convergence (recalled)

Notes: The paper's sizes and number of trials are unverified; the protocol is this project's.
"""

from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    LogSpaced,
    gradient_alignment,
    max_margin_batch,
    optimal_tokens,
    selection_batch,
    selection_margins,
    token_scores,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.theory import feasible
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.tfsvm.convergence import mixed_sizes, outcomes, trend

CELLS = (
    *((4, 5, d, False) for d in (2, 4, 6, 8, 10, 15, 20)),
    *((4, T, 8, False) for T in (3, 8, 12)),
    *((n, 5, 8, False) for n in (2, 8, 12)),
    *((4, 5, d, True) for d in (2, 4, 8, 20)),
    *((4, 12, 8, True), (2, 5, 8, True), (12, 5, 8, True)),
)
QUICK = ((4, 5, 2), (4, 5, 8), (4, 5, 20), (4, 12, 8), (2, 5, 8), (12, 5, 8))
# The first step of the theorem on aligned gradients: TIMES the length at which every rival scores
# below the mean, after which every gradient ranks all rivals last.
TIMES = 10.0
BENDS = 0.03  # later steps grow with the path, and double after this share of them

SLACK = 0.06  # two standard deviations of a difference of shares of 100 to 200 instances near 0.9


@kit.run(
    kit.rows("n T d own", CELLS),
    seeds=kit.seeds(500, by=100),
    quick={
        "n_T_d_own": (*((*shape, False) for shape in QUICK), (4, 5, 2, True), (4, 5, 20, True)),
        "seeds": 50,
    },
)
def outcome(n, T, d, own, seeds, steps=3000, lr=0.1):
    data, heads = unit_sphere(n, T, d, seeds, self_attention=own)
    model = Attention.cross(data, heads)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=lr), steps, LogSpaced(2))
    columns = outcomes(data, heads, trajectory, selection_margins)
    aligned = gradient_alignment(data, heads) > 0
    return {
        **columns,
        "aligned": aligned,
        **long_run(data, heads, aligned & columns["feasible"], steps),
    }


def long_run(data, heads, is_chosen, steps):
    """Direction gaps to the solution of the optimal tokens after a long first step from zero along
    minus the gradient, and after a path of more than a thousand times its length; NaN where not
    chosen.
    """
    gaps = {name: np.full(len(is_chosen), np.nan) for name in ("far_first", "far_gap")}
    chosen_rows = np.flatnonzero(is_chosen)
    if len(chosen_rows):
        scaled_data = scale_first_step(
            AttentionData(
                data.tokens[chosen_rows],
                data.labels[chosen_rows],
                data.queries[chosen_rows],
                data.mask[chosen_rows],
            ),
            heads[chosen_rows],
        )
        model = Attention.cross(scaled_data, heads[chosen_rows])
        # Steps of 1, 2/b, 2/b (1 + 1/b), 2/b (1 + 2/b), ...: a path of (1 + steps/b)^2.
        bend = BENDS * steps
        trajectory = train(
            model,
            scaled_data,
            SteepestDescent(model.parameters(), lr=1.0),
            1 + steps,
            AtSteps([1]),
            schedule=lambda step: 1.0 if step == 0 else 2.0 / bend * (1.0 + (step - 1) / bend),
        )
        best = optimal_tokens(scaled_data, heads[chosen_rows])
        gaps_of_run = trajectory.direction_gap(max_margin_batch(selection_batch(scaled_data, best)))
        gaps["far_first"][chosen_rows], gaps["far_gap"][chosen_rows] = (
            gaps_of_run[1],
            gaps_of_run[-1],
        )
    return gaps


def scale_first_step(data, heads):
    r"""The instances with queries scaled so that a first step of length one is long enough.

    With :math:`\mu` the least lead of an optimal token after a step of length one, all rivals
    score below the mean when the length is above
    :math:`\log((T-1)\max_i r_i/g_i)/\mu`: :math:`g_i` the score of the best token minus that of the
    second, :math:`r_i` that of the second minus that of the last. It is :data:`TIMES` as long.
    """
    model = Attention.cross(data, heads)
    step = train(model, data, SteepestDescent(model.parameters(), lr=1.0), 1, AtSteps(())).W[-1]
    best = optimal_tokens(data, heads)[..., None]
    gains = (data.tokens @ (data.queries @ step.mT)[..., None])[..., 0]
    lead = np.take_along_axis(gains, best, axis=-1) - gains
    scores = np.sort(token_scores(data, heads), axis=-1)
    spread = (scores[..., -2] - scores[..., 0]) / (scores[..., -1] - scores[..., -2])
    least = np.where(np.arange(data.T) == best, np.inf, lead).min(axis=(-2, -1))
    length = np.log((data.T - 1) * np.maximum(spread, 1.0).max(axis=-1)) / least
    scaled = data.queries * (TIMES * length)[:, None, None]
    return AttentionData(data.tokens, data.labels, scaled, data.mask)


@kit.run(
    kit.rows(
        "n T own",
        [
            (n, T, self_attention)
            for n, T in ((5, 5), (4, 8), (8, 4))
            for self_attention in (False, True)
        ],
    ),
    seeds=kit.seeds(500, by=500),
    quick={"seeds": 50},
)
def random_selections(n, T, own, seeds):
    """Whether random tokens of random instances with d = max(T - 1, n) can be selected, and of
    others in the plane.
    """
    tokens = np.random.default_rng([11, n, T]).integers(T, size=(len(seeds), n))
    in_many, in_plane = (
        feasible(unit_sphere(n, T, d, seeds, self_attention=own)[0], tokens)
        for d in (max(T - 1, n), 2)
    )
    return {"selectable": in_many, "selectable_plane": in_plane}


def shapes(e):
    """All n, T, d, sorted."""
    return sorted({tuple(int(e[name][k]) for name in ("n", "T", "d")) for k in range(e.rows)})


def share_of(e, column, n, T, d):
    """Mean of a column over the instances of a shape."""
    return float(np.mean(e.where(n=n, T=T, d=d)[column]))


def shapes_along(e, vary):
    """The shapes along one axis, with the others as in (4, 5, 8)."""
    return [x for x in shapes(e) if all(x[k] == (4, 5, 8)[k] for k in range(3) if k != vary)]


def has_enough_dimensions(e):
    return e["d"] >= np.maximum(e["T"] - 1, e["n"])


def cell_feasible(e):
    """True for rows of a cell that is not near infeasibility: its optimal tokens can always be
    selected.
    """
    _, cell = np.unique([e[name] for name in ("n", "T", "d", "own")], axis=1, return_inverse=True)
    return np.bincount(cell, e["feasible"] != 1)[cell] == 0


RUNS: dict[str, Any] = {"part": "outcome"}
TREND = f"no step is against it by more than {SLACK:g}, and all of them together are more than that"
RANDOM_TOKENS = kit.replaced("random tokens in place of the trained ones", local="local_random")
MIXED = mixed_sizes("global")


@kit.claim(
    kit.at_least(
        1.0,
        "exceptions are runs that are still moving, most of them at n = 12, near infeasibility",
        share=0.99,
    ),
    "recalled",
    "mmts Theorem 3, tfsvm (numbers recalled)",
    where=RUNS,
    assumes={
        "the run is saturated": lambda e: e["saturated"],
        "its selection is feasible": lambda e: e["separable"],
        "every instance of the cell is feasible": cell_feasible,
    },
    null=RANDOM_TOKENS,
)
def T6(e):
    """A saturated run ends at a locally optimal selection where its selection is feasible, in 99 of
    100.
    """
    return e["local"]


@kit.claim(
    kit.at_least(
        1.0, "true for almost every data set; random tokens of random instances of three shapes"
    ),
    "recalled",
    "tfsvm, Theorem 1",
    where={"part": "random_selections"},
    null=kit.replaced("the same tokens in two dimensions", selectable="selectable_plane"),
)
def T10(e):
    """With d >= max(T - 1, n) any tokens can be selected, by cross- and by self-attention."""
    return e["selectable"]


@kit.claim(
    kit.at_most(0.01, "8 degrees, at the end of a finite path", share=kit.MOST),
    "recalled",
    "tfsvm (number recalled); the length of the first step is derived",
    where=RUNS,
    assumes={"aligned and feasible": lambda e: np.isfinite(e["far_gap"])},
    null=kit.replaced("the long first step alone", far_gap="far_first"),
)
def T15(e):
    """Where the first gradient ranks every optimal token first, a long first step along it, and a
    path of a thousand times its length after it, lead to the direction of the global solution.
    """
    return e["far_gap"]


@kit.claim(kit.at_least(0.0, TREND), "paper", where=RUNS | {"own": False}, null=MIXED)
def E2_5a(e):
    """The share of global convergence grows with d."""
    return trend([share_of(e, "global", *x) for x in shapes_along(e, 2)], SLACK)


@kit.claim(kit.at_least(0.0, TREND), "recalled", where=RUNS | {"own": False}, null=MIXED)
def E2_5b(e):
    """The share of global convergence falls with n and with T."""
    return {
        name: trend([-share_of(e, "global", *x) for x in shapes_along(e, axis)], SLACK)
        for axis, name in enumerate("nT")
    }


@kit.claim(
    kit.at_least(0.98, "set by this project"),
    "recalled",
    where=RUNS | {"own": False},
    null=RANDOM_TOKENS,
)
def E2_5d(e):
    """With d >= max(T - 1, n) at least 98 % of the runs end at a locally optimal selection."""
    return [np.mean(rows["local"]) for rows in e.take(has_enough_dimensions(e)).by("n T d")]


@kit.claim(
    kit.at_least(
        0.995, "a gap of twice that of an independent program's worst cell", share=kit.MOST
    ),
    where=RUNS,
    assumes={"saturated, at a feasible selection": lambda e: e["saturated"] * e["separable"]},
    null=kit.replaced("the solution of another instance", cosine="cosine_other"),
)
def E2_5e(e):
    """The final direction is the max-margin direction of its selection."""
    return e["cosine"]


def many_dimensions(e):
    """Instances of so many dimensions that most tokens support, in place of those with few"""
    most = np.nanmax(e["d"])
    return e.but({"d": np.where(e["d"] == most, 2, most)})


@kit.claim(
    kit.at_most(0.95, "at least 1 in 20 feasible instances"),
    "recalled",
    where=RUNS | {"T": 5, "n": 4, "own": False},
    null=many_dimensions,
)
def N2(e):
    """Gradient descent misses the optimal tokens in a sizeable share of feasible instances with
    small d.
    """
    return np.mean(e["global"][(e["feasible"] == 1) & (e["d"] <= 8)])


@kit.picture(
    "Far from a long first step",
    "Two rising curves of shares; that after the path is far left of that after the first step.",
    2.7,
    width=4.6,
)
def far(evidence, axes):
    """Instances whose first gradient ranks every optimal token first: share of them, of all sizes,
    with a direction gap to the global solution below a value, after the long first step and after
    a path of a thousand times its length.
    """
    finite = evidence.take(np.isfinite(evidence["far_gap"]))
    share = 100 * np.arange(1, finite.rows + 1) / max(finite.rows, 1)
    columns = {"far_first": (kit.ATTENTION, "first step"), "far_gap": (kit.TRAINED, "the path")}
    for column, (colour, label) in columns.items():
        axes[0].plot(np.sort(finite[column]), share, color=colour, label=label)
    axes[0].set(xscale="log", xlabel="1 - cosine to the global solution")
    axes[0].set_ylabel("share of instances, %")
    kit.legend(axes[0], loc="center")


KINDS = {"global": "global", "local": "local, incl. global", "aligned": "first gradient aligned"}


@kit.picture(
    "Where gradient descent ends",
    "The share of global convergence rises with d to near 100 % and falls with n and T,"
    " while nearly all runs end locally optimal.",
    2.9,
    1,
    4,
    width=9.6,
    sharey=True,
    name="convergence",
)
def draw_outcomes(evidence, axes):
    """Over-parameterisation (large d) leaves the global solution as the only one that attracts;
    more sequences or tokens do not. Grey dashes: share of instances whose optimal tokens can be
    selected at all.
    """
    panels = (("d", 2, False), ("n", 0, False), ("T", 1, False), ("d", 2, True))
    for ax, (letter, vary, self_attention) in zip(axes, panels, strict=True):
        rows = evidence.where(part="outcome", own=self_attention)
        line = shapes_along(rows, vary)
        positions = np.arange(len(line))
        for k, (column, label) in enumerate(KINDS.items()):
            shares = [100 * share_of(rows, column, *x) for x in line]
            ax.bar(positions + 0.27 * (k - 1), shares, 0.25, color=kit.COLOURS[k], label=label)
        shares = [100 * share_of(rows, "feasible", *x) for x in line]
        ax.plot(positions, shares, "_", color=kit.FAINT, markersize=26, label="feasible")
        ax.set_xticks(positions, [str(x[vary]) for x in line])
        others = (f"{'nTd'[k]} = {(4, 5, 8)[k]}" for k in range(3) if k != vary)
        ax.set(xlabel=letter, title="self-attention" if self_attention else ", ".join(others))
    axes[0].set_ylabel("share of instances, %")
    kit.legend_below(axes[0], 4)
