"""Intervals of paired differences: against scipy, and by their coverage."""

import numpy as np
import pytest
from scipy import stats

from attsvm.base.errors import InputError
from attsvm_papers.kit import interval
from attsvm_papers.networks.paired import crossed_bootstrap, paired_interval


def test_one_run_is_the_percentile_bootstrap_over_items() -> None:
    differences = np.random.default_rng(0).gamma(1.0, size=80) - 0.8
    mine = paired_interval(differences[None])
    peer = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=20_000,
        method="percentile",
        random_state=np.random.default_rng(1),
    ).confidence_interval
    # A quantile of 4000 resamples is known to about 2.7 / sqrt(4000) = .04 deviations of the mean,
    # that of the peer's 20 000 to half of it; .12 are two and a half deviations of both.
    assert (mine.low, mine.high) == pytest.approx(
        tuple(peer), abs=0.12 * differences.std() / np.sqrt(80)
    )
    assert mine.mean == pytest.approx(differences.mean(), rel=1e-12)
    assert mine == crossed_bootstrap(differences[None])


def test_each_end_is_the_wider_one() -> None:
    """Of skewed items the bootstrap reaches further above the mean than below it."""
    items = np.random.default_rng(7).gamma(0.05, size=40)
    spread = np.array([-1.0, 0.0, 1.0]) * (crossed_bootstrap(items[None]).high - items.mean())
    table = items + 0.36 * spread[:, None]
    ends, runs = crossed_bootstrap(table), interval(table.mean(axis=1))
    assert ends.low > runs.low
    assert ends.high > runs.high
    assert paired_interval(table) == pytest.approx((ends.mean, runs.low, ends.high), rel=1e-12)


@pytest.mark.parametrize(
    ("runs", "items"), [(1.0, 0.0), (1.0, 6.0), (0.2, 6.0)], ids=["runs", "both", "items"]
)
def test_three_seeds_cover_the_truth_as_often_as_they_say(runs: float, items: float) -> None:
    """Whether chance moves the mean through the runs (by .6), the items (by .6), or both."""
    rng, count, hits = np.random.default_rng(3), 400, 0
    for _ in range(count):
        each = rng.integers(-1, 2, size=60)  # right under one method, under both or neither, ...
        found = paired_interval(0.3 + runs * rng.standard_normal((3, 1)) + items * each)
        hits += found.low <= 0.3 <= found.high
    # Three binomial deviations of 400 draws are 3.3 %. The bootstrap alone covers 76 % where runs
    # decide, Student's t alone 48 % where items do.
    assert hits / count == pytest.approx(0.95, abs=0.033)


def test_items_that_a_run_lacks_are_left_out_of_all() -> None:
    table = np.arange(12.0).reshape(2, 6)
    table[1, 2] = np.nan
    assert paired_interval(table) == paired_interval(np.delete(table, 2, axis=1))
    assert paired_interval(table) == paired_interval(table)


@pytest.mark.parametrize("made", [crossed_bootstrap, paired_interval])
def test_nothing_to_resample_is_an_error(made) -> None:
    with pytest.raises(InputError, match="nothing to resample"):
        made([[np.nan, np.nan]])
    with pytest.raises(InputError, match=r"give \(runs, items\)"):
        made([1.0, 2.0])
