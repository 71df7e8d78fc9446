"""Findings of the realizability check: one for every way in which data is no next-token data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.solvers import max_margin
from attsvm.theory import graph_margins, order_margins, output_margins
from attsvm.theory.sentences import NextTokenData, bipartite, check_realizable, winners

BASE, N = [[0], [1], [2], [3]], [1, 2, 3, 0]


def over_base(sentences: list[list[int]], labels: list[int]) -> NextTokenData:
    return NextTokenData.from_sentences(BASE + sentences, N + labels)


CYCLES = [[1, 2, 0], [2, 1, 0], [1, 2, 0], [1, 3, 0], [3, 1, 0], [3, 0]]
SAME, OF_SAME = [[0], [1], [2], [0, 2]], [3, 3, 1, 3]


@pytest.mark.parametrize(
    ("data", "kind", "blocks", "sentences", "words"),
    [
        (
            over_base([[1, 2, 0], [2, 1, 0]], [2, 3]),
            "cycle",
            True,
            (4, 5),
            "under query 0 the order 1 > 2 > 1 is a cycle (sentences 4, 5); correct them",
        ),
        (
            # 1 > 2 stands in two sentences, 1 and 3 are a second cycle, 3 > 0 is part of none
            over_base(CYCLES, [2, 3, 2, 2, 0, 0]),
            "cycle",
            True,
            (4, 5, 6, 7, 8),
            "(sentences 4, 5; cycles of this query run through sentences 4, 5, 6, 7, 8)",
        ),
        (
            NextTokenData.from_sentences([[0], [0], [1], [2], [1, 0]], [1, 2, 2, 0, 2]),
            "labels",
            True,
            (1,),
            "the one-token sentences of token 0 have the labels 1, 2; keep one of them, for"
            " instance by dropping sentence 1",
        ),
        (
            NextTokenData.from_sentences(SAME, OF_SAME),
            "following",
            False,
            (),
            "tokens 0, 1 are all followed by 3, but no sentence leaves open",
        ),
        (
            NextTokenData.from_sentences([*SAME, [0, 1, 2], [3], [1, 0]], [*OF_SAME, 3, 0, 3]),
            "following",
            True,
            (4, 6),
            "tokens 0, 1 are all followed by 3, and it is open which of them is meant in sentences"
            " 4, 6; give them different following tokens",
        ),
        (
            over_base([[1, 0], [2, 0]], [2, 2]),
            "unexplained",
            True,
            (5,),
            "no token of sentence 5 explains the label 2; correct the label or drop it",
        ),
        (
            NextTokenData.from_words(["hen", "hen fox"], ["eats", "eats"]),
            "missing",
            False,
            (),
            "no one-token sentence shows what follows token 'fox'; add one",
        ),
        (
            # told behind it, as it does not block: nothing shows what follows fox
            NextTokenData.from_words(["hen", "hen fox"], ["eats", "runs"]),
            "unexplained",
            True,
            (1,),
            "no token of sentence 1 explains the label 'runs'; correct the label or drop it",
        ),
        (
            over_base([[1, 1, 1]], [2]),
            "nothing",
            False,
            (),
            "no sentence has two different tokens, so attention has nothing to learn",
        ),
    ],
)
def test_what_is_found(data, kind, blocks, sentences, words) -> None:
    report = check_realizable(data)
    (finding,) = (finding for finding in report.findings if finding.kind == kind)
    assert (finding.blocks, finding.sentences) == (blocks, sentences)
    assert words in str(finding)
    assert str(finding) in str(report)
    assert report.realizable != blocks
    assert np.flatnonzero(~report.blameless).tolist() == [*sentences]
    if not blocks:
        report.require()
        return
    assert report.findings[0] == finding  # those that block come first
    assert sum(finding.blocks for finding in report.findings) == 1
    with pytest.raises(InputError, match="the data is not realizable: "):
        report.require()
    loose = check_realizable(data, strict=False)
    assert loose.realizable == loose.blameless.all() == (kind != "cycle")


def test_a_sentence_without_a_winner_is_in_no_cycle() -> None:
    data = NextTokenData.from_sentences(
        [[3, 1, 0], [1, 3, 0], [2, 3, 1], [3, 2, 1], [2, 1]],
        [3, 1, 2, 3, 0],
        following=np.arange(4),
    )
    found = check_realizable(data).findings
    assert [(finding.kind, finding.sentences) for finding in found] == [
        ("unexplained", (4,)),
        ("cycle", (0, 1)),
        ("cycle", (2, 3)),
    ]
    with pytest.raises(InputError, match=r"\(2 more findings\)"):
        check_realizable(data).require()


def test_a_cycle_is_the_certificate_of_the_programme() -> None:
    data = over_base([[1, 2, 0], [2, 1, 0]], [2, 3])
    solution = max_margin(order_margins(data))
    assert solution.status == "infeasible"
    assert {(int(i), int(j)) for _, i, j in solution.conflict()} == {(1, 2), (2, 1)}
    weights = solution.dual / solution.dual.sum()
    np.testing.assert_allclose(np.sort(weights)[-2:], 0.5, atol=1e-12)
    assert max_margin(graph_margins(data)).status == "optimal"  # the suggestion of the message
    # the output matrix needs no injective map
    data = NextTokenData.from_sentences([*SAME, [0, 1, 2]], [*OF_SAME, 3])
    assert max_margin(output_margins(data)).status == "optimal"


@pytest.mark.parametrize("sentence", [[1], [1, 1, 1]])
def test_sentences_of_one_distinct_token_say_nothing(sentence: list[int]) -> None:
    solution = max_margin(order_margins(over_base([sentence], [2])))
    assert (solution.norm, solution.status) == (0.0, "optimal")
    mixed = check_realizable(over_base([sentence, [1, 0]], [2, 2]))
    assert mixed.findings == ()
    assert mixed.orders.arcs.tolist() == [[0, 1, 0]]


def test_a_query_that_is_never_seen_has_no_weights() -> None:
    data = NextTokenData.from_sentences([*BASE, [1, 2, 0]], [*N, 2], embeddings=5)
    W = max_margin(order_margins(data)).W
    assert not W[:, 1:].any()  # unseen queries
    assert not W[[3, 4], 0].any()  # unseen tokens
    flat = NextTokenData.from_sentences([*BASE, [1, 2, 0]], [*N, 2], embeddings=np.ones((4, 2)))
    assert max_margin(order_margins(flat)).status == "infeasible"


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
    assert finding.kind == "cycle"
    assert f"under query {sentence[-1]} the order" in str(finding)
    assert {n, data.N} <= set(finding.sentences)
    cycle, _ = check_realizable(flipped).orders.cycle(int(sentence[-1]))
    assert loser in cycle
    assert len(cycle) == 2


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
    tied = {n for f in report.findings if f.kind == "cycle" for n in f.sentences}
    assert (
        set(np.flatnonzero(~report.blameless).tolist()) - tied
        == set(np.flatnonzero(explains != 1).tolist()) - tied
    )
    # another sentence of the query says the opposite of this one, directly or through others
    for n in tied:
        below = report.orders.closure(sentences[n][-1])
        assert any(below[v, winners(data)[n]] for v in set(sentences[n]) - {winners(data)[n]})
