"""Stage 1: the output matrix.

K = d = 20, a random permutation as collocation, uniform weights, zero start, normalised gradient
descent with step 0.2 / sqrt(d), 1000 steps. Identity and random orthogonal embeddings.

Source: Huang, Liang and Yang (2024), Figure 2, left three panels

Notes: The number of steps is this project's; whether the step has the root of d is unverified.
"""

import math
from dataclasses import replace

import numpy as np

from attsvm import LogSpaced
from attsvm.datasets.next_token import NextTokenData, bipartite
from attsvm.dynamics.next_token import Rule, output_stage
from attsvm_papers import kit
from attsvm_papers.ntp.two_stages import by_run, output_targets, rates

# Collocations of a vocabulary of K tokens, uniform weights; normalised descent from zero.

EMBEDDINGS = ("identity", "ortho")


@kit.run(embeddings=EMBEDDINGS, seeds=kit.seeds(10, by=100), quick={"seeds": 3})
def run(seeds, embeddings, K=20, steps=1000):
    eta, _ = rates(K)
    sets = [bipartite(K, 1, seed, embeddings) for seed in seeds]
    course, uneven = (
        output_stage(each, Rule(eta), steps, records=LogSpaced(100))
        for each in (sets, [_uneven(one, seed) for one, seed in zip(sets, seeds, strict=True)])
    )
    target = output_targets(sets)
    gap = eta * course.steps / math.sqrt(K - 1)
    closed = np.log1p((K - 1) * np.exp(-gap))
    columns = {
        "norm": course.norm,
        "loss": course.loss,
        "error": course.direction_error(target),
        "norm_uneven": uneven.norm,
        "loss_uneven": uneven.loss,
        "error_uneven": uneven.direction_error(target),
    }
    return {
        "embedded": np.full(len(seeds), EMBEDDINGS.index(embeddings)),
        "step": kit.same(course.steps),
        "eta": np.full(len(seeds), eta),
        "closed": kit.same(closed),
        **by_run(columns),
    }


def _uneven(data: NextTokenData, seed: int) -> NextTokenData:
    weights = np.random.default_rng([1, seed]).dirichlet(np.ones(data.N))
    return replace(data, weights=weights)


UNEVEN = kit.replaced(
    "unequal weights", norm="norm_uneven", loss="loss_uneven", error="error_uneven"
)
REFERENCE = "P3, Figure 2, left panels"


@kit.claim(
    kit.at_most(1e-12, "1 - cosine at every record from step 1: rounding"),
    reference=REFERENCE,
    null=UNEVEN,
)
def C3_1a(evidence):
    """From zero and with uniform weights the output matrix moves along its max-margin direction
    from the first step on.
    """
    return 0.5 * evidence["error"][:, 1:].max(axis=1) ** 2


@kit.picture(
    "Stage 1 walks a straight line",
    "The loss falls along its closed form, the direction is exact to rounding at every"
    " step, the norm is linear.",
    2.7,
    1,
    3,
    width=8.6,
    name="stage-one",
)
def stage_one(evidence, axes):
    """Collocations with uniform weights, from zero: direction, norm and loss have closed forms.
    What is off is rounding.
    """
    rows = evidence.where(embedded=0)
    step = rows["step"][0]
    loss, direction, norm = axes
    loss.plot(step, rows["loss"][0], color=kit.TRAINED)
    loss.plot(
        step[::8],
        rows["closed"][0][::8],
        "x",
        color=kit.ATTENTION,
        markersize=5,
        label="closed form",
    )
    kit.logarithmic(loss.yaxis, rows["loss"][0])
    kit.legend(loss)
    direction.plot(step[1:], rows["error"][:, 1:].max(axis=0), color=kit.TRAINED)
    kit.logarithmic(direction.yaxis, np.array([1e-17, 1e-5]))
    direction.set_ylim(1e-17, 1e-5)
    direction.axhline(np.sqrt(2e-12), color=kit.ATTENTION, linewidth=0.8)
    direction.text(
        0.97,
        2.5e-6,
        "claimed bound",
        transform=direction.get_yaxis_transform(),
        ha="right",
        color=kit.ATTENTION,
        fontsize=8.5,
    )
    norm.plot(step, rows["norm"][0], color=kit.TRAINED)
    norm.plot(
        step[-1::-6],
        (rows["eta"][0] * step)[-1::-6],
        "x",
        color=kit.ATTENTION,
        markersize=5,
        label="step size × steps",
    )
    kit.legend(norm)
    for ax, title in zip(
        axes,
        ("Loss of stage 1", "Direction error, worst seed", "Norm of the output matrix"),
        strict=True,
    ):
        ax.set(title=title, xlabel="step")
