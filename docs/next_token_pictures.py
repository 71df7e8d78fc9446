"""The pictures of the page about next-token prediction, each drawn from a computation with attsvm's
public functions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from order_drawing import draw_order

import attsvm
from attsvm.report.style import (
    ATTENTION,
    BEST,
    FAINT,
    TRAINED,
    Picture,
    canvas,
    label_ends,
    logarithmic,
    render,
)
from attsvm.theory.next_token import Problem, StepRule, attention_stage, two_stage
from attsvm.theory.sentences import NextTokenData, partial_order

ALONE = {"fox": "runs", "hen": "clucks", "corn": "grows", "eats": "much", "feeds": "many"}
FARM = {
    "hen fox eats": "runs",
    "corn hen eats": "clucks",
    "fox hen feeds": "clucks",
    "hen corn feeds": "grows",
}
SEEN = (
    ("hen fox sees", "runs"),
    ("fox hen sees", "runs"),
    ("hen fox sees", "clucks"),
    ("corn fox sees", "runs"),
    ("hen corn sees", "clucks"),
)
UNSEEN = ("corn fox eats", "fox corn feeds", "corn hen fox corn eats")


@cache
def farm() -> tuple[NextTokenData, Any, Any]:
    """The data of the page, its max-margin weights, and its training in two stages."""
    data = NextTokenData.from_words([*ALONE, *FARM], [*ALONE.values(), *FARM.values()])
    solution = attsvm.max_margin(attsvm.order_margins(data))
    return data, solution, two_stage(data, StepRule(0.05), StepRule(0.01), (2000, 4000))


def _attention(data: NextTokenData, W: Any, words: str) -> dict[str, float]:
    """The attention mass of every word of a sentence."""
    sentence = data.numbers(words)
    E = data.embeddings
    logits = E[sentence] @ W @ E[sentence[-1]]
    shares = np.exp(logits - logits.max())
    mass = np.bincount(sentence, shares / shares.sum())
    return {name: float(mass[v]) for name, v in zip(data.names(sentence), sentence, strict=True)}


def orders() -> Picture:
    """What the sentences say about two queries, with the scores of the max-margin weights."""
    data, solution, _ = farm()
    graphs = partial_order(data)
    with canvas(3.0, 1, 2, width=4.8) as (figure, axes):
        for ax, word in zip(axes, ("eats", "feeds"), strict=True):
            query = int(data.numbers(word)[0])
            scores = solution.W @ data.embeddings[query]
            draw_order(
                ax,
                graphs.of(query),
                data.names(range(data.K)),
                [f"{score:+.2f}".replace("-", "−") for score in scores],
            )
            ax.set_title(f"after “{word}”")
        words = (
            "Two graphs of four words: fox above hen above corn and eats, and corn above hen above"
            " fox and feeds, with scores."
        )
        return render(figure, "orders", "One partial order for every query", "", words)


def course() -> Picture:
    """Direction and attention of the second stage."""
    _, solution, trained = farm()
    attention = trained.attention
    steps, error = attention.steps[1:].astype(float), attention.direction_error(solution)[1:, 0]
    with canvas(2.7, 1, 2, width=6.8) as (figure, axes):
        axes[0].plot(steps, error, color=TRAINED)
        logarithmic(axes[0].yaxis, error)
        axes[0].set_title("distance to the max-margin direction")
        masses(axes[1], attention, "hen fox eats", (FAINT, TRAINED, BEST))
        for ax in axes:
            logarithmic(ax.xaxis, steps)
            ax.set_xlabel("step")
        words = (
            "The distance falls along a straight line on logarithmic axes; the attention on fox"
            " rises from a third to one."
        )
        return render(figure, "course", "Training finds the direction", "", words)


def masses(ax: Any, attention: Any, sentence: str, colours: tuple[str, ...]) -> None:
    """The attention in one sentence against the steps, with the words at the ends of the lines."""
    data = attention.problem.data[0]
    shares = [_attention(data, W[0], sentence) for W in attention.W[1:]]
    for word, colour in zip(shares[0], colours, strict=True):
        ax.plot(attention.steps[1:], [share[word] for share in shares], color=colour)
    ax.set_ylim(-0.03, 1.03)
    ax.set_title(f"attention in “{sentence}”")
    label_ends(
        ax,
        [(shares[-1][word], word, colour) for word, colour in zip(shares[0], colours, strict=True)],
        spacing=0.12,
    )


def unseen() -> Picture:
    """Attention in sentences that training never saw, early enough to see shares, with the
    prediction of the max-margin weights.
    """
    data, solution, trained = farm()
    early = int(np.searchsorted(trained.attention.steps, 300))
    W, best = (
        trained.attention.W[early, 0],
        solution.W * trained.attention.norm[early, 0] / solution.norm,
    )
    with canvas(2.5, 1, 3, width=6.8, sharey=True) as (figure, axes):
        for ax, sentence in zip(axes, UNSEEN, strict=True):
            shares, predicted = (_attention(data, weights, sentence) for weights in (W, best))
            top = max(shares, key=lambda word: shares[word])
            colours = [ATTENTION if word == top else TRAINED for word in shares]
            ax.bar(range(len(shares)), list(shares.values()), 0.65, color=colours)
            ax.plot(
                range(len(shares)),
                list(predicted.values()),
                "_",
                color=BEST,
                markersize=17,
                markeredgewidth=2.2,
            )
            ax.set_xticks(range(len(shares)), list(shares))
            ax.set_ylim(0, 1)
            ax.set_title(f"“{sentence}”")
        axes[0].set_ylabel("attention")
        words = (
            "In each of three sentences one word takes most of the attention: fox, corn, fox. Green"
            " marks lie at the tops of the bars."
        )
        return render(figure, "unseen", "Sentences never seen", "", words)


@cache
def tie() -> tuple[NextTokenData, Any]:
    """Contradicting sentences, and plain descent on the logarithm of the winner's attention."""
    sentences, labels = zip(*SEEN, strict=True)
    data = NextTokenData.from_words([*ALONE, *sentences], [*ALONE.values(), *labels])
    longer = data.select(data.lengths > 1)
    return data, attention_stage(
        Problem.of(longer, "log_mass"), StepRule(1.0, normalize=False), 3000
    )


def tied() -> Picture:
    """Two words that win against each other, and how attention divides between them."""
    data, course = tie()
    query = int(data.numbers("sees")[0])
    with canvas(2.6, 1, 2, width=6.8, width_ratios=(0.7, 1)) as (figure, axes):
        draw_order(axes[0], partial_order(data).of(query), data.names(range(data.K)))
        axes[0].set_title("after “sees”")
        masses(axes[1], course, "hen fox sees", (FAINT, TRAINED, BEST))
        for share in (2 / 3, 1 / 3):
            axes[1].axhline(share, color=FAINT, linewidth=0.8, linestyle=":")
        logarithmic(axes[1].xaxis, course.steps[1:].astype(float))
        axes[1].set_xlabel("step")
        words = (
            "Fox and hen share a frame above corn and sees. Attention on fox goes to two thirds, on"
            " hen to one third."
        )
        return render(figure, "tied", "Contradictions become shares", "", words)


PICTURES = (orders, course, unseen, tied)
