"""Attention reasons in context and the feed-forward layer associates noise.

The task of association-1 with noise in one sentence of five, 300 steps of length 0.1.
Restricted weights know the word before, and of the current one whether it is noise; full ones know
both words, and have a feed-forward weight for every word. Both layers, or one of them, are trained;
of the first also the answers of each layer alone are read. Fresh sentences have answers of
training, or words that stood in training but behind no trigger.

Source: One-Layer Transformers are Provably Optimal for In-context Reasoning and Distributional
Association Learning (Nguyen and Nguyen-Tang, 2025), read in its abstract, and Distributional
Associations vs In-Context Reasoning (Chen, Bruna and Bietti, 2025), likewise

Notes: Sizes, steps and the two parametrisations are this project's.
"""

import numpy as np
import torch

from attsvm_papers import kit
from attsvm_papers.association import recall
from attsvm_papers.association.e1_bayes_risk import NOISY, PAPER, steps_of_records
from attsvm_papers.association.recall import FULL, RESTRICTED, Risk

BOTH, ATTENTION, ASSOCIATION = "both layers", "attention alone", "feed-forward layer alone"
LAYERS = {BOTH: (True, True), ATTENTION: (True, False), ASSOCIATION: (False, True)}
CHEN = "abstract of Chen, Bruna and Bietti"


@kit.run(
    kit.rows(
        "weights layers",
        [(RESTRICTED, BOTH), (RESTRICTED, ATTENTION), (RESTRICTED, ASSOCIATION), (FULL, BOTH)],
    ),
    seeds=kit.seeds(20, by=20),
    quick={"seeds": 2, "n": 100},
)
def run(weights, layers, seeds, steps=300, n=200):
    at = steps_of_records(steps)
    risk = Risk(recall.draw_sentences(seeds, n, NOISY, 0), NOISY)
    path = recall.descend_masked(
        risk, recall.weight_mask(weights, *LAYERS[layers]), steps, 0.1, True, at
    )
    training_answers, held_out_answers = (
        Risk(recall.draw_sentences(seeds, 1000, NOISY, 1 + 2 * held, held), NOISY)
        for held in (False, True)
    )

    def along_path(measure):
        return torch.stack([measure(theta) for theta in path]).T.numpy()

    columns = {
        "step": kit.same(at),
        "risk": along_path(training_answers),
        "risk_held": along_path(held_out_answers),
    }
    for name, (attends, speaks) in (("attention", (True, False)), ("forward", (False, True))):
        single_layer = recall.weight_mask(FULL, attends, speaks)
        for word, noise in (("answer", False), ("noise", True)):
            columns[f"{name}_{word}"] = np.stack(
                [training_answers.share_of_largest(x * single_layer, noise) for x in path], axis=1
            )
    return columns | training_answers.mean_attention(path)


RIGHT = kit.close_to(1.0, 0.0, "every sentence")
HERE = {"weights": RESTRICTED, "layers": BOTH}


@kit.claim(
    kit.at_least(1.0, "a weight of e; without any it is zero"),
    "paper",
    f"{CHEN}; the margin is ours",
    where=HERE,
    null=kit.at_start("on_answer", "on_other"),
)
def IR7(e):
    """Attention prefers the answer: what it is on it, less what it is on any other word and on
    noise, means over fresh sentences.
    """
    return e.end("on_answer") - e.end("on_other")


@kit.claim(
    RIGHT,
    "paper",
    CHEN,
    where=HERE,
    null=kit.replaced("the feed-forward layer alone", attention_answer="forward_answer"),
)
def IR8(e):
    """Attention alone, with the feed-forward layer taken away after training, says the answer:
    share of fresh sentences.
    """
    return e.end("attention_answer")


@kit.claim(
    RIGHT,
    "paper",
    CHEN,
    where=HERE,
    null=kit.replaced("attention alone", forward_noise="attention_noise"),
)
def IR9(e):
    """The feed-forward layer alone says noise: share of fresh sentences."""
    return e.end("forward_noise")


def close(words):
    return kit.between(0.97, 1.03, f"one is derived, {words}")


BETWEEN = kit.exchanged("both layers", "layers", ATTENTION, BOTH)


@kit.claim(
    close("and sentences are 1000"),
    "ours",
    "derived on the page",
    where={"weights": RESTRICTED, "layers": ATTENTION},
    null=BETWEEN,
)
def IR10(e):
    """Trained without a feed-forward layer the risk is the least that there is: of that."""
    return e.end("risk") / recall.without_feed_forward(NOISY)


@kit.claim(
    close("and sentences are 1000"),
    "ours",
    "derived on the page",
    where={"weights": RESTRICTED, "layers": ASSOCIATION},
    null=kit.exchanged("both layers", "layers", ASSOCIATION, BOTH),
)
def IR11(e):
    """Trained without attention the risk is the least that there is: of that."""
    return e.end("risk") / recall.without_attention(NOISY)


@kit.claim(
    kit.at_most(0.05, "a tenth of the Bayes risk"),
    "paper",
    PAPER,
    where={"layers": BOTH, "weights": RESTRICTED},
    null=kit.exchanged("full weights", "weights", RESTRICTED, FULL),
)
def IR12(e):
    """Answers that no training sentence has are learned as well: excess of the risk on them."""
    return e.end("risk_held") - recall.entropy(NOISY)


@kit.picture(
    "Attention, association and words that are no answers in training",
    "Attention on the answer grows above that on noise and other words. The feed-forward layer"
    " alone soon says noise, attention alone the answer. On answers that training did not have the"
    " excess of restricted weights falls and that of full ones rises again.",
    3.2,
    1,
    3,
    width=8.8,
)
def who_learns_what(e, axes):
    """Medians over seeds with the range of all of them, on fresh sentences. Left: attention on the
    answer and the largest on another word. Middle: share of sentences in which a layer alone says
    its own. Right: excess over the Bayes risk.
    """
    both, full = e.where(**HERE), e.where(weights=FULL)
    step = both["step"][0]
    bayes = recall.entropy(NOISY)
    attention = (
        (both["on_answer"], kit.TRAINED, "the answer"),
        (both["on_other"], kit.ATTENTION, "the best other word"),
    )
    alone = (
        (both["attention_answer"], kit.TRAINED, "attention: the answer"),
        (both["forward_noise"], kit.ATTENTION, "feed-forward: noise"),
    )
    excess = (
        (both["risk_held"] - bayes, kit.TRAINED, "restricted, new answers"),
        (full["risk"] - bayes, kit.INK, "full, answers of training"),
        (full["risk_held"] - bayes, kit.ATTENTION, "full, new answers"),
    )
    titles = ("attention", "a layer alone", "excess risk")
    for ax, lines, title in zip(axes, (attention, alone, excess), titles, strict=True):
        kit.bands(ax, step, lines, log="y" if lines is excess else "")
        ax.set_title(title)
        kit.legend(ax)
