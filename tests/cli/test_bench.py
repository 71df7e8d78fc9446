"""``attsvm bench``: files, JSON, resumption and bad input."""

import json

import pytest

from attsvm.cli import main


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
