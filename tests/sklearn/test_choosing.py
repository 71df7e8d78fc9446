"""The choice of a penalty sees no bag that it is judged on; the slope of probabilities."""

import numpy as np
import pytest

from attsvm.datasets.bags import as_bags
from attsvm.sklearn import AttentionSVC, WitnessSVC
from attsvm.sklearn.choosing import TrainingBags, calibration, left_out_folds, threshold
from attsvm.sklearn.pooled import fit_pooled
from attsvm.sklearn.witnessed import fit_witnesses


def test_folds_hold_every_bag_once_and_both_classes():
    labels = np.array([0] * 11 + [1] * 7)
    folds = left_out_folds(labels, None, None, 0)
    assert np.array_equal(np.sort(np.concatenate([fold.test for fold in folds])), np.arange(18))
    for fold in folds:
        assert set(labels[fold.test]) == {0, 1}
        assert np.array_equal(np.sort(np.r_[fold.train, fold.test]), np.arange(18))
    assert len(left_out_folds(np.array([0, 0, 1, 1]), None, None, 0)) == 2


@pytest.mark.parametrize("fit", [fit_pooled, fit_witnesses])
def test_a_fit_that_remembers_its_bags_says_nothing_of_those_left_out(fit):
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(160, 80)), generator.permutation(np.arange(40) % 2)
    bags, queries, steps = as_bags(rows.reshape(40, 4, 80)), np.ones((40, 1)), []
    training = TrainingBags(
        bags, queries, labels, 2, np.ones(40), progress=lambda *step: steps.append(step)
    )
    predictor = fit(training, 1, False, 1e-4)
    sign = np.where(labels > 0, 1.0, -1.0)
    fitted = sign * predictor.layer.read(rows, bags.offsets, queries).values[:, 0]
    left = sign * predictor.left_out[:, 0]
    assert (fitted > 0).all()
    assert np.mean(left > 0) < 0.75
    assert steps[-1][0] == steps[-1][1] == max(done for done, _ in steps)


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


def test_values_are_counted_from_where_the_classes_meet():
    generator = np.random.default_rng(0)
    labels = np.arange(100) % 2
    noise = generator.normal(size=(100, 1))
    crowded = np.where(labels[:, None] > 0, 2.0 + 2.0 * noise, -4.0 + 0.5 * noise)
    cut = threshold(crowded, labels)
    assert -3.5 < cut < -1.0
    assert np.mean((crowded[:, 0] > cut) == labels) > np.mean((crowded[:, 0] > 0) == labels)
    assert threshold(10.0 * crowded, labels) == pytest.approx(10.0 * cut, rel=1e-4)
    twice = threshold(np.vstack([crowded, crowded]), np.tile(labels, 2))
    assert threshold(crowded, labels, np.full(100, 2.0)) == pytest.approx(twice, rel=1e-4)


def test_an_offset_that_tells_nothing_is_left_out():
    generator = np.random.default_rng(0)
    labels = np.arange(100) % 2
    even = np.sort(generator.normal(size=50))
    values = np.empty((100, 1))
    values[labels > 0, 0], values[labels == 0, 0] = 1.0 + even, -1.0 - even
    assert threshold(values, labels) == 0.0
    assert threshold(np.hstack([values, values, values]), labels) == 0.0
    few = np.where(np.arange(100) < 20, 1, 0)  # values without signal: not all bags are negative
    assert threshold(generator.normal(size=(100, 1)), few) == 0.0


@pytest.mark.parametrize("kind", [AttentionSVC, WitnessSVC])
def test_bags_left_out_are_cut_where_they_are_as_likely_of_either_class(kind):
    def rare(seed, n):
        generator = np.random.default_rng(seed)
        bags, labels = [], np.arange(n) % 2
        for label in labels:
            bags.append(generator.normal(size=(60, 100)))
            if label:
                bags[-1][: generator.integers(1, 5), 0] += 7.0
        return np.array(bags), labels

    bags, labels = rare(2, 40)
    model = kind(penalty=1e-4).fit(bags, labels)
    assert calibration(model.predictor_.left_out, labels, True).offset == pytest.approx(0, abs=1e-5)
    fresh, truth = rare(102, 200)
    values = model.decision_function(fresh)
    # a cut at zero would miss three of the positive ones
    assert np.mean((values > 0) == truth) >= 0.995
    np.testing.assert_allclose(
        model.predict_proba(fresh)[:, 1], 1 / (1 + np.exp(-model.calibration_ * values))
    )
    if kind is WitnessSVC:
        chances = [bag.sum() for bag in model.instance_probability(fresh)]
        np.testing.assert_allclose(chances, 1 / (1 + np.exp(-values)), rtol=1e-5)
