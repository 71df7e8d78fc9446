"""Topics, and when a prediction leaves the order of its input."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.theory.sentences import partial_order
from attsvm_papers.topics.changes import count_changes, draw_topics, keeps_order, mixed_data
from attsvm_papers.topics.e2_text import certain_arcs, data_of_sentences


def test_two_topics_share_tokens_and_obey_one_order() -> None:
    one, two = draw_topics(14, 4, 6, 3, np.random.default_rng(0))
    for query, first, second in zip(one.queries, one.ranked, two.ranked, strict=True):
        common = [token for token in first if token in second]
        assert len(common) == 3
        assert common == [token for token in second if token in first]
        assert query not in {*first, *second}
    orders = partial_order(mixed_data([one, two], 14))
    assert not orders.cyclic.any()
    for topic in (one, two):
        for query, ranked in zip(topic.queries, topic.ranked, strict=True):
            arcs = {tuple(arc) for arc in orders.of(query).tolist()}
            assert {(a, b) for k, a in enumerate(ranked) for b in (*ranked[k + 1 :], query)} <= arcs


def test_changes_are_those_of_every_input() -> None:
    """Two tokens, the first ahead by log 2.5: the topic changes where the second is more than 2.5
    times as frequent, which has the chance of a binomial tail, or never without the first.
    """
    from scipy.stats import binom

    above = np.array([[False, True], [False, False]])
    logits = np.array([np.log(2.5), 0.0])
    changes = count_changes(logits, above, 8, 100_000, np.random.default_rng(1))
    expected = binom.pmf([1, 2], 8, 0.5).sum()  # 1 or 2 of the first, 7 or 6 of the second
    assert changes.share == pytest.approx(expected, abs=4 * np.sqrt(expected / 100_000))
    assert changes.outnumbered == 1.0
    reversed_order = count_changes(-logits, above, 8, 1000, np.random.default_rng(1))
    assert reversed_order.outnumbered < 1.0
    assert np.isnan(count_changes(20 * logits, above, 8, 100, np.random.default_rng(1)).outnumbered)


def test_order_of_pairs_and_arcs_that_two_parts_contradict() -> None:
    assert keeps_order(np.array([3.0, 2.0, 1.0, 0.0]), np.array([0, 2, 1]), 3) == 5 / 6
    first, second = ([[0, 1, 2], [0, 3, 2]], [0, 0]), ([[0, 1, 2]], [1])
    both = [a + b for a, b in zip(first, second, strict=True)]
    arcs, contradicted = certain_arcs(data_of_sentences(*first, 4), data_of_sentences(*both, 4))
    assert arcs.tolist() == [[2, 0, 2], [2, 0, 3]]
    assert contradicted == pytest.approx(1 / 3)
