"""The standard assumption: the witness is found, poison is not used."""

import numpy as np
import pytest
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
    train = assumption_test("several concepts", 100, "train", 3)
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
