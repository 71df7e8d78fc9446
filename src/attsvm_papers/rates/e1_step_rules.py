"""The direction error of four step rules: all of them are one curve in the norm of the weights
(specification P5-E1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to
from attsvm_papers.kit import Experiment
from attsvm_papers.rates.adaptive import (
    CONSTANT,
    NAMES,
    PLAIN,
    POLYAK,
    ROOT,
    RULES,
    Parameters,
    at,
    cells,
    rate,
    trained,
)

if TYPE_CHECKING:
    from attsvm.report.style import Picture


WINDOW = (1000, 10_000)


def run(rule: int, first: int, count: int, steps: int) -> dict[str, Any]:
    found = trained(rule, first, count, steps)
    trajectory = found.trajectory
    gap = trajectory.direction_gap(found.solutions).T
    return {
        "seed": np.arange(first, first + count),
        "rule": np.full(count, rule),
        "step": np.tile(trajectory.steps, (count, 1)),
        "gap": gap,
        "error": np.sqrt(2.0 * gap),
        "norm": trajectory.norm.T,
        "certified": np.array([solution.gap for solution in found.solutions]),
        "global": (trajectory.selected[-1] == found.tokens).all(axis=-1),
    }


def _of(evidence: Evidence, rule: int) -> Evidence:
    rows = evidence.where(rule=rule)
    return rows.take(np.argsort(rows["seed"]))


def _measure_at(rule: int, step: int) -> Any:
    return lambda e: at(_of(e, rule), "error", step)


def _measure_rate(rule: int, column: str = "error") -> Any:
    return lambda e: rate(_of(e, rule), column, *WINDOW)


def _measure_band(evidence: Evidence) -> Any:
    products = np.stack(
        [
            at(_of(evidence, rule), "error", WINDOW[1]) * at(_of(evidence, rule), "norm", WINDOW[1])
            for rule in RULES
        ]
    )
    return products.max(axis=0) / products.min(axis=0)


def _measure_decades(evidence: Evidence) -> Any:
    """Growth of the norm of plain descent over the last decade, relative to the decade before."""
    norms = [at(_of(evidence, PLAIN), "norm", 10**k) for k in (2, 3, 4)]
    return (norms[2] - norms[1]) / (norms[1] - norms[0])


def _measure_guarantee(rule: int) -> Any:
    """Largest growth, from step 100 on, of the gap over the recalled rate."""

    def measure(evidence: Evidence) -> Any:
        rows = _of(evidence, rule)
        step = rows["step"][0].astype(np.float64)
        late = step >= 100
        bound = np.log(step[late]) ** 2 / np.sqrt(step[late])
        ratio = rows["gap"][:, late] / bound
        return ratio.max(axis=1) / ratio[:, 0]

    return measure


MEASURED = "the specification's, set from single runs"
OUTLIER = (
    "Seed 19 of 20 ends at 0.0713, the others at 0.030 to 0.059: its product of error and norm is"
    " the largest, 7.1 of 3 to 5.8."
)
CLAIMS = (
    Claim(
        "C5.2",
        "The error depends on the path through the norm alone: error times norm of the four rules"
        " lies in one band.",
        "ours",
        _measure_band,
        at_most(3.0, "largest over smallest at step 10 000; a limit up to logarithms, derived"),
        reference="specification C5.2",
    ),
    *(
        Claim(
            f"C5.2{letter}",
            f"{NAMES[rule].capitalize()}: error at step {step}.",
            "ours",
            _measure_at(rule, step),
            expected,
            explanation=why,
        )
        for letter, rule, step, expected, why in (
            ("a", CONSTANT, 10_000, at_most(0.02, MEASURED), ""),
            ("b", ROOT, 10_000, at_most(0.07, MEASURED), OUTLIER),
            (
                "c",
                POLYAK,
                100,
                at_most(0.06, MEASURED),
                "Of 20 other seeds (from 9000) one is at 0.0604.",
            ),
            ("d", PLAIN, 10_000, at_least(0.1, MEASURED), ""),
        )
    ),
    Claim(
        "C5.2e",
        "Constant normalised steps: slope of log error against log step.",
        "ours",
        _measure_rate(CONSTANT),
        at_most(-0.75, "-1 is derived, up to a logarithm; the specification's threshold"),
        interval=True,
    ),
    Claim(
        "C5.2f",
        "Normalised steps of 0.5/√t: slope of log error against log step.",
        "ours",
        _measure_rate(ROOT),
        between(-0.6, -0.3, "-1/2 is derived, up to a logarithm; the specification's thresholds"),
        interval=True,
    ),
    Claim(
        "C5.2g",
        "Plain gradient descent: slope of log error against log step.",
        "ours",
        _measure_rate(PLAIN),
        at_least(
            -0.15, "1/log t has slope -0.125 between these steps; the specification's threshold"
        ),
        explanation=(
            "Seed 9 of 20 has -0.159, the others -0.133 to -0.081: a margin that joins late, and an"
            " error that is still falling onto its 1/log t. The mean is -0.111."
        ),
        interval=True,
    ),
    Claim(
        "C5.2h",
        "Polyak's steps: slope of log error against log step.",
        "ours",
        _measure_rate(POLYAK),
        at_most(-0.9, "-1 is derived: steps are bounded below and the norm grows linearly"),
        interval=True,
    ),
    Claim(
        "C5.2i",
        "The norm grows like t (constant steps), t (Polyak) and √t (steps 1/√t): exponents minus"
        " these.",
        "ours",
        lambda e: np.concatenate(
            [
                _measure_rate(rule, "norm")(e) - power
                for rule, power in ((CONSTANT, 1.0), (POLYAK, 1.0), (ROOT, 0.5))
            ]
        ),
        close_to(0.0, 0.02, "derived; early steps that do not point the same way are lost once"),
    ),
    Claim(
        "C5.2j",
        "Under plain descent the norm grows like log t: as much in the last decade as in the one"
        " before.",
        "ours",
        _measure_decades,
        between(0.7, 1.3, "one on the limit; margins of all sequences still settle"),
    ),
    *(
        Claim(
            f"C5.2{letter}",
            f"{NAMES[rule].capitalize()}: 1 - cosine falls at least like (log t)²/√t from step"
            " 100 on.",
            "recalled",
            _measure_guarantee(rule),
            at_most(
                1.05,
                "largest value relative to that at step 100; the rate of the guarantee, whose"
                " constants are unknown",
            ),
            reference="P5, finite-time rates (form recalled)",
        )
        for letter, rule in (("k", CONSTANT), ("l", POLYAK))
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import (
        ATTENTION,
        BEST,
        INK,
        TRAINED,
        canvas,
        label_ends,
        logarithmic,
        render,
    )

    colours = {CONSTANT: TRAINED, ROOT: BEST, POLYAK: ATTENTION, PLAIN: INK}
    short = {CONSTANT: "constant", ROOT: "1/√t", POLYAK: "Polyak", PLAIN: "plain"}
    panels: tuple[tuple[str, Callable[[Evidence], Any]], ...] = (
        ("direction error", lambda rows: rows["error"]),
        ("norm of W", lambda rows: rows["norm"]),
        ("error × norm", lambda rows: rows["error"] * rows["norm"]),
    )
    with canvas(2.9, 1, 3, width=8.8) as (figure, axes):
        for ax, (title, value) in zip(axes, panels, strict=True):
            ends, seen = [], []
            for rule, colour in colours.items():
                rows = _of(evidence, rule)
                step = rows["step"][0]
                late = step >= 10
                curves = value(rows)[:, late]
                ax.fill_between(
                    step[late],
                    curves.min(axis=0),
                    curves.max(axis=0),
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
                ax.plot(step[late], np.median(curves, axis=0), color=colour)
                ends.append((float(np.median(curves[:, -1])), short[rule], colour))
                seen.append(curves)
            logarithmic(ax.xaxis, np.array([10.0, evidence["step"].max()]))
            logarithmic(ax.yaxis, np.concatenate(seen))
            ax.set_xlim(10, evidence["step"].max())
            if title == "error × norm":
                ax.set_ylim(0.3, 20)
            ax.set_title(title)
            ax.set_xlabel("step")
            label_ends(ax, ends, 0.09)
        yield render(
            figure,
            "rates",
            "Four step rules, one curve",
            "Median over seeds with the range of all of them. Left: distance between the unit"
            " matrices of weights and of the max-margin solution. Polyak's steps and constant"
            " normalised ones converge like 1/t, plain gradient descent like 1/log t. Right: the"
            " product with the norm hardly depends on the rule.",
            "Straight falling lines for three rules and a flat one for plain descent; their"
            " products with the norm end between two and six.",
        )


EXPERIMENT = Experiment(
    id="rates-1",
    title="Rates of normalised, Polyak and plain steps",
    reference=(
        "Implicit Bias and Fast Convergence Rates for Self-attention, rates of NGD and Polyak"
        " (recalled); specification P5-E1"
    ),
    protocol=(
        "Gaussian tokens around two centres, n = 6, T = 5, d = 48, fixed head, logistic loss, zero"
        " start. Normalised steps of 0.05, of 0.5/√t, Polyak's steps with factor 2 and the loss of"
        " the optimal tokens as floor, and gradient descent with step 1. Slopes are least squares"
        " on log-spaced records from step 1000 to 10 000."
    ),
    parameters=Parameters(),
    quick=Parameters(seeds=4),
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes=(
        "Data and step sizes are the specification's: the paper's were not readable. Polyak's"
        " factor of 2 is recalled. Its gap is computed without cancellation: after 10 000 steps the"
        " loss is above its floor by less than 1e-2000."
    ),
)
