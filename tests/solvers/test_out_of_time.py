"""A solution that its solver did not finish says whether it was the clock."""

import pytest

import attsvm


def programme() -> attsvm.Margins:
    data, v = attsvm.datasets.unit_sphere(n=12, T=8, d=10, seed=0)
    return attsvm.selection_margins(data, attsvm.optimal_tokens(data, v))


@pytest.mark.parametrize(
    ("norm", "limit"),
    [("fro", None), ("fro", 600.0), ("fro", 1e-9), ("lp:1.5", 1e-9), ("nuc", 1e-9)],
)
def test_more_time_is_named_where_time_was_up(norm: str, limit: float | None) -> None:
    late = limit == 1e-9
    solution = attsvm.max_margin(programme(), norm, tol=1e-17, max_seconds=limit)
    assert solution.status == "inaccurate"
    assert solution.out_of_time == late
    if solution.gap < 1.0:
        assert ("more time" in solution.message) == late
        assert "a larger tol" in solution.message


def test_a_proved_solution_is_in_time() -> None:
    assert not attsvm.max_margin(programme(), max_seconds=600.0).out_of_time
