"""Findings of the realizability check: a test per kind of data that is no next-token data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.next_token import (
    CollocationMissing,
    CyclicOrder,
    LabelNotRealizable,
    NextTokenData,
    NoAttentionSignal,
    NotAFunction,
    NotInjective,
    bipartite,
    check_realizable,
    winners,
)
from attsvm.errors import InputError
from attsvm.margins import graph_margins, order_margins, output_margins
from attsvm.solvers import max_margin

BASE, N = [[0], [1], [2], [3]], [1, 2, 3, 0]


def over_base(sentences: list[list[int]], labels: list[int]) -> NextTokenData:
    return NextTokenData.from_sentences(BASE + sentences, N + labels)


def test_a_cycle_is_named_with_its_sentences_and_is_the_certificate() -> None:
    data = over_base([[1, 2, 0], [2, 1, 0]], [2, 3])
    report = check_realizable(data)
    assert report.findings == (CyclicOrder(0, (1, 2), (4, 5), sentences=(4, 5)),)
    assert str(report.findings[0]).startswith(
        "under query 0 the order 1 > 2 > 1 is a cycle (sentences 4, 5)"
    )
    solution = max_margin(order_margins(data))
    assert solution.status == "infeasible"
    assert {(int(i), int(j)) for _, i, j in solution.conflict()} == {(1, 2), (2, 1)}
    weights = solution.dual / solution.dual.sum()
    np.testing.assert_allclose(np.sort(weights)[-2:], 0.5, atol=1e-12)
    assert max_margin(graph_margins(data)).status == "optimal"  # the suggestion of the message


def test_all_sentences_of_all_cycles_of_a_query_are_named() -> None:
    """The arc 1 > 2 stands in two sentences, 1 and 3 are a second cycle, and 3 > 0 is part of
    none.
    """
    sentences, labels = (
        [[1, 2, 0], [2, 1, 0], [1, 2, 0], [1, 3, 0], [3, 1, 0], [3, 0]],
        [2, 3, 2, 2, 0, 0],
    )
    (finding,) = check_realizable(over_base(sentences, labels)).findings
    assert finding == CyclicOrder(0, (1, 2), (4, 5), sentences=(4, 5, 6, 7, 8))
    assert "(sentences 4, 5; cycles of this query run through sentences 4, 5, 6, 7, 8)" in str(
        finding
    )


def test_a_collocation_with_two_values() -> None:
    data = NextTokenData.from_sentences(
        [[0], [0], [1], [2], [1, 0]], [1, 2, 2, 0, 2], weights=[1, 1, 1, 1, 4], embeddings=3
    )
    report = check_realizable(data)
    assert report.findings[0] == NotAFunction(0, (1, 2), sentences=(1,))
    assert not report.realizable
    loose = check_realizable(data, strict=False)
    assert loose.realizable
    # half of the one-token weight is a fair coin
    assert loose.entropy_floor == pytest.approx(0.5 * np.log(2), rel=1e-14)
    assert check_realizable(bipartite()).entropy_floor == 0.0


def test_a_collocation_that_is_not_injective() -> None:
    sentences, labels = [[0], [1], [2], [0, 2]], [3, 3, 1, 3]
    report = check_realizable(NextTokenData.from_sentences(sentences, labels))
    assert report.findings == (NotInjective((0, 1), 3, blocks=False),)
    assert report.realizable
    assert winners(NextTokenData.from_sentences(sentences, labels))[3] == 0
    ambiguous = NextTokenData.from_sentences([*sentences, [0, 1, 2]], [*labels, 3])
    report = check_realizable(ambiguous)
    assert report.findings == (NotInjective((0, 1), 3, sentences=(4,)),)
    assert (
        "tokens 0, 1 are all followed by 3, and it is open which of them is meant in sentence 4"
        in str(report.findings[0])
    )
    # the output matrix needs no injective map
    assert max_margin(output_margins(ambiguous)).status == "optimal"


def test_three_tokens_with_one_successor_are_told_by_the_sentences_that_hold_them() -> None:
    sentences = [[0], [1], [2], [0, 2], [3], [2, 1, 0], [1, 3]]
    report = check_realizable(NextTokenData.from_sentences(sentences, [3, 3, 3, 3, 0, 3, 3]))
    assert report.findings == (NotInjective((0, 1, 2), 3, sentences=(3, 5)),)


def test_a_label_that_no_token_explains() -> None:
    data = over_base([[1, 0], [2, 0]], [2, 2])
    report = check_realizable(data)
    assert report.findings == (LabelNotRealizable(2, sentences=(5,)),)
    loose = check_realizable(data, strict=False)
    assert loose.realizable
    assert loose.dropped == 1
    priority = NextTokenData.from_sentences([[1, 2, 0], [1, 0]], [1, 2], following=np.arange(3))
    assert check_realizable(priority).findings == (LabelNotRealizable(2, sentences=(1,)),)
    assert check_realizable(priority, strict=False).orders.arcs.tolist() == [[0, 1, 0], [0, 1, 2]]
    with pytest.raises(
        InputError, match=r"sentence 1 has no one token that explains its label \(1 such"
    ):
        graph_margins(priority)


def test_a_token_without_collocation() -> None:
    report = check_realizable(NextTokenData.from_sentences([[0], [0, 1]], [1, 1]))
    assert report.findings == (CollocationMissing(1, blocks=False),)
    assert report.realizable  # n can be extended to it


def test_a_token_and_a_query_that_are_never_seen() -> None:
    data = NextTokenData.from_sentences([*BASE, [1, 2, 0]], [*N, 2], embeddings=5)
    report = check_realizable(data)
    assert report.realizable
    assert report.unseen.tolist() == [1, 2, 3, 4]
    W = max_margin(order_margins(data)).W
    assert not W[:, 1:].any()  # unseen queries
    assert not W[[3, 4], 0].any()  # unseen tokens
    assert np.isfinite(W).all()


@pytest.mark.parametrize("sentence", [[1], [1, 1, 1]])
def test_sentences_of_one_distinct_token_say_nothing(sentence: list[int]) -> None:
    data = over_base([sentence], [2])
    report = check_realizable(data)
    assert report.realizable
    assert report.findings == (NoAttentionSignal(blocks=False),)
    assert len(report.orders.arcs) == 0
    solution = max_margin(order_margins(data))
    assert (solution.norm, solution.status) == (0.0, "optimal")
    mixed = check_realizable(over_base([sentence, [1, 0]], [2, 2]))
    assert mixed.findings == ()
    assert mixed.orders.arcs.tolist() == [[0, 1, 0]]


def test_dependent_and_skewed_embeddings_are_reported() -> None:
    sentences, labels = [*BASE, [1, 2, 0]], [*N, 2]
    flat = check_realizable(
        NextTokenData.from_sentences(sentences, labels, embeddings=np.ones((4, 2)))
    )
    assert not flat.independent
    assert (
        max_margin(
            order_margins(
                NextTokenData.from_sentences(sentences, labels, embeddings=np.ones((4, 2)))
            )
        ).status
        == "infeasible"
    )
    skewed = np.eye(4) + 0.25
    report = check_realizable(NextTokenData.from_sentences(sentences, labels, embeddings=skewed))
    assert report.independent
    assert report.orthonormality == pytest.approx(
        np.abs(skewed @ skewed.T - np.eye(4)).max(), rel=1e-14
    )
    assert check_realizable(bipartite(embeddings="ortho")).orthonormality < 1e-14


def test_counts_and_names() -> None:
    data = NextTokenData.from_sentences(
        [*BASE, [1, 2, 0], [1, 2, 0], [2, 3, 0], [2, 1, 3]],
        [*N, 2, 2, 3, 2],
        vocabulary=["a", "b", "c", "d"],
    )
    report = check_realizable(data)
    assert report.repeated == 1
    assert report.orders.queries.tolist() == [0, 3]
    # optimal, non-optimal, confused, non-comparable
    assert report.roles.tolist() == [[1, 2, 1, 0], [1, 2, 0, 1]]
    assert report.confused == 1
    assert str(report) == "realizable: 2 queries with an order"
    bad = check_realizable(
        NextTokenData.from_sentences([[0], [0, 1]], [1, 0], vocabulary=["a", "b"])
    )
    assert "no token of sentence 1 explains the label 'a'" in str(bad)
    with pytest.raises(InputError, match="the data is not realizable: no token of sentence 1"):
        bad.require()
    report.require()


@given(st.integers(0, 10_000))
def test_a_flipped_label_is_caught_with_its_cycle(seed: int) -> None:
    """A sentence is repeated with a loser as the winner."""
    data = bipartite(8, 3, seed)
    several = np.flatnonzero(np.bincount(data.occurrences.sentence) > 1)
    n = int(several[seed % len(several)])
    sentence = data.sentences[n]
    loser = next(v for v in sentence.tolist() if v != winners(data)[n])
    flipped = NextTokenData.from_sentences(
        [*data.sentences, sentence], np.append(data.labels, data.following[loser]), embeddings=8
    )
    (finding,) = check_realizable(flipped).findings
    assert isinstance(finding, CyclicOrder)
    assert finding.query == sentence[-1]
    assert {n, data.N} <= set(finding.sentences)
    assert loser in finding.cycle
    assert len(finding.cycle) == 2


@given(st.integers(0, 10_000))
def test_without_the_sentences_that_findings_name_the_data_is_realizable(seed: int) -> None:
    """One reading is enough to mend a data set; and sentences outside cycles are named for a reason
    of their own.
    """
    rng = np.random.default_rng(seed)
    K = 5
    sentences = [[x] for x in range(K)] + [
        rng.integers(K, size=rng.integers(1, 5)).tolist() for _ in range(25)
    ]
    data = NextTokenData.from_sentences(
        sentences, [*rng.permutation(K), *rng.integers(K, size=25)], embeddings=K
    )
    report = check_realizable(data)
    assert check_realizable(data.select(report.blameless)).realizable
    explains = np.array(
        [
            sum(data.following[v] == y for v in set(s))
            for s, y in zip(sentences, data.labels, strict=True)
        ]
    )
    tied = {n for f in report.findings if isinstance(f, CyclicOrder) for n in f.sentences}
    assert (
        set(np.flatnonzero(~report.blameless).tolist()) - tied
        == set(np.flatnonzero(explains != 1).tolist()) - tied
    )
    # another sentence of the query says the opposite of this one, directly or through others
    for n in tied:
        below = report.orders.closure(sentences[n][-1])
        assert any(below[v, winners(data)[n]] for v in set(sentences[n]) - {winners(data)[n]})
