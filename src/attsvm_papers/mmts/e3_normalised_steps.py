"""Three sequences: normalised against plain gradient descent, in log space and in the published
single precision (specification E1.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to
from attsvm_papers.kit import Cell, Experiment
from attsvm_papers.mmts import single_precision
from attsvm_papers.mmts.prompts import (
    SHOWN,
    ascent_cosines,
    at,
    course,
    descend,
    draw_gaps,
    draw_paths,
    draw_ray,
    far_starts,
    harmless,
    logarithmic_axes,
    no_stall,
    of,
    part,
    still_closer,
    window,
)

if TYPE_CHECKING:
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """The toy ``multiple_global``: three sequences of seven tokens, score 1 for the first and 0.5
    for the others.
    """

    lr: float = 0.1
    plain_lr: float = 1.0
    steps: int = 100_000
    points: int = 1000
    far: int = 16


TOY = "multiple_global"
# Computed for the specification; positions here count from 0. The specification lists token 5 of
# sequence 2, its multipliers are token 6's.
PROMPT, NORM, ANGLE = (0.8446, 0.1711), 0.8618, 11.453
ACTIVE = {(0, 6): 0.4451, (1, 5): 0.2976}
PUBLISHED_OBJECTIVE = (
    0.31319  # of the released notebook, which gives the solver the third coordinate too
)
# Mean probability of the optimal tokens and norm of the prompt by step, start at zero; measured for
# the specification.
PROBABILITY = {0: 0.1429, 50: 0.9931, 100: 1.0}
PLAIN_PROBABILITY = {
    49: 0.8118,
    99: 0.9329,
    199: 0.9719,
}  # the specification says 50, 100, 200, where they are 0.8177, 0.9338, 0.9720
NORMS = {100: 9.93, 199: 19.79}
PLAIN_NORMS = {50: 2.287, 100: 3.156, 200: 3.855, 1000: 5.240}


def cells(parameters: Parameters) -> Iterator[Cell]:
    yield {"kind": "descent", "lr": parameters.lr, "steps": parameters.steps}
    yield {"kind": "plain", "lr": parameters.plain_lr, "steps": parameters.steps}
    yield {"kind": "published", "lr": parameters.lr, "steps": SHOWN}
    yield {"kind": "field", "points": parameters.points}
    yield {"kind": "far", "points": parameters.far}


def run(kind: str, lr: float = 0.1, steps: int = 0, points: int = 0) -> dict[str, Any]:
    from attsvm.datasets import toy
    from attsvm.margins import prompt_margins
    from attsvm.solvers import max_margin

    problem = toy(TOY)
    assert problem.lifted is not None
    best = max_margin(prompt_margins(problem.data, [0, 0, 0]))
    target = best.W[:, 0]
    if kind == "published":
        norms = single_precision.published_norms(problem, steps, lr)
        return part("published", 1, published_norm=norms[None])
    if kind == "field":
        return ascent_cosines(problem, target, points)
    if kind == "far":
        return far_starts(problem, points, target)
    starts = problem.starts["p"]
    trajectory = descend(problem, starts, steps, lr, normalize=kind == "descent")
    columns = course(trajectory, {"best": target})
    if kind == "descent":
        margins = best.margins
        multipliers = [
            best.dual[(margins.sequence == i) & (margins.token == t)].sum() for i, t in ACTIVE
        ]
        lifted = max_margin(prompt_margins(problem.lifted, [0, 0, 0]))
        columns |= {
            "best": np.tile(target, (len(starts), 1)),
            "multipliers": np.tile(multipliers, (len(starts), 1)),
            "active": np.full(len(starts), len(best.support)),
            "objective": np.full(len(starts), 0.5 * lifted.norm**2),
        }
    return part(kind, len(starts), **columns)


def _origin(evidence: Evidence, kind: str = "descent") -> Evidence:
    return of(evidence, kind).take([single_precision.ORIGIN])


def _measure_solution(evidence: Evidence) -> Any:
    rows = _origin(evidence)
    p = rows["best"][0]
    angle = np.degrees(np.arctan2(p[1], p[0]))
    return np.array([*np.abs(p - PROMPT), abs(np.linalg.norm(p) - NORM), abs(angle - ANGLE) / 10])


def _measure_numbers(kind: str, column: str, reference: dict[int, float]) -> Any:
    def measure(evidence: Evidence) -> Any:
        rows = _origin(evidence, kind)
        found = np.array([np.mean(at(rows, column, step)) for step in reference])
        return found - np.array(list(reference.values()))

    return measure


def _measure_slope(early: int, late: int) -> Any:
    """Slope of the norm of plain descent against log k, relative to the norm of the max-margin
    prompt.
    """

    def measure(evidence: Evidence) -> Any:
        rows, best = of(evidence, "plain"), _origin(evidence)["best"][0]
        return (
            (at(rows, "norm", late) - at(rows, "norm", early))
            / np.log(late / early)
            / np.linalg.norm(best)
        )

    return measure


def _measure_miss(evidence: Evidence) -> Any:
    """How k (1 - mean probability of the optimal token) changes from 10 000 to 100 000 steps of
    plain descent.
    """
    rows = of(evidence, "plain")
    miss = {k: k * (1.0 - at(rows, "probability", k).mean(axis=1)) for k in (10_000, 100_000)}
    return miss[100_000] / miss[10_000]


CLAIMS = (
    Claim(
        "E1.3a",
        "The max-margin prompt is (0.8446, 0.1711), of norm 0.8618 and angle 11.453 degrees.",
        "ours",
        _measure_solution,
        at_most(5.1e-5, "computed to four digits; the angle, to three, is divided by ten"),
    ),
    Claim(
        "E1.3b",
        "Two constraints are active: token 7 of sequence 1 and token 6 of sequence 2 (counted"
        " from 1).",
        "ours",
        lambda e: np.append(
            _origin(e)["multipliers"][0] - list(ACTIVE.values()), _origin(e)["active"][0] - 2
        ),
        close_to(
            0.0,
            5.1e-5,
            "multipliers 0.4451 and 0.2976 to four digits; the specification names token 5, a slip",
        ),
    ),
    Claim(
        "E1.3c",
        "With the third coordinate, as the released notebook solves it, the objective is 0.31319.",
        "seen",
        lambda e: _origin(e)["objective"],
        close_to(PUBLISHED_OBJECTIVE, 5.1e-6, "printed to five digits"),
        reference="P1, stored solver output",
    ),
    Claim(
        "E1.3d",
        "Normalised descent from zero gives the optimal tokens 0.1429, 0.9931 and 1.0 of the"
        " attention at steps 0, 50, 100.",
        "ours",
        _measure_numbers("descent", "probability", PROBABILITY),
        close_to(0.0, 5.1e-5, "measured to four digits"),
    ),
    Claim(
        "E1.3e",
        "Plain descent gives them 0.8118, 0.9329 and 0.9719 at steps 49, 99, 199.",
        "ours",
        _measure_numbers("plain", "probability", PLAIN_PROBABILITY),
        close_to(
            0.0,
            5.1e-5,
            "measured to four digits; the specification counts these three, not its norms, one step"
            " late",
        ),
    ),
    Claim(
        "E1.3f",
        "The norm of the normalised run is 9.93 at step 100 and 19.79 at 199, of the plain run"
        " 2.287, 3.156, 3.855, 5.240 at 50 to 1000.",
        "ours",
        lambda e: np.concatenate(
            [
                _measure_numbers("descent", "norm", NORMS)(e) / 10,
                _measure_numbers("plain", "norm", PLAIN_NORMS)(e),
            ]
        ),
        close_to(
            0.0,
            5.5e-4,
            "measured to three digits after the point, those of the normalised run to two",
        ),
    ),
    Claim(
        "E1.3g",
        "Normalised descent has a cosine of at least 0.9993 after 200 steps from every start.",
        "ours",
        lambda e: at(of(e, "descent"), "gap_best", 200),
        at_most(7e-4, "1 - cosine, measured for the specification"),
    ),
    Claim(
        "E1.3h",
        "It reaches the max-margin direction.",
        "seen",
        lambda e: at(of(e, "descent"), "gap_best", 100_000),
        at_most(1e-7, "1 - cosine after 100000 steps, the specification's bar"),
        reference="P1, Figures 1 and 2",
    ),
    Claim(
        "E1.3i",
        "Plain descent from zero has a cosine of 0.977 after 200 steps.",
        "ours",
        lambda e: 1.0 - at(_origin(e, "plain"), "gap_best", 200),
        close_to(0.977, 5.1e-4, "measured to three digits"),
    ),
    Claim(
        "T3",
        "Plain descent converges to the max-margin direction from every start: the gap shrinks from"
        " 10000 to 100000 steps.",
        "recalled",
        lambda e: at(of(e, "plain"), "gap_best", 100_000) / at(of(e, "plain"), "gap_best", 10_000),
        at_most(
            0.75,
            "an angle of c / log k would shrink the gap to (4/5)^2 = 0.64; the rest is lower order",
        ),
        reference="P1, Theorem 1 (number recalled)",
    ),
    Claim(
        "T3a",
        "Its norm grows as the norm of the max-margin prompt times log k.",
        "ours",
        _measure_slope(10_000, 100_000),
        between(
            0.9,
            1.0,
            "the slope tends to 1, for which the specification gives no bar; these bounds were set"
            " after the first runs, in which it rises slowly, to 0.962 at 1e7: a third margin"
            " stands at 1.007, more at 1.06",
        ),
    ),
    Claim(
        "T3b",
        "Between 200 and 1000 steps from zero the slope is already 0.861.",
        "ours",
        lambda e: (
            _measure_slope(200, 1000)(e)[single_precision.ORIGIN]
            * np.linalg.norm(_origin(e)["best"][0])
        ),
        close_to(0.861, 5.1e-4, "measured to three digits"),
    ),
    Claim(
        "T3c",
        "The attention that it leaves to other tokens falls as 1/k.",
        "ours",
        _measure_miss,
        between(
            0.8,
            1.25,
            "k (1 - s) changes little from 10000 to 100000 steps; any other power of k would change"
            " it by ten per unit",
        ),
    ),
    Claim(
        "T3d",
        "At every prompt minus the gradient points towards the max-margin prompt.",
        "recalled",
        lambda e: of(e, "field")["cosine"] / of(e, "field")["bound"],
        at_least(
            1.0 - 1e-12,
            "the cosine is at least 1/(|p| max |key difference|), which we derive; so it is"
            " positive",
        ),
    ),
    *single_precision.CLAIMS,
    no_stall(0.1),
    still_closer("gap_best", 10_000, 100_000),
    *harmless(1e-2, "2000 steps are as long as 20 times the start"),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, BEST, FAINT, INK, TRAINED, canvas, render

    rows, plain = of(evidence, "descent"), of(evidence, "plain")
    with canvas(2.7, 1, 3, width=9.6) as (figure, axes):
        for ax, part_rows, title in (
            (axes[0], rows, "normalised, first 200 steps"),
            (axes[1], plain, "plain, first 200 steps"),
        ):
            draw_ray(ax, rows["best"][0], BEST, label="max-margin")
            draw_paths(ax, part_rows["prompt"], [TRAINED] * rows.rows)
            ax.plot(*rows["prompt"][:, 0].T, "o", color=INK, markersize=3.5, label="starts")
            window(ax, (-2, 8), (-2.5, 5.5))
            ax.set_xticks(range(-2, 9, 2))
            ax.set_title(title)
        axes[0].legend(loc="upper left", frameon=False, fontsize=8.5, labelcolor=FAINT)
        ax = axes[2]
        draw_gaps(ax, rows["step"][:, 1:], rows["gap_best"][:, 1:], TRAINED)
        draw_gaps(ax, plain["step"][:, 1:], plain["gap_best"][:, 1:], ATTENTION)
        logarithmic_axes(ax, (1, 1.2e5), (1e-9, 3.0))
        ax.set_title("1 − cosine to the max-margin prompt")
        ax.set_xlabel("step")
        ax.text(150, 3e-7, "normalised", color=TRAINED, ha="right")
        ax.text(9e4, 0.1, "plain", color=ATTENTION, ha="right")
        yield render(
            figure,
            "trajectories",
            "Three sequences: normalised and plain descent share their direction, not their pace",
            "Prompts over the first 200 steps, a dot every ten (left, middle), and the gap to the"
            " max-margin direction over all steps. The gap of normalised descent falls as 1/k²,"
            " that of plain descent as 1/log² k.",
            "Trajectories from six starts bend into one dashed ray; normalised ones go far, plain"
            " ones stay near.",
        )
    yield single_precision.plot_kink(evidence)


EXPERIMENT = Experiment(
    id="mmts-3",
    title="Three sequences: normalised against plain gradient descent",
    reference="Max-Margin Token Selection, Figures 1 and 2; specification E1.3",
    protocol=(
        "Three sequences of seven tokens in clusters, score 1 for the first token and 0.5 for the"
        " others; normalised descent with step 0.1 and plain descent with step 1 from six starts."
    ),
    parameters=Parameters(),
    quick=Parameters(far=8, points=200),
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes=(
        "The published norm of normalised descent bends at step 145. That is single precision,"
        " drawn dotted beside the run in log space. The released notebook solves the support vector"
        " machine with the third coordinate, which attention does not see; because its gap is the"
        " same for every token, the direction in the plane is the same."
    ),
)
