"""Attention at the word of opinion.

68 sentences of this project with one designated word of opinion each are given to the networks that
md-4 has trained on texts. The attention of [CLS] in the last block, the mean over heads before
dropout, is scaled to run from 0 to 1 over the sentence, [CLS] and [SEP] included; the score is its
value at the designated word. Sentences whose word is not a single token are left out.

Source: Optimizing Attention with Mirror Descent, tables of attention maps (notebook outputs seen)

Notes: Nothing is trained that md-4 has trained. The published comparison is one pair of runs of the
network of six blocks on 44 sentences; an interval over sentences alone would say nothing about
another pair of runs.
"""

from collections.abc import Iterator

import numpy as np

from attsvm_papers import kit
from attsvm_papers.md import e5_sparsity as md_5
from attsvm_papers.md.e4_accuracy import swapped
from attsvm_papers.networks.accuracy_table import deepest, told
from attsvm_papers.networks.network_pictures import NAMES, colours
from attsvm_papers.networks.paired import paired_interval
from attsvm_papers.networks.trained_networks import METHODS, cells, run, then  # noqa: F401

SCALES = md_5.SCALES


def _measure_difference(evidence: kit.Evidence, first: str, second: str) -> kit.Interval:
    """Score under one optimiser minus the score under another, with its interval over runs of the
    same seed and sentences.
    """
    one, other = (deepest(evidence).where(method=METHODS.index(name)) for name in (first, second))
    seeds = np.intersect1d(one["seed"], other["seed"])
    scores = [
        np.stack([each.where(seed=seed)["score"][0] for seed in seeds]) for each in (one, other)
    ]
    return paired_interval(scores[0] - scores[1])


def _pairs(evidence: kit.Evidence) -> bool:
    return all(
        int(np.sum(deepest(evidence)["method"] == METHODS.index(name))) >= 3
        for name in ("l1.1", "l2")
    )


REVIEWS = md_5.SMALL
FULL = {**md_5.FULL, "three pairs of runs": _pairs}


@kit.claim(
    kit.at_least(
        0.05,
        "the published means over 44 sentences of one pair of runs are .4387 and .3122",
    ),
    "authors' code",
    "P3, tables of attention maps (notebook outputs)",
    assumes=FULL,
    null=swapped("l1.1", "l2"),
)
def E6a(e):
    """The word of opinion gets more attention under p = 1.1 than under gradient descent, by at
    least .05.
    """
    return _measure_difference(e, "l1.1", "l2").mean


@kit.claim(
    kit.at_least(0.0, "lower end of the paired 95% interval over runs and sentences"),
    assumes=FULL,
    null=swapped("l1.1", "l2"),
)
def E6b(e):
    """The difference is beyond chance."""
    return _measure_difference(e, "l1.1", "l2").low


@kit.claim(
    kit.at_least(0.0, "lower end of the paired 95% interval over runs and sentences"),
    assumes=REVIEWS,
    explanation=lambda e: f"The difference is {told(_measure_difference(e, 'l1.1', 'l2'), 2)}.",
    null=swapped("l1.1", "l2"),
)
def E6c(e):
    """Small networks: the word of opinion gets more attention under p = 1.1 than under gradient
    descent.
    """
    return _measure_difference(e, "l1.1", "l2").low


@kit.claim(
    kit.at_least(
        0.0,
        "lower end of the 95% interval over runs and sentences, one for each optimiser",
    ),
    assumes=REVIEWS,
    explanation=lambda e: (
        "Word minus mean over its sentence: "
        + ", ".join(
            f"{NAMES[name]} {told(found, 2)}" for name, found in _beyond_sentence(e).items()
        )
        + "."
    ),
    null=kit.replaced(
        "the average token of another sentence", score=lambda e: np.roll(e["mean_score"], 1, axis=1)
    ),
)
def E6d(evidence):
    """Small networks: whatever the optimiser, the word of opinion gets more attention than the
    average token of its sentence.
    """
    return np.array([found.low for found in _beyond_sentence(evidence).values()])


def _beyond_sentence(evidence: kit.Evidence) -> dict[str, kit.Interval]:
    """Score of the designated word minus the mean over the tokens of its sentence, for every
    optimiser.
    """
    table = deepest(evidence)
    return {
        METHODS[int(method)]: paired_interval(row["score"] - row["mean_score"])
        for method in table.levels("method")
        for row in [table.where(method=method)]
    }


def plot(evidence: kit.Evidence) -> Iterator[kit.Picture]:
    evidence = deepest(evidence)
    names = [METHODS[int(method)] for method in evidence.levels("method")]
    with kit.canvas(3.1, 1, 2, width=6.6, width_ratios=(1.25, 1)) as (figure, axes):
        left, right = axes
        for place, name in enumerate(names):
            rows = evidence.where(method=METHODS.index(name))
            for column, shift, marker, colour in (
                ("score", -0.12, "o", colours()[name]),
                ("mean_score", 0.18, "|", kit.FAINT),
            ):
                mean, low, high = paired_interval(rows[column])
                left.plot([low, high], [place + shift] * 2, color=colour, linewidth=1.6)
                left.plot(mean, place + shift, marker, color=colour, markersize=6)
            left.text(
                1.04,
                place,
                f"{np.nanmean(rows['top']):.0%}",
                transform=left.get_yaxis_transform(),
                va="center",
                fontsize=8.5,
            )
        left.text(
            0.98,
            -0.75,
            "word first",
            transform=left.get_yaxis_transform(),
            fontsize=8.5,
            color=kit.FAINT,
        )
        left.set_yticks(range(len(names)), [NAMES[name] for name in names])
        left.set(ylim=(len(names) - 0.5, -0.5), xlabel="attention at the word of opinion")
        pair = [
            evidence.where(method=METHODS.index(name))["score"].mean(axis=0)
            for name in ("l2", "l1.1")
        ]
        right.plot([0, 1], [0, 1], color=kit.RULE, linewidth=0.9, zorder=0)
        right.plot(
            *pair, "o", color=colours()["l1.1"], markersize=3.5, alpha=0.7, markeredgewidth=0
        )
        right.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        right.set(xlabel="under p = 2", ylabel="under p = 1.1", title="one dot per sentence")
        count = int(np.sum(np.isfinite(evidence["score"][0])))
        yield kit.render(
            figure,
            "attention",
            "How much attention the word of opinion gets",
            "Attention of [CLS] in the last block, mean over heads, scaled to run from 0 to 1"
            f" within a sentence; {count} sentences whose word is one token. Left: the designated"
            " word, and below it in grey the mean over all tokens of its sentence, with 95%"
            " intervals over runs and sentences (at each end the wider of a bootstrap over both and"
            " Student's t over runs); the numbers say in how many sentences the word comes first."
            " Right: sentence by sentence.",
            "Mean attention at the designated word by optimiser with intervals, and a scatter of"
            " sentences for p = 1.1 against p = 2.",
        )
