"""Joint training ends when its validation loss stops falling, and a killed one ends the same."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from attsvm import AttentionData
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import mean_tokens
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.trained import Trained
from attsvm.sklearn.joint_stage import train_jointly
from attsvm.sklearn.preparation import split
from attsvm.sklearn.stage import Watch

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
    given = AttentionData(data.tokens, wrong, data.queries, data.mask)
    train, held = (given.take(part) for part in split(wrong, 0.15, 0, ""))
    short, whole = (train_jointly(train, held, n, 0.1, 0.1, Watch()) for n in (None, 300))
    losses = whole.trajectory.observed["validation_loss"]
    assert short.best_step < short.trajectory.steps[-1] < 300
    assert short.trajectory.steps[-1] >= 2 * short.best_step
    seen = whole.trajectory.steps <= short.trajectory.steps[-1]
    assert short.best_step == whole.trajectory.steps[seen][np.argmin(losses[seen])]


def test_a_checkpoint_folder_gives_the_same_bits(tmp_path, data):
    model = Trained(FAST).learn(data)
    first = Trained(FAST, checkpoint=tmp_path, checkpoint_seconds=1e-6).learn(data)
    told = []
    watched = Trained(FAST, checkpoint=tmp_path, progress=lambda *step: told.append(step))
    again = watched.learn(data)
    ended = {stage: done == total for stage, done, total in told}
    assert ended == {"joint": True, "selection": True, "margin": True}  # what was kept is done
    for other in (first, again):
        assert other.selection_weights_.W.tobytes() == model.selection_weights_.W.tobytes()
    with pytest.raises(InputError, match="checkpoint of another computation"):
        Trained(FAST._replace(selection_steps=201), checkpoint=tmp_path).learn(data)


def test_the_model_that_predicts_is_that_of_joint_training(data):
    model = Trained(FAST).learn(data)
    W, head = model.weights_.W, model.weights_.head
    logits = np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    share = np.where(data.mask, np.exp(logits), 0.0)
    share /= share.sum(axis=1, keepdims=True)
    values = np.sum(share * (data.tokens @ head), axis=1) + model.weights_.intercept
    np.testing.assert_allclose(model.decision_function(data), values, rtol=1e-9, atol=1e-9)
    trained = np.union1d(model.train_indices_, model.validation_indices_)
    assert np.array_equal(trained, np.arange(60))
    assert model.solution_.margins.n == len(model.train_indices_)


def test_the_baseline_and_its_penalty_are_in_the_units_of_the_data(data):
    model = Trained(FAST).learn(data)
    rows, C = model.train_indices_, model.baseline_.C
    known = LogisticRegression(C=C, max_iter=1000).fit(mean_tokens(data)[rows], data.labels[rows])
    off = np.linalg.norm(model.baseline_.coef - known.coef_[0])
    # both stop early; ten times the penalty moves them by a third
    assert off <= 0.1 * np.linalg.norm(known.coef_)
