"""What cannot be done: one sentence in words of the command line, exit code 2, nothing written."""

import shlex

import numpy as np
import pytest

from attsvm.cli import main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of a table of texts, arrays of several kinds, and one array for each file."""
    folder = tmp_path_factory.mktemp("given")
    table = ["text,label", *(f"word{k % 3} other thing,{k % 2}" for k in range(12))]
    (folder / "t.csv").write_text("\n".join(table), encoding="utf-8")
    random, y = np.random.default_rng(0), np.where(np.arange(12) % 2 == 0, 1.0, -1.0)
    X = random.normal(size=(12, 3, 4))
    tied = X.copy()
    tied[5, 2] = tied[5, 0] = -9.0  # label -1: under a head of ones the highest score, twice
    for name, arrays in {
        "good": {"X": X, "v": np.ones(4)},
        "single": {"X": X[:, :1]},
        "tied": {"X": tied, "v": np.ones(4)},
    }.items():
        np.savez(folder / f"{name}.npz", y=y, **arrays)
    np.savez(folder / "two.npz", X=X[:2], y=y[:2])
    for shards, more in {"shards": {"v": np.ones(4), "y": y}, "headless": {}}.items():
        (folder / shards).mkdir()
        for name, array in {"X": X, "chosen": np.zeros(12, dtype=int), **more}.items():
            np.save(folder / shards / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        # slips of the hand
        ("ft good.npz", ["did you mean fit"]),
        ("list norms", ["unknown argument norms; see attsvm list --help"]),
        ("fti digits", ["there is no command 'fti'; choose from fit, ", "did you mean fit; see"]),
        ("fit digits --encodr x", ["--encodr x", "did you mean --encoder; see"]),
        ("fit digits --steps x", ["--steps: x is not a whole number of at least 1"]),
        ("fit good.npz --test-size 1.5", ["1.5 does not lie between 0 and 1"]),
        ("fit good.npz --lr nan", ["nan is not a finite number above 0"]),
        ("fit no-such-name", ["neither a file nor a named data set"]),
        ("fit none.csv --text t --label l", ["none.csv"]),
        ("report .", ["has no run.json"]),
        ("fit digits --out t.csv", ["t.csv is a file", "choose another"]),
        # data
        ("fit t.csv --text body --label label", ["body", "text, label"]),
        ("fit t.csv --dimension 64", ["too few for vectors of length 64", "(option --dimension)"]),
        (
            "fit two.npz",
            ["class -1 has 1 sequence and class +1 has 1 sequence; at least 3 of each class are"],
        ),
        ("fit single.npz", ["single token", "nothing to select"]),
        ("solve tied.npz", ["tokens 0 and 2 of sequence 5 share the highest score"]),
        ("solve two.npz --tokens 5,5", ["tokens[0] is 5; sequence 0 has positions 0 to 2"]),
        ("solve two.npz --tokens nonsense", ["neither positions"]),
        # options that do not go together
        ("fit digits --layer 3", ["option --layer does not go with digits"]),
        ("fit digits --encoder m", ["option --encoder does not go with digits; it is for texts"]),
        (
            "fit t.csv --layer 2",
            ["option --layer does not go with text; it is for texts with option --encoder"],
        ),
        ("fit t.csv --vectors ./none", ["there is no folder ./none", "a hub name"]),
        ("fit t.csv --encoder t.csv", ["t.csv is a file; give a folder"]),
        ("fit t.csv --encoder a --vectors b", ["--encoder and option --vectors", "choose one"]),
        (
            "fit good.npz --assumption standard --steps 50",
            ["--steps belongs to the descent of --assumption collective"],
        ),
        # norms
        ("fit good.npz --norm lp:1.001", ["fit trains for lp:1.001 by mirror descent"]),
        ("fit good.npz --norm lp:", ["lp:"]),
        ("solve good.npz --norm l7", ["unknown norm 'l7'; known norms: fro"]),
        # data in parts
        ("solve t.npz --memory 1GB", ["t.npz does not exist"]),
        ("solve good.npz --memory 1MB", ["--memory is for data that are read in parts"]),
        ("solve headless", ["needs an array v and an array y beside X"]),
        ("solve shards --tokens chosen --memory much", ["memory is 'much'"]),
        ("solve shards --tokens chosen --memory 1kB", ["has room for"]),
        ("solve shards --memory 1MB --programme prompt", ["reads all data at once"]),
        ("solve shards --memory 1MB --slack 1", ["slack is not for programmes of blocks"]),
        ("solve shards --memory 1MB --tokens 0,1", ["no array 0,1 of selected tokens"]),
        # experiments
        ("reproduce", ["nothing to reproduce"]),
        ("reproduce tfsvm-99", ["no experiment 'tfsvm-99'"]),
        ("reproduce ntp-8 --text t.csv --out text", ["different words; give one with 200"]),
        ("reproduce tfsvm", ["tfsvm is a paper", "with option --paper", "tfsvm-1"]),
        ("reproduce --paper bible", ["no paper 'bible'"]),
        ("reproduce graph-4 --quick --scale smoke", ["--quick"]),
    ],
)
def test_one_sentence_exit_2_nothing_written(command, parts, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    before = {path: path.stat().st_mtime_ns for path in files.rglob("*")}
    assert main(shlex.split(command)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    for part in parts:
        assert part in printed.err
    assert {path: path.stat().st_mtime_ns for path in files.rglob("*")} == before
