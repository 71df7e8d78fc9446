"""The chain that the prompt weighs: its likelihood, what is identified, and its trajectories."""

import numpy as np
import pytest

from attsvm_papers.markov import chain
from attsvm_papers.markov.chain import COVERED

RNG = np.random.default_rng


def test_components_are_joined_along_a_path():
    m = np.zeros((4, 5), dtype=int)
    for d, pair in enumerate([(0, 1), (1, 2), (2, 3)]):
        m[d, list(pair)] = 1
    m[3, 4] = 1
    assert chain.same_component(m).sum(axis=-1).tolist() == [4, 4, 4, 4, 1]


def test_the_gap_is_the_excess_above_the_least_risk():
    rngs = chain.generators([3, 4])
    m = chain.sample_prompts(COVERED, 5, 7, 30, rngs)
    w = np.stack([rng.uniform(-1, 1, (5, 5)) for rng in rngs])
    truth = chain.next_token_probabilities(w, m)
    best = chain.maximise_likelihood(m, truth, w)
    assert best.gap[-1].max() < 1e-12
    near = w + 1e-2 * RNG(0).normal(size=w.shape)
    start = chain.maximise_likelihood(m, truth, near)
    excess = chain.risk(near, m, truth) - chain.risk(w, m, truth)
    assert (start.gap[0] >= excess - 1e-12).all()
    assert np.allclose(start.gap[0], excess, rtol=0.1)


def stepwise(P, trials, steps, rng):
    """Counts ``(trials, 2)`` after every token was drawn by itself."""
    m, last, again = np.ones((trials, 2)), np.zeros(trials, dtype=int), np.zeros(trials)
    for _ in range(steps - 2):
        weights = m * P[last]
        now = (rng.random(trials) < weights[:, 1] / weights.sum(axis=1)).astype(int)
        again += (now == last) & (now == 1)
        m[np.arange(trials), now] += 1
        last = now
    return m, again


def test_trajectories_by_runs_are_those_by_single_tokens():
    P = np.array([[0.6, 0.4], [0.5, 0.5]])
    trials, marks = 4000, np.array([10, 60])
    one, again = stepwise(P, trials, 60, RNG(2))
    runs = chain.write_trajectories(
        np.tile(P, (trials, 1, 1)), np.zeros(trials, dtype=int), marks, RNG(3)
    )
    assert np.array_equal(runs.counts.sum(axis=-1), np.tile(marks, (trials, 1)))
    for a, b in ((one[:, 1], runs.counts[:, 1, 1]), (again, runs.repeats[:, 1, 1])):
        error = np.sqrt((a.var() + b.var()) / trials)
        assert abs(a.mean() - b.mean()) < 4 * error  # four standard errors
        assert b.std() == pytest.approx(a.std(), rel=0.1)


def test_rates_are_ratios_to_the_own_one_of_a_winner_and_one_where_shares_stay():
    P = RNG(4).dirichlet(np.ones(4), 4)
    assert np.allclose(chain.growth_rates(P, np.eye(4)[2]), P[2] / P[2, 2])
    P = np.array([[0.2, 0.8], [0.8, 0.2]])  # both tokens prefer the other one: halves
    assert np.allclose(chain.growth_rates(P, np.array([0.5, 0.5])), 1.0)
