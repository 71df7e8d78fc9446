"""Learning curves: selection by one set, reading on another; the files that are written."""

import importlib
import json
import sys
import types

import numpy as np
import pytest
import training_problem as problem

from attsvm.errors import InputError, MissingExtraError
from attsvm.training import History, train_classifier
from attsvm.training.history import Curves


@pytest.fixture
def history():
    columns = {
        "train_loss": [1, 0.5, 0.1],
        "validation_accuracy": [0.6, 0.8, 0.8],
        "test_accuracy": [0.9, 0.7, 0.75],
    }
    return History(
        {name: np.array(values) for name, values in columns.items()}, "accuracy", ("bias",)
    )


def test_best_and_last(history):
    assert history.epochs == 3
    assert history.last("test") == 0.75
    assert history.best("test") == 0.9
    assert history.best("test", by="validation") == 0.7  # the first of equals
    with pytest.raises(InputError, match="no column dev_accuracy; its columns are train_loss"):
        history.last("dev")


def test_in_words_and_in_json(history):
    assert (
        str(history).splitlines()[0]
        == "3 epochs; stopped because the training accuracy was reached"
    )
    assert "test_accuracy: 0.7500 last, 0.9000 best" in str(history)
    assert json.loads(json.dumps(history.to_json()))["frozen"] == ["bias"]


class Board:
    """Stands for TensorBoard's writer and keeps what it is told."""

    def __init__(self, folder, purge_step):
        self.told, self.purge_step, Board.last = [], purge_step, self

    def add_scalar(self, *told):
        self.told.append(told)

    def flush(self):
        pass

    def close(self):
        self.told.append("closed")


def test_tensorboard_gets_a_scalar_per_column_and_epoch(tmp_path, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Board)
    )
    data = problem.examples()
    history = train_classifier(
        problem.classifier(),
        data,
        {"test": data},
        problem.plan(epochs=2),
        folder=tmp_path,
        tensorboard=True,
    )
    scalars = [told for told in Board.last.told if told != "closed"]
    assert {name for name, *_ in scalars} == {
        "train/loss",
        "train/accuracy",
        "test/loss",
        "test/accuracy",
        "seconds",
        "cpu_seconds",
        "tokens_per_second",
    }
    assert [told[1:] for told in scalars if told[0] == "test/accuracy"] == [
        (value, k + 1) for k, value in enumerate(history["test_accuracy"])
    ]
    assert Board.last.told[-1] == "closed"
    assert Board.last.purge_step == 1


def test_without_tensorboard_it_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name))
    )
    with pytest.raises(
        MissingExtraError,
        match=r"TensorBoard logs needs the package tensorboard.*attsvm\[tensorboard\]",
    ):
        Curves(tmp_path, tensorboard=True, done=0)
    with pytest.raises(InputError, match="need a folder"):
        Curves(None, tensorboard=True, done=0)
