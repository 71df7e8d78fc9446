"""One predictor behind the command and the class, for any number of classes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.base.files import load_arrays
from attsvm.base.store import RunFolder
from attsvm.cli import main
from attsvm.datasets import load, planted_witnesses
from attsvm.pipeline.fit import fit_dataset
from attsvm.pipeline.model import (
    TheoryOptions,
    explain_chooser,
    fit_chooser,
    fit_estimator,
    split_and_encode,
)
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn import AttentionSVC, Limits
from attsvm.sklearn.stage import StageOptions

SHORT = FitSettings(selection_steps=150, records=8)
FEW = ["--steps", "60", "--records", "5", "--quiet"]


def texts(path, classes, per_class, seed=0):
    """A table of texts: a word of the class among others, and the name of the class."""
    rng, rows = np.random.default_rng(seed), ["text,label"]
    for name, count in zip(classes, per_class, strict=True):
        for _ in range(count):
            words = [f"w{letter}" for letter in rng.choice(list("abcdefghijklmnop"), 4)]
            words.insert(int(rng.integers(4)), f"sign{name}")
            rows.append(f"{' '.join(words)},{name}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def bag_file(path, labels=(-1.0, 1.0)):
    bags = planted_witnesses("linear", 120, 6, seed=1, d=5)
    y = np.where(bags.labels > 0, labels[1], labels[0])
    np.savez(path, X=bags.rows, groups=bags.bag, y=y)
    return str(path)


@pytest.mark.parametrize("kind", [pytest.param("digits", marks=pytest.mark.slow), "bags", "texts"])
def test_command_and_class_have_the_same_numbers(kind, tmp_path):
    path = {
        "digits": lambda: "digits",
        "bags": lambda: bag_file(tmp_path / "bags.npz"),
        "texts": lambda: texts(tmp_path / "notes.csv", "abc", (40, 40, 40)),
    }[kind]()
    dataset = load(path, **({"dim": 12} if kind == "texts" else {}))
    record = fit_dataset(dataset, SHORT, tmp_path / "run")
    arrays = load_arrays(tmp_path / "run" / "arrays.safetensors")
    encoded = dataset.encode(arrays["train"])
    names = np.array(dataset.class_names)[dataset.labels]
    model = AttentionSVC(query=encoded.query)
    model.fit(encoded.bags.take(arrays["train"]), names[arrays["train"]])
    accuracy = {entry["name"]: entry for entry in record["results"]["accuracy"]}
    test = encoded.bags.take(arrays["test"])
    assert accuracy["soft"]["test"] == model.score(test, names[arrays["test"]])
    wrong = model.predict(test) != names[arrays["test"]]
    recall = [1.0 - wrong[names[arrays["test"]] == name].mean() for name in dataset.class_names]
    np.testing.assert_allclose(accuracy["soft"]["recall"], recall)
    chooser = AttentionSVC(query=encoded.query, pooling="hard")
    chooser.fit(encoded.bags.take(arrays["train"]), names[arrays["train"]])
    assert accuracy["hard"]["test"] == chooser.score(test, names[arrays["test"]])
    positive = record["results"]["theory"]["class"]
    theory = chooser.explain(
        encoded.bags.take(arrays["explained"]),
        names[arrays["explained"]],
        positive=positive if len(dataset.class_names) > 2 else None,
        limits=Limits(steps=150),
    )
    np.testing.assert_allclose(arrays["W"], theory.weights.W, rtol=1e-6)
    assert record["results"]["margin"]["margin"] == pytest.approx(theory.solution.margin, rel=1e-6)


def test_four_classes_have_words_recall_and_a_theory_of_one_against_the_others(tmp_path, capsys):
    classes = ("art", "law", "sea", "war")
    path = texts(tmp_path / "news.csv", classes, (40, 30, 30, 30))
    command = ["fit", path, "--dimension", "12", *FEW]
    assert main([*command, "--out", str(tmp_path / "run")]) in (0, 3)
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert record["dataset"]["class_names"] == list(classes)
    assert record["results"]["theory"] == {
        "class": "art",
        "rest": None,
        "sequences": record["dataset"]["n_train"],
        "training_sequences": record["dataset"]["n_train"],
    }
    assert [entry["class"] for entry in record["results"]["words"]] == list(classes)
    for entry in record["results"]["words"]:
        assert entry["words"][0]["word"] == f"sign{entry['class']}"
        assert f"says most for {entry['class']}" in said
    (soft,) = (row for row in record["results"]["accuracy"] if row["name"] == "soft")
    assert soft["test"] > 0.9
    assert len(soft["recall"]) == 4
    assert "art against the other classes" in record["verdict"]["sentences"][-1]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert all(f"For {name}, in" in page for name in classes)
    examples = json.loads((tmp_path / "run" / "examples.json").read_text(encoding="utf-8"))
    assert {example["label"] for example in examples} == {0, 1, 2, 3}
    assert main([*command, "--positive", "law", "--out", str(tmp_path / "law")]) in (0, 3)
    law = json.loads((tmp_path / "law" / "run.json").read_text(encoding="utf-8"))
    assert law["results"]["theory"]["class"] == "law"
    assert law["dataset"]["class_names"] == ["art", "sea", "war", "law"]


@pytest.mark.parametrize("assumption", ["collective", "standard"])
def test_a_rare_class_stands_beside_the_one_that_is_always_named(tmp_path, assumption, capsys):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3, 4)), (np.arange(300) < 24).astype(int)  # says nothing
    np.savez(tmp_path / "rare.npz", X=X, y=y)
    command = ["fit", str(tmp_path / "rare.npz"), "--assumption", assumption, "--quiet"]
    command += [] if assumption == "standard" else FEW[:-1]
    assert main([*command, "--out", str(tmp_path / "run")]) in (0, 3)
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert "the most frequent label 92.0%" in capsys.readouterr().out
    assert "not predicted better than by chance" in record["verdict"]["beside"]
    claims = {claim["id"]: claim["verdict"] for claim in record["claims"]}
    assert claims["majority"] == "fails"
    weighed = [*command, "--class-weight", "balanced", "--out", str(tmp_path / "balanced")]
    assert main(weighed) in (0, 3)
    balanced = json.loads((tmp_path / "balanced" / "run.json").read_text(encoding="utf-8"))

    def recall(run):
        return next(row["recall"] for row in run["results"]["accuracy"] if row["name"] == "soft")

    assert recall(balanced)[1] > recall(record)[1]


def test_labels_are_called_as_the_file_calls_them(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", X=np.random.default_rng(0).normal(size=(9, 2, 3)), y=[0] * 8 + [1])
    assert main(["fit", str(tmp_path / "a.npz"), "--out", str(tmp_path / "run")]) == 2
    assert "class 1 has 1 sequence; at least 3 of each class" in capsys.readouterr().err
    assert load(bag_file(tmp_path / "b.npz", (0, 7))).class_names == ("0", "7")


def test_classes_with_too_few_texts_are_told_together(tmp_path, capsys):
    rows = [[f"a film of {k}", "ab"[k % 2]] for k in range(8)]
    rows += [["a film", "c"], ["the film", "c"], ["one more", "d"]]
    for name, table in {"all": rows, "fit": [*rows[:9], rows[10]]}.items():
        lines = [",".join(row) for row in [["text", "label"], *table]]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    options = ["--dimension", "2", "--out", str(tmp_path / "run")]
    assert main(["fit", str(tmp_path / "all.csv"), *options]) == 2
    assert "class c has 2 texts and class d has 1 text; at least 3" in capsys.readouterr().err
    held = ["--test", str(tmp_path / "all.csv")]
    assert main(["fit", str(tmp_path / "fit.csv"), *held, *options]) == 2
    assert "class c has 1 text and class d has 1 text to fit to" in capsys.readouterr().err


def test_the_theory_is_about_as_many_sequences_as_fit(tmp_path):
    dataset = load(bag_file(tmp_path / "bags.npz"))
    run = split_and_encode(dataset, SHORT, TheoryOptions(numbers=40 * 6 * 5))
    assert len(run.explained) == 40
    assert np.isin(run.explained, run.train).all()
    model, beats_chance = fit_estimator(run, SHORT, None)
    assert beats_chance
    chooser = fit_chooser(run, model, SHORT, None)
    assert len(explain_chooser(run, chooser, SHORT, StageOptions()).selected) == 40


def test_repeated_tokens_and_hidden_ones_are_no_obstacle(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4, 3)), np.arange(60) % 2
    X[:, 1, 0] += 3.0 * y
    X[5, 2] = X[5, 0]
    mask = np.ones((60, 4), dtype=bool)
    mask[:, 3], mask[7, 0] = False, False
    np.savez(tmp_path / "a.npz", X=X, y=y, mask=mask)
    record = fit_dataset(load(tmp_path / "a.npz"), SHORT, tmp_path / "run")
    assert record["dataset"]["tokens"] == {"min": 2, "median": 3.0, "max": 3}
    assert record["results"]["accuracy"][0]["test"] > 0.6


def test_a_checkpoint_folder_gives_the_same_bits(tmp_path):
    run = split_and_encode(load(bag_file(tmp_path / "bags.npz")), SHORT)
    model = fit_chooser(run, fit_estimator(run, SHORT, None)[0], SHORT, None)
    known = explain_chooser(run, model, SHORT, StageOptions(None, SHORT.records))
    with RunFolder(tmp_path / "run", {}) as folder:
        first = explain_chooser(run, model, SHORT, StageOptions(folder, SHORT.records, 1e-6))
    steps = []
    with RunFolder(tmp_path / "run", {}) as folder:
        options = StageOptions(folder, SHORT.records, progress=lambda *step: steps.append(step))
        again = explain_chooser(run, model, SHORT, options)
    assert ("selection", 150, 150) in steps  # what was saved is done
    for other in (first, again):
        assert other.weights.W.tobytes() == known.weights.W.tobytes()


def test_one_of_many_classes_is_named_to_be_explained():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(45, 4, 3)), np.repeat(["a", "b", "c"], 15)
    X[np.arange(45), 0, np.arange(45) // 15] += 4.0
    model = AttentionSVC(penalty=0.01).fit(X, y)
    with pytest.raises(InputError, match="there are 3 classes, and explain tells one from"):
        model.explain(X, y)
    found = model.explain(X, y, positive="b", limits=Limits(steps=50))
    assert found.selected.shape == (45,)
    same = replace(found, support=found.support)
    assert same.solution.status == found.solution.status
    with pytest.raises(InputError, match="none of the classes"):
        model.explain(X, y, positive="d")


def test_a_word_is_telling_only_where_three_held_out_texts_have_it(tmp_path, capsys):
    path = texts(tmp_path / "mail.csv", ("bill", "help", "rare"), (60, 60, 8))
    command = ["fit", path, "--dimension", "12", *FEW, "--out", str(tmp_path / "run")]
    assert main(command) in (0, 3)
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    *common, rare = record["results"]["words"]
    assert rare["words"] == []  # two of its texts are held out
    often = ", ".join(rare["often"])
    assert 1 <= len(rare["often"]) <= 3
    belongs = f"belong to rare ({rare['texts']} texts; most often chosen: {often})."
    assert f"No word can be said to {belongs}" in said
    assert "says most for rare" not in said
    for entry in common:
        (row,) = entry["words"]
        assert row["held_out"] >= 3
        assert f"{row['times']}   100% of {row['held_out']}" in said
