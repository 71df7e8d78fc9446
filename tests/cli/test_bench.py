"""``attsvm bench``: files, JSON, resumption and bad input."""

import json

import pytest

from attsvm.cli import main

QUICK = [
    "bench",
    "solve",
    "--norms",
    "fro",
    "--sizes",
    "S",
    "--accuracies",
    "1e-3",
    "--seeds",
    "1",
    "--peers",
    "none",
    "--batch",
    "2",
]


def test_solve_writes_what_it_prints_and_says_with_what(tmp_path, capsys):
    out = tmp_path / "bench"
    assert main([*QUICK, "--out", str(out), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == (out / "bench.md").read_text(encoding="utf-8")
    document = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert document["format"] == "attsvm-bench/1"
    assert document["kind"] == "solve"
    assert document["command"].startswith("attsvm bench solve --norms fro")
    assert set(document) == {
        "format",
        "kind",
        "command",
        "date",
        "machine",
        "versions",
        "load",
        "settings",
        "cells",
        "table",
    }
    assert set(document["machine"]) == {"cpu", "cores", "memory_gib", "platform", "blas", "threads"}
    assert {"python", "attsvm", "numpy", "numba"} <= set(document["versions"])
    assert {cell["outcome"] for cell in document["cells"]} == {"finished"}
    assert all(len(cell["load"]) == 2 for cell in document["cells"])
    assert {(row["size"], row["solver"], row["success_rate"]) for row in document["table"]} == {
        ("S", "attsvm", 1.0),
        ("many", "attsvm", 1.0),
    }
    for fact in (
        document["machine"]["cpu"],
        document["date"],
        "load average",
        "thread(s)",
        document["versions"]["numpy"],
    ):
        assert fact in printed.out

    # finished cells: nothing is measured again
    assert main([*QUICK, "--out", str(out), "--quiet", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["cells"] == document["cells"]


def test_step_and_train_write_the_same_kind_of_document(tmp_path, capsys, monkeypatch):
    from attsvm.bench import step, train
    from attsvm.bench import step as steps

    monkeypatch.setattr(steps, "_COPIED", 1 << 10)
    monkeypatch.setitem(step.LISTS, "1M", lambda: [(16, 16), (16,)])
    step = [
        "bench",
        "step",
        "--parameters",
        "1M",
        "--optimisers",
        "SGD foreach; AdamW foreach",
        "--rounds",
        "1",
    ]
    assert main([*step, "--out", str(tmp_path / "step"), "--quiet"]) == 0
    monkeypatch.setattr(
        train,
        "jobs",
        lambda threads, quick: {train._LOOP: lambda: {"cpu": 1.0, "wall": 1.0, "seed_steps": 5}},
    )
    assert main(["bench", "train", "--out", str(tmp_path / "train"), "--quiet"]) == 0
    capsys.readouterr()
    for kind in ("step", "train"):
        document = json.loads((tmp_path / kind / "bench.json").read_text(encoding="utf-8"))
        assert set(document) == {
            "format",
            "kind",
            "command",
            "date",
            "machine",
            "versions",
            "load",
            "settings",
            "cells",
        }
        assert document["kind"] == kind
        assert (tmp_path / kind / "bench.md").is_file()
        page = (tmp_path / kind / "report.html").read_text(encoding="utf-8")
        assert page.count("<table>") == 1
        assert document["machine"]["cpu"] in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["solve", "--peers", "gurobi"], ["unknown peer 'gurobi'", "known peers: daqp"]),
        (["solve", "--norms", "l7"], ["unknown norm 'l7'"]),
        (["solve", "--sizes", "Q"], ["unknown size 'Q'", "S, M, L"]),
        (["solve", "--sizes", ","], ["--sizes is empty"]),
        (["solve", "--accuracies", "tight"], ["accuracy 'tight' is not a number"]),
        (["solve", "--accuracies", "0"], ["accuracy 0 is not a relative gap"]),
        (["step", "--parameters", "7T"], ["unknown parameter list '7T'"]),
        (["step", "--optimisers", "Adam"], ["unknown optimiser 'Adam'"]),
        (["step", "--device", "abacus"], ["unknown device 'abacus'"]),
    ],
)
def test_bad_input_is_one_sentence(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *options, "--out", "bench"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    for word in words:
        assert word in printed.err
    assert list(tmp_path.iterdir()) == []


def test_another_benchmark_in_the_folder_is_not_overwritten(tmp_path, capsys):
    out = tmp_path / "bench"
    assert main([*QUICK, "--out", str(out), "--quiet"]) == 0
    assert main([*QUICK, "--batch", "1", "--out", str(out), "--quiet"]) == 2
    assert "holds another run (batch was 2, now 1)" in capsys.readouterr().err
    assert main([*QUICK, "--batch", "1", "--out", str(out), "--quiet", "--overwrite"]) == 0
