"""Least squares on a chosen part of every row, against NumPy."""

import numpy as np

from attsvm_papers.kit.slopes import slopes


def test_slopes_are_numpys_and_ignore_what_is_outside() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 4, 9))
    inside = np.arange(9) >= np.array([[0], [2], [3], [5]])
    y[~inside] = np.nan
    expected = [np.polyfit(x[r, inside[r]], y[r, inside[r]], 1)[0] for r in range(4)]
    np.testing.assert_allclose(slopes(x, y, inside), expected, rtol=1e-12)


def test_one_axis_serves_all_rows_and_fewer_than_two_records_have_no_slope() -> None:
    x, y = np.arange(5.0), np.array([2.0 * np.arange(5), 1.0 - np.arange(5)])
    np.testing.assert_allclose(slopes(x, y, x >= 1), [2.0, -1.0], rtol=1e-14)
    assert np.isnan(slopes(x, y, x >= 4)).all()
    assert np.isnan(slopes(x, y, x >= 9)).all()
