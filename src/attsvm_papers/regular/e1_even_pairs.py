r"""Even pairs, and parity by a chain of their answers.

Words of one to six letters, 128 for each seed; attention and linear layer by gradient descent from
zero on the logistic loss, steps of 20 and 2, 10 000 of them; the linear layer alone as control. At
every record the largest margin of attention's outputs is solved and certified. For parity the model
answers on the word, its answer is appended, the first letter dropped, and so on five times.

Source: How Transformers Learn Regular Language Recognition (Huang, Liang and Yang, 2025), read in
its abstract; embedding, lengths and the chain that drops letters are recalled

Notes: Step sizes, numbers of words and of steps are this project's. Words are drawn with uniform
lengths, so that the expected loss weighs all lengths alike.
"""

import numpy as np

from attsvm_papers import kit
from attsvm_papers.regular.language import (
    EVEN,
    PARITY,
    columns_of_training,
    parities,
    softmax_weights,
    train_on_words,
)

BOTH, ALONE = "both", "linear layer alone"
RATES = {BOTH: (20.0, 2.0), ALONE: (0.0, 2.0)}
PAPER = "abstract"


@kit.run(layers=list(RATES), seeds=kit.seeds(20, by=20), quick={"steps": 4000, "seeds": 3})
def run(layers, seeds, steps=10_000, n=128, size=6):
    data, trajectory = train_on_words(EVEN, seeds, steps, n, size, RATES[layers])
    weights = softmax_weights(data, trajectory.W)
    long, is_yes = data.mask[..., 2], data.labels > 0

    def mean(equal, other):
        on_letter = np.where(is_yes, weights[..., equal], weights[..., other])
        return (on_letter.sum(axis=-1, where=long) / long.sum(axis=-1)).T

    return columns_of_training(EVEN, size, data, trajectory) | {
        "own": mean(0, 1),
        "crossed": mean(1, 0),
        "at_once": parities(PARITY, trajectory.W, trajectory.head, size).T,
    }


def is_late(e):
    return e["step"] >= e["step"][0, -1] / 10


def loss_slope(e):
    """Slope of the logarithm of the loss against that of the step, over the last decade."""
    return kit.slopes(np.log(np.maximum(e["step"], 1)), np.log(e["loss"]), is_late(e))


def norm_when_separable(e):
    """The linear layer's norm at the first record with separable outputs, of its last norm; one
    where there is none.
    """
    is_separable = e["separable"].any(axis=1)
    first = np.where(is_separable, e["separable"].argmax(axis=1), -1)
    return np.take_along_axis(e["norm"], first[:, None], axis=1)[:, 0] / e.end("norm")


ALONE_INSTEAD = kit.exchanged("the linear layer alone", "layers", BOTH, ALONE)


@kit.claim(
    kit.at_most(0.3, "the second phase has most of its growth", share=kit.MOST),
    "paper",
    PAPER,
    where={"layers": BOTH},
    null=ALONE_INSTEAD,
)
def RL1(e):
    """First phase: attention's outputs, not separable at the start, are separable (certified) while
    the linear layer has a small part of its last norm.
    """
    return norm_when_separable(e)


@kit.claim(
    kit.at_most(0.2, "set on tuning seeds", share=kit.MOST),
    "paper",
    PAPER,
    assumes={"ten trials": lambda e: len(e.levels("seed")) >= 10},
    where={"layers": BOTH},
    failure="scale",
    null=kit.at_start("moved", words="from the first step on"),
)
def RL2(e):
    """Second phase: attention is stable; the largest change of any attention in the last nine
    tenths of the steps.
    """
    return np.max(e["moved"], axis=1, where=is_late(e), initial=0.0)


@kit.claim(
    kit.between(-1.1, -0.9, "-1 with what a finite time adds", share=kit.MOST),
    "paper",
    PAPER,
    where={"layers": BOTH},
    interval=True,
    null=ALONE_INSTEAD,
)
def RL3(e):
    """The loss falls like 1/t: slope of log loss against log step over the last decade."""
    return loss_slope(e)


