"""The choice of a penalty sees no bag that it is judged on; the slope of probabilities."""

import numpy as np
import pytest

from attsvm.fitting.predicting import calibration, choose, left_out


def test_parts_hold_every_bag_once_and_both_classes():
    labels = np.array([0] * 11 + [1] * 7)
    parts = left_out(labels, 5, 0, single=False)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(18))
    assert all(set(labels[part]) == {0, 1} for part in parts)
    assert len(left_out(labels, 5, 0, single=True)) == 1
    assert len(left_out(np.array([0, 0, 1, 1]), 5, 0, single=False)) == 2


def test_a_candidate_that_remembers_its_bags_is_not_chosen():
    labels = np.arange(40) % 2
    sign = np.where(labels > 0, 1.0, -1.0)[:, None]
    weak = 0.5 * sign

    def course(shares):
        assert shares.sum() == pytest.approx(1.0)
        remembered = np.where(shares[:, None] > 0, 9.0 * sign, -9.0 * sign)
        return [remembered, weak]

    def losses(values):
        return np.logaddexp(0.0, -sign * values)[:, 0]

    parts = left_out(labels, 4, 0, single=False)
    chosen = choose(course, parts, np.full(40, 1 / 40), losses)
    assert chosen.index == 1
    assert chosen.losses[0] > 8.0
    assert np.array_equal(chosen.values, weak)


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
    assert weighted.slope == pytest.approx(half.slope, rel=0.02)  # targets know the number of bags
