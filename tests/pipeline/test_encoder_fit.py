"""``attsvm fit TEXTS --encoder MODEL``: words in terminal, page and run.json; states kept beside
the run; and what is said without an encoder.
"""

import csv
import json
import re

import numpy as np
import pytest
import torch
from tiny_encoder import save_tiny_bert

from attsvm.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SHORT = ["--steps", "60", "--records", "5", "--quiet"]


def texts(path, n, seed, wrong=0.0):
    """A table of texts, of which a share has the wrong label."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for k in range(n):
            words = [f"w{letter}" for letter in rng.choice(list("abcdefghijklmnop"), 5)]
            words.insert(int(rng.integers(5)), ["calm", "alarm"][k % 2])
            label = k % 2 ^ int(rng.random() < wrong)
            table.writerow([" ".join(words), ["quiet", "loud"][label]])
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    pytest.importorskip("transformers")
    home = tmp_path_factory.mktemp("fitted")
    bert = save_tiny_bert(home / "bert", ["calm", "alarm"], size=16)
    data, more = texts(home / "notes.csv", 80, 0), texts(home / "more.csv", 30, 1)
    command = ["fit", str(data), "--test", str(more), "--encoder", str(bert)]
    assert main([*command, *SHORT, "--out", str(home / "runs" / "notes")]) in (0, 3)
    return home, command


def test_words_are_counted_for_each_class_and_shown_everywhere(fitted, capsys):
    home, command = fitted
    run = json.loads((home / "runs" / "notes" / "run.json").read_text(encoding="utf-8"))
    assert run["dataset"]["n_test"] == 30
    classes = run["results"]["words"]
    assert [one["class"] for one in classes] == ["loud", "quiet"]
    assert sum(one["texts"] for one in classes) == 110
    seen = [row["held_out"] for one in classes for row in one["words"]]
    rows = [row for one in classes for row in one["words"]]
    assert sum(seen) <= 30
    hits = sum(row["right"] * row["held_out"] for row in rows if row["held_out"])
    soft = next(entry for entry in run["results"]["accuracy"] if entry["name"] == "soft")
    assert hits <= soft["test"] * 30 + 1e-9  # only words that belong to a class are listed
    for one, word in zip(classes, ["alarm", "calm"], strict=True):
        assert {row["word"] for row in one["words"]} <= {word}
    assert rows
    assert main([*command, *SHORT, "--out", str(home / "runs" / "notes")]) in (0, 3)
    told = capsys.readouterr().out
    assert told.startswith("The chosen word alone is right on ")
    for one in classes:
        assert (f"No word can be said to belong to {one['class']} (" in told) == (not one["words"])
        assert bool(re.search(f"says most for {one['class']} +times", told)) == bool(one["words"])
    page = (home / "runs" / "notes" / "report.html").read_text(encoding="utf-8")
    for row in rows:
        assert f'<bdi>{row["word"]}</bdi></th><td class="num">{row["times"]}</td>' in page
        assert re.search(rf"{re.escape(row['word'])} +{row['times']}\b", told)
    assert '<h2 id="theory">' in page
    assert "layer" in " ".join(run["dataset"]["notes"])
    assert "vectors" not in run["verdict"]


def test_another_fit_reads_the_states_back(fitted):
    home, command = fitted

    def written():
        return {path: path.stat().st_mtime_ns for path in (home / "runs" / ".encoded").iterdir()}

    before = written()
    assert before
    again = [*command, *SHORT, "--seed", "3", "--out", str(home / "runs" / "other")]
    assert main(again) in (0, 3)
    assert written() == before


def test_without_an_encoder_the_command_with_one_is_told(fitted, capsys):
    home, _ = fitted
    noisy = texts(home / "noisy.csv", 80, 0, wrong=0.3)  # which no vectors can know
    words = ["fit", str(noisy), "--label", "label", "--dimension", "4", *SHORT]
    assert main([*words, "--out", str(home / "runs" / "plain")]) in (0, 3)
    told = capsys.readouterr().out
    assert "vectors learned from the training texts alone" in told
    other = home / "runs" / "plain-encoder"
    assert f"--encoder sentence-transformers/all-MiniLM-L6-v2 --out {other}" in told
    page = (home / "runs" / "plain" / "report.html").read_text(encoding="utf-8")
    assert "--encoder sentence-transformers/all-MiniLM-L6-v2" in page


def test_new_texts_are_read_by_the_encoder_of_the_fit_alone(fitted, tmp_path, capsys):
    home, _ = fitted
    run, out = home / "runs" / "notes", tmp_path / "new.csv"

    def answers(path):
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))

    assert main(["predict", str(run), str(home / "more.csv"), "--out", str(out)]) == 0
    test = [row for row in answers(run / "predictions.csv") if row["split"] == "test"]
    new = answers(out)
    assert len(new) == 30
    for row, again in zip(test, new, strict=True):
        assert again["prediction"] == row["prediction"]
        # states are float16, and batches of other texts round otherwise
        assert float(again["probability"]) == pytest.approx(float(row["probability"]), abs=0.01)
    (home / "bert" / "more.json").write_text("{}")  # part of the model, as far as anybody knows
    assert main(["predict", str(run), str(home / "more.csv"), "--out", str(out)]) == 2
    (home / "bert" / "more.json").unlink()
    assert "is not the one of the fit" in capsys.readouterr().err


def test_sentences_are_what_decides(fitted, tmp_path, capsys):
    pytest.importorskip("syntok", reason="syntok is not installed")
    rows = [
        [f"Some {first}. {['Calm', 'Alarm'][k % 2]}! No {last}.", k % 2]
        for k, (first, last) in enumerate([("air", "cap"), ("bat", "cap"), ("air", "dog")] * 14)
    ]
    data = tmp_path / "notes.csv"
    with data.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    home, _ = fitted
    command = ["fit", str(data), "--encoder", str(home / "bert"), "--instances", "sentences"]
    assert main([*command, *SHORT, "--out", str(tmp_path / "run")]) in (0, 3)
    told = capsys.readouterr().out
    assert told.startswith("The chosen sentence alone is right on ")
    assert "a random sentence is right on" in told
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["dataset"]["tokens"] == {"min": 3, "median": 3.0, "max": 3}
    assert run["results"]["words"] == []
    table = (tmp_path / "run" / "predictions.csv").read_text(encoding="utf-8")
    assert re.search(r",(Calm|Alarm)!,", table)


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_another_number_of_the_processor_gives_the_same_numbers(device, fitted, tmp_path):
    home, command = fitted
    out = tmp_path / "runs" / "there"  # states are kept beside the run, so they are computed anew
    assert main([*command, *SHORT, "--device", device, "--out", str(out)]) in (0, 3)
    there, here = (run / "predictions.csv" for run in (out, home / "runs" / "notes"))
    assert there.read_bytes() == here.read_bytes()
    assert (tmp_path / "runs" / ".encoded").exists()


@pytest.mark.parametrize("method", ["to", "forward"])
def test_memory_of_a_device_that_runs_out_is_one_sentence(
    method, fitted, tmp_path, monkeypatch, capsys
):
    transformers = pytest.importorskip("transformers")

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(transformers.BertModel, method, fail)
    capsys.readouterr()
    assert main([*fitted[1], *SHORT, "--out", str(tmp_path / "runs" / "run")]) == 2
    error = capsys.readouterr().err
    assert "bert does not fit into the memory of cpu; give option --dtype bfloat16," in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device", "meta"], "device 'meta' is unknown; this machine has cpu"),
        (["--device", "cuda:77"], "device cuda:77 with float32 is not available"),
        (["--device", "gpu"], "device 'gpu' is unknown"),
        (["--dtype", "float8"], "--dtype is 'float8'; choose from float32"),
    ],
)
def test_a_device_is_refused_before_anything_is_read(options, sentence, capsys, tmp_path):
    command = ["fit", str(tmp_path / "none.csv"), "--encoder", "none", *options]
    try:
        code = main(command)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert sentence in capsys.readouterr().err
