"""Parity trained with a chain of thought, and at once.

Words of one to four letters; with a chain also of five and six, in which every letter after the
fourth is the next one of the chain. 384 words for each seed, 10 000 steps, the rest as in
regular-1. Trained with a chain the model is asked for the next letter, and writes three to find
the parity of a word of four; as control it is asked for the parity at once.

Source: How Transformers Learn Regular Language Recognition (Huang, Liang and Yang, 2025), read in
its abstract; that short words have their even pairs asked, and the chain itself, are recalled

Notes: Numbers of words, lengths and steps are this project's.
"""

import numpy as np

from attsvm_papers import kit
from attsvm_papers.regular.e1_even_pairs import BOTH, PAPER, RATES, loss_slope, norm_when_separable
from attsvm_papers.regular.language import CHAIN, PARITY, columns_of_training, train_on_words


@kit.run(task=[CHAIN, PARITY], seeds=kit.seeds(20, by=20), quick={"steps": 1000, "seeds": 3})
def run(task, seeds, steps=10_000, n=384, size=4):
    return columns_of_training(
        task, size, *train_on_words(task, seeds, steps, n, size, RATES[BOTH])
    )


AT_ONCE = kit.exchanged("parity at once", "task", CHAIN, PARITY)


@kit.claim(
    kit.close_to(1.0, 0.0, "all 16 words", share=kit.MOST),
    "paper",
    PAPER,
    where={"task": CHAIN},
    null=AT_ONCE,
)
def RL8(e):
    """Trained with a chain of thought the model finds the parity of every word: share of words."""
    return e.end("right")


@kit.claim(
    kit.at_least(0.05, "a hundred times the loss of the chain"),
    "paper",
    f"{PAPER}: parity needs a chain",
    where={"task": PARITY},
    null=kit.exchanged("the next letter of a chain", "task", CHAIN, PARITY),
)
def RL9(e):
    """Asked for the parity at once, the loss stays above a bound."""
    return e.end("loss")


@kit.claim(
    kit.at_most(0.3, "as in regular-1", share=kit.MOST),
    "paper",
    PAPER,
    where={"task": CHAIN},
    null=AT_ONCE,
)
def RL10(e):
    """First phase: attention's outputs are separable (certified) while the linear layer has a small
    part of its last norm.
    """
    return norm_when_separable(e)


@kit.claim(
    kit.between(-1.1, -0.9, "-1 with what a finite time adds", share=kit.MOST),
    "paper",
    PAPER,
    where={"task": CHAIN},
    failure="scale",
    interval=True,
    null=AT_ONCE,
)
def RL11(e):
    """The loss falls like 1/t: slope of log loss against log step over the last decade."""
    return loss_slope(e)


@kit.claim(
    kit.at_least(0.7, "set on tuning seeds; one is the limit", share=kit.MOST),
    "paper",
    PAPER,
    where={"task": CHAIN},
    null=kit.replaced("the mean of outputs times labels", share="share_mean"),
)
def RL12(e):
    """The linear layer turns to the max-margin hyperplane of attention's outputs: its last margin,
    of the largest one.
    """
    return e.end("share")


@kit.picture(
    "Parity with a chain of thought, and at once",
    "With a chain the loss falls along 1/t, at once it levels off above a tenth. All words are"
    " right with a chain from about step 100 on, at once about six of ten.",
    3.0,
    1,
    3,
    width=8.8,
)
def parity(e, axes):
    """Medians over seeds with the range of all of them. Left: the loss. Middle: share of the words
    of four letters whose parity is found. Right: margin of the linear layer, of the largest one on
    the same outputs; zero where they are not separable.
    """
    both = [e.where(task=task) for task in (CHAIN, PARITY)]
    step = both[0]["step"][0][1:]
    words = ("with a chain", "at once")
    for ax, name in zip(axes, ("loss", "right", "share"), strict=True):
        for rows, colour, label in zip(both, (kit.TRAINED, kit.ATTENTION), words, strict=True):
            kit.band(ax, step, rows[name][:, 1:], colour, label=label)
        kit.logarithmic(ax.xaxis, step)
    kit.logarithmic(axes[0].yaxis, np.concatenate([rows["loss"].ravel() for rows in both]))
    for ax, title in zip(axes, ("loss", "parities right", "of the largest margin"), strict=True):
        ax.set(title=title, xlabel="step")
    kit.legend(axes[0], loc="lower left")
