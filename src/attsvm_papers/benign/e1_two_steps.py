"""Two steps of gradient descent fit wrong labels by heart, and classify well all the same.

200 sequences of two tokens, the signal of their label, of length ρ, and standard normal noise
orthogonal to both signals, in d = 40 000 dimensions; one label in twenty is wrong. Prompt p and
head v are trained together from zero under the logistic loss by gradient descent with steps of
5n/d, and for two steps by eight other lengths. The SNR, ρ/√d, is from half to six times 1/√n.

Source: Benign Overfitting in Single-Head Attention (Magen et al., 2024), read in its abstract and
in public reviews; sizes and constants are this project's

Notes: Errors are probabilities on fresh sequences with right labels, computed and not sampled. The
paper asks of two steps that the SNR is of the order of 1/√n, not more and not less.
"""

import numpy as np

from attsvm_papers import kit
from attsvm_papers.benign.signal_and_noise import (
    attention_to_signal,
    clean_error,
    draw_noisy,
    label_margins,
    signal_length,
    train_prompt_and_head,
)

STEPS = (0, 1, 2, 10)  # and the last one
ONE, TWO, LAST = 1, 2, -1  # places of records


@kit.run(
    snr=(0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0),
    seeds=kit.seeds(40, by=20),
    quick={"snr": (0.5, 1.0, 2.0, 6.0), "steps": 100, "seeds": 4},
    name="courses",
)
def train_over_steps(snr, seeds, n=200, d=40_000, eta=0.05, pace=5.0, steps=300):
    rho = signal_length(snr, n, d)
    instances = draw_noisy(n, d, eta, rho, seeds)
    trajectory = train_prompt_and_head(instances.data, pace * n / d, steps, STEPS, normalize=False)
    prompts, heads = trajectory.W[..., 0], trajectory.head
    fitted = label_margins(instances.data, prompts, heads) > 0
    at_signal = attention_to_signal(instances.data, prompts) > 0.5
    other_flips = np.roll(instances.flipped, 1, axis=1)
    return {
        "step": kit.same(trajectory.steps),
        "fitted": fitted.mean(axis=-1).T,
        "error": clean_error(prompts, heads, rho).T,
        "as_labelled": (at_signal == ~instances.flipped).mean(axis=-1).T,
        "as_others": (at_signal == ~other_flips).mean(axis=-1).T,
    }


