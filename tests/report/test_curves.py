"""Learning curves say in words what they show, and refuse what is not a history."""

import json

import pytest

from attsvm.errors import InputError
from attsvm.report.curves import learning_curves


def history(folder, accuracies):
    folder.mkdir()
    rows = [
        {"epoch": k + 1, "train_loss": 1 / (k + 1), "test_accuracy": value}
        for k, value in enumerate(accuracies)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_of_different_lengths(tmp_path):
    picture = learning_curves(
        {"p = 2": history(tmp_path / "a", [0.5, 0.75]), "Adam": history(tmp_path / "b", [0.6])}
    )
    assert (
        picture.alt == "Learning curves. p = 2: 75.0% after 2 epochs; Adam: 60.0% after 1 epochs."
    )
    assert picture.png.startswith(b"\x89PNG")


def test_what_is_no_history(tmp_path):
    with pytest.raises(InputError, match=r"has no history\.jsonl"):
        learning_curves({"a": tmp_path})
    with pytest.raises(
        InputError,
        match="has no column 'dev_accuracy'; its columns are epoch, train_loss, test_accuracy",
    ):
        learning_curves({"a": history(tmp_path / "a", [0.5])}, held="dev")
    (tmp_path / "a" / "history.jsonl").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        learning_curves({"a": tmp_path / "a"})
    with pytest.raises(InputError, match="6 runs"):
        learning_curves(dict.fromkeys("abcdef", tmp_path))
