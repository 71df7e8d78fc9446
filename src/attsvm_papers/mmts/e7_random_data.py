"""Random data: global, local and no convergence of a prompt.

Tokens and head on the unit sphere, random labels; logistic loss; 2000 steps of normalised gradient
descent on the prompt from zero with step 0.1.

Source: Max-Margin Token Selection, bar chart (recalled, parameters unverified)

Notes: The paper's sizes and number of trials are unverified; the protocol is this project's.
"""

import numpy as np

from attsvm import LogSpaced, prompt_margins, train
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm_papers import kit
from attsvm_papers.tfsvm.convergence import mixed_sizes, outcomes, trend

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


@kit.run(
    d=(2, 5, 10, 30, 100, 300, 500),
    seeds=kit.seeds(200, by=50),
    quick={"d": (2, 10, 100, 300), "seeds": 50},
)
def run(d, seeds, n=6, T=10, steps=2000, lr=0.1):
    data, heads = unit_sphere(n, T, d, seeds)
    model = Attention.prompt(data, heads)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=lr), steps, LogSpaced(2))
    return outcomes(data, heads, trajectory, prompt_margins)


def shares_of_outcomes(e):
    """Shares of global, only local, and neither, ``(3, dimensions)``."""
    shares_by_dimension = [
        [np.mean(x["global"] & x["local"]), np.mean(x["local"])] for x in e.by("d")
    ]
    is_global, is_local = np.transpose(shares_by_dimension)
    return np.array([is_global, is_local - is_global, 1.0 - is_local])


SLACK = 0.08  # two standard deviations of a difference of shares of 50 trials near zero or one
MIXED = mixed_sizes("global", "local")
RANDOM_TOKENS = kit.replaced("random tokens in place of the trained ones", local="local_random")


@kit.claim(
    kit.at_least(
        0.0,
        f"no step is against it by more than {SLACK:g}, and all of them together are more than"
        " that",
    ),
    "recalled",
    "mmts, bar chart (parameters unverified)",
    null=MIXED,
    trials="d seed",
)
def E1_7a(e):
    """The share of global convergence grows with d."""
    return trend(shares_of_outcomes(e)[0], SLACK)


@kit.claim(
    kit.at_most(0.3, "share at d of 5 and more; an independent program has 0.12 at d = 5"),
    "recalled",
    null=RANDOM_TOKENS,
    trials="d seed",
)
def E1_7b(e):
    """Runs that end nowhere dominate only at tiny d."""
    return shares_of_outcomes(e)[2][np.array(e.levels("d")) >= 5]


@kit.claim(
    kit.at_least(
        1.0,
        "exceptions are runs that are still moving",
        share=0.95,
    ),
    "recalled",
    "mmts, Theorem 3 (number recalled)",
    assumes={"saturated": lambda e: e["saturated"], "selection feasible": lambda e: e["separable"]},
    null=RANDOM_TOKENS,
    trials="d seed",
    id="T6",
)
def theorem_6_random_data(e):
    """Descent ends only at locally optimal selections: among saturated runs with a feasible
    selection at least 95 of 100 are.
    """
    return e["local"]


@kit.claim(
    kit.at_least(0.997, "the mean of an independent program of this project", share=kit.MOST),
    assumes="local",
    null=kit.replaced("the solution of another instance", cosine="cosine_other"),
    trials="d seed",
)
def E1_7d(e):
    """The final prompt points along the max-margin prompt of its own selection."""
    return e["cosine"]


@kit.picture(
    "Where descent on a prompt ends",
    "At d = 2 nearly all runs end at neither; then local ones dominate, and from d = 300 on"
    " global ones.",
    2.9,
    width=6.0,
    name="convergence",
)
def draw_outcome_shares(evidence, axes):
    """Random sequences (n = 6, T = 10). Global: every sequence gives its best token more than 0.99;
    local: another selection whose tokens beat their neighbours; neither: unsaturated, or no such
    selection. Dashes: 50 trials of an independent program.
    """
    ax, dimensions = axes[0], evidence.levels("d")
    positions = np.arange(len(dimensions))
    references = np.array([REFERENCE.get(d, (np.nan,) * 3) for d in dimensions]).T
    colours = (kit.TRAINED, kit.ATTENTION, kit.FAINT)
    for k, share in enumerate(shares_of_outcomes(evidence)):
        at = positions + 0.27 * (k - 1)
        ax.bar(at, 100 * share, 0.25, color=colours[k], label=KINDS[k])
        ax.plot(at, 2 * references[k], "_", color=kit.INK, markersize=11)
    ax.set_xticks(positions, [f"{d:g}" for d in dimensions])
    ax.set(xlabel="dimension d", ylabel="share of runs, %")
    kit.legend_below(ax, 3)
