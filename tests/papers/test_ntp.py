"""Experiments on next tokens: what their helpers compute, and the sentences that generalisation is
judged on.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm.datasets.next_token import NextTokenData, bipartite, partial_order, total
from attsvm.dynamics import direction_gap
from attsvm.margins import output_margins
from attsvm.solvers import max_margin
from attsvm_papers.kit import experiment
from attsvm_papers.ntp import e3_two_stages as ntp_3
from attsvm_papers.ntp import predictions, two_stages, unseen
from attsvm_papers.ntp.unseen import Bench


def test_slopes_of_powers_and_exponentials_are_exact() -> None:
    t, powers = np.array([1, 10, 20, 50, 100, 1000]), np.array([-0.5, -1.0])
    found = two_stages.slope(t, powers * np.log(t)[:, None] + 3.0, 10, 100)
    assert found == pytest.approx(powers, rel=1e-13)
    found = two_stages.slope(t, -0.1 * t[:, None], 10, 1000, log=False)
    assert found == pytest.approx([-0.1], rel=1e-13)


@pytest.mark.parametrize("embeddings", ["identity", "ortho"])
def test_the_output_target_is_the_solution_and_those_of_nulls_are_near_it(embeddings) -> None:
    data = bipartite(8, 1, 2, embeddings)
    (target,), (wrong,) = two_stages.output_targets([data]), two_stages.uncentred([data])
    solution = max_margin(output_margins(data.embeddings, data.following))
    assert target == pytest.approx(solution.W, abs=1e-8)
    assert direction_gap(wrong, target) == pytest.approx(1.0 - np.sqrt(7 / 8), abs=1e-12)
    solutions = two_stages.attention_solutions([bipartite(8, 2, seed) for seed in range(2)])
    gaps = direction_gap(two_stages.sums_of_arcs(solutions), solutions)
    assert (gaps > 1e-3).all()
    assert (gaps < 0.3).all()


@pytest.mark.parametrize("group", ["G1", "G2", "G3", "G4", "G5", "G6"])
def test_unseen_sentences_have_the_winner_that_the_order_names(group) -> None:
    data = total(20, 4, 0) if group == "G5" else bipartite(20, 4, 0)
    orders = partial_order(data)
    cases = Bench(data, orders, 10, np.random.default_rng(0)).cases(group)
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


def test_a_frequent_token_is_unique_or_not() -> None:
    assert unseen.most_frequent_is_unique([3, 3, 1])
    assert unseen.most_frequent_is_unique([2])
    assert not unseen.most_frequent_is_unique([3, 3, 1, 1, 0])


def test_the_paths_of_stage_two_at_ten_thousand_steps() -> None:
    found = Evidence(ntp_3.run("bipartite", [0], steps=10_000)).but({"kind": ["bipartite"]})
    known = {claim.id: claim for claim in experiment("ntp-3").claims}
    for name in ("P3-E3a", "P3-E3c", "C3.6", "C3.9"):
        assert known[name].check(found).verdict == "holds"


def test_ties_of_heads_are_seen() -> None:
    data = NextTokenData.from_sentences(
        [[0], [1], [2], [0, 2], [1, 2]], [1, 2, 0, 1, 2], embeddings=3
    )
    W = np.zeros((3, 3))
    W[:, 2] = [0.5, 0.5, -0.5]
    assert predictions.tied([0, 1, 2], data, W)
    assert not predictions.tied([0, 2], data, W)
    np.testing.assert_array_equal(predictions.other_query(W)[:, 0], W[:, 2])


def test_a_group_without_sentences_is_counted_as_none_and_not_judged() -> None:
    data, W = bipartite(8, 1, 2), np.eye(8)
    found = predictions.judged([], data, W, W, W)
    assert found["count"] == 0.0
    assert not found["right"].any()
    assert all(np.isnan(found[name]) for name in predictions.MEASURES if name != "count")
    (claim,) = [each for each in experiment("ntp-4").claims if each.id == "P3-E4a"]
    ends = ("_accuracy", "_agreement", "_count")
    names = [f"{group}{end}" for group in unseen.GROUPS for end in ends]
    names += ["head", "loser", "free", "unseen_column", "unique_accuracy"]
    evidence = Evidence(
        {name: np.ones(3) for name in names} | {f"{name}_other": np.zeros(3) for name in names}
    ).but({"G5_count": [0.0, 7.0, 9.0], "G5_accuracy": [np.nan, 1.0, 1.0]})
    verdict = claim.check(evidence)
    assert (verdict.verdict, verdict.passed, verdict.counted) == ("holds", 17, 17)
