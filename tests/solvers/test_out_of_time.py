"""A solution that its solver did not finish says whether it was the clock; limits are held."""

import time

import numpy as np
import pytest

import attsvm


def programme(n: int = 12, T: int = 8, d: int = 10, seed: int = 0) -> attsvm.Margins:
    data, v = attsvm.datasets.unit_sphere(n=n, T=T, d=d, seed=seed)
    return attsvm.selection_margins(data, attsvm.optimal_tokens(data, v))


@pytest.mark.parametrize("norm", ["fro", "lp:1.5", "nuc"])
def test_more_time_is_named_where_time_was_up(norm: str) -> None:
    # large enough that no method proves it before it first looks at the clock
    solution = attsvm.max_margin(programme(40, 20, 30), norm, tol=1e-12, max_seconds=1e-9)
    assert solution.status == "inaccurate"
    assert solution.out_of_time
    if solution.gap < 1.0:
        assert "more time" in solution.message
        assert "a larger tol" in solution.message


@pytest.mark.parametrize("limit", [None, 600.0])
def test_a_tolerance_below_rounding_is_not_a_matter_of_time(limit: float | None) -> None:
    found = [
        attsvm.max_margin(programme(seed=seed), tol=1e-20, max_seconds=limit) for seed in range(3)
    ]
    short = [each for each in found if each.status == "inaccurate"]
    assert short  # one in some has a gap of exactly zero
    for solution in short:
        assert not solution.out_of_time
        assert "more time" not in solution.message
        assert "a larger tol" in solution.message


def test_a_proved_solution_is_in_time() -> None:
    assert not attsvm.max_margin(programme(), max_seconds=600.0).out_of_time


@pytest.mark.parametrize("norm", ["fro", "spec", "linf", "lp:1.5"])
def test_no_stage_of_a_soft_margin_outlasts_the_limit(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of rows that nothing separates: factors of 1600 equations, active sets of 2000 rows
    and projections of forty epochs would each take a second or more.
    """
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(1000, 30, 40)), rng.normal(size=(1000, 40))
    data = attsvm.AttentionData(X, labels=np.ones(1000), queries=Z)
    margins = attsvm.selection_margins(data, np.zeros(1000, dtype=int))
    attsvm.max_margin(programme(12, 30, 10), norm, slack=1.0)  # imports are no part of the limit
    # seconds of the processor, so that it does not matter what else runs on this machine
    monkeypatch.setattr(time, "monotonic", time.process_time)
    began = time.process_time()
    solution = attsvm.max_margin(margins, norm, slack=1.0, max_seconds=0.3)
    assert time.process_time() - began < 0.3 + 0.3
    assert solution.out_of_time
