"""Soft composition: attention equals the frequencies of the labels.

Twelve sentences of the tokens 0, 1, 2: six end in 2 with labels 0, 1, 1, 2, 2, 2, six end in 0 with
labels 2, 1, 1, 0, 0, 0, in d = 8, embeddings orthonormal on even seeds and random units on odd
ones. Gradient descent with step 1 on the log loss, 2000 steps from W uniform in ±1/√d.

Source: Mechanics of Next Token Prediction with Self-Attention, soft composition
"""

from typing import Any

import numpy as np

from attsvm import LogSpaced
from attsvm.theory import graph_svm_batch, token_masses
from attsvm.theory.next_token import Problem, StepRule, attention_stage
from attsvm.theory.sentences import NextTokenData, embed
from attsvm_papers import kit
from attsvm_papers.graph.priority import uniform_starts

SENTENCES = ((0, 1, 2),) * 6 + ((2, 1, 0),) * 6
LABELS = (0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0)
FREQUENCIES = ((1 / 6, 1 / 3, 1 / 2), (1 / 2, 1 / 3, 1 / 6))
"""Of the labels 0, 1, 2 after the last token 2, and after the last token 0."""
FLOOR = 1.0114042647073518
"""Entropy of both, log 6 - (2 log 2 + 3 log 3) / 6."""


@kit.run(seeds=kit.seeds(20, by=20), quick={"seeds": 10})
def run(seeds, d=8, lr=1.0, steps=2000):
    rows = [
        embed("random" if seed % 2 else "ortho", 3, d, np.random.default_rng([44, seed]))
        for seed in seeds
    ]
    data = [
        NextTokenData.from_sentences(SENTENCES, LABELS, embeddings=E, following=np.arange(3))
        for E in rows
    ]
    svms = graph_svm_batch(data)
    agreed = graph_svm_batch([one.select([3, 9]) for one in data])
    problem, rule = Problem.of(data, "log_mass"), StepRule(lr, normalize=False)
    course = attention_stage(
        problem, rule, steps, init=uniform_starts(d, seeds), records=LogSpaced(60)
    )
    masses = np.stack(
        [token_masses(one, course.W[:, run])[:, [0, 6]] for run, one in enumerate(data)]
    )
    solved = np.stack([token_masses(svm.data, svm.finite)[[0, 6]] for svm in svms])
    return {
        "random": np.array([seed % 2 == 1 for seed in seeds]),
        "step": kit.same(course.steps),
        "masses": masses,
        "error": _error(masses),
        "loss": course.loss.T,
        "solved": solved,
        "floor": np.array([svm.floor for svm in svms]),
        "direction": np.array([svm.solution.norm for svm in svms]),
        "agreed": np.array([svm.solution.norm for svm in agreed]),
    }


def _error(masses: Any) -> Any:
    """Largest error of a probability."""
    return np.abs(masses - np.array(FREQUENCIES)).max(axis=(-2, -1))


OTHER_QUERY = kit.replaced(
    "the frequencies after the other query",
    masses=lambda e: e["masses"][..., ::-1, :],
    solved=lambda e: e["solved"][..., ::-1, :],
)


@kit.claim(
    kit.at_most(
        1e-6,
        "largest error of a probability after training; gradient descent converges at a linear"
        " rate here",
        share=kit.MOST,
    ),
    "authors' code",
    "graph, soft composition; data of the authors' code",
    null=OTHER_QUERY,
)
def C4_6(e):
    """On sentences of one component attention tends to the frequencies of the labels."""
    return _error(e["masses"][:, -1])


@kit.claim(
    kit.at_most(1e-8, "trained loss and reduced loss at the finite part", share=kit.MOST),
    null=kit.at_start("loss"),
)
def C4_6l(e):
    """The loss ends at the entropy of the labels, 1.01140."""
    return np.maximum(np.abs(e["loss"][:, -1] - FLOOR), np.abs(e["floor"] - FLOOR))


@kit.claim(
    kit.close_to(0.0, 0.0, "nothing is asked for"),
    null=kit.replaced("labels that do not contradict each other", direction="agreed"),
)
def C4_2z(e):
    """With no arc between components the graph programme's solution is zero: there is no
    direction.
    """
    return e["direction"]


@kit.picture(
    "Attention composes the labels it has seen",
    "All runs end at 1/6, 1/3, 1/2 after one query and at 1/2, 1/3, 1/6 after the other.",
    3.0,
    1,
    3,
    width=10.4,
    name="soft-composition",
)
def soft_composition(evidence, axes):
    """Sentences of the tokens 0, 1, 2 whose labels occur one, two and three times in six. Left and
    middle: attention on the three tokens, one line per run, dotted the frequencies. Right: the
    largest error of a probability, drawn at 1e-16 where it is less.
    """
    steps = evidence["step"][0][1:]
    colours = (kit.TRAINED, kit.BEST, kit.ATTENTION)
    for sentence, ax in enumerate(axes[:2]):
        for token, colour in enumerate(colours):
            masses = evidence["masses"][:, 1:, sentence, token]
            ax.plot(steps, masses.T, color=colour, linewidth=0.7, alpha=0.5)
            ax.axhline(FREQUENCIES[sentence][token], color=colour, linestyle=":", linewidth=1.0)
        kit.logarithmic(ax.xaxis, steps)
        ax.set(
            ylim=(0, 0.7),
            xlabel="step",
            title=f"attention on each token, last token {(2, 0)[sentence]}",
        )
        kit.label_ends(
            ax,
            [(FREQUENCIES[sentence][token], f"{token}", colours[token]) for token in range(3)],
        )
    for random, colour, words in (
        (False, kit.TRAINED, "orthonormal"),
        (True, kit.ATTENTION, "random units"),
    ):
        rows = evidence.where(random=random)
        errors = np.maximum(rows["error"][:, 1:], 1e-16)
        axes[2].plot(steps, errors.T, color=colour, linewidth=0.7, alpha=0.6)
        axes[2].text(
            0.05,
            0.16 - 0.09 * random,
            words,
            color=colour,
            transform=axes[2].transAxes,
            fontsize=8,
        )
    axes[2].axhline(1e-6, color=kit.FAINT, linestyle=":", linewidth=1.0)
    kit.loglog(axes[2], steps, np.array([1e-16, 1.0]))
    axes[2].set(xlabel="step", title="largest error of a probability")