@kit.claim(
    kit.between(0.8, 1.1, "one is derived, as a loss of 1/t needs", share=kit.MOST),
    "paper",
    f"{PAPER}; the constant is derived",
    where={"layers": BOTH},
    interval=True,
    null=kit.replaced("the cube root of the step", norm=lambda e: np.cbrt(e["step"])),
)
def RL4(e):
    """The linear layer's norm grows like the logarithm of the step: slope against it over the last
    decade, in norms of the max-margin solution.
    """
    return kit.slopes(np.log(np.maximum(e["step"], 1)), e["norm"], is_late(e)) / e.end("widest")


@kit.claim(
    kit.at_least(0.9, "set on tuning seeds; one is the limit", share=kit.MOST),
    "paper",
    PAPER,
    where={"layers": BOTH},
    null=kit.replaced("the mean of outputs times labels", share="share_mean"),
)
def RL5(e):
    """The linear layer turns to the max-margin hyperplane of attention's outputs: its last margin,
    of the largest one.
    """
    return e.end("share")


@kit.claim(
    kit.at_least(0.8, "set on tuning seeds; one is the limit", share=kit.MOST),
    "recalled",
    "token and attention scores of the first phase",
    where={"layers": BOTH},
    null=kit.replaced("the other of the two letters", own="crossed"),
)
def RL6(e):
    """Attention looks at the first letter where it is the last one, too, and at the second one
    where not: mean attention there over words of three letters and more.
    """
    return e.end("own")


@kit.claim(
    kit.close_to(1.0, 0.0, "all 64 words", share=kit.MOST),
    "paper",
    f"{PAPER}; the chain is recalled",
    where={"layers": BOTH},
    null=kit.replaced("one answer, without a chain", right="at_once"),
)
def RL7(e):
    """Trained on even pairs alone, the model finds the parity of every word by a chain of its
    answers: share of words.
    """
    return e.end("right")


@kit.picture(
    "Even pairs: attention first, then the linear layer",
    "The loss of both layers falls along 1/t and that of the linear layer alone levels off; both"
    " norms become straight lines over log steps; words right by a chain, attention on its letter"
    " and the share of the largest margin rise towards one, in this order.",
    3.2,
    1,
    3,
    width=8.8,
)
def even_pairs(e, axes):
    """Medians over seeds with the range of all of them. Left: the loss. Middle: norms of the linear
    layer and of the attention weights. Right: mean attention on the letter that decides, share of
    the 64 words of six letters whose parity a chain of answers finds, and margin of the linear
    layer, of the largest one on the same outputs.
    """
    both, alone = (e.where(layers=name) for name in RATES)
    step = both["step"][0][1:]
    kit.bands(
        axes[0],
        step,
        [
            (both["loss"][:, 1:], kit.TRAINED, "both layers"),
            (alone["loss"][:, 1:], kit.ATTENTION, "linear layer alone"),
        ],
    )
    line = both.end("loss").mean() * step[-1] / step
    axes[0].plot(step[line < 1], line[line < 1], "--", color=kit.FAINT, linewidth=0.9, label="1/t")
    for ax, lines in (
        (axes[1], (("norm", "linear layer"), ("norm_attention", "attention"))),
        (axes[2], (("own", "attention on its letter"), ("right", "parities right"),
                   ("share", "of the largest margin"))),
    ):  # fmt: skip
        for colour, (name, label) in zip(kit.COLOURS, lines, strict=False):
            kit.band(ax, step, both[name][:, 1:], colour, label=label)
        kit.logarithmic(ax.xaxis, step)
    for ax, title in zip(axes, ("loss", "norms", "shares"), strict=True):
        ax.set(title=title, xlabel="step")
    kit.legend(axes[0], loc="lower left")
    kit.legend(axes[1], loc="upper left")
    kit.legend_below(axes[2], 3)
