"""Rates of normalised, Polyak and plain steps.

Gaussian tokens around two centres, n = 6, T = 5, d = 48, fixed head, logistic loss, zero start.
Normalised steps of 0.05, of 0.5/√t, Polyak's steps with factor 2 and the loss of the optimal tokens
as floor, and gradient descent with step 1. Slopes are least squares on log-spaced records from step
1000 to 10 000.

Source: Implicit Bias and Fast Convergence Rates for Self-attention, rates of NGD and Polyak
(recalled)

Notes: Data and step sizes are this project's; the paper's are unverified. Polyak's factor of 2 is
recalled. Its gap is computed without cancellation: after 10 000 steps the loss is above its
floor by less than 1e-2000.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    INK,
    MOST,
    TRAINED,
    VERDICT,
    Evidence,
    Null,
    at,
    at_least,
    at_most,
    band,
    between,
    blocks,
    claim,
    close_to,
    exchanged,
    grid,
    in_order,
    label_ends,
    loglog,
    picture,
    same,
    scales,
    shuffled,
)
from attsvm_papers.rates.adaptive import (
    CONSTANT,
    NAMES,
    PLAIN,
    POLYAK,
    ROOT,
    RULES,
    rate,
    trained,
)

SCALES = scales(steps=10_000, seeds=20, first_seed=VERDICT, quick={"seeds": 4})

WINDOW = (1000, 10_000)


@grid(rule=RULES, seeds=blocks(20))
def run(rule, seeds, steps):
    found = trained(rule, seeds, steps)
    trajectory = found.trajectory
    gap = trajectory.direction_gap(found.solutions).T
    return {
        "step": same(trajectory.steps),
        "gap": gap,
        "error": np.sqrt(2.0 * gap),
        "norm": trajectory.norm.T,
        "certified": found.solutions.gap,
        "global": (trajectory.selected[-1] == found.tokens).all(axis=-1),
    }


def _of(evidence: Evidence, rule: int) -> Evidence:
    return in_order(evidence, rule=rule)


def _measure_rate(e: Evidence, rule: int, column: str = "error") -> Any:
    return rate(_of(e, rule), column, *WINDOW)


def _instead(rule: int, other: int) -> Null:
    return exchanged(f"{NAMES[other]} in its place", "rule", rule, other)


def _spread(values: Any) -> str:
    """The values of all seeds in words."""
    return (
        f"Seeds are at {values.min():.3g} to {values.max():.3g}, the mean is {values.mean():.3g}."
    )


@claim(
    at_most(
        3.0, "largest over smallest at step 10 000; a limit up to logarithms, derived", share=MOST
    ),
    null=shuffled("norm", words="each rule with the norm of another"),
)
def C5_2(evidence):
    """The error depends on the path through the norm alone: error times norm of the four rules lies
    in one band.
    """
    products = np.stack(
        [
            at(_of(evidence, rule), "error", WINDOW[1]) * at(_of(evidence, rule), "norm", WINDOW[1])
            for rule in RULES
        ]
    )
    return products.max(axis=0) / products.min(axis=0)


@claim(
    at_most(-0.75, "-1 is derived, up to a logarithm", share=MOST),
    interval=True,
    null=_instead(CONSTANT, ROOT),
)
def C5_2e(e):
    """Constant normalised steps: slope of log error against log step."""
    return _measure_rate(e, CONSTANT)


@claim(
    between(-0.6, -0.3, "-1/2 is derived, up to a logarithm", share=MOST),
    interval=True,
    null=_instead(ROOT, CONSTANT),
)
def C5_2f(e):
    """Normalised steps of 0.5/√t: slope of log error against log step."""
    return _measure_rate(e, ROOT)


@claim(
    at_least(
        -0.15,
        "1/log t has slope -0.125 between these steps",
        share=MOST,
    ),
    explanation=lambda e: (
        "A margin that joins late, and an error that is still falling onto its 1/log t."
        f" {_spread(_measure_rate(e, PLAIN))}"
    ),
    interval=True,
    null=_instead(PLAIN, ROOT),
)
def C5_2g(e):
    """Plain gradient descent: slope of log error against log step."""
    return _measure_rate(e, PLAIN)


@claim(
    at_most(-0.9, "-1 is derived: steps are bounded below and the norm grows linearly", share=MOST),
    interval=True,
    null=_instead(POLYAK, ROOT),
)
def C5_2h(e):
    """Polyak's steps: slope of log error against log step."""
    return _measure_rate(e, POLYAK)


@claim(
    close_to(
        0.0, 0.02, "derived; early steps that do not point the same way are lost once", share=MOST
    ),
    null=exchanged("constant steps and steps 1/√t exchanged", "rule", CONSTANT, ROOT),
)
def C5_2i(e):
    """The norm grows like t (constant steps), t (Polyak) and √t (steps 1/√t): exponents minus
    these.
    """
    return np.concatenate(
        [
            _measure_rate(e, rule, "norm") - power
            for rule, power in ((CONSTANT, 1.0), (POLYAK, 1.0), (ROOT, 0.5))
        ]
    )


@claim(
    between(0.7, 1.3, "one on the limit; margins of all sequences still settle", share=MOST),
    null=_instead(PLAIN, ROOT),
)
def C5_2j(evidence):
    """Under plain descent the norm grows like log t: as much in the last decade as in the one
    before.
    """
    # Growth of the norm of plain descent over the last decade, relative to the decade before.
    norms = [at(_of(evidence, PLAIN), "norm", 10**k) for k in (2, 3, 4)]
    return (norms[2] - norms[1]) / (norms[1] - norms[0])


@picture(
    "Four step rules, one curve",
    "Straight falling lines for three rules and a flat one for plain descent; their"
    " products with the norm end between two and six.",
    2.9,
    1,
    3,
    width=8.8,
)
def rates(evidence, axes):
    """Median over seeds with the range of all of them. Left: distance between the unit matrices of
    weights and of the max-margin solution. Polyak's steps and constant normalised ones converge
    like 1/t, plain gradient descent like 1/log t. Right: the product with the norm hardly depends
    on the rule.
    """
    colours = {CONSTANT: TRAINED, ROOT: BEST, POLYAK: ATTENTION, PLAIN: INK}
    short = {CONSTANT: "constant", ROOT: "1/√t", POLYAK: "Polyak", PLAIN: "plain"}
    panels: tuple[tuple[str, Callable[[Evidence], Any]], ...] = (
        ("direction error", lambda rows: rows["error"]),
        ("norm of W", lambda rows: rows["norm"]),
        ("error × norm", lambda rows: rows["error"] * rows["norm"]),
    )
    for ax, (title, value) in zip(axes, panels, strict=True):
        ends, seen = [], []
        for rule, colour in colours.items():
            rows = _of(evidence, rule)
            step = rows["step"][0]
            late = step >= 10
            curves = value(rows)[:, late]
            band(ax, step[late], curves, colour)
            ends.append((float(np.median(curves[:, -1])), short[rule], colour))
            seen.append(curves)
        loglog(ax, np.array([10.0, evidence["step"].max()]), np.concatenate(seen))
        ax.set_xlim(10, evidence["step"].max())
        if title == "error × norm":
            ax.set_ylim(0.3, 20)
        ax.set(title=title, xlabel="step")
        label_ends(ax, ends, 0.09)
