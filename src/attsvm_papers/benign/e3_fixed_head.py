"""Attention alone learns wrong labels by heart: before it generalises, or long after.

40 sequences of eight tokens: the signal of their class, noise with a fifth of the other signal, and
six of noise alone, in d = 8000 dimensions; one label in ten is wrong. The head is fixed: it reads
the difference of the signals. The prompt is trained from zero by normalised descent on the logistic
loss, 6000 steps of 0.05/√d. The SNR, ρ/√d, is from a quarter to four times 1/√n.

Source: Benign Overfitting in Token Selection of Attention Mechanism (Sakamoto and Sato, 2025), read
in its abstract, the two regimes in a summary; sizes, SNRs and the solution are this project's

Notes: A wrong label asks for the noise that leans to the other class, a right one for the signal. A
fresh sequence is right where its signal has more than half of the attention; 1000 are drawn.
"""

import numpy as np
from scipy.special import logsumexp, softmax

from attsvm import max_margin_batch, prompt_margins, train
from attsvm.attention import Attention
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.benign.signal_and_noise import NOISE, SIGNAL, draw_noisy, signal_length

ABSTRACT = "abstract; the SNR is this project's"
SUMMARY = "a summary of the paper; the SNR is this project's"
LOWEST, LOW, HIGH = 0.25, 0.7, 4.0  # SNR over one over the root of n
FRESH = 1000
FAR = 1e4  # lengths of a solution: attention is all or nothing
NEAR, HARM = 0.01, 1 / 16


def fresh_errors(prompts, rho, T, weak, rng):
    """Shares ``(...)`` of fresh sequences with at most half of the attention at their signal, for
    prompts ``(..., D)``.
    """
    normals = rng.standard_normal((FRESH, T - 1))
    logits = np.linalg.norm(prompts[..., 2:], axis=-1)[..., None, None] * normals
    shares = []
    for signal, other_signal in ((0, 1), (1, 0)):
        rivals = logits.copy()
        rivals[..., 0] += weak * rho * prompts[..., other_signal, None]
        is_missed = rho * prompts[..., signal, None] <= logsumexp(rivals, axis=-1)
        shares.append(is_missed.mean(axis=-1))
    return np.mean(shares, axis=0)


def first_step_reached(steps, reached):
    """The first recorded step ``(seeds,)`` from which on ``reached`` ``(records, seeds)`` is true;
    infinite where it is not at the last one.
    """
    since = np.logical_and.accumulate(reached[::-1], axis=0)[::-1]
    return np.where(since.any(axis=0), steps[since.argmax(axis=0)], np.inf)


@kit.run(
    snr=(0.25, 0.35, 0.5, 0.7, 1.0, 2.0, 4.0),
    seeds=kit.seeds(10, by=10),
    quick={"snr": (0.25, 0.7, 4.0), "seeds": 5},
)
def run(snr, seeds, n=40, T=8, d=8000, eta=0.1, weak=0.2, steps=6000):
    rho = signal_length(snr, n, d)
    instances = draw_noisy(n, d, eta, rho, seeds, T, weak)
    data, flipped = instances.data, instances.flipped
    head = np.zeros((len(seeds), data.d_x))
    head[:, 0], head[:, 1] = 1 / rho, -1 / rho
    model = Attention.prompt(data, head)
    records = AtSteps(np.rint(np.geomspace(20, steps, 80)).astype(int).tolist())
    descent = SteepestDescent(model.parameters(), lr=0.05 / np.sqrt(d))
    trajectory = train(model, data, descent, steps, records)
    prompts = trajectory.W[..., 0]
    attention = softmax(np.einsum("kntd,rkd->rknt", data.tokens, prompts), axis=-1)
    at_signal, at_noise = attention[..., SIGNAL], attention[..., NOISE]
    tokens = np.where(flipped, NOISE, SIGNAL)
    nearest = tokens.copy()
    nearest[:, 0] = NOISE - nearest[:, 0]
    best, other = (
        max_margin_batch(
            [prompt_margins(data.instance(k), selected) for k, selected in enumerate(selection)]
        )
        for selection in (tokens, nearest)
    )
    rng = np.random.default_rng([81, seeds[0]])
    error = fresh_errors(prompts, rho, T, weak, rng)
    fitted = np.where(flipped, at_noise, at_signal) > 0.5
    return {
        "step": kit.same(trajectory.steps),
        "right": (fitted & ~flipped).sum(axis=-1).T / (~flipped).sum(axis=-1)[:, None],
        "wrong": (fitted & flipped).sum(axis=-1).T / flipped.sum(axis=-1)[:, None],
        "ignored": np.where(flipped, at_signal, 0).sum(axis=-1).T / flipped.sum(axis=-1)[:, None],
        "error": error.T,
        "step_fitted": first_step_reached(trajectory.steps, fitted.all(axis=-1)),
        "step_clean": first_step_reached(trajectory.steps, error <= NEAR),
        "gap": direction_gap(trajectory.W[-1], best.W),
        "gap_nearest": direction_gap(trajectory.W[-1], other.W),
        "certified": best.optimal,
        "error_limit": fresh_errors(FAR * np.asarray(best.W)[..., 0], rho, T, weak, rng),
    }


def at_step(e, column, when):
    """The column at each trial's record of a step."""
    record = np.argmax(e["step"] >= np.minimum(e[when], e["step"][:, -1])[:, None], axis=1)
    return e[column][np.arange(e.rows), record]


