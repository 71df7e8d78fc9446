"""The choice of a penalty sees no bag that it is judged on; the slope of probabilities."""

import numpy as np
import pytest

from attsvm.sklearn.choosing import Table, calibration, left_out
from attsvm.sklearn.pooled import fit_pooled
from attsvm.sklearn.witnessed import fit_witnesses


def test_parts_hold_every_bag_once_and_both_classes():
    labels = np.array([0] * 11 + [1] * 7)
    parts = left_out(labels, 5, 0, single=False)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(18))
    assert all(set(labels[part]) == {0, 1} for part in parts)
    assert len(left_out(labels, 5, 0, single=True)) == 1
    assert len(left_out(np.array([0, 0, 1, 1]), 5, 0, single=False)) == 2


@pytest.mark.parametrize("fit", [fit_pooled, fit_witnesses])
def test_a_fit_that_remembers_its_bags_says_nothing_of_those_left_out(fit):
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(160, 80)), generator.permutation(np.arange(40) % 2)
    offsets, shares = np.arange(41) * 4, np.full(40, 1 / 40)
    told = []
    table = Table(
        *(rows, offsets, np.ones((40, 1)), labels, 2, shares, 0),
        lambda *step: told.append(step),
    )
    found = fit(table, 1, False, 1e-4)
    sign = np.where(labels > 0, 1.0, -1.0)
    own = sign * found.layer.read(rows, offsets, np.ones((40, 1))).values[:, 0]
    left = sign * found.left_out[:, 0]
    assert (own > 0).all()
    assert np.mean(left > 0) < 0.75
    assert told[-1][0] == told[-1][1] == max(done for done, _ in told)


@pytest.mark.parametrize("shift", [False, True])
def test_the_slope_is_that_of_the_probabilities(shift):
    generator = np.random.default_rng(0)
    values = generator.normal(size=(4000, 1))
    offset = 0.7 if shift else 0.0
    labels = generator.random(4000) < 1 / (1 + np.exp(-(2.5 * values[:, 0] + offset)))
    found = calibration(values, labels.astype(int), shift)
    assert found.slope == pytest.approx(2.5, rel=0.1)
    assert found.offset == pytest.approx(offset, abs=0.1)


def test_values_that_separate_the_classes_keep_a_finite_slope():
    labels = np.arange(10) % 2
    values = np.where(labels > 0, 1.0, -1.0)[:, None]
    slope = calibration(values, labels, shift=False).slope
    assert 1.0 < slope < 10.0


def test_the_loss_of_a_calibration_does_not_depend_on_the_scale_of_values():
    generator = np.random.default_rng(0)
    values, labels = generator.normal(size=(200, 1)), np.arange(200) % 2
    values[:, 0] += labels
    small, large = (calibration(c * values, labels, shift=False) for c in (0.1, 10.0))
    assert small.loss == pytest.approx(large.loss, rel=1e-6)
    assert small.slope == pytest.approx(100.0 * large.slope, rel=1e-3)
    weighted = calibration(values, labels, False, np.where(np.arange(200) < 100, 1.0, 0.0))
    half = calibration(values[:100], labels[:100], False)
    # the targets differ: 101 of 102 for a hundred bags of a class, 51 of 52 for fifty
    assert weighted.slope == pytest.approx(half.slope, rel=0.05)
