"""``attsvm fit --assumption standard``: the numbers of run.json recomputed from a model fitted to
the same part, and the one page that shows them.
"""

import csv
import json
import re
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest

from attsvm.cli import main
from attsvm.datasets import load, planted_witnesses
from attsvm.sklearn import WitnessSVC
from attsvm.sklearn.preparation import split_by_class


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("standard")
    bags = planted_witnesses("linear", 120, 8, seed=1, d=5)
    np.savez(home / "bags.npz", X=bags.rows, groups=bags.bag, y=bags.labels)
    command = ["fit", str(home / "bags.npz"), "--assumption", "standard", "--quiet"]
    command += ["--out", str(home / "run")]
    assert main(command) == 0
    record = json.loads((home / "run" / "run.json").read_text(encoding="utf-8"))
    return home / "run", record, command


@pytest.fixture(scope="module")
def model(run):
    dataset = load(run[0].parent / "bags.npz")
    bags = replace(dataset.encode([0]).bags, labels=dataset.labels)
    rest, test = split_by_class(dataset.labels, 0.25, 0, dataset.class_names)
    fitted = WitnessSVC().fit(bags.take(rest))
    return fitted, bags, test, fitted.explain(bags.take(rest))


def test_the_numbers_are_those_of_the_estimator(run, model):
    results = run[1]["results"]
    fitted, data, test, explained = model
    held = data.take(test)
    accuracy = {entry["name"]: entry["test"] for entry in results["accuracy"]}
    assert accuracy["soft"] == fitted.score(held, held.labels) > accuracy["majority"]
    alone = fitted.decision_function_instances(held)
    chosen = [values[t] for values, t in zip(alone, fitted.select(held), strict=True)]
    assert accuracy["hard"] == np.mean((np.array(chosen) > 0) == (held.labels > 0))
    assert accuracy["random_token"] < accuracy["hard"]
    found = fitted.evidence(held)
    assert results["evidence"]["sufficient"] == found.sufficient.mean()
    assert results["evidence"]["necessary"] == found.necessary[fitted.predict(held) > 0].mean()
    assert results["steps"]["count"] == results["steps"]["optimal"] == len(fitted.convex_steps_)
    assert results["margin"]["margin"] == explained.solution.margin
    assert results["margin"]["status"] == explained.solution.status == "optimal"
    assert {one["id"]: one["verdict"] for one in run[1]["claims"]}["certificate"] == "holds"


def test_one_page_shows_claims_accuracy_bags_and_support_instances(run, model):
    folder, record, _ = run
    assert {path.name for path in folder.iterdir()} >= {"report.html", "run.json"}
    assert not (folder / "bags.html").exists()
    text = (folder / "report.html").read_text(encoding="utf-8")
    for heading in ("accuracy", "bags", "theory", "method"):
        assert text.count(f'<h2 id="{heading}">') == 1
    for heading in ("claims", "support", "proved"):
        assert text.partition('<h2 id="theory">')[2].count(f'<h3 id="{heading}">') == 1
    support = len(model[3].support)
    assert text.count('data-name="multiplier"') == min(support, 20) > 0
    assert all(entry["title"] in text for entry in record["results"]["accuracy"])
    assert re.search(r"row \d+: \+1<", text)
    assert re.search(r"row \d+: -1<", text)


def test_the_words_of_texts_are_on_the_page(tmp_path):
    rng = np.random.default_rng(0)
    with (tmp_path / "notes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for k in range(80):
            words = [f"w{j}" for j in rng.choice(40, size=6, replace=False)]
            table.writerow([" ".join(["alarm" if k % 2 else "calm", *words]), k % 2])
    words = ["fit", str(tmp_path / "notes.csv"), "--text", "text", "--label", "label", "--quiet"]
    words += ["--dimension", "12", "--assumption", "standard", "--out", str(tmp_path / "run")]
    assert main(words) in (0, 3)
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ">alarm</mark>" in text
    assert "TF-IDF logistic regression" in text
    (witnesses,) = json.loads((tmp_path / "run" / "run.json").read_text())["results"]["words"]
    assert witnesses["class"] == "1"
    assert witnesses["words"][0]["word"] == "alarm"
    assert "For 1, in" in text
    assert "vectors learned from the training texts alone" in text.split("<main>")[0]


@pytest.mark.slow
def test_patches_of_images_are_on_the_page(tmp_path):
    words = ["fit", "digits", "--assumption", "standard", "--quiet", "--out", str(tmp_path / "run")]
    assert main(words) in (0, 3)
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert text.count('<span class="thumb') > 100
    assert "digits, 3 against 8" in text


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_doing_it_again_does_nothing(run, more, capsys):
    before = {path: path.stat().st_mtime_ns for path in run[0].iterdir()}
    assert main([*run[2], *more]) == 0
    assert run[1]["verdict"]["headline"] in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run[0].iterdir()} == before


def test_its_page_is_drawn_again_as_it_was(run, capsys):
    page = run[0] / "report.html"
    before = page.read_bytes()
    page.write_text("something else")
    assert main(["report", str(run[0])]) == 0
    assert str(page) in capsys.readouterr().out
    assert page.read_bytes() == before


def test_without_what_it_is_drawn_from_a_sentence_says_what_to_do(run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (folder / "page.json").write_text("{}")
    assert main(["report", str(folder)]) == 2
    assert "page.json is not as attsvm fit writes it" in capsys.readouterr().err
    (folder / "page.json").unlink()
    assert main(["report", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"open {folder / 'report.html'}, which the fit has written" in said
    assert f"delete the folder and run {shlex.join(['attsvm', *run[2]])} again" in said