def ratio_of_steps(e, later, earlier):
    """Steps until the one over steps until the other, both at most all steps."""
    return np.minimum(e[later], e.end("step")) / np.minimum(e[earlier], e.end("step"))


@kit.claim(
    kit.at_most(NEAR, "a fresh sequence in a hundred", share=kit.MOST),
    "paper",
    ABSTRACT,
    where={"snr": LOW},
    null=kit.exchanged("a third of the signal", "snr", LOW, LOWEST),
)
def BT1(e):
    """At an SNR of .7 over the root of n attention fits every label, the wrong ones too, and errs
    on few fresh sequences at the end: share of errors.
    """
    return np.where(np.isfinite(e["step_fitted"]), e.end("error"), 1.0)


@kit.claim(
    kit.at_least(1.5, "half as many steps again", share=kit.MOST),
    "paper",
    "abstract: delayed acquisition of generalisation",
    where={"snr": LOW},
    null=kit.exchanged("six times the signal", "snr", LOW, HIGH),
)
def BT2(e):
    """There it generalises after it has fitted every label: steps to the one over the other's."""
    return ratio_of_steps(e, "step_clean", "step_fitted")


@kit.claim(
    kit.at_least(0.6, "more than half of the attention, by a tenth", share=kit.MOST),
    "recalled",
    SUMMARY,
    where={"snr": HIGH},
    null=kit.exchanged("a sixth of the signal", "snr", HIGH, LOW),
)
def BT3(e):
    """At an SNR of 4 over the root of n wrong labels are disregarded at first: largest attention of
    their sequences to the signal.
    """
    return e["ignored"].max(axis=1)


@kit.claim(
    kit.at_least(1.5, "half as many steps again", share=kit.MOST),
    where={"snr": HIGH},
    null=kit.exchanged("a sixth of the signal", "snr", HIGH, LOW),
)
def BT3b(e):
    """There every label is fitted long after fresh sequences are right: steps to the one over the
    other's.
    """
    return ratio_of_steps(e, "step_fitted", "step_clean")


@kit.claim(
    kit.true("wrong labels keep a gradient as long as they are not fitted", share=kit.MOST),
    where={"snr": HIGH},
    null=kit.replaced(
        "when fresh sequences are right", wrong=lambda e: e["wrong"] * 0 + at_clean(e)
    ),
)
def BT4(e):
    """That does not last: in the end every wrong label is learned by heart, at any SNR."""
    return e.end("wrong") == 1.0


def at_clean(e):
    """The share of wrong labels that are fitted when fresh sequences are right."""
    return at_step(e, "wrong", "step_clean")[:, None]


@kit.claim(
    kit.at_most(2e-3, "four degrees", share=kit.MOST),
    assumes="certified",
    null=kit.replaced("the first sequence at its other token", gap="gap_nearest"),
)
def BT5(e):
    """At every SNR the prompt ends in the direction of the max-margin solution of signals where
    labels are right and leaning noise where they are wrong: one minus the cosine.
    """
    return e["gap"]


@kit.claim(
    kit.at_least(HARM, "one fresh sequence in sixteen", share=kit.MOST),
    assumes="certified",
    where={"snr": LOWEST},
    null=kit.exchanged("thrice the signal", "snr", LOWEST, LOW),
)
def BT6(e):
    """At an SNR of .25 over the root of n the solution itself errs on fresh sequences, so that no
    training makes this overfitting benign: share of errors.
    """
    return e["error_limit"]


@kit.picture(
    "What is learned first",
    "On the left the curve of fitted labels rises first and that of right fresh sequences later; on"
    " the right fresh sequences come first, wrong labels go to the signal and turn back.",
    3.0,
    1,
    2,
    width=7.6,
    sharey=True,
    name="order_in_time",
)
def draw_order_in_time(e, axes):
    """Medians over trials, and the range, by step: wrong labels that are fitted, attention of their
    sequences to the signal, and fresh sequences that are right.
    """
    for axis, snr in zip(axes, (LOW, HIGH), strict=True):
        rows = e.where(snr=snr)
        lines = (
            (rows["wrong"], kit.ATTENTION, "wrong labels fitted"),
            (rows["ignored"], kit.TRAINED, "their attention to the signal"),
            (1 - rows["error"], kit.BEST, "fresh sequences right"),
        )
        for column, colour, label in lines:
            kit.band(axis, rows["step"][0, 1:], column[:, 1:], colour, label=label)
        axis.set(xscale="log", xlim=(30, rows["step"][0, -1]), xlabel="step")
        axis.set_title(f"SNR {snr:g} over the root of n")
    kit.legend_below(axes[0], 3)


@kit.picture(
    "Two regimes",
    "Two falling curves cross near a ratio of one: below it labels are fitted first, above it fresh"
    " sequences are right first.",
    3.0,
    width=4.4,
    name="regimes",
)
def draw_regimes(e, axes):
    """Steps until every label is fitted, and until fresh sequences are right, by SNR: medians over
    the trials that get there, and their range.
    """
    for column, colour, label in (
        ("step_fitted", kit.ATTENTION, "every label fitted"),
        ("step_clean", kit.BEST, "99 % of fresh sequences right"),
    ):
        ratios = [snr for snr in e.levels("snr") if np.isfinite(e.where(snr=snr)[column]).all()]
        steps = np.stack([e.where(snr=snr)[column] for snr in ratios], axis=1)
        kit.band(axes[0], ratios, steps, colour, label=label)
    axes[0].set(xscale="log", yscale="log", xlabel="SNR times the root of n", ylabel="steps")
    kit.legend(axes[0])
