"""Rates of normalised, Polyak and plain steps.

Gaussian tokens around two centres, n = 6, T = 5, d = 48, fixed head, logistic loss, zero start.
Normalised steps of 0.05, of 0.5/√t, Polyak's steps with factor 2 and the loss of the optimal tokens
as floor, and gradient descent with step 1. Slopes are least squares on log-spaced records from step
1000 to 10 000. Attention off the optimal token is computed from differences of logits, so it is
exact far below the spacing of floats.

Source: Implicit Bias and Fast Convergence Rates for Self-attention, rates of NGD and Polyak,
sparsification rate (recalled)

Notes: Data and step sizes are this project's; the paper's are unverified. Polyak's factor of 2 is
recalled. Its gap is computed without cancellation: after 10 000 steps the loss is above its
floor by less than 1e-2000.
"""

import numpy as np
import torch

from attsvm import (
    max_margin_batch,
    optimal_tokens,
    selection_margins,
    token_scores,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import gauss
from attsvm.optim import SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.rates.adaptive import log_missing, log_slopes, log_spaced_records

CONSTANT, ROOT, POLYAK, PLAIN = "constant", "root", "Polyak", "plain"
NAMES = {
    CONSTANT: "normalised, constant step",
    ROOT: "normalised, step 1/√t",
    POLYAK: "Polyak",
    PLAIN: "gradient descent",
}
RATES = {CONSTANT: 0.05, ROOT: 0.5, POLYAK: 1.0, PLAIN: 1.0}
WINDOW = (1000, 10_000)


@kit.run(rule=NAMES, seeds=kit.seeds(20, by=20), quick={"seeds": 4})
def run(rule, seeds, steps=10_000):
    data, heads = gauss(seed=seeds)
    tokens, model = optimal_tokens(data, heads), Attention.cross(data, heads)
    if rule == POLYAK:  # the infimum under a fixed head is the loss of the optimal tokens
        floor = np.logaddexp(0.0, -token_scores(data, heads).max(axis=-1)).mean(axis=-1)
        descent: SteepestDescent = PolyakDescent(
            model.parameters(), RATES[rule], loss_floor=torch.as_tensor(floor), polyak_factor=2.0
        )
    else:
        descent = SteepestDescent(model.parameters(), RATES[rule], normalize=rule != PLAIN)
    schedule = (lambda step: float((step + 1.0) ** -0.5)) if rule == ROOT else None
    trajectory = train(
        model, data, descent, steps, AtSteps(log_spaced_records(steps)), schedule=schedule
    )
    solutions = max_margin_batch(
        [selection_margins(data.instance(run), selected) for run, selected in enumerate(tokens)],
        tol=1e-12,
    )
    return {
        "step": kit.same(trajectory.steps),
        "error": np.sqrt(2.0 * trajectory.direction_gap(solutions).T),
        "norm": trajectory.norm.T,
        "log_missing": log_missing(data, tokens, trajectory.W).T,
        "best_norm": solutions.norm,
        "certified": solutions.gap,
    }


def slope_of_rule(e, rule, column="error"):
    return log_slopes(e.where(rule=rule), column, *WINDOW)


def rule_exchanged(rule, other):
    return kit.exchanged(f"{NAMES[other]} in its place", "rule", rule, other)


def explain_plain_descent(e):
    """The explanation of why plain descent is steeper than 1/log t."""
    values = slope_of_rule(e, PLAIN)
    return (
        "A margin that joins late, and an error that is still falling onto its 1/log t. Seeds are"
        f" at {values.min():.3g} to {values.max():.3g}, the mean is {values.mean():.3g}."
    )


@kit.claim(
    kit.at_most(
        3.0,
        "largest over smallest at step 10 000; a limit up to logarithms, derived",
        share=kit.MOST,
    ),
    null=kit.shuffled("norm", words="each rule with the norm of another"),
)
def C5_2(e):
    """The error depends on the path through the norm alone: error times norm of the four rules lies
    in one band.
    """
    products = [e.where(rule=rule).end("error") * e.where(rule=rule).end("norm") for rule in NAMES]
    return np.max(products, axis=0) / np.min(products, axis=0)


@kit.several_claims(
    kit.claim(
        expect.of(kit.MOST),
        id=f"C5.2{letter}",
        statement=f"{words}: slope of log error against log step.",
        explanation=explain_plain_descent if rule == PLAIN else "",
        failure="scale",
        interval=True,
        null=rule_exchanged(rule, other),
        rule=rule,
    )
    for letter, rule, other, words, expect in (
        ("e", CONSTANT, ROOT, "Constant normalised steps",
         kit.at_most(-0.75, "-1 is derived, up to a logarithm")),
        ("f", ROOT, CONSTANT, "Normalised steps of 0.5/√t",
         kit.between(-0.6, -0.3, "-1/2 is derived, up to a logarithm")),
        ("g", PLAIN, ROOT, "Plain gradient descent",
         kit.at_least(-0.15, "1/log t has slope -0.125 between these steps")),
        ("h", POLYAK, ROOT, "Polyak's steps",
         kit.at_most(-0.9, "-1 is derived: steps are bounded below and the norm grows linearly")),
    )
)  # fmt: skip
def error_slope(e, rule):
    return slope_of_rule(e, rule)


@kit.claim(
    kit.close_to(
        0.0,
        0.02,
        "derived; early steps that do not point the same way are lost once",
        share=kit.MOST,
    ),
    null=kit.exchanged("constant steps and steps 1/√t exchanged", "rule", CONSTANT, ROOT),
)
def C5_2i(e):
    """The norm grows like t (constant steps), t (Polyak) and √t (steps 1/√t): exponents minus
    these.
    """
    powers = {CONSTANT: 1.0, POLYAK: 1.0, ROOT: 0.5}
    return np.concatenate(
        [slope_of_rule(e, rule, "norm") - power for rule, power in powers.items()]
    )


@kit.claim(
    kit.close_to(1.0, 0.1, "derived, up to o(1)", share=kit.MOST),
    interval=True,
    null=kit.shuffled("norm", words="each rule with the norm of another"),
    trials="rule seed",
)
def C5_3(e):
    """Under every rule the logarithm of the attention off the optimal token falls by one per norm
    of the solution, from step 1000 on: before, other tokens than the rivals at the margin count.
    """
    return -kit.slopes(e["norm"], e["log_missing"], e["step"] >= 1000) * e["best_norm"]


@kit.picture(
    "Four step rules, one curve",
    "Straight falling lines for three rules and a flat one for plain descent; their products with"
    " the norm end between two and six. Against the norm all attentions lie on the diagonal.",
    5.6,
    2,
    3,
    width=8.8,
    name="rates",
)
def draw_step_rules(e, axes):
    """Median over seeds with the range of all of them. Above: distance between the unit matrices of
    weights and of the max-margin solution, the norm, and their product, which hardly depends on the
    rule. Below: minus the logarithm of the attention off the optimal token by step, and against the
    norm of W in norms of the solution, all seeds and records: one per norm for every rule.
    """
    titles = ("direction error", "norm of W", "error × norm", "-log(1 - attention), worst sequence")
    for colour, rows in zip(kit.COLOURS, (e.where(rule=rule) for rule in NAMES), strict=True):
        step = rows["step"][0]
        is_late = step >= 10
        curves = (rows["error"], rows["norm"], rows["error"] * rows["norm"], -rows["log_missing"])
        for ax, values in zip(axes.flat, curves, strict=False):
            kit.band(ax, step[is_late], values[:, is_late], colour, label=NAMES[rows["rule"][0]])
        size = rows["norm"] / rows["best_norm"][:, None]
        axes[1, 1].plot(size.T, -rows["log_missing"].T, ".", color=colour, ms=2.5, alpha=0.6)
    for ax, title in zip(axes.flat, titles, strict=False):
        ax.set(xscale="log", yscale="log", xlim=(10, step[-1]), title=title, xlabel="step")
    line = np.array([0.5, 1e4])
    axes[1, 1].plot(line, line, color=kit.FAINT, linewidth=0.8)
    kit.loglog(axes[1, 1], line, line)
    axes[1, 1].set(ylim=(0.1, 1e4), xlabel="norm of W / norm of the solution")
    axes[1, 1].set_title("one per norm")
    axes[1, 2].axis("off")
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), frameon=False, loc="center")