@kit.run(
    snr=(0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0),
    seeds=kit.seeds(40, by=20),
    quick={"snr": (0.5, 1.0, 2.0, 6.0), "seeds": 4},
    name="lengths",
)
def train_over_lengths(
    snr, seeds, n=200, d=40_000, eta=0.05, paces=(0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
):
    """Two steps of every length."""
    rho = signal_length(snr, n, d)
    instances = draw_noisy(n, d, eta, rho, seeds)
    fitted, errors = [], []
    for pace in paces:
        trajectory = train_prompt_and_head(instances.data, pace * n / d, 2, (), normalize=False)
        prompts, heads = trajectory.W[-1, ..., 0], trajectory.head[-1]
        fitted.append((label_margins(instances.data, prompts, heads) > 0).all(axis=1))
        errors.append(clean_error(prompts, heads, rho))
    return {
        "pace_of": kit.same(paces),
        "all_fitted": np.stack(fitted, axis=1),
        "error_of": np.stack(errors, axis=1),
    }


RIGHT, LOW, LOWEST, HIGH = 2.0, 1.0, 0.5, 6.0  # SNR over one over the root of n
NEAR, HARM = 0.01, 1 / 16


def column_at(evidence, snr, record, column="error"):
    return evidence.where(part="courses", snr=snr)[column][:, record]


def records_replaced(words, *columns, record=ONE):
    """Every record after the start is an earlier one."""
    return kit.replaced(
        words, **{name: lambda e, name=name: e[name] * 0 + e[name][:, [record]] for name in columns}
    )


HARMFUL = f"harmful is {HARM:g} and more, the bound recalled of the paper's theorem"
NEARLY = "near-optimal: a hundredth beside the share of wrong labels"


@kit.claim(
    kit.true("with high probability", share=kit.MOST),
    "paper",
    "abstract: benign overfitting already after two steps; the SNR is this project's",
    null=records_replaced("after one step", "fitted"),
)
def BO1(e):
    """At an SNR of 2 over the root of n, two steps fit every label, the wrong ones too."""
    return column_at(e, RIGHT, TWO, "fitted") == 1.0


@kit.claim(
    kit.at_most(NEAR, NEARLY, share=kit.MOST),
    "paper",
    "abstract: near-optimal test performance; the SNR is this project's",
    null=kit.exchanged("a quarter of the signal", "snr", RIGHT, LOWEST),
)
def BO1e(e):
    """At an SNR of 2 over the root of n, fresh sequences with right labels are classified well
    after two steps: share of errors.
    """
    return column_at(e, RIGHT, TWO)


@kit.claim(
    kit.at_least(0.95, "most; wrong labels alone are 0.05", share=kit.MOST),
    "recalled",
    "a summary of the paper's experiments",
    null=kit.replaced("the labels of other sequences", as_labelled="as_others"),
)
def BO2(e):
    """At an SNR of 2 over the root of n, attention is after two steps at the signal where the label
    is right and at the noise where it is wrong: share of the sequences.
    """
    return column_at(e, RIGHT, TWO, "as_labelled")


@kit.claim(
    kit.at_most(NEAR, NEARLY, share=kit.MOST),
    null=kit.exchanged("half of the signal", "snr", RIGHT, LOW),
)
def BO3(e):
    """At an SNR of 2 over the root of n, overfitting is still benign after a hundred steps and
    more: share of errors.
    """
    return column_at(e, RIGHT, LAST)


@kit.claim(
    kit.at_least(HARM, HARMFUL, share=kit.MOST),
    null=records_replaced("after two steps", "error", record=TWO),
)
def BO5(e):
    """At an SNR of 1 over the root of n, overfitting is harmful after a hundred steps and more,
    where it is not after two: share of errors.
    """
    return column_at(e, LOW, LAST)


@kit.claim(
    kit.at_least(HARM, HARMFUL, share=kit.MOST),
    null=kit.exchanged("a third of the signal", "snr", HIGH, RIGHT),
)
def BO6(e):
    """At an SNR of 6 over the root of n, two steps of length 5 n / d fit every label and are
    harmful: more signal is not better.
    """
    return np.where(column_at(e, HIGH, TWO, "fitted") == 1.0, column_at(e, HIGH, TWO), 0.0)


@kit.picture(
    "Two steps, and many",
    "After two steps errors are zero from 0.75 to 3, and a half at 6; at the end they are large"
    " below 1.5 as well. One step fits the wrong labels up to a ratio of 1 only.",
    2.9,
    1,
    2,
    width=7.4,
)
def two_steps(evidence, axes):
    """Medians over trials, and 90 % of them, by SNR times the root of n. Left: the probability that
    a fresh sequence with its right label is misclassified. Right: the share of training labels
    that are fitted, all of them after two steps; 0.95 of them are right.
    """
    ratios = evidence.where(part="courses").levels("snr")
    last = f"{evidence.where(part='courses')['step'][0, LAST]:g} steps"
    records = (
        (ONE, "one step", kit.BEST),
        (TWO, "two steps", kit.TRAINED),
        (LAST, last, kit.ATTENTION),
    )
    for axis, column in zip(axes, ("error", "fitted"), strict=True):
        for record, label, colour in records:
            rows = np.stack([column_at(evidence, snr, record, column) for snr in ratios], axis=1)
            kit.band(axis, ratios, rows, colour, shares=(0.05, 0.95), label=label)
        axis.set(xscale="log", xticks=ratios, xlabel="SNR times the root of n")
        axis.set_xticklabels([f"{snr:g}" for snr in ratios])
        axis.minorticks_off()
    axes[0].axhline(HARM, color=kit.INK, linewidth=0.6, linestyle=":")
    axes[0].set(title="error on fresh sequences", ylim=(-0.02, 0.55))
    axes[1].set(title="share of labels fitted")
    axes[0].legend(frameon=False, fontsize=8.5)


@kit.picture(
    "Which step lengths will do",
    "Crosses in the left column and at the top right, circles at the bottom right, and between"
    " them dots: at every length for ratios of 0.75 and 1, at one for 6.",
    3.0,
    width=4.6,
    name="step_lengths",
)
def draw_step_lengths(evidence, axes):
    """Two steps by SNR and length, in most trials: every label fitted and at most 0.01 errors
    (dots), every label fitted and more errors (crosses), wrong labels not all fitted (circles).
    """
    rows = evidence.where(part="lengths")
    ratios, paces = rows.levels("snr"), rows["pace_of"][0]
    marks = (
        ("o", kit.BEST, kit.BEST, "benign"),
        ("x", kit.ATTENTION, kit.ATTENTION, "harmful"),
        ("o", kit.FAINT, "none", "not fitted"),
    )
    for x, snr in enumerate(ratios):
        rows_of_snr = rows.where(snr=snr)
        fitted = rows_of_snr["all_fitted"].mean(axis=0) > 0.5
        good = np.median(rows_of_snr["error_of"], axis=0) <= NEAR
        for y, kind in enumerate(np.where(fitted, np.where(good, 0, 1), 2)):
            mark, colour, face, _ = marks[kind]
            axes[0].plot(x, y, mark, color=colour, markerfacecolor=face, markersize=6)
    for mark, colour, face, label in marks:
        axes[0].plot([], [], mark, color=colour, markerfacecolor=face, label=label)
    axes[0].set_xticks(range(len(ratios)), [f"{snr:g}" for snr in ratios])
    axes[0].set_yticks(range(len(paces)), [f"{pace:g}" for pace in paces])
    axes[0].set(xlabel="SNR times the root of n", ylabel="step length times d / n")
    axes[0].legend(frameon=False, fontsize=8.5, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
