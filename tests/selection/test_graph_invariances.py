"""What both parts of a graph programme depend on: not on the names of tokens, the order of
sentences or how a weight is split, and on the coordinates only as the embeddings do.
"""

import numpy as np
import pytest

from attsvm import graph_svm
from attsvm.datasets.next_token import NextTokenData, priority_graph

SEEDS = range(6)


def changed(data: NextTokenData, change: str, rng: np.random.Generator):
    """The data after the change, and the rotation that takes the embeddings back."""
    sentences, labels, weights, E = data.sentences, data.labels, data.weights, data.embeddings
    turn = np.eye(data.d)
    if change == "turned":
        turn = np.linalg.qr(rng.standard_normal((data.d, data.d)))[0]
        E = E @ turn
    elif change == "renamed":
        names = rng.permutation(data.K)
        sentences, labels = [names[each] for each in sentences], names[labels]
        E = E[np.argsort(names)]
    elif change == "reordered":
        order = rng.permutation(data.N)
        sentences = [np.append(rng.permutation(sentences[n][:-1]), sentences[n][-1]) for n in order]
        labels, weights = labels[order], weights[order]
    elif change == "split":
        sentences, labels = [*sentences, sentences[0]], np.append(labels, labels[0])
        weights = np.append(weights, 0.5 * weights[0])
        weights[0] *= 0.5
    else:
        weights = rng.dirichlet(np.ones(data.N))
    following = np.arange(data.K)
    return NextTokenData.from_sentences(sentences, labels, weights, E, following=following), turn


def apart(change: str):
    """Distances of both parts, turned back, from those of the data as they were."""
    found = []
    for seed in SEEDS:
        data = priority_graph(6, 4, 6, 8, seed, cyclic=True)
        other, turn = changed(data, change, np.random.default_rng([46, seed]))
        one, two = graph_svm(data), graph_svm(other)
        pairs = ((one.solution.W, two.solution.W), (one.finite, two.finite))
        found.append([np.linalg.norm(turn @ after @ turn.T - before) for before, after in pairs])
    return np.array(found)


@pytest.mark.parametrize("change", ["turned", "renamed", "reordered", "split"])
def test_both_parts_stay_where_only_coordinates_change(change) -> None:
    direction, finite = apart(change).T
    assert direction.max() < 1e-7  # solutions are certified to a gap of 1e-9
    assert finite.max() < 1e-9  # Newton's method ends at rounding


def test_other_weights_give_another_finite_part_and_the_same_direction() -> None:
    direction, finite = apart("weighted").T
    assert direction.max() < 1e-7
    assert np.median(finite) > 1e-3
