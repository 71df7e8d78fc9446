"""Global convergence under data conditions, and not without.

Normalised descent with step 0.1 for 3000 steps from random weights of norm 20 (Gaussian entries),
fixed head. Orthonormal and Gaussian tokens (n = 6, T = 5, d = 48), tokens and queries on the unit
sphere (n = 6, T = 8, d = 10) as control.

Source: Implicit Bias and Fast Convergence Rates for Self-attention, global convergence (recalled)
"""

import numpy as np

from attsvm import max_margin_batch, optimal_tokens, selection_margins, train
from attsvm.attention import Attention
from attsvm.datasets import gauss, orth, unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit

ORTH, GAUSS, SPHERE = range(3)
NAMES = ("orthonormal tokens", "Gaussian tokens", "unit sphere (control)")
LR, START = 0.1, 20.0


@kit.run(source=[ORTH, GAUSS, SPHERE], seeds=kit.seeds(100, by=25), quick={"seeds": 10})
def run(source, seeds, steps=3000):
    data, heads = (
        unit_sphere(6, 8, 10, seeds)
        if source == SPHERE
        else (orth if source == ORTH else gauss)(seed=seeds)
    )
    W0 = np.stack(
        [
            np.random.default_rng([5, source, seed]).standard_normal((data.d_x, data.d_z))
            for seed in seeds
        ]
    )
    W0 *= START / np.linalg.norm(W0, axis=(-2, -1), keepdims=True)
    model = Attention.cross(data, heads, init=W0)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=LR), steps, AtSteps(()))
    optimal = optimal_tokens(data, heads)
    best = max_margin_batch(
        [selection_margins(data.instance(k), optimal[k]) for k in range(len(seeds))], tol=1e-12
    )
    return {
        "start": (trajectory.selected[0] == optimal).mean(axis=-1),
        "global": (trajectory.selected[-1] == optimal).all(axis=-1),
        "cosine": 1.0 - direction_gap(trajectory.W[-1], best),
    }


SPHERE_TOO = kit.exchanged("the unit sphere in place of Gaussian tokens", "source", GAUSS, SPHERE)


@kit.claim(
    kit.true("the data conditions of the theorem, form recalled", share=kit.MOST),
    "recalled",
    "rates, global convergence",
    null=SPHERE_TOO,
)
def C5_1(e):
    """On orthonormal and Gaussian tokens normalised descent from random weights of norm 20 selects
    every optimal token.
    """
    return e["global"][e["source"] != SPHERE]


@kit.claim(
    kit.at_least(0.99, "set by this project", share=kit.MOST),
    "recalled",
    "rates, global convergence",
    null=SPHERE_TOO,
)
def C5_1a(e):
    """On orthonormal and Gaussian tokens the cosine to the max-margin solution after 3000
    normalised steps of 0.1 from random weights of norm 20.
    """
    return e["cosine"][e["source"] != SPHERE]


@kit.picture(
    "Where large random weights end",
    "All runs on orthonormal and Gaussian tokens reach the optimal selection; on the sphere"
    " about a third.",
    3.0,
    1,
    2,
    width=7.6,
    name="global",
)
def draw_global(evidence, axes):
    """Left: share of sequences that select their optimal token at the start (pale) and share of
    runs in which all do at the end. Right: distribution of the direction gap at the end.
    """
    for source, colour in ((ORTH, kit.TRAINED), (GAUSS, kit.BEST), (SPHERE, kit.ATTENTION)):
        rows = evidence.where(source=source)
        for position, column in ((source - 0.18, "start"), (source + 0.18, "global")):
            axes[0].bar(
                position,
                rows[column].mean(),
                width=0.34,
                color=colour,
                alpha=0.35 if column == "start" else 1.0,
            )
            axes[0].text(
                position,
                rows[column].mean() + 0.02,
                f"{100 * rows[column].mean():.0f} %",
                color=kit.FAINT,
                ha="center",
                fontsize=8.5,
            )
        gap = np.sort(np.maximum(1.0 - rows["cosine"], 1e-6))
        axes[1].plot(
            gap,
            np.arange(1, len(gap) + 1) / len(gap),
            color=colour,
            drawstyle="steps-post",
            label=NAMES[source],
        )
    axes[0].set_xticks(range(3), ["orthonormal", "Gaussian", "sphere"])
    axes[0].set_ylim(0, 1.12)
    axes[0].set_yticks([0, 0.5, 1.0], ["0", "50 %", "100 %"])
    axes[0].set_title("optimal at the start (pale: tokens), at the end (runs)")
    kit.logarithmic(axes[1].xaxis, np.array([1e-3, 1.5]))
    axes[1].set(xlim=(1e-3, 2), ylim=(0, 1.02))
    axes[1].set_yticks([0, 0.5, 1.0], ["0", "50 %", "100 %"])
    axes[1].set(
        xlabel="1 - cosine to the solution of the optimal tokens", title="share of the runs within"
    )
    kit.legend(axes[1], loc="lower right")
