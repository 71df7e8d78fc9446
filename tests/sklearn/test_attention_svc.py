"""Attention of all instances: what it gains over their mean, and probabilities of it."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from attsvm import AttentionData
from attsvm.sklearn import AttentionSVC


def key_and_value(n, seed, d=20, key=2.0, value=1.0):
    """``(n, 15, d)`` bags of noise and their labels: three instances are marked by their first
    feature and lean to the label by their second.
    """
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    bags = generator.normal(size=(n, 15, d))
    for bag, label in zip(bags, labels, strict=True):
        marked = generator.permutation(15)[:3]
        bag[marked, 0] += key
        bag[marked, 1] += value * (2 * label - 1)
    return bags, labels


def test_penalty_and_attention_are_chosen_together():
    bags, labels = key_and_value(1500, 0)
    train, test = (bags[:500], labels[:500]), (bags[500:], labels[500:])
    model = AttentionSVC().fit(*train)
    assert model.score(*test) >= 0.87
    assert model.predictor_.ratio < np.inf
    assert model.optimum_ == "local"
    assert model.select(test[0]).shape == (1000,)
    # The null: uniform attention.
    mean = AttentionSVC(heads=0).fit(*train)
    assert mean.optimum_ == "global"
    assert mean.score(*test) <= 0.80


def test_few_bags_of_many_instances_are_searched_from_several_starts():
    # One instance of forty says it, in forty bags that each have a shift of their own: on the third
    # of these sets a single descent from the mean ends at chance.
    def made(n, seed):
        generator = np.random.default_rng(seed)
        labels = np.arange(n) % 2
        bags = generator.normal(size=(n, 40, 24)) + 0.5 * generator.normal(size=(n, 1, 24))
        bags[labels == 1, :1] += 5.0 / np.sqrt(24)
        return bags, labels

    scores = [AttentionSVC().fit(*made(40, seed)).score(*made(200, seed + 1000)) for seed in (1, 2)]
    assert min(scores) >= 0.8


@pytest.mark.parametrize("penalty", [1e-2, 1.0])
def test_the_certificate_of_mean_pooling_is_that_of_its_weights(penalty):
    bags, labels = key_and_value(60, 0, d=4)
    model = AttentionSVC(heads=0, penalty=penalty).fit(bags, labels)
    step, layer = model.convex_steps_[-1], model.predictor_.layer
    # inside, instances have a root-mean-square norm of one, and a constant feature of four
    unit = np.sqrt((bags**2).sum(axis=2).mean())
    A = np.column_stack([bags.mean(axis=1) / unit, np.full(60, 4.0)])
    A *= np.where(labels > 0, 1.0, -1.0)[:, None]
    w = np.append(layer.V[0, :, 0] * unit, layer.intercept / 4.0)
    objective = np.logaddexp(0.0, -A @ w).mean() + 0.5 * penalty * w @ w
    residual = np.linalg.norm(penalty * w - A.T @ expit(-A @ w) / 60)
    assert step.status == "optimal"
    assert step.objective == pytest.approx(objective, rel=1e-12)
    # at the minimum the gradient is what is left of terms that cancel, to some 1e-16
    assert step.gap == pytest.approx(residual**2 / (2 * penalty * objective), rel=1e-6, abs=1e-28)
    assert step.violation == pytest.approx(residual / (penalty * np.linalg.norm(w)), rel=1e-6)
    assert 1e-20 < step.gap <= 1e-6  # so that the numbers are compared


def test_the_penalty_that_was_chosen_gives_the_same_model_when_asked_for():
    bags, labels = key_and_value(160, 0, key=3.0)
    chosen = AttentionSVC().fit(bags, labels)
    asked = AttentionSVC(penalty=chosen.predictor_.penalty).fit(bags, labels)
    assert asked.predictor_.ratio == chosen.predictor_.ratio
    np.testing.assert_allclose(
        asked.decision_function(bags), chosen.decision_function(bags), rtol=0.02, atol=0.02
    )


def test_attention_that_does_not_pay_is_left_out():
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 2
    bags = generator.normal(size=(200, 5, 4))
    bags[:, :, 0] += labels[:, None]  # every instance says the same
    model = AttentionSVC().fit(bags, labels)
    assert model.predictor_.ratio == np.inf
    np.testing.assert_allclose(model.attention(bags), np.full((200, 5), 0.2))


def test_attention_data_brings_its_own_queries():
    bags, labels = key_and_value(60, 0, key=4.0, value=3.0)
    signs = np.where(labels > 0, 1.0, -1.0)
    given = AttentionSVC(penalty=1e-2).fit(AttentionData.from_bags(bags, signs, np.ones((60, 1))))
    known = AttentionSVC(penalty=1e-2).fit(bags, signs)
    assert given.predictor_.layer.W.shape == (1, 20, 1)
    assert np.array_equal(given.decision_function(bags), known.decision_function(bags))


@pytest.mark.filterwarnings("ignore:bags left out are not predicted")
def test_queries_of_bags_move_attention():
    # The key is the first instance of the bag, plus or minus, so that a constant query is blind.
    generator = np.random.default_rng(2)
    labels = np.arange(200) % 2
    sign = generator.choice([-1.0, 1.0], 200)
    bags = 0.3 * generator.normal(size=(200, 6, 5))
    bags[:, :, 0] += sign[:, None]
    at = generator.integers(1, 6, 200)
    bags[np.arange(200), at, 1] += 3.0 * sign
    bags[np.arange(200), at, 2] += 3.0 * (2 * labels - 1)
    others = (at + 2) % 5 + 1
    others += (others == at).astype(int)
    bags[np.arange(200), others % 6, 1] -= 3.0 * sign
    bags[np.arange(200), others % 6, 2] -= 3.0 * (2 * labels - 1)
    mean, first, blind = (
        AttentionSVC(query=name).fit(bags[:120], labels[:120]).score(bags[120:], labels[120:])
        for name in ("mean", "first", "constant")
    )
    assert min(mean, first) >= 0.95
    assert blind <= 0.7


def test_hard_pooling_looks_at_one_instance():
    bags, labels = key_and_value(120, 1, key=5.0, value=4.0)
    model = AttentionSVC(pooling="hard").fit(bags[:80], labels[:80])
    assert model.score(bags[80:], labels[80:]) >= 0.95
    parts = model.contributions(bags)
    assert all(np.count_nonzero(part) == 1 for part in parts)
    assert np.array_equal([np.argmax(np.abs(part)) for part in parts], model.select(bags))


def test_one_instance_decides_better_where_it_is_chosen_to_decide():
    # Fifteen weak instances, each right in 7 of 10, together say more than one strong one, which is
    # right in 9 of 10: all of them share soft attention, and one of them alone is often wrong.
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 2
    right = generator.random((600, 16)) < np.r_[np.full(15, 0.7), 0.9]
    said = np.where(right, 1, -1) * (2 * labels - 1)[:, None]
    is_strong = np.tile(np.arange(16) == 15, (600, 1))
    bags = np.stack([said * ~is_strong, said * is_strong, ~is_strong, is_strong], axis=2)
    bags = bags + 0.1 * generator.normal(size=bags.shape)
    soft, hard = (
        AttentionSVC(pooling=pooling).fit(bags[:300], labels[:300]) for pooling in ("soft", "hard")
    )
    assert soft.score(bags[300:], labels[300:]) >= 0.95
    most = [np.argmax(attention) for attention in soft.attention(bags[300:])]
    alone = [
        values[t]
        for values, t in zip(soft.decision_function_instances(bags[300:]), most, strict=True)
    ]
    assert np.mean((np.array(alone) > 0) == labels[300:]) <= 0.8
    assert hard.score(bags[300:], labels[300:]) >= 0.85


def test_probabilities_are_calibrated_on_bags_left_out():
    generator = np.random.default_rng(1)
    bags = [generator.normal(size=(4, 3)) for _ in range(400)]
    signal = np.array([bag.mean(axis=0)[0] for bag in bags])
    labels = generator.random(400) < 1.0 / (1.0 + np.exp(-3.0 * signal))
    model = AttentionSVC().fit(bags[:200], labels[:200])
    truth = 1.0 / (1.0 + np.exp(-3.0 * signal[200:]))
    assert np.abs(model.predict_proba(bags[200:])[:, 1] - truth).mean() <= 0.1
    assert np.array_equal(
        model.predict_proba(bags[200:])[:, 1] > 0.5, model.decision_function(bags[200:]) > 0
    )
    far = model.predict_proba([1e6 * bag for bag in bags])  # values whose powers overflow
    np.testing.assert_allclose(far.sum(axis=1), 1.0)
    assert far.max(axis=1).min() > 0.99


def platts_targets(labels):
    """Platt (1999): what the probabilities of bags left out should be, by the bags of each class,
    so that their slope stays finite where values separate the classes.
    """
    positive = labels.sum()
    return np.where(labels > 0, (positive + 1) / (positive + 2), 1 / (len(labels) - positive + 2))


def test_the_slope_of_probabilities_is_that_of_platts_targets():
    labels = (np.arange(24) % 4 == 0).astype(int)
    bags = np.random.default_rng(0).normal(size=(24, 3, 2)) + 4.0 * labels[:, None, None]
    model = AttentionSVC(heads=0, penalty=1e-2).fit(bags, labels)
    values = np.where(labels > 0, 1.0, -1.0) * model.margins_
    assert (model.margins_ > 0).all()  # with the labels as targets the slope would have no end
    targets = platts_targets(labels)
    slope = brentq(lambda a: values @ (expit(a * values) - targets), 1e-3, 1e3)
    assert model.calibration_ == pytest.approx(slope, rel=1e-4)  # the search ends at 1e-5
