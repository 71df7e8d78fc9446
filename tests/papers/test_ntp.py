"""Experiments on next tokens: what their helpers compute, and the sentences that generalisation is
judged on.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm.datasets.next_token import NextTokenData, bipartite, partial_order, total
from attsvm.dynamics import direction_gap
from attsvm.dynamics.next_token import Problem
from attsvm.margins import output_margins
from attsvm.solvers import max_margin
from attsvm_papers.kit import experiment
from attsvm_papers.ntp import e3_two_stages as ntp_3
from attsvm_papers.ntp import predictions, two_stages, unseen
from attsvm_papers.ntp.unseen import Bench


def test_slopes_of_powers_and_exponentials_are_exact() -> None:
    t = np.array([1, 10, 20, 50, 100, 1000])
    powers = np.array([-0.5, -1.0])
    assert two_stages.slope(t, powers * np.log(t)[:, None] + 3.0, 10, 100) == pytest.approx(
        powers, rel=1e-13
    )
    assert two_stages.slope(t, -0.1 * t[:, None], 10, 1000, log=False) == pytest.approx(
        [-0.1], rel=1e-13
    )
    assert np.isnan(two_stages.slope(t, t[:, None], 2000, 3000)).all()


@pytest.mark.parametrize("embeddings", ["identity", "ortho"])
def test_the_output_target_is_the_solution(embeddings) -> None:
    data = bipartite(8, 1, 2, embeddings)
    solution = max_margin(output_margins(data.embeddings, data.following))
    assert two_stages.output_targets([data])[0] == pytest.approx(solution.W, abs=1e-8)


def test_targets_of_nulls_are_near_the_solutions_and_not_them() -> None:
    data = [bipartite(8, 2, seed) for seed in range(2)]
    right, wrong = two_stages.output_targets(data), two_stages.uncentred(data)
    assert direction_gap(wrong, right) == pytest.approx(1.0 - np.sqrt(7 / 8), abs=1e-12)
    solutions = two_stages.attention_solutions(data)
    gaps = direction_gap(two_stages.sums_of_arcs(solutions), solutions)
    assert (gaps > 1e-3).all()
    assert (gaps < 0.3).all()


def test_the_scores_of_another_query() -> None:
    W = np.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(predictions.other_query(W)[:, 1], W[:, 0])


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
        if group == "G4":
            assert 10 <= len(sentence) <= 40


def test_a_frequent_token_is_unique_or_not() -> None:
    assert unseen.most_frequent_is_unique([3, 3, 1])
    assert unseen.most_frequent_is_unique([2])
    assert not unseen.most_frequent_is_unique([3, 3, 1, 1, 0])


def test_pushes_are_the_signs_of_the_gradient_of_every_sentence() -> None:
    # The closed form against one-sentence problems, whose gradient's signs are those of the score
    # derivatives.
    data = bipartite(10, 2, 4)
    longer = data.select(data.lengths > 1)
    alpha = 4.0
    values = (alpha * two_stages.output_targets([data])[0]).T
    problem = Problem.of(longer, values=values)
    rng = np.random.default_rng(1)
    W = rng.standard_normal((12, 1, 10, 10)) * np.geomspace(0.01, 20.0, 12)[:, None, None, None]
    pushed = np.zeros(12, dtype=bool)
    for n in range(longer.N):
        one = (
            Problem.of(longer.select([n]), values=values)
            if len(np.unique(longer.sentences[n])) > 1
            else None
        )
        if one is None:
            continue
        G, _ = one.gradient(W)
        slopes = G[:, 0][:, one.token, one.query[0]]
        others = np.arange(len(one.token)) != one.own[0]
        pushed |= (slopes[:, others] < 0).any(axis=1)
    np.testing.assert_array_equal(ntp_3._pushed(problem, W, alpha, 10)[:, 0], pushed)
    assert pushed.any()
    assert not pushed.all()


def test_the_paths_of_stage_two_at_a_thousand_steps() -> None:
    found = Evidence(ntp_3.run("bipartite", [0], steps=10_000)).but({"kind": ["bipartite"]})
    verdicts = {
        claim.id: claim.check(found).verdict
        for claim in experiment("ntp-3").claims
        if claim.id in ("P3-E3a", "P3-E3c", "C3.6", "C3.9")
    }
    assert set(verdicts.values()) == {"holds"}


def test_ties_of_heads_are_seen() -> None:
    data = NextTokenData.from_sentences(
        [[0], [1], [2], [0, 2], [1, 2]], [1, 2, 0, 1, 2], embeddings=3
    )
    W = np.zeros((3, 3))
    W[:, 2] = [0.5, 0.5, -0.5]
    assert predictions.tied([0, 1, 2], data, W)
    assert not predictions.tied([0, 2], data, W)


def test_a_group_without_sentences_is_counted_as_none_and_not_judged() -> None:
    data = bipartite(8, 1, 2)
    W = np.eye(8)
    found = predictions.judged([], data, W, W, W)
    assert found["count"] == 0.0
    assert not found["right"].any()
    assert all(np.isnan(found[name]) for name in predictions.MEASURES if name != "count")
    (claim,) = [each for each in experiment("ntp-4").claims if each.id == "P3-E4a"]
    columns = {
        "G5_count": np.array([0.0, 7.0, 9.0]),
        "G5_accuracy": np.array([np.nan, 1.0, 1.0]),
        "G5_accuracy_other": np.array([np.nan, 0.5, 0.4]),
    }
    names = {
        f"{name}{end}": np.ones(3)
        for name in unseen.GROUPS
        for end in ("_accuracy", "_agreement", "_count")
    }
    others = {f"{name}_other": np.zeros(3) for name in names}
    scores = {
        name: np.ones(3) for name in ("head", "loser", "free", "unseen_column", "unique_accuracy")
    }
    spare = {f"{name}_other": column for name, column in scores.items()}
    verdict = claim.check(Evidence(names | others | scores | spare | columns))
    assert (verdict.verdict, verdict.passed, verdict.counted) == ("holds", 17, 17)
