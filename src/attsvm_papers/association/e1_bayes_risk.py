"""Noisy in-context recall: descent meets the Bayes risk.

Two triggers, 22 words and a noise token; 200 sentences for each seed, exact over what follows them;
linear attention and a feed-forward layer by gradient descent from zero, steps of length 0.1, or
plain steps of 1. The excess over the Bayes risk is that of 500 fresh sentences. Then two numbers
for each trigger q, W(q, q) = −U(q, noise) = λ(q) and F(noise, q) = λ(q) + γ(q), with next tokens
that are drawn: normalised steps for λ and plain ones of 4 for γ, or one normalised step for both.

Source: One-Layer Transformers are Provably Optimal for In-context Reasoning and Distributional
Association Learning (Nguyen and Nguyen-Tang, 2025), read in its abstract; the task is recalled

Notes: Sizes, steps and the two numbers are this project's. With linear attention the loss is convex
in all weights.
"""

import numpy as np
import torch
from scipy.special import rel_entr
from torch import Tensor

from attsvm.optim import SteepestDescent
from attsvm_papers import kit
from attsvm_papers.association import recall
from attsvm_papers.association.recall import NOISE, RESTRICTED, TRIGGERS, Risk

NORMALISED, PLAIN = "normalised", "plain"
STEP = {NORMALISED: 0.1, PLAIN: 1.0}
STEP_EACH, TOGETHER = "a step for each", "one step for both"
NOISY = 0.2
PAPER = "abstract"


def steps_of_records(steps):
    return sorted({0, 100, 200, 300, *np.rint(np.geomspace(1, steps, 25)).astype(int).tolist()})


@kit.run(
    kit.rows("alpha rule", [(0.0, NORMALISED), (0.0, PLAIN), (NOISY, NORMALISED)]),
    seeds=kit.seeds(20, by=20),
    quick={"seeds": 2, "n": 100, "steps": 400},
    name="weights",
)
def train_all_weights(alpha, rule, seeds, steps=1000, n=200):
    at = steps_of_records(steps)
    risk = Risk(recall.draw_sentences(seeds, n, alpha, 0), alpha)
    mask = recall.weight_mask(RESTRICTED)
    path = recall.descend_masked(risk, mask, steps, STEP[rule], rule == NORMALISED, at)
    clean, noisy = (Risk(recall.draw_sentences(seeds, 500, a, 1), a) for a in (alpha, NOISY))
    built = [
        recall.constructed(30.0, NOISY, deaf).expand(len(seeds), -1, -1) for deaf in (True, False)
    ]
    return {
        "step": kit.same(at),
        "excess": torch.stack([clean(theta) for theta in path]).T.numpy() - recall.entropy(alpha),
        "built": noisy(built[0]).numpy() - recall.entropy(NOISY),
        "built_hearing": noisy(built[1]).numpy() - recall.entropy(NOISY),
        "margin": kit.same(1 / np.sqrt(TRIGGERS)),
    }


def two_numbers(x: Tensor, alpha: Tensor) -> Tensor:
    """Risk ``(..., TRIGGERS)`` of the numbers ``(..., TRIGGERS, 2)`` where noise follows in a share
    ``alpha``: logits of the answer, of noise and of the others.
    """
    strength, odds = x.unbind(-1)
    logits = torch.stack([strength, strength + odds, torch.full_like(odds, np.log(NOISE - 1))])
    return logits.logsumexp(dim=0) - strength - alpha * odds


