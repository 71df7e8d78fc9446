"""Every row of every split has its answer, and a finished run answers new rows alike."""

import csv
import json
import re

import numpy as np
import pytest

import attsvm
from attsvm.cli import main
from attsvm.datasets import planted_witnesses
from attsvm.datasets.sentences import words
from attsvm.pipeline.predictions import write_table

QUICK = ["--quiet", "--steps", "100"]


def _read(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _write(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """A run fitted to labelled texts: its folder and their file."""
    home = tmp_path_factory.mktemp("films")
    telling, rng = {"bad": ["dull", "weak"], "good": ["warm", "fine"]}, np.random.default_rng(0)
    rows = []
    for k in range(80):
        label = ("bad", "good")[k % 2]
        filler = rng.choice(["we", "saw", "a", "film", "at", "home"], 4)
        rows.append([f"=r{k}", " ".join([*filler, rng.choice(telling[label])]), label])
    path = _write(home / "films.csv", ["key", "text", "label"], rows)
    command = ["fit", str(path), "--id", "key", "--dimension", "4", "--out", str(home / "run")]
    assert main([*command, *QUICK]) in (0, 3)
    return home / "run", path


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """A run of the standard assumption fitted to vectors: its folder and their file."""
    home = tmp_path_factory.mktemp("bags")
    planted = planted_witnesses("linear", 60, 6, seed=1, d=4)
    path = home / "bags.npz"
    labels = np.where(planted.labels > 0, "yes", "no")
    np.savez(path, X=planted.rows, groups=planted.bag, y=labels)
    command = ["fit", str(path), "--assumption", "standard", "--out", str(home / "run"), "--quiet"]
    assert main(command) in (0, 3)
    return home / "run", path


def test_every_row_of_every_split_is_answered(films):
    answers = _read(films[0] / "predictions.csv")
    run = json.loads((films[0] / "run.json").read_text())
    assert [int(row["row"]) for row in answers] == list(range(1, 81))
    for split in ("train", "test"):
        assert sum(row["split"] == split for row in answers) == run["dataset"][f"n_{split}"]
    texts = _read(films[1])
    for answer, row in zip(answers, texts, strict=True):
        assert answer["label"] == row["label"]
        assert answer["chosen"] in row["text"].split()
        assert answer["rival"] in row["text"].split()
        assert answer["rival_position"] != answer["position"]
        assert 0.5 <= float(answer["probability"]) <= 1
        assert float(answer["margin"]) >= 0


def test_the_position_of_a_word_counts_all_words_of_its_text(films, tmp_path):
    texts = ["unheard a a a film, at home: a film; DULL dull", "at at unheard fine", "unheard"]
    path = _write(tmp_path / "new.csv", ["key", "text"], [["n", text] for text in texts])
    *answers, without = attsvm.load_run(films[0]).predict(path)
    for answer, text in zip(answers, texts, strict=False):
        for name, column in (("chosen", "position"), ("rival", "rival_position")):
            place = words(text).index(answer[name].lower()) + 1
            assert answer[column] == place, (text, name)
    assert [answer["chosen"] for answer in answers] == ["DULL", "fine"]
    assert (without["chosen"], without["position"]) == ("", None)


def test_the_accuracy_of_the_answers_is_that_of_the_report(bags):
    answers = [row for row in _read(bags[0] / "predictions.csv") if row["split"] == "test"]
    results = json.loads((bags[0] / "run.json").read_text())["results"]
    soft = next(entry["test"] for entry in results["accuracy"] if entry["name"] == "soft")
    assert np.mean([row["label"] == row["prediction"] for row in answers]) == soft
    assert "instance_probability" in answers[0]


def test_no_spreadsheet_takes_a_text_for_a_formula(films):
    answers = _read(films[0] / "predictions.csv")
    assert answers[3]["id"] == "'=r3"
    content = (films[0] / "predictions.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfrow,id,split,label,prediction,probability,chosen,")


def test_a_cell_that_is_a_number_stays_one(tmp_path):
    rows = [{"a": "-1", "b": -2.5}, {"a": "+1 good", "b": None}, {"a": "@x", "b": 1e-9}]
    assert write_table(rows, {"a": str, "b": float}, tmp_path / "t.csv") == 3
    lines = (tmp_path / "t.csv").read_text(encoding="utf-8-sig").splitlines()
    assert lines == ["a,b", "-1,-2.5", "'+1 good,", "'@x,1e-09"]


@pytest.mark.parametrize(
    ("text", "cell"),
    [("+", "+"), ("--", "--"), ("- ", "- "), ("-1,5", "-1,5"), ("a=b", "a=b"), ("", "")]
    + [(text, f"'{text}") for text in ("=1+1", "-a", "@SUM(A1)", "\tx", "+\n=cmd|x", "--1")],
)
def test_what_a_spreadsheet_would_run_gets_an_apostrophe(text, cell, tmp_path):
    write_table([{"a": text, "b": "x"}], {"a": str, "b": str}, tmp_path / "t.csv", ";")
    with (tmp_path / "t.csv").open(encoding="utf-8-sig", newline="") as file:
        assert list(csv.reader(file, delimiter=";"))[1] == [cell, "x"]


@pytest.mark.parametrize("run", ["films", "bags"])
def test_predict_gives_the_rows_of_the_fit_the_same_numbers(run, request, tmp_path):
    folder, path = request.getfixturevalue(run)
    out = tmp_path / "new.csv"
    assert main(["predict", str(folder), str(path), "--out", str(out)]) == 0
    fitted, again = _read(folder / "predictions.csv"), _read(out)
    assert len(fitted) == len(again)
    for row, new in zip(fitted, again, strict=True):
        assert new.pop("split") == "new"
        row.pop("split")
        assert new == row


def test_rows_that_are_left_out_and_texts_without_a_known_word_are_counted(films, tmp_path, capsys):
    rows = [["n1", "a fine film"], ["n2", ""], ["n3", "xylophone"]]
    path = _write(tmp_path / "new.csv", ["key", "text"], rows)
    command = ["predict", str(films[0]), str(path), "--out", str(tmp_path / "answers.csv")]
    assert main([*command, "--skip-empty"]) == 0
    told = capsys.readouterr()
    assert "1 of 3 rows was left out: without a text or a label." in told.out + told.err
    assert "1 of 2 texts have no known word" in told.out + told.err


def test_a_fit_says_what_it_left_out_and_its_report_shows_rows_of_the_predictions(
    films, tmp_path, capsys
):
    rows = [list(row.values()) for row in _read(films[1])]
    gaps = [["e", "", "bad"]] * 5
    path = _write(tmp_path / "gaps.csv", ["key", "text", "label"], [*gaps, *rows])
    out = tmp_path / "run"
    command = ["fit", str(path), "--skip-empty", "--dimension", "4", "--steps", "100"]
    assert main([*command, "--out", str(out)]) in (0, 3)
    assert "5 of 85 rows were left out: without a text or a label." in capsys.readouterr().err
    answers = {int(row["row"]): row for row in _read(out / "predictions.csv")}
    assert set(answers) == set(range(6, 86))
    page = (out / "report.html").read_text(encoding="utf-8")
    splits = {"test": "test", "training": "train"}
    origins = re.findall(r"(test|training) row (\d+)</", page)
    assert {part for part, _ in origins} == {*splits}
    assert all(answers[int(row)]["split"] == splits[part] for part, row in origins)
    for example in json.loads((out / "examples.json").read_text(encoding="utf-8")):
        assert example["view"]["text"] == rows[example["row"] - 6][1]


def test_without_out_predictions_are_named_after_the_data_and_never_replaced(
    films, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "new.csv", ["key", "text"], [["n1", "a fine film"]])
    command = ["predict", str(films[0]), "new.csv"]
    assert main(command) == 0
    assert "answers: predictions-new.csv" in capsys.readouterr().err
    written = (tmp_path / "predictions-new.csv").read_bytes()
    assert main(command) == 2
    assert "--out predictions-new.csv" in capsys.readouterr().err
    assert (tmp_path / "predictions-new.csv").read_bytes() == written
    assert main([*command, "--out", "predictions-new.csv"]) == 0


def test_new_rows_need_no_label_and_come_back_from_python(films, tmp_path):
    path = _write(tmp_path / "new.csv", ["key", "text"], [["n1", "a fine film"], ["n2", "dull"]])
    answers = attsvm.load_run(films[0]).predict(path)
    assert {row["prediction"] for row in answers} <= {"good", "bad"}
    assert {answers[0]["chosen"], answers[0]["rival"]} <= {"a", "fine", "film"}
    assert answers[1]["chosen"] == "dull"
    assert [row["label"] for row in answers] == ["", ""]
    assert (answers[1]["rival"], answers[1]["margin"]) == ("", None)


def test_what_a_fit_was_told_of_its_file_holds_for_files_that_are_so(films, tmp_path, capsys):
    rows = [
        [row["key"], row["text"].replace("dull", "öde"), row["label"]] for row in _read(films[1])
    ]
    rows += [["n", "a film", "NA"], ["n", "", "bad"]]
    path, run = tmp_path / "old.csv", tmp_path / "run"
    content = "\n".join("^".join(row) for row in [["key", "text", "label"], *rows])
    path.write_bytes(content.encode("cp1252"))
    told = ["--delimiter", "^", "--encoding", "cp1252", "--skip-empty", "--id", "key"]
    weighing = ["--positive", "bad", "--class-weight", "balanced", "--dimension", "4", *QUICK]
    assert main(["fit", str(path), *told, *weighing, "--out", str(run)]) in (0, 3)
    capsys.readouterr()
    # the file of the fit: its delimiter and encoding, and a label more or less
    out = tmp_path / "answers.csv"
    assert main(["predict", str(run), str(path), "--skip-empty", "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("81 rows; predicted: good ")
    assert said[1].endswith("of the 80 rows with a label")
    assert re.fullmatch(r"recall: good \d+\.\d%, bad \d+\.\d%", said[2])
    fitted, again = _read(run / "predictions.csv"), _read(out)[:80]
    assert [{**row, "split": ""} for row in fitted] == [{**row, "split": ""} for row in again]
    # files with others, without identifiers and labels
    model = attsvm.load_run(run)
    for name, text in (("a.csv", "text;x\nöde film;1\n"), ("b.jsonl", '{"text": "öde film"}\n')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (answer,) = model.predict(tmp_path / name)
        assert (answer["chosen"], answer["label"], "id" in answer) == ("öde", "", False)
        for option in ("label", "id"):
            with pytest.raises(attsvm.InputError, match="has no column lbl"):
                model.predict(tmp_path / name, **{option: "lbl"})


def test_parquet_has_the_same_answers(films, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "new.parquet"
    attsvm.load_run(films[0]).predict(films[1], out=out)
    table = parquet.read_table(out).to_pylist()
    assert [row["prediction"] for row in table] == [
        row["prediction"] for row in _read(films[0] / "predictions.csv")
    ]
    assert table[3]["id"] == "=r3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}x", "{films}", "--out", "new.csv"], "did you mean run?"),
        (["{run}", "{films}", "--out", "new.xlsx"], "predictions are written to .csv or .parquet"),
        (["{run}", "{films}", "--out", "nowhere/new.csv"], "folder nowhere does not exist"),
        (["{run}", "{films}", "--out", "new.csv", "--text", "txt"], "did you mean text?"),
        (["{run}", "{films}", "--out", "new.csv", "--id", "ky"], "did you mean key?"),
        (["{run}", "{bags}", "--out", "new.csv"], "holds vectors, and"),
        (["{run}", "nothing.csv", "--out", "new.csv"], "nothing.csv"),
        (["{bagrun}", "unit_sphere", "--out", "new.csv"], "has the classes -1 and +1, and"),
        (
            ["{run}", "{films}", "--out", "new.csv", "--patches", "p.csv"],
            "was not fitted to slides",
        ),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(
    arguments, message, films, bags, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = {"run": films[0], "films": films[1], "bags": bags[1], "bagrun": bags[0]}
    assert main(["predict", *(word.format(**names) for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_vectors_of_another_width_are_refused(bags, tmp_path, capsys):
    np.savez(tmp_path / "wide.npz", X=np.ones((4, 7)), groups=[0, 0, 1, 1])
    assert main(["predict", str(bags[0]), str(tmp_path / "wide.npz"), "--out", "new.csv"]) == 2
    assert "7 features per instance" in capsys.readouterr().err


def test_a_run_without_its_model_says_so(films, tmp_path):
    with pytest.raises(attsvm.InputError, match="is not a folder"):
        attsvm.load_run(tmp_path / "run")
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("run.json", "model.json", "model.safetensors", "encoding.json"):
        (folder / name).write_bytes((films[0] / name).read_bytes())
    with pytest.raises(attsvm.InputError, match=r"has no encoding\.safetensors"):
        attsvm.load_run(folder)
    (folder / "encoding.safetensors").write_bytes(b"nothing")
    with pytest.raises(attsvm.InputError, match=r"encoding\.safetensors"):
        attsvm.load_run(folder)


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_a_text_without_a_known_word_has_the_probability_of_the_largest_class(weight, tmp_path):
    telling, rng = {"a": "dull", "b": "warm", "c": "odd"}, np.random.default_rng(0)
    rows = []
    for k in range(60):
        label = "aabbbbcbbb"[k % 10]
        rows.append([" ".join([*rng.choice(["we", "saw", "a", "film"], 3), telling[label]]), label])
    rows[::20] = [["!", label] for _, label in rows[::20]]  # no word at all, train or test
    path = _write(tmp_path / "films.csv", ["text", "label"], rows)
    command = ["fit", str(path), "--dimension", "4", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*command, *(["--class-weight", weight] if weight else [])]) in (0, 3)
    answers = _read(tmp_path / "run" / "predictions.csv")
    train = [row["label"] for row in answers if row["split"] == "train"]
    share = train.count("b") / len(train) if weight is None else 1 / 3
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    told = next(row for row in record["results"]["accuracy"] if row["name"] == "soft")
    for split in ("train", "test"):  # the page counts the answers
        right = [row["label"] == row["prediction"] for row in answers if row["split"] == split]
        assert told[split] == pytest.approx(np.mean(right), abs=1e-12)
    examples = json.loads((tmp_path / "run" / "examples.json").read_text(encoding="utf-8"))
    assert "!" not in [entry["view"]["text"] for entry in examples]
    new = attsvm.load_run(tmp_path / "run").predict(path)
    for written, row in zip(answers[::20], new[::20], strict=True):
        assert written["prediction"] == row["prediction"] == "b"
        assert row["probability"] == pytest.approx(share)
        assert float(written["probability"]) == pytest.approx(share, abs=1e-6)
        assert (written["chosen"], written["attention"], row["attention"]) == ("", "", None)


def test_a_table_with_semicolons_is_answered_with_semicolons_and_decimal_commas(films, tmp_path):
    rows = _read(films[1])
    path = tmp_path / "semi.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=";").writerows([list(rows[0]), *(row.values() for row in rows)])
    out = tmp_path / "answers.csv"
    assert main(["predict", str(films[0]), str(path), "--out", str(out)]) == 0
    with out.open(encoding="utf-8-sig", newline="") as file:
        found = list(csv.DictReader(file, delimiter=";"))
    assert len(found) == len(rows)
    for row, fitted in zip(found, _read(films[0] / "predictions.csv"), strict=True):
        assert row["probability"].replace(",", ".") == fitted["probability"]
        assert "." not in row["probability"] + row["margin"]
        assert {**row, "split": 0, "margin": 0, "probability": 0, "attention": 0} == {
            **fitted,
            "split": 0,
            "margin": 0,
            "probability": 0,
            "attention": 0,
        }
    run = tmp_path / "run"
    command = ["fit", str(path), "--dimension", "4", "--out", str(run), *QUICK]
    assert main(command) in (0, 3)
    assert (run / "predictions.csv").read_text("utf-8-sig").startswith("row;split;label;")
    notes = json.loads((run / "run.json").read_text())["dataset"]["notes"]
    assert "Fields of semi.csv are separated by semicolons." in notes
