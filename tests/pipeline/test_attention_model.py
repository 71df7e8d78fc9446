"""Joint training ends when its validation loss stops falling, and a killed one ends the same."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from attsvm import AttentionData
from attsvm.base.store import RunFolder
from attsvm.datasets.attention_data import mean_tokens
from attsvm.pipeline.attention_model import split_validation, train_attention, train_jointly
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn.preparation import split_train_validation
from attsvm.sklearn.stage import StageOptions

FAST = FitSettings(joint_steps=60, selection_steps=200, records=20)


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    labels = np.where(np.arange(60) % 2 == 0, -1.0, 1.0)
    bags = []
    for label in labels:
        bag = generator.normal(size=(generator.integers(2, 7), 6)) * 0.5
        bag[generator.integers(len(bag)), :2] = 2.0 * label, 2.0
        bags.append(bag)
    return AttentionData.from_bags(bags, labels)


def test_it_ends_when_the_validation_loss_stops_falling(data):
    wrong = np.where(np.arange(60) % 5 == 0, -1.0, data.labels)  # a tenth of them are
    noisy = AttentionData(data.tokens, wrong, data.queries, data.mask)
    train, validation = (noisy.take(rows) for rows in split_train_validation(wrong, 0.15, 0, ""))
    short, long = (
        train_jointly(train, validation, n, 0.1, 0.1, StageOptions()) for n in (None, 300)
    )
    losses = long.trajectory.observed["validation_loss"]
    assert short.best_step < short.trajectory.steps[-1] < 300
    assert short.trajectory.steps[-1] >= 2 * short.best_step
    before = long.trajectory.steps <= short.trajectory.steps[-1]
    assert short.best_step == long.trajectory.steps[before][np.argmin(losses[before])]


def test_a_checkpoint_folder_gives_the_same_bits(tmp_path, data):
    model = train_attention(data, FAST, StageOptions(None, FAST.records))
    with RunFolder(tmp_path, {}) as run_folder:
        first = train_attention(data, FAST, StageOptions(run_folder, FAST.records, 1e-6))
    steps = []
    with RunFolder(tmp_path, {}) as run_folder:
        options = StageOptions(run_folder, FAST.records, progress=lambda *step: steps.append(step))
        again = train_attention(data, FAST, options)
    ended = {stage: done == total for stage, done, total in steps}
    assert ended == {"joint": True, "selection": True, "margin": True}  # what was saved is done
    for other in (first, again):
        assert other.selection_weights.W.tobytes() == model.selection_weights.W.tobytes()


def test_the_model_that_predicts_is_that_of_joint_training(data):
    model = train_attention(data, FAST, StageOptions(None, FAST.records))
    W, head = model.weights.W, model.weights.head
    logits = np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    share = np.where(data.mask, np.exp(logits), 0.0)
    share /= share.sum(axis=1, keepdims=True)
    values = np.sum(share * (data.tokens @ head), axis=1) + model.weights.intercept
    np.testing.assert_allclose(model.weights.values(data), values, rtol=1e-9, atol=1e-9)
    train, validation = split_validation(data, FAST)
    assert np.array_equal(np.union1d(train, validation), np.arange(60))
    assert model.solution.margins.n == len(train)


def test_the_baseline_and_its_penalty_are_in_the_units_of_the_data(data):
    model = train_attention(data, FAST, StageOptions(None, FAST.records))
    rows, C = split_validation(data, FAST)[0], model.baseline.C
    known = LogisticRegression(C=C, max_iter=1000).fit(mean_tokens(data)[rows], data.labels[rows])
    off = np.linalg.norm(model.baseline.coef - known.coef_[0])
    # both stop early; ten times the penalty moves them by a third
    assert off <= 0.1 * np.linalg.norm(known.coef_)
