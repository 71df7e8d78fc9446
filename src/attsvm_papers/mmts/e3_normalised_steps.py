"""Three sequences: normalised against plain gradient descent.

Three sequences of seven tokens in clusters, score 1 for the first token and 0.5 for the others;
normalised descent with step 0.1 and plain descent with step 1 from six starts.

Source: Max-Margin Token Selection, Figures 1 and 2

Notes: The published norm of normalised descent bends at step 145. That is single precision, drawn
dotted beside the run in log space. The released notebook solves the support vector machine with the
third coordinate, which attention does not see; because its gap is the same for every token, the
direction in the plane is the same.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from attsvm import max_margin, prompt_margins
from attsvm.datasets import toy
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    INK,
    TRAINED,
    VERDICT,
    Evidence,
    at,
    at_least,
    at_most,
    between,
    claim,
    close_to,
    exchanged,
    grid,
    legend,
    mixed_records,
    picture,
    replaced,
    same,
    scales,
)
from attsvm_papers.mmts import single_precision
from attsvm_papers.mmts.prompts import (
    SHOWN,
    ascent_cosines,
    course,
    degrees,
    descend,
    draw_gaps,
    draw_paths,
    draw_ray,
    logarithmic_axes,
    of,
    window,
)

# The toy ``multiple_global``: three sequences of seven tokens, score 1 for the first and 0.5 for
# the others.
SCALES = scales(
    lr=0.1,
    plain_lr=1.0,
    steps=100_000,
    points=1000,
    seed=0,
    first_seed=VERDICT,
    quick={"points": 200},
)

# Computed by an independent program of this project; positions count from 0.
PROMPT, NORM, ANGLE = (0.8446, 0.1711), 0.8618, 11.453
ACTIVE = {(0, 6): 0.4451, (1, 5): 0.2976}
# of the released notebook, which gives the solver the third coordinate too
PUBLISHED_OBJECTIVE = 0.31319
NORMS = {100: 9.93, 199: 19.79}
PLAIN_NORMS = {50: 2.287, 100: 3.156, 200: 3.855, 1000: 5.240}


PROBLEM = toy("multiple_global")
UNEQUAL = replace(PROBLEM, scores=np.tile([1.0, 0.9, 0.9, 0.9, 0.5, 0.5, 0.5], (3, 1)))
"""The same keys, with a higher score of the first cluster of rivals."""


@cache
def best():
    """The max-margin solution of the optimal tokens."""
    return max_margin(prompt_margins(PROBLEM.data, [0, 0, 0]))


def trained(lr, steps, normalize):
    trajectory = descend(PROBLEM, PROBLEM.starts["p"], steps, lr, normalize=normalize)
    nearest = max_margin(prompt_margins(PROBLEM.data, [0, 0, 0]), "lp:1.5")
    targets = {"best": best().W[:, 0], "wrong_norm": nearest.W[:, 0]}
    return {"best": same(best().W[:, 0]), **course(trajectory, targets)}


@grid()
def descent(lr, steps):
    margins = best().margins
    assert PROBLEM.lifted is not None
    lifted = max_margin(prompt_margins(PROBLEM.lifted, [0, 0, 0]))

    def multipliers(dual):
        return [dual[(margins.sequence == i) & (margins.token == t)].sum() for i, t in ACTIVE]

    return {
        **trained(lr, steps, normalize=True),
        "best_lifted": same(lifted.W[:2, 0]),
        "multipliers": same(multipliers(best().dual)),
        "multipliers_lifted": same(multipliers(lifted.dual)),
        "active": len(best().support),
        "objective": 0.5 * lifted.norm**2,
        "objective_plane": 0.5 * best().norm ** 2,
    }


@grid()
def plain(plain_lr, steps):
    return trained(plain_lr, steps, normalize=False)


@grid()
def published(lr):
    prompts = single_precision.published_prompts(PROBLEM, [(0.0, 0.0)], SHOWN, lr)
    return {"published_norm": np.linalg.norm(prompts, axis=-1)}


@grid()
def field(points, seed):
    return ascent_cosines(PROBLEM, UNEQUAL, best().W[:, 0], points, seed)


PLAIN = exchanged("normalised and plain descent exchanged", "part", "descent", "plain")
LIFTED = "solved with the third coordinate"


def _origin(evidence: Evidence, kind: str = "descent") -> Evidence:
    return of(evidence, kind).take([single_precision.ORIGIN])


def _measure_numbers(
    evidence: Evidence, kind: str, column: str, reference: dict[int, float]
) -> Any:
    rows = _origin(evidence, kind)
    found = np.array([np.mean(at(rows, column, step)) for step in reference])
    return found - np.array(list(reference.values()))


def _measure_slope(evidence: Evidence, early: int, late: int) -> Any:
    """Slope of the norm of plain descent against log k, relative to the norm of the max-margin
    prompt.
    """
    rows, best = of(evidence, "plain"), _origin(evidence)["best"][0]
    return (
        (at(rows, "norm", late) - at(rows, "norm", early))
        / np.log(late / early)
        / np.linalg.norm(best)
    )


@claim(
    at_most(5.1e-5, "computed to four digits; the angle, to three, is divided by ten"),
    null=replaced(LIFTED, best="best_lifted"),
)
def E1_3a(evidence):
    """The max-margin prompt is (0.8446, 0.1711), of norm 0.8618 and angle 11.453 degrees."""
    rows = _origin(evidence)
    p = rows["best"][0]
    return np.array(
        [*np.abs(p - PROMPT), abs(np.linalg.norm(p) - NORM), abs(degrees(p) - ANGLE) / 10]
    )


@claim(
    close_to(PUBLISHED_OBJECTIVE, 5.1e-6, "printed to five digits"),
    "authors' code",
    "P1, stored solver output",
    null=replaced("solved without it", objective="objective_plane"),
)
def E1_3c(e):
    """With the third coordinate, as the released notebook solves it, the objective is 0.31319."""
    return _origin(e)["objective"]


@claim(
    close_to(
        0.0,
        5.5e-4,
        "measured to three digits after the point, those of the normalised run to two",
    ),
    null=PLAIN,
)
def E1_3f(e):
    """The norm of the normalised run is 9.93 at step 100 and 19.79 at 199, of the plain run 2.287,
    3.156, 3.855, 5.240 at 50 to 1000.
    """
    return np.concatenate(
        [
            _measure_numbers(e, "descent", "norm", NORMS) / 10,
            _measure_numbers(e, "plain", "norm", PLAIN_NORMS),
        ]
    )


@claim(
    at_most(1e-7, "1 - cosine after 100000 steps"),
    "authors' code",
    "P1, Figures 1 and 2",
    null=PLAIN,
)
def E1_3h(e):
    """It reaches the max-margin direction."""
    return at(of(e, "descent"), "gap_best", 100_000)


@claim(
    close_to(
        0.64,
        0.1,
        "an angle of c / log k shrinks the gap to (4/5)^2; the rest is of lower order, in log k"
        " too",
    ),
    "recalled",
    "P1, Theorem 1 (number recalled); the rate is derived",
    null=replaced("the solution of the same tokens in the l1.5 norm", gap_best="gap_wrong_norm"),
)
def T3(e):
    """Plain descent converges to the max-margin direction from every start: from 10000 to 100000
    steps the gap shrinks as 1/log² k.
    """
    return at(of(e, "plain"), "gap_best", 100_000) / at(of(e, "plain"), "gap_best", 10_000)


@claim(
    close_to(
        1.0,
        0.1,
        "a tenth, as of other fitted slopes; a third margin stands at 1.007, more at 1.06, so the"
        " slope is 0.962 even at 1e7",
    ),
    null=PLAIN,
)
def T3a(e):
    """Its norm grows as the norm of the max-margin prompt times log k."""
    return _measure_slope(e, 10_000, 100_000)


@claim(
    between(
        0.8,
        1.25,
        "k (1 - s) changes little from 10000 to 100000 steps; any other power of k would change"
        " it by ten per unit",
    ),
    null=mixed_records("probability"),
)
def T3c(evidence):
    """The attention that it leaves to other tokens falls as 1/k."""
    # How k (1 - mean probability of the optimal token) changes from 10 000 to 100 000 steps of
    # plain descent.
    rows = of(evidence, "plain")
    miss = {k: k * (1.0 - at(rows, "probability", k).mean(axis=1)) for k in (10_000, 100_000)}
    return miss[100_000] / miss[10_000]


@claim(
    at_least(
        1.0 - 1e-12,
        "the cosine is at least 1/(|p| max |key difference|), which we derive; so it is positive",
    ),
    "recalled",
    "P1, Theorem 1 (number recalled); the bound is derived",
    null=replaced("a higher score of three rivals in each sequence", cosine="cosine_unequal"),
)
def T3d(e):
    """At every prompt minus the gradient points towards the max-margin prompt."""
    return of(e, "field")["cosine"] / of(e, "field")["bound"]


SINGLE_PRECISION = single_precision.CLAIMS


@picture(
    "Three sequences: normalised and plain descent share their direction, not their pace",
    "Trajectories from six starts bend into one dashed ray; normalised ones go far, plain"
    " ones stay near.",
    2.7,
    1,
    3,
    width=9.6,
)
def trajectories(evidence, axes):
    """Prompts over the first 200 steps, a dot every ten (left, middle), and the gap to the
    max-margin direction over all steps. The gap of normalised descent falls as 1/k², that of plain
    descent as 1/log² k.
    """
    rows, plain = of(evidence, "descent"), of(evidence, "plain")
    for ax, part_rows, title in (
        (axes[0], rows, "normalised, first 200 steps"),
        (axes[1], plain, "plain, first 200 steps"),
    ):
        draw_ray(ax, rows["best"][0], BEST, label="max-margin")
        draw_paths(ax, part_rows["prompt"], [TRAINED] * rows.rows)
        ax.plot(*rows["prompt"][:, 0].T, "o", color=INK, markersize=3.5, label="starts")
        window(ax, (-2, 8), (-2.5, 5.5))
        ax.set(xticks=range(-2, 9, 2), title=title)
    legend(axes[0], loc="upper left")
    ax = axes[2]
    draw_gaps(ax, rows["step"][:, 1:], rows["gap_best"][:, 1:], TRAINED)
    draw_gaps(ax, plain["step"][:, 1:], plain["gap_best"][:, 1:], ATTENTION)
    logarithmic_axes(ax, (1, 1.2e5), (1e-9, 3.0))
    ax.set(title="1 − cosine to the max-margin prompt", xlabel="step")
    ax.text(150, 3e-7, "normalised", color=TRAINED, ha="right")
    ax.text(9e4, 0.1, "plain", color=ATTENTION, ha="right")


without_kink = single_precision.without_kink
