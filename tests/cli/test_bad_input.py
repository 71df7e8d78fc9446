"""Bad data through the command line: one clear sentence, exit code 2, nothing written."""

import io
import json
import struct
import zipfile

import numpy as np
import pytest

from attsvm.cli import main

GENERATOR = np.random.default_rng(0)


def arrays(folder, **changes):
    X = GENERATOR.normal(size=(12, 3, 4))
    content = {"X": X, "y": np.where(np.arange(12) % 2 == 0, 1.0, -1.0), **changes}
    np.savez(folder / "data.npz", **content)
    return ["fit", "data.npz"]


def rows(folder, records, name="data.jsonl", columns=("text", "label")):
    (folder / name).write_text(
        "\n".join(json.dumps(dict(zip(columns, record, strict=True))) for record in records),
        encoding="utf-8",
    )
    return ["fit", name, "--text", "text", "--label", "label"]


TEXTS = [(f"word{k} other{k % 3} thing", k % 2) for k in range(12)]


def missing(folder):
    return ["fit", "nowhere.jsonl", "--text", "text", "--label", "label"]


def unknown_column(folder):
    return [*rows(folder, TEXTS)[:2], "--text", "body", "--label", "label"]


def one_class(folder):
    return rows(folder, [(text, 1) for text, _ in TEXTS])


def one_class_of_arrays(folder):
    return arrays(folder, y=np.ones(12))


def single_tokens(folder):
    return arrays(folder, X=GENERATOR.normal(size=(12, 1, 4)))


def empty_text(folder):
    return rows(folder, [*TEXTS[:7], ("  ", 1), *TEXTS[7:]])


def not_utf8(folder):
    (folder / "data.csv").write_bytes(b"text,label\ngood film,1\ncaf\xe9 noir,0\n")
    return ["fit", "data.csv", "--text", "text", "--label", "label"]


def header_of_10_gigabytes(folder):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000, 16, 8), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(folder / "data.npz", "w") as archive:
        archive.writestr(
            "X.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 64
        )
        labels = io.BytesIO()
        np.save(labels, np.ones(12))
        archive.writestr("y.npy", labels.getvalue())
    return ["fit", "data.npz"]


def tied_tokens(folder):
    X = GENERATOR.normal(size=(12, 3, 4))
    X[5, 2] = X[5, 0]
    return arrays(folder, X=X)


def tied_optimal_tokens(folder):
    X = GENERATOR.normal(size=(12, 3, 4))
    y = np.where(np.arange(12) % 2 == 0, 1.0, -1.0)
    X[5, 2] = X[5, 0] = -9.0  # label -1: the highest score, twice
    return ["solve", *arrays(folder, X=X, y=y, v=np.ones(4))[1:], "--tokens", "optimal"]


def not_a_number(folder):
    X = GENERATOR.normal(size=(12, 3, 4))
    X[3, 1, 2] = np.nan
    return arrays(folder, X=X)


def wrong_labels(folder):
    return arrays(folder, y=np.arange(12) % 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (missing, ["nowhere.jsonl"]),
        (unknown_column, ["body", "text, label"]),
        (one_class, ["data.jsonl", "only the label 1", "two classes"]),
        (one_class_of_arrays, ["label -1 has 0 sequence"]),
        (single_tokens, ["single token", "nothing to select"]),
        (empty_text, ["data.jsonl", "8", "empty"]),
        (not_utf8, ["data.csv", "UTF-8"]),
        (header_of_10_gigabytes, ["data.npz", "X"]),
        (tied_tokens, ["sequence 5", "positions 0 and 2", "--merge-duplicates"]),
        (tied_optimal_tokens, ["tokens 0 and 2 of sequence 5 share the highest score"]),
        (not_a_number, ["X of shape (12, 3, 4) holds nan at [3, 1, 2]"]),
        (wrong_labels, ["y holds 0 at [0]", "2*y-1"]),
    ],
)
def test_one_sentence_exit_2_nothing_written(make, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    for word in words:
        assert word in printed.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["ft", "data.npz"], ["did you mean fit?"]),
        (["list", "norms"], ["unrecognized arguments: norms; see attsvm list --help"]),
        (["fit", "digits", "--encodr", "x"], ["--encodr x", "did you mean --encoder?"]),
        (["fit", "digits", "--steps", "x"], ["--steps: x is not a whole number of at least 1"]),
        (["fit", "digits", "--layer", "3"], ["option --layer does not go with digits"]),
        (["fit", "t.csv", "--vectors", "./none"], ["there is no folder ./none", "a hub name"]),
        (["fit", "t.csv", "--encoder", "t.csv"], ["t.csv is a file; give a folder"]),
        (["solve", "t.npz", "--memory", "1GB"], ["t.npz does not exist"]),
        (["fit", "t.csv", "--encoder", "a", "--vectors", "b"], ["--encoder and option --vectors"]),
        (["fit", "t.csv"], ["too few for vectors of length 64", "(option --dimension)"]),
        (["fit", "digits", "--out", "t.csv"], ["t.csv is a file", "choose another"]),
    ],
)
def test_a_slip_of_the_hand_is_told_in_words_of_the_command_line(
    command, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    table = "\n".join(["text,label", *(f"word{k % 3} other thing,{k % 2}" for k in range(12))])
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    for part in words:
        assert part in told
