"""Experiments on next tokens: what their helpers compute, and the sentences that generalisation is
judged on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm.theory.next_token import StepRule, two_stage
from attsvm.theory.sentences import NextTokenData, bipartite, partial_order, total
from attsvm_papers.kit import experiment
from attsvm_papers.ntp import e3_two_stages as ntp_3
from attsvm_papers.ntp import e8_text as ntp_8
from attsvm_papers.ntp import predicted_tokens, unseen
from attsvm_papers.ntp.two_stages import attention_solutions
from attsvm_papers.ntp.unseen import UnseenSentences


@pytest.mark.parametrize("group", ["G1", "G2", "G3", "G4", "G5", "G6"])
def test_unseen_sentences_have_the_winner_that_the_order_names(group) -> None:
    data = total(20, 4, 0) if group == "G5" else bipartite(20, 4, 0)
    orders = partial_order(data)
    cases = UnseenSentences(data, orders, 10, np.random.default_rng(0)).cases(group)
    trained = {(*sorted(s.tolist()), int(s[-1])) for s in data.sentences}
    keys = [(*sorted(sentence), sentence[-1]) for sentence, _ in cases]
    assert len(cases) > 20
    assert len(set(keys)) == len(keys)
    assert not trained & set(keys)
    for sentence, winner in cases:
        roles = orders.roles_of(sentence[-1])[np.unique(sentence)]
        if group == "G5":
            assert orders.greatest(sentence) == winner
        elif group == "G6":
            assert (roles == 1).sum() == 2
        else:
            assert orders.of_greatest_role(sentence) == winner
        assert group != "G4" or 10 <= len(sentence) <= 40


def test_the_paths_of_stage_two_at_ten_thousand_steps() -> None:
    runs = [ntp_3.run(kind, [0], steps=10_000) for kind in ("bipartite", "total")]
    both = {name: np.concatenate([one[name] for one in runs]) for name in runs[0]}
    found = Evidence(both).but({"kind": ["bipartite", "total"], "seed": [0, 0]})
    # two runs of one seed are one trial, of which the outcome alone is tested
    known = {claim.id: replace(claim, trials="") for claim in experiment("ntp-3").claims}
    for name in ("C3-E3a", "C3-E3c", "C3.6", "C3.9"):
        assert known[name].check(found).verdict == "holds"


def test_a_group_without_sentences_is_counted_as_none_and_not_judged() -> None:
    data, W = bipartite(8, 1, 2), np.eye(8)
    found = predicted_tokens.prediction_measures([], data, W, W, W)
    assert found["count"] == 0.0
    assert not found["right"].any()
    assert all(np.isnan(found[name]) for name in predicted_tokens.MEASURES if name != "count")
    (claim,) = [each for each in experiment("ntp-4").claims if each.id == "C3-E4a"]
    ends = ("_accuracy", "_agreement", "_count")
    names = [f"{group}{end}" for group in unseen.GROUPS for end in ends]
    names += ["head", "loser", "free", "unseen_column", "unique_accuracy"]
    evidence = Evidence(
        {name: np.ones(3) for name in names} | {f"{name}_other": np.zeros(3) for name in names}
    ).but({"G5_count": [0.0, 7.0, 9.0], "G5_accuracy": [np.nan, 1.0, 1.0]})
    verdict = claim.check(evidence)
    assert (verdict.verdict, verdict.passed, verdict.counted) == ("holds", 17, 17)


def test_a_frequent_word_holds_a_sentence_whose_winner_is_rare() -> None:
    """A chain of words, each above the next thirty times, and one above all of them once: the last
    word of that sentence wins others, so it is confused.
    """
    chain, times = 8, 30
    K, top, query = chain + 2, 0, chain + 1
    pairs = [(top, 1), *[(word, word + 1) for word in range(1, chain)] * times]
    following = np.roll(np.arange(K), -1)
    data = NextTokenData.from_sentences(
        [*([word] for word in range(K)), *([*pair, query] for pair in pairs)],
        np.concatenate([following, following[[winner for winner, _ in pairs]]]),
    )
    sets = [data, ntp_8._with_even_winners(data)]
    trained = two_stage(sets, StepRule(0.2), StepRule(0.05), (45, 3000)).attention
    W, W_even = trained.W[-1]
    leads, leads_even = (ntp_8._leads_over_winners(data, each) for each in (W, W_even))
    held = leads > 0.0
    assert np.flatnonzero(held).tolist() == [K]
    assert ntp_8._least_lead(leads, held) > 1.0
    assert ntp_8._least_lead(leads_even, held) < 0.0
    assert np.isnan(ntp_8._least_lead(leads_even, leads_even > 0.0))
    (solution,) = attention_solutions([data])
    for weights, least in ((W, 0.8), (W_even, 0.99)):
        cosines = ntp_8._cosines_of_queries(data, weights, solution.W)
        assert np.isnan(cosines["plain"])  # one query, and its words are confused
        assert least < cosines["confused"] < least + 0.1
