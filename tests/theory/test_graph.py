"""Graph-SVM and its finite part: golden examples, certificates, invariances; what attention
retrieves.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from attsvm.base.errors import InputError
from attsvm.theory import (
    attention_likelihood,
    graph_svm,
    graph_svm_batch,
    leading_tokens,
    local_arcs,
    token_masses,
)
from attsvm.theory.sentences import NextTokenData, PartialOrders, priority_graph


def priority(sentences, labels, embeddings=None) -> NextTokenData:
    K = 1 + max(map(max, sentences)) if embeddings is None else len(embeddings)
    E = K if embeddings is None else embeddings
    return NextTokenData.from_sentences(sentences, labels, None, E, following=np.arange(K))


def cyclic(seed: int) -> NextTokenData:
    return priority_graph(6, 4, 6, 8, seed, cyclic=True)


def test_contradicting_labels_are_one_component_above_the_rest() -> None:
    found = graph_svm(priority([[1, 2, 0], [2, 1, 0]], [1, 2]))
    np.testing.assert_allclose(found.solution.W[:, 0], [-2 / 3, 1 / 3, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(found.finite, 0.0, atol=1e-15)
    assert found.floor == pytest.approx(np.log(2.0), rel=1e-14)


@pytest.mark.parametrize("seed", [None, 0])
def test_soft_composition_is_the_frequency_of_the_labels_for_all_embeddings(seed) -> None:
    E = np.eye(3) if seed is None else np.random.default_rng(seed).standard_normal((3, 5))
    labels = [0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0]  # of the authors' code
    data = priority([[0, 1, 2]] * 6 + [[2, 1, 0]] * 6, labels, E)
    found = graph_svm(data)
    assert not found.directed
    masses = token_masses(data, found.finite)
    np.testing.assert_allclose(masses[0], [1 / 6, 1 / 3, 1 / 2], atol=1e-12)
    np.testing.assert_allclose(masses[6], [1 / 2, 1 / 3, 1 / 6], atol=1e-12)
    entropy = -sum(p * np.log(p) for p in (1 / 6, 1 / 3, 1 / 2))
    assert found.floor == pytest.approx(entropy, rel=1e-13)


@settings(max_examples=15)
@given(st.integers(0, 500))
def test_the_parts_are_orthogonal_and_each_is_the_best_of_its_kind(seed: int) -> None:
    found = graph_svm(data := cyclic(seed))
    W, basis = found.solution.W, found.cyclic.reshape(len(found.cyclic), -1)
    assert found.solution.status == "optimal"
    assert np.abs(found.split(W).inside).max() < 1e-10
    np.testing.assert_allclose(found.split(found.finite).outside, 0.0, atol=1e-14)
    assert found.gradient <= 1e-12
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-13)
    # far along W_mm the loss is the floor, and nothing is below it
    loss = attention_likelihood(data)
    far = loss.value((found.finite + 60.0 * W).ravel())
    assert far == pytest.approx(found.floor, abs=1e-12)
    for other in np.random.default_rng(seed).standard_normal((20, 8, 8)) + 60.0 * W:
        assert loss.value(other.ravel()) >= found.floor - 1e-12
    report = found.report(np.stack([found.finite + 3.0 * W, W]))
    size = np.linalg.norm(found.finite)
    np.testing.assert_allclose(report.scale, [3.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(report.residual, [0.0, size], atol=1e-10)
    np.testing.assert_allclose(report.outside, 1.0, atol=1e-12)
    long = np.hypot(3.0 * found.solution.norm, size)
    np.testing.assert_allclose(report.norm, [long, found.solution.norm], rtol=1e-12)
    np.testing.assert_allclose(report.cosine, [3.0 * found.solution.norm / long, 1.0], rtol=1e-12)
    np.testing.assert_allclose(report.finite, [0.0, size], atol=1e-10)
    # the same loss in coordinates that keep components apart
    coordinates = found.basis()
    c = np.random.default_rng(seed).standard_normal(len(coordinates))
    expected = loss.value(np.tensordot(c, coordinates, axes=1).ravel())
    assert found.likelihood().value(c) == pytest.approx(expected, rel=1e-12)
    gram = np.tensordot(coordinates, coordinates, axes=([1, 2], [1, 2]))
    np.testing.assert_allclose(gram, np.eye(len(c)), atol=1e-12)


def test_the_finite_part_agrees_with_a_general_minimiser() -> None:
    found = graph_svm(data := cyclic(3))
    tokens, count = data.distinct()

    def reduced(c: np.ndarray) -> float:  # by loops over sentences, from the definition
        scores = data.embeddings @ np.tensordot(c, found.cyclic, axes=1) @ data.embeddings.T
        total = 0.0
        for n, (query, label) in enumerate(zip(data.queries, data.labels, strict=True)):
            row = found.component[query]
            kept = [v for v in tokens[n][count[n] > 0] if row[v] == row[label]]
            loss = np.logaddexp.reduce(scores[kept, query]) - scores[label, query]
            total += data.weights[n] * loss
        return total

    best = minimize(reduced, np.zeros(len(found.cyclic)), method="BFGS", options={"gtol": 1e-9})
    assert found.floor == pytest.approx(best.fun, abs=1e-12)
    # a root of the value's rounding
    np.testing.assert_allclose(np.tensordot(best.x, found.cyclic, axes=1), found.finite, atol=1e-6)


def test_sentences_without_their_label_are_dropped_and_counted() -> None:
    whole = priority([[1, 2, 0], [2, 3, 0], [1, 3, 0]], [1, 2, 1])
    broken = priority([[1, 2, 0], [2, 3, 0], [1, 3, 0], [1, 2, 0], [2, 1, 0]], [1, 2, 1, 3, 3])
    found = graph_svm(broken)
    assert found.dropped == 2
    np.testing.assert_allclose(found.solution.W, graph_svm(whole).solution.W, atol=1e-12)
    one, other = (attention_likelihood(each).value(np.zeros(16)) for each in (broken, whole))
    assert one == pytest.approx(0.6 * other)


def test_dependent_embeddings_can_contradict_the_graphs() -> None:
    # token 2 lies between 0 and 1, so it cannot beat both
    E = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    found = graph_svm(priority([[0, 2], [1, 2]], [2, 2], E))
    assert (found.solution.status, found.directed) == ("infeasible", False)
    assert np.isnan(found.report(np.eye(2)).outside)


@pytest.mark.parametrize(
    ("more", "expected"), [([], [set()] * 4), ([(0, 3, 0)], [{1}, set(), {1, 2}, {4}])]
)
def test_leading_tokens_of_a_hand_made_graph(more, expected) -> None:
    """Without 3 => 0 the query 0 is comparable with nothing; query 3 has no graph."""
    arcs = np.array(sorted([(0, 1, 2), (0, 2, 1), (0, 2, 3), (0, 4, 3), (5, 3, 1), *more]))
    orders = PartialOrders(6, arcs, np.zeros(len(arcs), dtype=np.int64))
    data = priority([[3, 1, 0], [1, 2, 3], [3, 2, 1, 0], [3, 4, 0]], [0, 1, 0, 0], np.eye(6))
    rows = zip(data.distinct().tokens, leading_tokens(orders, data), strict=True)
    assert [set(tokens[row].tolist()) for tokens, row in rows] == expected


def test_local_arcs_of_a_hand_made_attention() -> None:
    data = priority([[0, 1, 2, 3]], [0], np.eye(4))
    expected = [[3, 0, 1], [3, 0, 3], [3, 1, 0], [3, 1, 3]]
    assert local_arcs(data, [[0.7, 0.2905, 0.0095, 0.0]]).tolist() == expected


@given(st.integers(0, 500))
def test_the_winners_of_saturated_attention_give_back_the_graphs(seed: int) -> None:
    data = priority_graph(4, 6, 8, 8, seed)
    found = graph_svm(data)
    masses = token_masses(data, 40.0 * found.solution.W)
    np.testing.assert_array_equal(local_arcs(data, masses), found.orders.arcs)


def test_sentences_without_a_choice_have_no_components_and_no_loss() -> None:
    found = graph_svm(priority([[0], [2, 2, 2]], [0, 2], np.eye(4)))
    assert (found.directed, found.acyclic, found.floor, found.dropped) == (False, True, 0.0, 0)
    np.testing.assert_array_equal(found.finite, np.zeros((4, 4)))
    report = found.report(np.eye(4))
    assert np.isnan(report.cosine)
    assert (report.scale, report.residual, report.norm) == (0.0, 2.0, 2.0)


def test_copies_of_the_winner_add_their_mass_and_no_arc() -> None:
    several = [priority([[1, 2, 0]], [1]), priority([[1, 1, 2, 1, 0]], [1])]
    once, thrice = graph_svm_batch(several)
    np.testing.assert_array_equal(once.solution.W, thrice.solution.W)
    np.testing.assert_allclose(token_masses(thrice.data, np.zeros((3, 3)))[0], [0.2, 0.6, 0.2])


def test_refusals() -> None:
    data, other = priority([[0, 1, 2, 3]], [0], np.eye(4)), priority([[1, 0]], [1])
    found = graph_svm(data)
    for call, words in (
        (lambda: graph_svm_batch([data, other]), "one dimension"),
        (lambda: graph_svm_batch([]), "one dimension"),
        (lambda: graph_svm("hen fox"), r"data is 'hen fox'; give .*NextTokenData"),
        (lambda: found.report(np.eye(7)), "W has shape"),
        (lambda: token_masses(data, np.eye(3)), "W has shape"),
        (lambda: leading_tokens(found.orders, other), "over 2 tokens, the graphs over 4"),
        (lambda: local_arcs(data, [[1.0]]), "masses has shape"),
        (lambda: local_arcs(data, [[1.0, 0.0, 0.0, 0.0]], selected=1e-3), "thresholds"),
    ):
        with pytest.raises(InputError, match=words):
            call()
