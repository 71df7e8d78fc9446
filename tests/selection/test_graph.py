"""Graph-SVM and its finite part: golden examples, certificates, invariances; what attention
retrieves.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from attsvm.datasets.next_token import NextTokenData, PartialOrders, priority_graph
from attsvm.errors import InputError
from attsvm.selection import (
    attention_likelihood,
    graph_svm,
    leading_tokens,
    local_arcs,
    token_masses,
)


def priority(
    sentences: list[list[int]], labels: list[int], embeddings: object = None, weights: object = None
) -> NextTokenData:
    K = (
        1 + max(max(sentence) for sentence in sentences)
        if embeddings is None
        else len(np.asarray(embeddings))
    )
    return NextTokenData.from_sentences(
        sentences, labels, weights, K if embeddings is None else embeddings, following=np.arange(K)
    )


# data of the authors' code
TOY = priority([[0, 1, 2]] * 6 + [[2, 1, 0]] * 6, [0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0])


def test_contradicting_labels_are_one_component_above_the_rest() -> None:
    found = graph_svm(priority([[1, 2, 0], [2, 1, 0]], [1, 2]))
    np.testing.assert_allclose(found.solution.W[:, 0], [-2 / 3, 1 / 3, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(found.finite, 0.0, atol=1e-15)
    assert found.floor == pytest.approx(np.log(2.0), rel=1e-14)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_soft_composition_is_the_frequency_of_the_labels_for_all_embeddings(
    seed: int | None,
) -> None:
    E = np.eye(3) if seed is None else np.random.default_rng(seed).standard_normal((3, 5))
    data = priority([s.tolist() for s in TOY.sentences], TOY.labels.tolist(), E)
    found = graph_svm(data)
    assert not found.directed
    assert np.isnan(found.report(np.eye(len(E[0]))).cosine)
    masses = token_masses(data, found.finite)
    np.testing.assert_allclose(masses[0], [1 / 6, 1 / 3, 1 / 2], atol=1e-12)
    np.testing.assert_allclose(masses[6], [1 / 2, 1 / 3, 1 / 6], atol=1e-12)
    entropy = -sum(p * np.log(p) for p in (1 / 6, 1 / 3, 1 / 2))
    assert found.floor == pytest.approx(entropy, rel=1e-13)
    assert found.floor == pytest.approx(1.01140, abs=5e-6)


@settings(max_examples=15)
@given(st.integers(0, 500))
def test_the_parts_are_orthogonal_and_each_is_the_best_of_its_kind(seed: int) -> None:
    data = priority_graph(6, 4, 6, 8, seed, cyclic=True)
    found = graph_svm(data)
    assert found.solution.status == "optimal"
    assert np.abs(found.split(found.solution.W).inside).max() < 1e-10
    np.testing.assert_allclose(found.split(found.finite).outside, 0.0, atol=1e-14)
    assert found.gradient <= 1e-12
    basis = found.cyclic.reshape(len(found.cyclic), -1)
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-13)
    # far along W_mm the loss is the floor, and nothing is below it
    loss = attention_likelihood(data)
    assert loss.value((found.finite + 60.0 * found.solution.W).ravel()) == pytest.approx(
        found.floor, abs=1e-12
    )
    rng = np.random.default_rng(seed)
    for W in rng.standard_normal((20, 8, 8)) + 60.0 * found.solution.W:
        assert loss.value(W.ravel()) >= found.floor - 1e-12


def test_the_finite_part_agrees_with_a_general_minimiser() -> None:
    data = priority_graph(6, 4, 6, 8, 3, cyclic=True)
    found = graph_svm(data)
    tokens, count = data.distinct()

    def reduced(c: np.ndarray) -> float:  # by loops over sentences, from the definition
        W = np.tensordot(c, found.cyclic, axes=1)
        total = 0.0
        for n, sentence in enumerate(tokens):
            row = found.component[data.queries[n]]
            kept = [
                v
                for v, m in zip(sentence, count[n], strict=True)
                if m and row[v] == row[data.labels[n]]
            ]
            scores = np.array(
                [data.embeddings[v] @ W @ data.embeddings[data.queries[n]] for v in kept]
            )
            total += data.weights[n] * (
                np.logaddexp.reduce(scores) - scores[kept.index(data.labels[n])]
            )
        return total

    best = minimize(reduced, np.zeros(len(found.cyclic)), method="BFGS", options={"gtol": 1e-9})
    assert found.floor == pytest.approx(best.fun, abs=1e-12)
    # a root of the value's rounding
    np.testing.assert_allclose(np.tensordot(best.x, found.cyclic, axes=1), found.finite, atol=1e-6)


def test_sentences_without_their_label_are_dropped_and_counted() -> None:
    whole = priority([[1, 2, 0], [2, 3, 0], [1, 3, 0]], [1, 2, 1])
    broken = priority([[1, 2, 0], [2, 3, 0], [1, 3, 0], [1, 2, 0]], [1, 2, 1, 3])
    found = graph_svm(broken)
    assert found.dropped == 1
    np.testing.assert_allclose(found.solution.W, graph_svm(whole).solution.W, atol=1e-12)
    assert attention_likelihood(broken).value(np.zeros(16)) == pytest.approx(
        0.75 * attention_likelihood(whole).value(np.zeros(16))
    )


def test_dependent_embeddings_can_contradict_the_graphs() -> None:
    # token 2 lies between 0 and 1, so it cannot beat both
    E = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    found = graph_svm(priority([[0, 2], [1, 2]], [2, 2], E))
    assert found.solution.status == "infeasible"
    assert not found.directed
    assert np.isnan(found.report(np.eye(2)).outside)


def test_the_report_takes_the_prediction_apart() -> None:
    found = graph_svm(priority_graph(6, 4, 6, 8, 1, cyclic=True))
    report = found.report(np.stack([found.finite + 3.0 * found.solution.W, found.solution.W]))
    np.testing.assert_allclose(report.scale, [3.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(report.residual, [0.0, np.linalg.norm(found.finite)], atol=1e-12)
    np.testing.assert_allclose(report.outside, 1.0, atol=1e-12)
    np.testing.assert_allclose(report.finite, [0.0, np.linalg.norm(found.finite)], atol=1e-12)
    with pytest.raises(InputError, match="W has shape"):
        found.report(np.eye(7))


def test_coordinates_give_back_the_loss_and_keep_components_apart() -> None:
    data = priority_graph(6, 4, 6, 8, 2, cyclic=True)
    found = graph_svm(data)
    loss, basis = found.likelihood(), found.basis()
    c = np.random.default_rng(0).standard_normal(len(basis))
    assert loss.value(c) == pytest.approx(
        attention_likelihood(data).value(np.tensordot(c, basis, axes=1).ravel()), rel=1e-12
    )
    np.testing.assert_allclose(
        np.tensordot(basis, basis, axes=([1, 2], [1, 2])), np.eye(len(basis)), atol=1e-12
    )


@settings(max_examples=15)
@given(st.integers(0, 500))
def test_mass_goes_to_the_leading_component_of_sentences_never_seen(seed: int) -> None:
    data = priority_graph(6, 4, 6, 8, seed, cyclic=True)
    found = graph_svm(data)
    rng = np.random.default_rng(seed)
    unseen = priority(
        [rng.integers(6, size=rng.integers(2, 6)).tolist() for _ in range(40)],
        [0] * 40,
        data.embeddings,
    )
    leading = leading_tokens(found.orders, unseen)
    tokens, count = unseen.distinct()
    # a leading component is one component, and it is there whenever the sentence is one token
    for n in range(40):
        names = found.component[unseen.queries[n], tokens[n][leading[n]]]
        assert len(set(names.tolist())) <= 1
        assert leading[n].any() or (count[n] > 0).sum() > 1
    mass = np.sum(token_masses(unseen, found.finite + 40.0 * found.solution.W) * leading, axis=1)
    np.testing.assert_allclose(mass[leading.any(axis=1)], 1.0, atol=1e-12)


def test_leading_tokens_of_a_hand_made_graph() -> None:
    arcs = np.array([(0, 1, 2), (0, 2, 1), (0, 2, 3), (0, 4, 3), (5, 3, 1)])
    orders = PartialOrders(6, arcs, np.zeros(5, dtype=np.int64))
    data = priority([[3, 1, 0], [1, 2, 3], [3, 2, 1, 0], [3, 4, 0]], [0, 1, 0, 0], np.eye(6))
    chosen = [
        set(data.distinct().tokens[n][row].tolist())
        for n, row in enumerate(leading_tokens(orders, data))
    ]
    # the query 0 is comparable with nothing, and query 3 has no graph
    assert chosen == [set(), set(), set(), set()]
    arcs = np.insert(arcs, 4, (0, 3, 0), axis=0)
    orders = PartialOrders(6, arcs[np.lexsort(arcs.T[::-1])], np.zeros(6, dtype=np.int64))
    chosen = [
        set(data.distinct().tokens[n][row].tolist())
        for n, row in enumerate(leading_tokens(orders, data))
    ]
    assert chosen == [{1}, set(), {1, 2}, {4}]


def test_local_arcs_of_a_hand_made_attention() -> None:
    data = priority([[0, 1, 2, 3]], [0], np.eye(4))
    assert local_arcs(data, [[0.7, 0.2905, 0.0095, 0.0]]).tolist() == [
        [3, 0, 1],
        [3, 0, 3],
        [3, 1, 0],
        [3, 1, 3],
    ]
    with pytest.raises(InputError, match="masses has shape"):
        local_arcs(data, [[1.0]])
    with pytest.raises(InputError, match="thresholds"):
        local_arcs(data, [[1.0, 0.0, 0.0, 0.0]], selected=1e-3)


@given(st.integers(0, 500))
def test_the_winners_of_saturated_attention_give_back_the_graphs(seed: int) -> None:
    data = priority_graph(4, 6, 8, 8, seed)
    found = graph_svm(data)
    masses = token_masses(data, 40.0 * found.solution.W)
    np.testing.assert_array_equal(local_arcs(data, masses), found.orders.arcs)


def test_sentences_without_a_choice_have_no_components_and_no_loss() -> None:
    found = graph_svm(priority([[0], [2, 2, 2]], [0, 2], np.eye(4)))
    assert not found.directed
    assert found.acyclic
    assert (found.floor, found.dropped) == (0.0, 0)
    np.testing.assert_array_equal(found.finite, np.zeros((4, 4)))
    report = found.report(np.eye(4))
    assert np.isnan(report.cosine)
    assert report.scale == 0.0
    assert report.residual == report.norm == 2.0


def test_queries_and_tokens_that_are_never_seen_keep_zero_scores() -> None:
    found = graph_svm(priority([[1, 2, 0], [2, 1, 0], [1, 3, 0]], [1, 2, 1], np.eye(6)))
    assert (found.solution.W[:, 1:] == 0).all()
    np.testing.assert_allclose(found.solution.W[4:], 0.0, atol=1e-15)
    np.testing.assert_allclose(found.finite[3:], 0.0, atol=1e-15)
    unseen = priority([[1, 2, 4], [4, 4, 4]], [1, 4], np.eye(6))
    np.testing.assert_array_equal(token_masses(unseen, found.solution.W)[0], np.full(3, 1 / 3))
    # a sentence of one token leads itself
    assert leading_tokens(found.orders, unseen).sum(axis=1).tolist() == [0, 1]


def test_copies_of_the_winner_add_their_mass_and_no_arc() -> None:
    once, thrice = graph_svm([priority([[1, 2, 0]], [1]), priority([[1, 1, 2, 1, 0]], [1])])
    np.testing.assert_array_equal(once.solution.W, thrice.solution.W)
    mass = token_masses(thrice.data, np.zeros((3, 3)))
    np.testing.assert_allclose(mass[0], [0.2, 0.6, 0.2])


def test_data_of_several_dimensions_is_refused() -> None:
    with pytest.raises(InputError, match="one dimension"):
        graph_svm([priority([[1, 0]], [1]), priority([[1, 2, 0]], [1])])
    with pytest.raises(InputError, match="one dimension"):
        graph_svm([])
    with pytest.raises(InputError, match=r"data is 'hen fox'; give .*NextTokenData"):
        graph_svm("hen fox")  # type: ignore[call-overload]
