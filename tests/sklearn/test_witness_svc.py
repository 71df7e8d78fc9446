"""The standard assumption: the witness is found, poison is not used."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from attsvm.datasets import assumption_test, planted_witnesses
from attsvm.sklearn import AttentionSVC, BagFeatures, WitnessSVC


def precision(model, bags):
    witness = bags.instance_labels[bags.offsets[:-1] + model.select(bags)] == 1
    return witness[bags.labels > 0].mean()


@pytest.mark.parametrize("pooling", ["soft", "hard"])
def test_it_finds_the_witness_and_certifies_its_steps(pooling):
    bags = planted_witnesses("linear", 120, 8, 0, d=5)
    train, test = bags.take(np.arange(60)), bags.take(np.arange(60, 120))
    model = WitnessSVC(pooling=pooling).fit(train, train.labels)
    assert model.score(test) >= 0.9
    assert precision(model, test) >= 0.95
    assert model.optimum_ == "local"
    assert {step.status for step in model.convex_steps_} == {"optimal"}
    assert max(step.gap for step in model.convex_steps_) <= 1e-6


def test_folds_that_miss_the_witness_begin_where_another_one_has_it():
    bags = planted_witnesses("linear", 160, 100, 6, d=64)
    train, test = bags.take(np.arange(60)), bags.take(np.arange(60, 160))
    model = WitnessSVC().fit(train, train.labels)
    assert model.score(test) >= 0.9


def test_in_noise_no_fold_begins_at_another_that_saw_its_bags():
    bags = planted_witnesses("linear", 60, 40, 1, d=64)
    noise = np.random.default_rng(0).permutation(bags.labels)
    model = WitnessSVC(cv=20).fit(bags, noise)
    losses = model.predictor_.losses
    # likelihood ratios of bags not seen are 1 on average: the largest of these is below ten times
    # their number with probability 0.9
    assert 60 * (np.log(2.0) - losses.min()) <= np.log(10.0 * len(losses))


def test_the_threshold_of_the_likeliest_witness_makes_probabilities_right_on_average():
    bags = planted_witnesses("linear", 60, 6, 0, d=4)
    few = bags.take(np.r_[np.flatnonzero(bags.labels > 0)[:10], np.flatnonzero(bags.labels <= 0)])
    model = WitnessSVC(pooling="hard", penalty=1e-2).fit(few, few.labels)
    positive, negative = (few.labels > 0).sum(), (few.labels <= 0).sum()
    values = np.where(few.labels > 0, 1.0, -1.0) * model.margins_
    # Platt's targets; at the best offset their sum is that of the probabilities of bags left out
    expected = positive * (positive + 1) / (positive + 2) + negative / (negative + 2)
    assert expit(model.calibration_ * values).sum() == pytest.approx(expected, abs=0.01)


def test_a_model_of_the_standard_assumption_does_not_use_poison():
    train = assumption_test("single concept", 60, "train", 3)
    test = assumption_test("single concept", 200, "test", 3)
    grown = BagFeatures(PolynomialFeatures(2, include_bias=False)).fit(train)
    standard = make_pipeline(grown, WitnessSVC(penalty=1e-3)).fit(train, train.labels)
    collective = AttentionSVC().fit(train, train.labels)
    assert roc_auc_score(test.labels, standard.decision_function(test)) >= 0.95
    # The null: attention pooling learns "no poison, so positive".
    assert roc_auc_score(test.labels, collective.decision_function(test)) <= 0.5


def test_several_heads_need_a_witness_each():
    train = assumption_test("several concepts", 60, "train", 3)
    test = assumption_test("several concepts", 200, "test", 3)
    auc = [
        roc_auc_score(
            test.labels,
            WitnessSVC(heads=heads).fit(train, train.labels).decision_function(test),
        )
        for heads in (1, 2)
    ]
    assert auc[1] >= 0.97
    assert auc[1] > auc[0]


@pytest.mark.parametrize(
    ("penalty", "seed"), [(1e-4, 5), (1e-5, 5), (1e-6, 2), (1e-6, 3), (1e-7, 3), (1e-7, 5)]
)
def test_small_penalties_are_certified(penalty, seed):
    """Which takes gradients beyond single precision: bounds of the gap divide by the penalty."""
    bags = planted_witnesses("linear", n=60, instances=6, seed=seed, d=4)
    model = WitnessSVC(penalty=penalty).fit(bags, bags.labels)
    assert [step.status for step in model.convex_steps_] == ["optimal"]
