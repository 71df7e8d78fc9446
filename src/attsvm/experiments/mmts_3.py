"""Three sequences: normalised against plain gradient descent, in log space and in the published single precision (specification E1.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to
from attsvm.experiments.experiment import Cell, Experiment
from attsvm.experiments.prompts import (
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
    from attsvm.datasets import Toy
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """The toy ``multiple_global``: three sequences of seven tokens, score 1 for the first and 0.5 for the others."""

    lr: float = 0.1
    plain_lr: float = 1.0
    steps: int = 100_000
    points: int = 1000
    far: int = 16


TOY = "multiple_global"
ORIGIN = 2  # the start at zero
# Computed for the specification; positions here count from 0. The specification lists token 5 of sequence 2, its multipliers are token 6's.
PROMPT, NORM, ANGLE = (0.8446, 0.1711), 0.8618, 11.453
ACTIVE = {(0, 6): 0.4451, (1, 5): 0.2976}
PUBLISHED_OBJECTIVE = 0.31319  # of the released notebook, which gives the solver the third coordinate too
# Mean probability of the optimal tokens and norm of the prompt by step, start at zero; measured for the specification.
PROBABILITY = {0: 0.1429, 50: 0.9931, 100: 1.0}
PLAIN_PROBABILITY = {49: 0.8118, 99: 0.9329, 199: 0.9719}  # the specification says 50, 100, 200, where they are 0.8177, 0.9338, 0.9720
NORMS = {100: 9.93, 199: 19.79}
PLAIN_NORMS = {50: 2.287, 100: 3.156, 200: 3.855, 1000: 5.240}
PUBLISHED_KINK, PUBLISHED_END = 145, 19.45  # of the norm in the stored plot


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
        norms = single_precision(problem, steps, lr)
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
        multipliers = [best.dual[(margins.sequence == i) & (margins.token == t)].sum() for i, t in ACTIVE]
        lifted = max_margin(prompt_margins(problem.lifted, [0, 0, 0]))
        columns |= {
            "best": np.tile(target, (len(starts), 1)),
            "multipliers": np.tile(multipliers, (len(starts), 1)),
            "active": np.full(len(starts), len(best.support)),
            "objective": np.full(len(starts), 0.5 * lifted.norm**2),
        }
    return part(kind, len(starts), **columns)


def single_precision(problem: Toy, steps: int, lr: float) -> NDArray[np.float64]:
    """Norms of the prompt under normalised descent from zero as published: float32, softmax and its gradient as they are written."""
    import torch

    assert problem.lifted is not None
    tokens = torch.tensor(problem.lifted.tokens, dtype=torch.float32)
    keys = torch.tensor(problem.keys, dtype=torch.float32)
    head = torch.tensor(problem.value_head, dtype=torch.float32)
    p = torch.zeros(2, dtype=torch.float32, requires_grad=True)
    norms = []
    for _ in range(steps):
        norms.append(float(p.detach().norm()))
        s = torch.softmax(tokens @ keys.T @ p, dim=-1)
        loss = torch.log1p(torch.exp(-((tokens.mT @ s[..., None])[..., 0] @ head))).mean()
        (gradient,) = torch.autograd.grad(loss, p)
        with torch.no_grad():
            p -= lr * gradient / gradient.norm()
    return np.array(norms)


def _origin(evidence: Evidence, kind: str = "descent") -> Evidence:
    return of(evidence, kind).take([ORIGIN])


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
    """Slope of the norm of plain descent against log k, relative to the norm of the max-margin prompt."""

    def measure(evidence: Evidence) -> Any:
        rows, best = of(evidence, "plain"), _origin(evidence)["best"][0]
        return (at(rows, "norm", late) - at(rows, "norm", early)) / np.log(late / early) / np.linalg.norm(best)

    return measure


def _measure_miss(evidence: Evidence) -> Any:
    """How k (1 - mean probability of the optimal token) changes from 10 000 to 100 000 steps of plain descent."""
    rows = of(evidence, "plain")
    miss = {k: k * (1.0 - at(rows, "probability", k).mean(axis=1)) for k in (10_000, 100_000)}
    return miss[100_000] / miss[10_000]


def _measure_kink(norms: NDArray[Any]) -> tuple[int, float]:
    """The first step whose length differs from that of the steps before by more than a part in twenty, after step 50; and the last norm."""
    growth = np.diff(norms)
    usual = np.median(growth[50:120])
    late = np.flatnonzero(np.abs(growth[50:] / usual - 1.0) > 0.05)
    return (int(late[0]) + 50 if len(late) else 0), float(norms[-1])


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
        "Two constraints are active: token 7 of sequence 1 and token 6 of sequence 2 (counted from 1).",
        "ours",
        lambda e: np.append(_origin(e)["multipliers"][0] - list(ACTIVE.values()), _origin(e)["active"][0] - 2),
        close_to(0.0, 5.1e-5, "multipliers 0.4451 and 0.2976 to four digits; the specification names token 5, a slip"),
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
        "Normalised descent from zero gives the optimal tokens 0.1429, 0.9931 and 1.0 of the attention at steps 0, 50, 100.",
        "ours",
        _measure_numbers("descent", "probability", PROBABILITY),
        close_to(0.0, 5.1e-5, "measured to four digits"),
    ),
    Claim(
        "E1.3e",
        "Plain descent gives them 0.8118, 0.9329 and 0.9719 at steps 49, 99, 199.",
        "ours",
        _measure_numbers("plain", "probability", PLAIN_PROBABILITY),
        close_to(0.0, 5.1e-5, "measured to four digits; the specification counts these three, not its norms, one step late"),
    ),
    Claim(
        "E1.3f",
        "The norm of the normalised run is 9.93 at step 100 and 19.79 at 199, of the plain run 2.287, 3.156, 3.855, 5.240 at 50 to 1000.",
        "ours",
        lambda e: np.concatenate([_measure_numbers("descent", "norm", NORMS)(e) / 10, _measure_numbers("plain", "norm", PLAIN_NORMS)(e)]),
        close_to(0.0, 5.5e-4, "measured to three digits after the point, those of the normalised run to two"),
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
        "Plain descent converges to the max-margin direction from every start: the gap shrinks from 10000 to 100000 steps.",
        "recalled",
        lambda e: at(of(e, "plain"), "gap_best", 100_000) / at(of(e, "plain"), "gap_best", 10_000),
        at_most(0.75, "an angle of c / log k would shrink the gap to (4/5)^2 = 0.64; the rest is lower order"),
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
            "the slope tends to 1, for which the specification gives no bar; these bounds were set after the first runs, in which it rises "
            "slowly, to 0.962 at 1e7: a third margin stands at 1.007, more at 1.06",
        ),
    ),
    Claim(
        "T3b",
        "Between 200 and 1000 steps from zero the slope is already 0.861.",
        "ours",
        lambda e: _measure_slope(200, 1000)(e)[ORIGIN] * np.linalg.norm(_origin(e)["best"][0]),
        close_to(0.861, 5.1e-4, "measured to three digits"),
    ),
    Claim(
        "T3c",
        "The attention that it leaves to other tokens falls as 1/k.",
        "ours",
        _measure_miss,
        between(0.8, 1.25, "k (1 - s) changes little from 10000 to 100000 steps; any other power of k would change it by ten per unit"),
    ),
    Claim(
        "T3d",
        "At every prompt minus the gradient points towards the max-margin prompt.",
        "recalled",
        lambda e: of(e, "field")["cosine"] / of(e, "field")["bound"],
        at_least(1.0 - 1e-12, "the cosine is at least 1/(|p| max |key difference|), which we derive; so it is positive"),
    ),
    Claim(
        "E1.3j",
        "In single precision the norm has the kink of the published plot, near step 145.",
        "seen",
        lambda e: _measure_kink(of(e, "published")["published_norm"][0])[0],
        close_to(PUBLISHED_KINK, 10, "steps; where the margin passes 24 bits, read off a plot"),
        reference="P1, stored plot",
    ),
    Claim(
        "E1.3k",
        "There it ends at 19.45.",
        "seen",
        lambda e: _measure_kink(of(e, "published")["published_norm"][0])[1],
        close_to(PUBLISHED_END, 0.1, "beyond the kink the run normalises rounding errors, which depend on the machine's sums"),
        reference="P1, stored plot",
    ),
    Claim(
        "E1.3l",
        "In log space there is no kink: from step 50 on the norm grows by nearly the step length in every step.",
        "ours",
        lambda e: np.diff(_origin(e)["norm"][0, 50 : SHOWN + 1]) / 0.1,
        between(0.97, 1.0 + 1e-9, "the norm cannot grow faster than the step, and the direction has settled"),
    ),
    no_stall(0.1),
    still_closer("gap_best", 10_000, 100_000),
    *harmless(1e-2, "2000 steps are as long as 20 times the start"),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, BEST, FAINT, INK, TRAINED, canvas, render

    rows, plain = of(evidence, "descent"), of(evidence, "plain")
    with canvas(2.7, 1, 3, width=9.6) as (figure, axes):
        for ax, part_rows, title in ((axes[0], rows, "normalised, first 200 steps"), (axes[1], plain, "plain, first 200 steps")):
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
            "Prompts over the first 200 steps, a dot every ten (left, middle), and the gap to the max-margin direction over all "
            "steps. The gap of "
            "normalised descent falls as 1/k², that of plain descent as 1/log² k.",
            "Trajectories from six starts bend into one dashed ray; normalised ones go far, plain ones stay near.",
        )
    with canvas(2.7, 1, 3, width=9.6) as (figure, axes):
        log, gd = _origin(evidence), _origin(evidence, "plain")
        published = of(evidence, "published")["published_norm"][0]
        shown = np.arange(SHOWN)
        for kind, colour in ((log, TRAINED), (gd, ATTENTION)):
            axes[0].plot(shown, kind["probability"][0, :SHOWN].mean(axis=1), color=colour)
            axes[1].plot(shown, kind["norm"][0, :SHOWN], color=colour)
        axes[1].plot(shown, published, color=INK, linestyle=":", linewidth=2.0)
        axes[2].plot(shown, np.diff(log["norm"][0, : SHOWN + 1]) / 0.1, color=TRAINED)
        axes[2].plot(shown[1:], np.diff(published) / 0.1, color=INK, linestyle=":", linewidth=2.0)
        axes[0].set_ylim(0, 1.15)
        axes[0].set_title("mean probability of optimal tokens")
        axes[0].text(50, 1.04, "normalised", color=TRAINED, fontsize=8.5)
        axes[0].text(75, 0.8, "plain", color=ATTENTION, fontsize=8.5)
        axes[1].set_title("norm of the prompt")
        axes[1].text(130, 4.5, "plain", color=ATTENTION, fontsize=8.5)
        axes[1].text(85, 11.5, "normalised", color=TRAINED, fontsize=8.5, ha="right")
        axes[1].annotate("kink", (PUBLISHED_KINK, published[PUBLISHED_KINK]), (PUBLISHED_KINK + 8, 9.5), color=INK, fontsize=8.5,
                         arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7})  # fmt: skip
        axes[2].set_ylim(0.78, 1.04)
        axes[2].set_title("growth of the norm per step / 0.1")
        axes[2].text(198, 1.015, "log space", color=TRAINED, fontsize=8.5, ha="right")
        axes[2].text(128, 0.86, "float32,\nas published", color=INK, fontsize=8.5, ha="right")
        for ax in axes:
            ax.set_xlabel("step")
            ax.set_xlim(0, SHOWN)
        yield render(
            figure,
            "without-kink",
            "The published kink is rounding",
            "Runs from zero. Dotted: the same run in single precision, as published. Once the margin passes 24 bits, near step "
            "145, it is rounding "
            "errors of the softmax that are normalised, and steps no longer go outwards. In log space the norm grows by the "
            "step length for ever.",
            "Two norms grow linearly until step 145, where the single-precision one bends down; plain descent grows logarithmically.",
        )


EXPERIMENT = Experiment(
    id="mmts-3",
    title="Three sequences: normalised against plain gradient descent",
    reference="Max-Margin Token Selection, Figures 1 and 2; specification E1.3",
    protocol="Three sequences of seven tokens in clusters, score 1 for the first token and 0.5 for the others; normalised "
    "descent with step 0.1 "
    "and plain descent with step 1 from six starts.",
    parameters=Parameters(),
    quick=Parameters(far=8, points=200),
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes="The published norm of normalised descent bends at step 145. That is single precision, drawn dotted beside the run in log space. "
    "The released notebook solves the support vector machine with the third coordinate, which attention does not see; because its gap is "
    "the same for every token, the direction in the plane is the same.",
)
