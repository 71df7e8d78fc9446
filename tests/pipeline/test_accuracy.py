"""Beside texts stands the baseline that reads their words, beside the chosen token another."""

import numpy as np

from attsvm.datasets import load
from attsvm.datasets.attention_data import AttentionData
from attsvm.pipeline.accuracy import accuracy_table, attention_predictors
from attsvm.pipeline.attention_model import train_attention
from attsvm.pipeline.fit import fit_dataset
from attsvm.pipeline.padded import Padded
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn import explaining
from attsvm.sklearn.preparation import split_train_validation
from attsvm.sklearn.stage import StageOptions

SHORT = FitSettings(joint_steps=20, selection_steps=50, records=5)


def test_the_accuracy_of_the_predictor_is_told_before_selection_is_prepared(tmp_path, monkeypatch):
    """Which copies the data: on 5,000 sentences half a second before a word."""
    generator = np.random.default_rng(0)
    rows = ["text,label"]
    for k in range(120):
        words = generator.choice(["alpha", "beta", "gamma", "delta", "omega"], 4, replace=False)
        rows.append(f"{' '.join(words)} {'good' if k % 2 else 'bad'},{k % 2}")
    (tmp_path / "texts.csv").write_text("\n".join(rows) + "\n")
    told, inner = [], explaining.selection_descent
    monkeypatch.setattr(
        explaining, "selection_descent", lambda *a: told.append("descent") or inner(*a)
    )
    monkeypatch.setattr(explaining, "step_length", lambda *a: told.append("length") or 1.0)
    run = fit_dataset(
        load(str(tmp_path / "texts.csv"), dim=4),
        SHORT,
        tmp_path / "run",
        progress=lambda stage, done, total: told.append(stage),
        first=told.append,
    )
    accuracy = {row["name"]: row["test"] for row in run["results"]["accuracy"]}
    at = told.index(accuracy["soft"])
    assert "joint" in told[:at]
    late = {"length", "descent", "selection", "margin"}
    assert late <= set(told[at:])
    assert late.isdisjoint(told[:at])
    assert 0 < run["timing"]["predictor"] <= run["timing"]["fit"]
    assert accuracy["tfidf"] >= 0.95
    assert list(accuracy)[-1] == "majority"


def test_the_most_extreme_token_is_that_of_a_regression_on_single_tokens():
    generator = np.random.default_rng(0)
    labels = np.where(np.arange(120) % 2, 1.0, -1.0)
    tokens = 0.3 * generator.normal(size=(120, 5, 4))
    tokens[np.arange(120), generator.integers(5, size=120), 0] += 3.0 * labels
    data = AttentionData(tokens, labels, np.ones((120, 1)))
    rest, test = split_train_validation(labels, 0.25, 0, "test_size")
    splits = {"train": rest[10:], "validation": rest[:10], "test": test}
    train = data.take(rest).without_duplicates()
    model = train_attention(train, SHORT, StageOptions(None, SHORT.records))
    table = accuracy_table(Padded(data, None, []), splits, 0, *attention_predictors(model, data))
    entry = {row["name"]: row for row in table}
    assert entry["extreme_token"]["test"] == 1.0
    assert entry["random_token"]["test"] < 0.75
