"""Random data: global, local and no convergence of a prompt.

Tokens and head on the unit sphere, random labels; logistic loss; 2000 steps of normalised gradient
descent on the prompt from zero with step 0.1.

Source: Max-Margin Token Selection, bar chart (recalled, parameters unverified)

Notes: The paper's sizes and number of trials are unverified; the protocol is this project's.
"""

import numpy as np

from attsvm import LogSpaced, prompt_margins, train
from attsvm.datasets import unit_sphere
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm_papers.kit import (
    ATTENTION,
    FAINT,
    INK,
    MOST,
    TRAINED,
    VERDICT,
    Evidence,
    at_least,
    at_most,
    blocks,
    claim,
    grid,
    picture,
    replaced,
    scales,
    setting,
)
from attsvm_papers.tfsvm.convergence import mixed, outcomes, trend

# Instances of :func:`attsvm.datasets.unit_sphere`; normalised gradient descent on the prompt from
# zero.
SCALES = scales(
    n=6,
    T=10,
    dimensions=(2, 5, 10, 30, 100, 300, 500),
    steps=2000,
    lr=0.1,
    seeds=200,
    first_seed=VERDICT,
    quick={"dimensions": (2, 10, 100, 300), "seeds": 50},
)

# Of 50 trials of an independent program of this project, whose generator differs in details:
# d: global, local, neither.
REFERENCE = {
    2: (0, 3, 47),
    5: (0, 44, 6),
    10: (1, 48, 1),
    30: (4, 46, 0),
    100: (23, 27, 0),
    300: (34, 14, 2),
}
KINDS = ("global", "local", "neither")


@grid(d=setting("dimensions"), seeds=blocks(50))
def run(n, T, d, seeds, steps, lr):
    data, heads = unit_sphere(n, T, d, seeds)
    model = Attention.prompt(data, heads)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=lr), steps, LogSpaced(2))
    return outcomes(data, heads, trajectory, prompt_margins)


def _shares(evidence: Evidence) -> dict[int, tuple[float, float, float]]:
    """Shares of global, only local, and neither, by dimension."""
    found = {}
    for d in evidence.levels("d"):
        rows = evidence.where(d=d)
        reached, local = np.mean(rows["global"] & rows["local"]), np.mean(rows["local"])
        found[int(d)] = (float(reached), float(local - reached), float(1.0 - local))
    return found


SLACK = 0.08  # two standard deviations of a difference of shares of 50 trials near zero or one
MIXED = mixed("global", "local")
RANDOM_TOKENS = replaced("random tokens in place of the trained ones", local="local_random")


@claim(
    at_least(
        0.0,
        f"no step is against it by more than {SLACK:g}, and all of them together are more than"
        " that",
    ),
    "recalled",
    "P1, bar chart (parameters unverified)",
    null=MIXED,
    trials="d seed",
)
def E1_7a(evidence):
    """The share of global convergence grows with d."""
    return trend([share for share, _, _ in _shares(evidence).values()], SLACK)


@claim(
    at_most(0.3, "share at d of 5 and more; an independent program has 0.12 at d = 5"),
    "recalled",
    null=RANDOM_TOKENS,
    trials="d seed",
)
def E1_7b(e):
    """Runs that end nowhere dominate only at tiny d."""
    return np.array([share for d, (_, _, share) in _shares(e).items() if d >= 5])


@claim(
    at_least(
        1.0,
        "exceptions are runs that are still moving",
        share=0.95,
    ),
    "recalled",
    "P1, Theorem 3 (number recalled)",
    assumes={"saturated": lambda e: e["saturated"], "selection feasible": lambda e: e["separable"]},
    null=RANDOM_TOKENS,
    trials="d seed",
)
def T6(e):
    """Descent ends only at locally optimal selections: among saturated runs with a feasible
    selection at least 95 of 100 are.
    """
    return e["local"]


@claim(
    at_least(0.997, "the mean of an independent program of this project", share=MOST),
    assumes="local",
    null=replaced("the solution of another instance", cosine="cosine_other"),
    trials="d seed",
)
def E1_7d(e):
    """The final prompt points along the max-margin prompt of its own selection."""
    return e["cosine"]


@picture(
    "Where descent on a prompt ends",
    "At d = 2 nearly all runs end at neither; then local ones dominate; global ones grow to"
    " two thirds at d = 300.",
    2.9,
    width=6.0,
)
def convergence(evidence, axes):
    """Random sequences (n = 6, T = 10). Global: every sequence gives its best token more than 0.99;
    local: another selection whose tokens beat their neighbours; neither: unsaturated, or no such
    selection. Dashes: 50 trials of an independent program.
    """
    figure = axes.flat[0].figure
    ax, shares = axes[0], _shares(evidence)
    place = np.arange(len(shares))
    for offset, (name, colour) in enumerate(zip(KINDS, (TRAINED, ATTENTION, FAINT), strict=True)):
        ax.bar(
            place + 0.27 * (offset - 1),
            [100 * row[offset] for row in shares.values()],
            0.25,
            color=colour,
            label=name,
        )
        marks = [
            (k + 0.27 * (offset - 1), 2 * REFERENCE[d][offset])
            for k, d in enumerate(shares)
            if d in REFERENCE
        ]
        ax.plot(*zip(*marks, strict=True), "_", color=INK, markersize=11)
    ax.set_xticks(place, [str(d) for d in shares])
    ax.set(xlabel="dimension d", ylabel="share of runs, %")
    figure.legend(
        loc="outside upper center", ncols=3, frameon=False, fontsize=8.5, labelcolor=FAINT
    )
