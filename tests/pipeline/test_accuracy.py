"""Beside texts stands the baseline that reads their words, beside the chosen token another."""

import numpy as np

from attsvm.datasets import load
from attsvm.pipeline.fit import fit_dataset
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn import explaining

SHORT = FitSettings(selection_steps=50, records=5)


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
        tell_accuracy=told.append,
    )
    accuracy = {row["name"]: row["test"] for row in run["results"]["accuracy"]}
    at = told.index(accuracy["soft"])
    assert "predictor" in told[:at]
    late = {"length", "descent", "selection", "margin"}
    assert late <= set(told[at:])
    assert late.isdisjoint(told[:at])
    assert run["timing"]["predictor"] > 0
    assert accuracy["tfidf"] >= 0.95
    assert list(accuracy)[-1] == "majority"


def test_the_most_extreme_token_is_that_of_a_regression_on_single_tokens(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 2
    tokens = 0.3 * generator.normal(size=(120, 5, 4))
    tokens[np.arange(120), generator.integers(5, size=120), 0] += 6.0 * labels - 3.0
    np.savez(tmp_path / "data.npz", X=tokens, y=labels)
    record = fit_dataset(load(tmp_path / "data.npz"), SHORT, tmp_path / "run")
    entry = {row["name"]: row for row in record["results"]["accuracy"]}
    assert record["dataset"]["class_names"] == ["0", "1"]
    assert entry["extreme_token"]["test"] == 1.0
    assert entry["random_token"]["test"] < 0.75
