"""Signals, noise and wrong labels: what the experiments on benign overfitting measure with."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attsvm import (
    decoder_margins,
    max_margin,
    max_margin_batch,
    prompt_margins,
    regularization_path,
)
from attsvm_papers.benign import e2_largest_margin as largest
from attsvm_papers.benign.signal_and_noise import (
    NOISE,
    SIGNAL,
    clean_error,
    draw_noisy,
    signal_length,
)


def test_products_of_noise_are_those_of_gaussian_vectors():
    n, d, trials = 3, 12, 4000
    noise = draw_noisy(n, d, 0.0, 1.0, range(trials)).data.tokens[:, :, NOISE]
    drawn = np.random.default_rng(0).standard_normal((trials, n, d - 2))
    for power in (1, 2):
        ours, theirs = ((x @ x.mT) ** power for x in (noise, drawn))
        error = np.sqrt((ours.var(axis=0) + theirs.var(axis=0)) / trials)
        assert (abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 4 * error).all()


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_errors_on_fresh_sequences_are_those_of_a_sample(size):
    n, rho, trials = 6, 2.0, 200_000
    rng = np.random.default_rng(2)
    p, v = size * rng.standard_normal((2, 1, n + 2))
    v[:, 2:] += p[:, 2:]  # attention and value of a noise go together
    noise = rng.standard_normal((trials, n))
    wrong = []
    for k, label in enumerate((1.0, -1.0)):
        share = 1 / (1 + np.exp(noise @ p[0, 2:] - rho * p[0, k]))
        value = share * rho * v[0, k] + (1 - share) * (noise @ v[0, 2:])
        wrong.append((label * value < 0).mean())
    assert 0.05 < np.mean(wrong) < 0.95
    assert clean_error(p, v, rho)[0] == pytest.approx(np.mean(wrong), abs=4 / np.sqrt(8 * trials))
    assert clean_error(p, 0 * v, rho)[0] == 0.5


def test_the_lead_in_closed_form_is_that_of_the_programme():
    n, d, snr = 12, 10**10, 3.0
    rho = signal_length(snr, n, d)
    made = draw_noisy(n, d, 0.25, rho, range(4))
    p = largest.solve_selections(made.data, made.tokens((False, False)), prompt_margins).W[..., 0]
    kept, wrong = made.counts()
    closed = largest.closed_lead(kept, wrong, d - 2 - n, rho)
    np.testing.assert_allclose(
        rho * p[:, :2] / np.linalg.norm(p[:, 2:], axis=1)[:, None], closed, rtol=1e-3
    )


@pytest.mark.parametrize("snr", [1.0, 3.0])
def test_no_search_of_the_joint_path_finds_more_than_the_best_of_all_selections(snr):
    n, d = 6, 1200
    made = draw_noisy(n, d, 1 / n, signal_length(snr, n, d), [3])
    one = made.data.instance(0)
    selections = list(itertools.product((SIGNAL, NOISE), repeat=n))
    heads = max_margin_batch([decoder_margins(one, each) for each in selections])
    best = np.array(selections[int(heads.norm.argmin())])
    prompt = max_margin(prompt_margins(one, best))
    found = regularization_path(
        one,
        heads[int(heads.norm.argmin())].W[:, 0],
        radii=[40 * prompt.norm],
        head_radii=[2000 * heads.norm.min()],  # margins of 2000, a loss of exp(-2000), at best
        parameterization="joint",
        starts=3,
    )
    np.testing.assert_array_equal((one.tokens @ found.W[-1, :, 0]).argmax(axis=1), best)
    assert found.direction_gap(prompt)[-1] < 1e-3
    assert found.log_excess[-1] == pytest.approx(-2000.0, abs=1.0)
