"""Beside texts stands the baseline that reads their words."""

import numpy as np
import pytest

from attsvm.data import AttentionData
from attsvm.datasets import Encoded, load
from attsvm.fitting import explaining
from attsvm.fitting.preparation import split
from attsvm.pipeline.accuracy import accuracy_table
from attsvm.pipeline.fit import fit_dataset
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.trained import Trained


def fitted(data, parts):
    settings = FitSettings(joint_steps=20, selection_steps=50, records=5)
    return Trained(settings).learn(data.take(parts).without_duplicates())


def parts_of(labels):
    rest, test = split(labels, 0.25, 0, "test_size")
    return {"train": rest[10:], "validation": rest[:10], "test": test}, rest


@pytest.fixture
def texts(tmp_path):
    generator = np.random.default_rng(0)
    rows = ["text,label"]
    for k in range(120):
        words = generator.choice(["alpha", "beta", "gamma", "delta", "omega"], 4, replace=False)
        rows.append(f"{' '.join(words)} {'good' if k % 2 else 'bad'},{k % 2}")
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(rows) + "\n")
    return load(str(path), dim=4)


def test_the_accuracy_of_the_predictor_is_told_before_selection_begins(texts, tmp_path):
    told = []
    settings = FitSettings(joint_steps=20, selection_steps=50, records=5)
    run = fit_dataset(
        texts,
        settings,
        tmp_path / "run",
        progress=lambda stage, done, total: told.append(stage),
        first=told.append,
    )
    accuracy = {row["name"]: row["test"] for row in run["results"]["accuracy"]}
    at = told.index(accuracy["soft"])
    assert "joint" in told[:at]
    assert {"selection", "margin"} <= set(told[at:])
    assert {"selection", "margin"}.isdisjoint(told[:at])
    assert 0 < run["timing"]["predictor"] <= run["timing"]["fit"]


def test_the_accuracy_is_told_before_selection_is_prepared(texts, tmp_path, monkeypatch):
    """Which copies the data: on 5,000 sentences half a second before a word."""
    told = []
    inner = explaining.selection_descent
    monkeypatch.setattr(
        explaining, "selection_descent", lambda *a: told.append("descent") or inner(*a)
    )
    monkeypatch.setattr(explaining, "step_length", lambda *a: told.append("length") or 1.0)
    settings = FitSettings(joint_steps=2, selection_steps=2, records=2)
    fit_dataset(texts, settings, tmp_path / "run", first=told.append)
    assert isinstance(told[0], float)
    assert set(told[1:]) == {"length", "descent"}


def test_texts_have_a_row_for_weighted_counts_of_words(texts):
    parts, rest = parts_of(texts.labels)
    encoded = texts.encode(rest)
    table = accuracy_table(fitted(encoded.data, rest), encoded, parts, 0)
    entry = {row["name"]: row for row in table}["tfidf"]
    assert entry["test"] >= 0.95
    assert [row["name"] for row in table][-1] == "majority"


def test_numbers_have_none():
    dataset = load("digits")
    parts, rest = parts_of(dataset.labels[:120])
    encoded = dataset.encode(np.arange(len(dataset)))
    short = type(encoded)(encoded.data.take(np.arange(120)), encoded.views, [])
    table = accuracy_table(fitted(short.data, rest), short, parts, 0)
    assert "tfidf" not in {row["name"] for row in table}


def test_the_most_extreme_token_is_that_of_a_regression_on_single_tokens():
    generator = np.random.default_rng(0)
    labels = np.where(np.arange(120) % 2, 1.0, -1.0)
    tokens = 0.3 * generator.normal(size=(120, 5, 4))
    tokens[np.arange(120), generator.integers(5, size=120), 0] += 3.0 * labels
    data = AttentionData(tokens, labels, np.ones((120, 1)))
    parts, rest = parts_of(labels)
    table = accuracy_table(fitted(data, rest), Encoded(data, None), parts, 0)
    entry = {row["name"]: row for row in table}
    assert entry["extreme_token"]["test"] == 1.0
    assert entry["random_token"]["test"] < 0.75
