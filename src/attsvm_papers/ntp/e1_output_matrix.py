"""Stage 1: the output matrix.

K = d = 20. Uniform weights from zero, with identity and with random orthogonal embeddings, where
the paper's collocations also have sentences of two tokens; Dirichlet(1) weights from zero; uniform
weights from a Gaussian start of deviation 0.1. Normalised gradient descent with step 0.2 / sqrt(d),
20 000 steps. That the loss falls at every step is asked of random unit embeddings, with a step that
satisfies the theorem's condition: where embeddings are orthonormal no step is too long.

Source: Huang, Liang and Yang (2024), Figure 2, left panels, and Proposition 1

Notes: The paper's setting is uniform; the other two are this project's, and so is the number of
steps. Whether the step has the root of d is unverified.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import lambertw

from attsvm import LogSpaced, max_margin_batch
from attsvm.theory import output_margins
from attsvm.theory.next_token import StepRule, output_stage
from attsvm.theory.sentences import NextTokenData, bipartite, embed
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.ntp.two_stages import (
    by_run,
    output_targets,
    published_rates,
    random_path_lengths,
    uncentred_targets,
)

_K = 20
IDENTITY, ORTHOGONAL, WEIGHTS, START = "identity", "ortho", "weights", "start"
UNIFORM = (IDENTITY, ORTHOGONAL)
ROUNDING = 1e-9  # errors below it are drawn and fitted as it
FIT, LOSS_FIT = (2000, 20_000), (3000, 20_000)


@kit.run(case=[*UNIFORM, WEIGHTS, START], seeds=kit.seeds(10, by=100), quick={"seeds": 3})
def run(seeds, case, K=20, steps=20_000, deviation=0.1):
    eta, _ = published_rates(K)
    sets, starts = [], []
    for seed in seeds:
        rng = np.random.default_rng([2, seed])
        n = rng.permutation(K)
        weights = rng.dirichlet(np.ones(K)) if case == WEIGHTS else None
        alone = NextTokenData.from_sentences([[x] for x in range(K)], n, weights, K)
        sets.append(bipartite(K, 1, seed, case) if case in UNIFORM else alone)
        start = deviation * rng.standard_normal((K, K)) if case == START else np.zeros((K, K))
        starts.append(start)
    course = output_stage(sets, StepRule(eta), steps, init=np.stack(starts), records=LogSpaced(200))
    error = np.maximum(course.direction_error(output_targets(sets)), ROUNDING)
    late = (course.steps >= LOSS_FIT[0]) & (course.steps <= LOSS_FIT[1])
    return {
        "step": kit.same(course.steps),
        **_rises(sets, starts, seeds),
        "growth": course.norm[-1] / (eta * course.steps[-1]),
        "growth_astray": random_path_lengths(seeds, K, steps),
        "error_slope": kit.exponents(course.steps, error.T, *FIT),
        "uncentred_slope": kit.exponents(
            course.steps, course.direction_error(uncentred_targets(sets)).T, *FIT
        ),
        "loss_rate": kit.slopes(course.steps.astype(float), np.log(course.loss).T, late)
        * -math.sqrt(K - 1)
        / eta,
        **by_run({"error": error, "loss": course.loss, "norm": course.norm}),
    }


def _rises(sets: Any, starts: Any, seeds: Any) -> dict[str, Any]:
    """At how many of a thousand steps the loss rose, on the same sentences with random unit
    embeddings: with a step that is as long as the condition allows, and with one :data:`TOO_LONG`
    times as long.
    """
    turned = []
    for one, seed in zip(sets, seeds, strict=True):
        E = embed("random", one.K, one.K, np.random.default_rng([22, seed]))
        turned.append(replace(one, embeddings=E))
    solutions = max_margin_batch([output_margins(one.embeddings, one.following) for one in turned])
    # 2 eta exp(2 eta) = 1 / |W*|
    allowed = 0.5 * lambertw(1.0 / solutions.norm).real
    rises = {}
    for name, factor in (("rises", 1.0), ("rises_long", TOO_LONG)):
        rule = StepRule(tuple(factor * allowed))
        course = output_stage(
            turned, rule, 1000, init=np.stack(starts), records=AtSteps(()), watch=True
        )
        assert course.rises is not None
        rises[name] = course.rises
    return rises


TOO_LONG = 300.0
SUBLINEAR = (
    "ntp, abstract: both layers converge sub-linearly to the direction of their max-margin"
    " solutions; the exponent is derived"
)
LINEAR = "ntp, abstract: the loss enjoys a linear convergence rate; the constant is derived"


@kit.claim(
    kit.at_most(1e-12, "1 - cosine at every record from step 1: rounding"),
    reference="ntp, Figure 2, left panels",
    null=kit.exchanged("unequal weights", "case", IDENTITY, WEIGHTS),
)
def C3_1a(e):
    """From zero and with uniform weights the output matrix moves along its max-margin direction
    from the first step on.
    """
    return 0.5 * e.take(np.isin(e["case"], UNIFORM))["error"][:, 1:].max(axis=1) ** 2


@kit.claim(
    kit.at_most(
        -0.9,
        "log-log slope on steps 2000 to 20000; -1 with a logarithm",
        share=kit.MOST,
    ),
    "paper",
    reference=SUBLINEAR,
    interval=True,
    null=kit.replaced(
        "the distance to a target that is not centred", error_slope="uncentred_slope"
    ),
)
def C3_2a(e):
    """With unequal weights, and from a random start, the direction error falls like 1/t."""
    return {
        words: e.where(case=case)["error_slope"]
        for words, case in (("unequal weights", WEIGHTS), ("a random start", START))
    }


@kit.claim(
    kit.at_most(
        1e-5,
        "slope on steps 3000 to 20000 relative to the predicted one",
        share=kit.MOST,
    ),
    "paper",
    reference=LINEAR,
    interval=True,
    null=kit.replaced(
        "the root of K in place of that of K - 1",
        loss_rate=lambda e: e["loss_rate"] * np.sqrt(_K / (_K - 1)),
    ),
)
def C3_2c(e):
    """The logarithm of the loss falls by eta / sqrt(K - 1) per step: a linear rate."""
    return np.abs(e["loss_rate"] - 1.0)


@kit.claim(
    kit.between(
        0.95,
        1.001,
        "a path is no longer than its steps, up to the norm of the start",
        share=kit.MOST,
    ),
    "paper",
    reference="ntp, Proposition 1: a norm that grows linearly; the constant is derived",
    null=kit.replaced("steps in random directions", growth="growth_astray"),
)
def C3_2d(e):
    """The norm of the output matrix grows linearly: at the end it is at least 0.95 of the length of
    the path.
    """
    return e["growth"]


@kit.claim(
    kit.at_most(0, "derived from the descent inequality for inputs of unit norm; at every step"),
    null=kit.replaced(f"steps {TOO_LONG:g} times as long", rises="rises_long"),
)
def C3_3(e):
    """The loss falls at every step when 2 eta exp(2 eta) is at most 1 / |W*|, whatever weights,
    start and embeddings.
    """
    return e["rises"]


@kit.picture(
    "The rates of stage 1",
    "The direction error falls along a line of slope minus one, the logarithm of the loss"
    " along a straight line, on the closed form.",
    2.9,
    1,
    3,
    width=8.6,
    name="stage-one-rates",
)
def stage_one_rates(evidence, axes):
    """Medians and ranges over seeds. The error falls like 1/t, with uniform weights from zero it is
    rounding and not drawn; the loss falls geometrically, the norm grows linearly. Crosses are the
    closed forms with uniform weights: log(1 + (K - 1) exp(-a)), a the norm over sqrt(K - 1).
    """
    for case, colour, words in (
        (IDENTITY, kit.BEST, "uniform, from zero"),
        (WEIGHTS, kit.TRAINED, "unequal weights"),
        (START, kit.ATTENTION, "random start"),
    ):
        rows = evidence.where(case=case)
        step = rows["step"][0]
        late = step >= 10
        if case != IDENTITY:
            kit.band(axes[0], step[late], rows["error"][:, late], colour)
        kit.band(axes[1], step, rows["loss"], colour)
        kit.band(axes[2], step, rows["norm"], colour, label=words)
    norm = published_rates(_K)[0] * step[-1::-8]
    loss = np.log1p((_K - 1) * np.exp(-norm / np.sqrt(_K - 1)))
    for ax, closed in ((axes[1], loss), (axes[2], norm)):
        ax.plot(step[-1::-8], closed, "x", color=kit.BEST, markersize=5)
    x = np.array([2000.0, 20_000.0])
    axes[0].plot(x, 60.0 / x, "--", color=kit.FAINT, linewidth=1)
    axes[0].text(5000, 0.007, "1/t", color=kit.FAINT, fontsize=9, ha="right")
    kit.loglog(axes[0], np.array([10.0, 20_000.0]), evidence["error"][:, -1:])
    kit.logarithmic(axes[0].yaxis, np.array([1e-4, 1.0]))
    kit.logarithmic(axes[1].yaxis, evidence["loss"])
    kit.legend(axes[2])
    for ax, title in zip(
        axes, ("Direction error", "Loss of stage 1", "Norm of the output matrix"), strict=True
    ):
        ax.set(title=title, xlabel="step")
    for ax in axes[1:]:
        ax.set_xticks([0, 10_000, 20_000], ["0", "10 000", "20 000"])