@kit.run(way=[STEP_EACH, TOGETHER], seeds=kit.seeds(20, by=20, name="samples"), name="numbers")
def train_two_numbers(way, seeds, steps=1000, n=200):
    at = steps_of_records(steps)
    query = recall.draw_sentences(seeds, n, NOISY, 0).query
    noise = np.stack([np.random.default_rng([72, 2, seed]).random(n) < NOISY for seed in seeds])
    is_trigger = np.stack([query == q for q in range(TRIGGERS)], axis=1)
    share = is_trigger.mean(axis=-1)
    noise_shares = (is_trigger & noise[:, None]).mean(axis=-1) / share
    weight, noise_share = torch.from_numpy(share), torch.from_numpy(noise_shares)
    x = [torch.zeros(*share.shape, 1, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    descents = [SteepestDescent([x[0]], lr=0.1), SteepestDescent([x[1]], lr=4.0, normalize=False)]
    if way == TOGETHER:
        x = [torch.zeros(*share.shape, 2, dtype=torch.float64, requires_grad=True)]
        descents = [SteepestDescent(x, lr=0.1)]
    path = []
    for step in range(steps + 1):
        now = torch.cat(x, dim=-1)
        if step in at:
            path.append(now.detach())
        for number in x:
            number.grad = None
        (weight * two_numbers(now, noise_share)).sum().backward()
        for descent in descents:
            descent.step()
    risk = torch.stack(path)
    own_excess = weight * (
        two_numbers(risk, noise_share) - torch.from_numpy(recall.entropy(noise_shares))
    )
    fresh = two_numbers(risk, torch.tensor(NOISY)) - float(recall.entropy(NOISY))
    return {
        "step": kit.same(at),
        "excess": own_excess.sum(-1).T.numpy(),
        "fresh": fresh.mean(-1).T.numpy(),
        "estimate": (rel_entr(NOISY, noise_shares) + rel_entr(1 - NOISY, 1 - noise_shares)).mean(
            axis=-1
        ),
    }


def log_excess_rates(e):
    """Decay of the log excess per step, from step 100 to 200 and from 200 to 300."""
    log_excess = [np.log(np.maximum(e["excess"][e["step"] == k], 1e-300)) for k in (100, 200, 300)]
    return (log_excess[0] - log_excess[1]) / 100, (log_excess[1] - log_excess[2]) / 100


LINEAR = kit.between(0.9, 1.1, "one is a linear rate; a half where it falls like 1/t")
CLEAN = {"part": "weights", "alpha": 0.0, "rule": NORMALISED}


@kit.claim(
    kit.at_most(1e-10, "nothing but rounding: the excess is 24 exp(-30)"),
    "paper",
    PAPER,
    where={"part": "weights", "alpha": NOISY},
    null=kit.replaced("attention that hears noise", built="built_hearing"),
)
def IR1(e):
    """There are weights of one layer of linear attention and a feed-forward layer that reach the
    Bayes risk: excess of the constructed ones.
    """
    return e["built"]


@kit.claim(
    LINEAR,
    "paper",
    PAPER,
    where=CLEAN,
    null=kit.exchanged("plain descent in its place", "rule", NORMALISED, PLAIN),
)
def IR2(e):
    """Without noise the expected loss goes to the Bayes risk at a linear rate: decay of the log
    excess from step 200 to 300, of that from 100 to 200.
    """
    first, second = log_excess_rates(e)
    return second / first


@kit.claim(
    kit.between(0.95, 1.05, "one is derived"),
    "ours",
    "derived on the page",
    where=CLEAN,
    null=kit.replaced("the margin of one trigger", margin=lambda e: np.ones(e.rows)),
)
def IR3(e):
    """The rate is the length of a step times the largest margin, one over the root of the triggers:
    decay of the log excess a step, of that.
    """
    return log_excess_rates(e)[1] / (STEP[NORMALISED] * e["margin"])


def without_noise(e):
    """No noise"""
    return e.but({"alpha": np.where(e["alpha"] == NOISY, 0.0, NOISY)})


@kit.claim(
    kit.at_least(2e-5, "a tenth of lr² α(1-α)/8, the cost of odds that miss by half a step"),
    "ours",
    "derived on the page",
    where={"part": "weights", "alpha": NOISY, "rule": NORMALISED},
    null=without_noise,
)
def IR4(e):
    """With noise and one step for all weights the excess does not go on falling at a linear rate:
    at the last step.
    """
    return e.end("excess")


@kit.claim(
    LINEAR,
    "paper",
    f"{PAPER}; the two numbers are ours",
    where={"part": "numbers", "way": STEP_EACH},
    null=kit.exchanged("one step for both", "way", STEP_EACH, TOGETHER),
)
def IR5(e):
    """With noise, and a number each for strength of attention and odds of noise, the loss falls at
    a linear rate: decay from step 200 to 300, of that from 100 to 200.
    """
    first, second = log_excess_rates(e)
    return second / first


@kit.claim(
    kit.between(0.999, 1.001, "one is derived"),
    "ours",
    "derived on the page",
    where={"part": "numbers", "way": STEP_EACH},
    null=kit.shuffled("estimate", within="part way"),
)
def IR6(e):
    """What is left of the expected excess is the divergence of the share of noise in the sample:
    the last one, of that.
    """
    return e.end("fresh") / e["estimate"]


@kit.picture(
    "Excess over the Bayes risk",
    "Without noise a straight line on a logarithmic axis, along the derived one. With noise and one"
    " step the excess levels off; with a step for each number it is a straight line again. Dots of"
    " the last excess against the divergence lie on the diagonal.",
    3.2,
    1,
    3,
    width=8.8,
)
def bayes_risk(e, axes):
    """Medians over seeds with the range of all of them. Left: without noise, on fresh sentences;
    the dashed line has the derived rate. Middle: with noise; all weights on fresh sentences, the
    two numbers on their own. Right: the last expected excess of the two numbers, each dot a seed.
    """
    e = e.take(np.argsort(e["part"] == "numbers", kind="stable"))
    lines: list[tuple[int, dict[str, object], str, str]] = [
        (0, {"part": "weights", "alpha": 0.0, "rule": NORMALISED}, kit.TRAINED, NORMALISED),
        (0, {"part": "weights", "alpha": 0.0, "rule": PLAIN}, kit.ATTENTION, PLAIN),
        (1, {"part": "weights", "alpha": NOISY}, kit.INK, "all weights"),
        (1, {"part": "numbers", "way": TOGETHER}, kit.ATTENTION, f"two, {TOGETHER}"),
        (1, {"part": "numbers", "way": STEP_EACH}, kit.TRAINED, f"two, {STEP_EACH}"),
    ]
    for k, values, colour, label in lines:
        rows = e.where(**values)
        kit.band(axes[k], rows["step"][0], np.maximum(rows["excess"], 1e-15), colour, label=label)
    step = np.array([100, 400])
    start = np.median(e.where(**CLEAN)["excess"][e.where(**CLEAN)["step"] == 100])
    rate = STEP[NORMALISED] / np.sqrt(TRIGGERS)
    axes[0].plot(step, 4 * start * np.exp(-rate * (step - 100)), "--", color=kit.FAINT)
    for ax, title in zip(axes[:2], ("without noise", "with noise"), strict=True):
        ax.set(title=title, yscale="log", xlabel="step", xlim=(0, 500), ylim=(1e-13, 10))
        kit.legend(ax, loc="lower left")
    rows = e.where(part="numbers", way=STEP_EACH)
    axes[2].plot(rows["estimate"], rows.end("fresh"), "o", color=kit.TRAINED, markersize=4)
    ends = np.array([rows["estimate"].min(), rows["estimate"].max()])
    axes[2].plot(ends, ends, "--", color=kit.FAINT)
    axes[2].set(xscale="log", yscale="log", title="expected excess")
    axes[2].set_xlabel("divergence of the sample's noise")
