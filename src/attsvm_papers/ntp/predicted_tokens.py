"""Predictions of trained weights and solutions on sentences, and the scores behind them."""

from typing import Any

import numpy as np
from scipy.special import softmax

from attsvm.datasets.attention_data import FloatArray
from attsvm.theory.next_token import Problem
from attsvm.theory.sentences import NextTokenData, Role, partial_order
from attsvm_papers.ntp.unseen import Case


def highest_scored(sentence: list[int], data: NextTokenData, W: FloatArray) -> int:
    """The token of the largest score."""
    E = data.embeddings
    tokens = np.unique(sentence)
    return int(tokens[np.argmax(E[tokens] @ W @ E[sentence[-1]])])


def is_tied(sentence: list[int], data: NextTokenData, W: FloatArray) -> bool:
    """Whether the two largest scores are equal, up to the accuracy of a solution."""
    E = data.embeddings
    scores = np.sort(E[np.unique(sentence)] @ W @ E[sentence[-1]])
    return bool(scores[-1] - scores[-2] < 1e-6)


MEASURES = (
    *("accuracy", "accuracy_other", "probability", "mass"),
    *("agreement", "agreement_other", "count"),
)


def prediction_measures(
    cases: list[Case], data: NextTokenData, values: FloatArray, W: FloatArray, solution: FloatArray
) -> dict[str, Any]:
    """Accuracy, probability of the expected token, attention on the winner, and whether the scaled
    solution predicts the same. ``right_other``, ``accuracy_other`` and ``agreement_other`` are of
    weights and of a solution that have the scores of other queries. All are nan where there is no
    case.
    """
    if not cases:
        no_cases = dict.fromkeys(("right", "right_other"), np.zeros(0, dtype=bool))
        return {**no_cases, **dict.fromkeys(MEASURES, np.nan), "count": 0.0}
    n, (sentences, winners) = data.following, zip(*cases, strict=True)
    test = NextTokenData.from_sentences(
        sentences, n[list(winners)], embeddings=data.embeddings, following=n
    )
    problem = Problem.of(test, values=values)
    weights = np.stack([W, solution, other_query(W), other_query(solution)])
    o = problem.outputs(weights[:, None])
    mass = np.exp(problem.log_attention(W[None])[..., problem.winner])
    by_weights, by_solution, by_other_weights, by_other_solution = o.argmax(axis=-1)
    right, right_other = by_weights == problem.label, by_other_weights == problem.label
    return {
        "right": right,
        "right_other": right_other,
        "accuracy": right.mean(),
        "accuracy_other": right_other.mean(),
        "probability": softmax(o[0], axis=-1)[np.arange(test.N), problem.label].mean(),
        "mass": mass.mean(),
        "agreement": np.mean(by_weights == by_solution),
        "agreement_other": np.mean(by_weights == by_other_solution),
        "count": float(test.N),
    }


def other_query(W: FloatArray) -> FloatArray:
    """Weights that give every query the scores of the one before it; embeddings are those of the
    identity.
    """
    return np.roll(W, 1, axis=-1)


def extreme_scores(data: NextTokenData, W: FloatArray) -> dict[str, float]:
    """Smallest score of a ``head``, largest of a ``loser``, largest size of that of a
    non-comparable (``free``) token, over all queries.
    """
    orders = partial_order(data)
    queries = orders.queries.tolist()
    s = (data.embeddings @ W @ data.embeddings.T)[:, queries]
    roles = np.stack([orders.roles_of(q) for q in queries], axis=1)
    return {
        "head": float(s[roles == Role.OPTIMAL].min()),
        "loser": float(s[roles == Role.NON_OPTIMAL].max()),
        "free": float(np.abs(s[roles == Role.NON_COMPARABLE]).max()),
    }
