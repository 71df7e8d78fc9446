"""The chain that the prompt weighs: its likelihood, what is identified, and its trajectories."""

import numpy as np
import pytest

from attsvm_papers.markov import chain
from attsvm_papers.markov.chain import APART, COVERED, HALF

RNG = np.random.default_rng


def problem(design=COVERED, K=5, seeds=(3, 4)):
    rngs = chain.generators(seeds)
    m = chain.prompts(design, K, 7, 30, rngs)
    w = np.stack([rng.uniform(-1, 1, (K, K)) for rng in rngs])
    return m, w, chain.probabilities(w, m)


def test_probabilities_are_counts_times_the_row_of_the_chain():
    m, w, found = problem()
    P = np.exp(w) / np.exp(w).sum(axis=-1, keepdims=True)
    weighed = m * P[:, :, None]
    assert np.allclose(found, weighed / weighed.sum(axis=-1, keepdims=True), atol=1e-14)


@pytest.mark.parametrize(("design", "length"), [(COVERED, 7), (HALF, 7), (APART, 7)])
def test_designs_have_the_graphs_that_they_name(design, length):
    m = problem(design, K=6)[0]
    assert np.array_equal(m.sum(axis=-1), np.full(m.shape[:-1], length))
    own = np.diagonal(m, axis1=1, axis2=3)  # the last token's count
    same = chain.components(m)
    assert np.array_equal(same, np.swapaxes(same, -1, -2))
    if design == APART:
        assert (own == 0).any()
        assert np.array_equal(same.sum(axis=-1), np.full(same.shape[:-1], 3))
    else:
        assert (own > 0).all()
        rows = np.take_along_axis(same, np.arange(6)[None, :, None, None], axis=2)[:, :, 0]
        assert (
            (rows.sum(axis=-1) == 6).all() if design == COVERED else (rows.sum(axis=-1) <= 4).all()
        )


def test_components_are_joined_along_a_path():
    m = np.zeros((4, 5), dtype=int)
    for d, pair in enumerate([(0, 1), (1, 2), (2, 3)]):
        m[d, list(pair)] = 1
    m[3, 4] = 1
    assert chain.components(m).sum(axis=-1).tolist() == [4, 4, 4, 4, 1]


def test_the_gap_is_the_excess_above_the_least_risk():
    m, w, truth = problem()
    best = chain.fit(m, truth, w)
    assert best.gap[-1].max() < 1e-12
    near = w + 1e-2 * RNG(0).normal(size=w.shape)
    start = chain.fit(m, truth, near)
    excess = chain.risk(near, m, truth) - chain.risk(w, m, truth)
    assert (start.gap[0] >= excess - 1e-12).all()
    assert np.allclose(start.gap[0], excess, rtol=0.1)


def test_the_fit_has_a_zero_gradient_and_finds_rows_from_far():
    m, w, truth = problem()
    found = chain.fit(m, truth, RNG(1).normal(0, 8, w.shape)).w
    shift = (found - w).mean(axis=-1, keepdims=True)
    assert np.allclose(found - w, shift, atol=1e-7)


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
    runs = chain.walk(np.tile(P, (trials, 1, 1)), np.zeros(trials, dtype=int), marks, RNG(3))
    assert np.array_equal(runs.counts.sum(axis=-1), np.tile(marks, (trials, 1)))
    for a, b in ((one[:, 1], runs.counts[:, 1, 1]), (again, runs.repeats[:, 1, 1])):
        error = np.sqrt((a.var() + b.var()) / trials)
        assert abs(a.mean() - b.mean()) < 4 * error  # four standard errors
        assert b.std() == pytest.approx(a.std(), rel=0.1)


def test_rates_of_a_single_winner_are_ratios_to_its_own_probability():
    P = RNG(4).dirichlet(np.ones(4), 4)
    assert np.allclose(chain.growth(P, np.eye(4)[2]), P[2] / P[2, 2])


def test_shares_that_stay_have_rates_of_one():
    """Two tokens that both prefer the other one, symmetric: halves."""
    P = np.array([[0.2, 0.8], [0.8, 0.2]])
    assert np.allclose(chain.growth(P, np.array([0.5, 0.5])), 1.0)
