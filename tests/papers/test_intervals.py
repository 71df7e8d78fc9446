"""Intervals over seeds, and of paired differences: against scipy, against the variance of crossed
samples, and by their coverage.
"""

import numpy as np
import pytest
from scipy import stats

from attsvm.errors import InputError
from attsvm_papers.kit import interval
from attsvm_papers.networks.intervals import paired_interval


def test_an_interval_over_seeds_is_students() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=5)
    peer = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = interval(values)
    assert found == pytest.approx((values.mean(), peer.low, peer.high), rel=1e-12)
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]).high == pytest.approx(
        3.0 + 2.776445 * np.sqrt(2.5 / 5), rel=1e-6
    )


def test_one_seed_tells_nothing_of_the_spread() -> None:
    assert interval([1.0]) == (1.0, -np.inf, np.inf)
    assert np.isnan(interval([1.0, np.nan])).all()


@pytest.mark.parametrize("values", [[], 1.0, [[1.0], [2.0]]])
def test_an_interval_needs_one_value_per_seed(values) -> None:
    with pytest.raises(InputError, match="give one value per seed"):
        interval(values)


def test_one_run_is_the_percentile_bootstrap_over_items() -> None:
    differences = np.random.default_rng(0).gamma(1.0, size=80) - 0.8
    mine = paired_interval(differences[None], resamples=20_000)
    peer = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=20_000,
        method="percentile",
        random_state=np.random.default_rng(1),
    ).confidence_interval
    # Two independent simulations of a quantile whose error is about 1.5 deviations of the mean over
    # the root of 20 000 / 10.
    assert (mine.low, mine.high) == pytest.approx(
        tuple(peer), abs=0.04 * differences.std() / np.sqrt(80) * 3
    )
    assert mine.mean == pytest.approx(differences.mean(), rel=1e-12)


def test_the_width_is_that_of_the_crossed_variance() -> None:
    """Of two-way data the resampled mean has variance (of run means) / runs + (of item means) /
    items + (within) / all.
    """
    rng = np.random.default_rng(2)
    table = (
        rng.standard_normal((8, 1)) + rng.standard_normal(300) + 0.5 * rng.standard_normal((8, 300))
    )
    rows, columns = table.mean(axis=1).var(), table.mean(axis=0).var()
    within = (table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()).var()
    deviation = np.sqrt(rows / 8 + columns / 300 + within / 2400)
    found = paired_interval(table, resamples=20_000)
    # A quantile is at 1.96 deviations of a normal sample; the mean over 8 runs is close to one, and
    # 20 000 resamples add 1 percent.
    assert (found.high - found.low) / (2 * 1.96 * deviation) == pytest.approx(1.0, abs=0.05)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(200):
        found = paired_interval(0.3 + rng.standard_normal((3, 60)), resamples=400, seed=seed)
        hits += found.low <= 0.3 <= found.high
    # The crossed bootstrap errs on the wide side; four binomial deviations below 95% would be 0.89.
    assert hits / 200 > 0.89


def test_items_that_a_run_lacks_are_left_out_of_all() -> None:
    table = np.arange(12.0).reshape(2, 6)
    table[1, 2] = np.nan
    assert paired_interval(table) == paired_interval(np.delete(table, 2, axis=1))
    assert paired_interval(table, seed=0) == paired_interval(table, seed=0)


def test_equal_items_are_drawn_together_without_changing_the_distribution() -> None:
    rng = np.random.default_rng(4)
    table = rng.integers(-1, 2, size=(3, 400)).astype(float)
    slightly = table + 1e-9 * rng.standard_normal(
        table.shape
    )  # now every item has a pattern of its own
    one, other = (paired_interval(each, resamples=20_000) for each in (table, slightly))
    # Two independent simulations: a quantile of 20 000 is known to about 2.7 / sqrt(20 000) of a
    # deviation, here 0.03 points.
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.004)


def test_nothing_to_resample_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to resample"):
        paired_interval([[np.nan, np.nan]])
    with pytest.raises(InputError, match=r"give \(runs, items\)"):
        paired_interval([1.0, 2.0])


def test_a_constant_difference_has_no_width() -> None:
    found = paired_interval(np.full((3, 10), 0.25))
    assert found == (0.25, pytest.approx(0.25, abs=1e-15), pytest.approx(0.25, abs=1e-15))
