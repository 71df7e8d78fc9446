"""``attsvm reproduce`` from the outside."""

import json
import sys

import pytest

from attsvm.cli import main


def test_quick_reproduction_prints_verdicts_as_json(tmp_path, capsys):
    assert (
        main(
            [
                "reproduce",
                "tfsvm-4",
                "--quick",
                "--seeds",
                "3",
                "--jobs",
                "1",
                "--out",
                str(tmp_path / "o"),
                "--json",
            ]
        )
        == 0
    )
    (entry,) = json.loads(capsys.readouterr().out)["experiments"]
    assert (entry["id"], entry["paper"]) == ("tfsvm-4", "tfsvm")
    assert {claim["verdict"] for claim in entry["claims"]} <= {"holds", "fails", "not applicable"}


def test_a_scale_is_named_and_quick_is_short_for_the_smallest(tmp_path, capsys):
    assert (
        main(
            [
                "reproduce",
                "tfsvm-4",
                "--scale",
                "smoke",
                "--seeds",
                "2",
                "--jobs",
                "1",
                "--out",
                str(tmp_path / "o"),
                "--json",
            ]
        )
        == 0
    )
    (entry,) = json.loads(capsys.readouterr().out)["experiments"]
    assert entry["scale"] == "smoke, 2 seeds"
    assert "--scale smoke" in (tmp_path / "o" / "tfsvm-4" / "report.html").read_text()
    assert main(["reproduce", "tfsvm-4", "--quick", "--scale", "smoke"]) == 2


def test_an_experiment_without_trials_is_left_out_where_seeds_are_asked_for(tmp_path, capsys):
    words = [
        "reproduce",
        "tfsvm-1",
        "tfsvm-4",
        "--quick",
        "--seeds",
        "2",
        "--shift-seeds",
        "500",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*words, "--json"]) == 2
    told = capsys.readouterr()
    assert "tfsvm-1 is left out: tfsvm-1 has no random trials, so seeds do not apply" in told.err
    (entry,) = json.loads(told.out)["experiments"]
    assert (entry["id"], entry["scale"]) == ("tfsvm-4", "quick, 2 seeds, seeds 500 later")


@pytest.mark.processes
def test_cells_in_two_processes_give_the_same_numbers(tmp_path):
    runs = []
    for jobs in ("1", "2"):
        main(
            [
                "reproduce",
                "tfsvm-4",
                "--quick",
                "--seeds",
                "2",
                "--jobs",
                jobs,
                "--out",
                str(tmp_path / jobs),
                "--json",
            ]
        )
        runs.append((tmp_path / jobs / "tfsvm-4" / "arrays.safetensors").read_bytes())
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing to reproduce"),
        (["tfsvm-99"], "no experiment 'tfsvm-99'"),
        (["--paper", "bible"], "no paper 'bible'"),
    ],
)
def test_bad_requests_get_a_sentence(tmp_path, capsys, words, sentence):
    assert main(["reproduce", *words, "--out", str(tmp_path / "o")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_the_listing_names_experiments(capsys):
    assert main(["list"]) == 0
    assert "tfsvm-4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("", "--dask has no address"), ("127.0.0.1:1", "no Dask scheduler answers at 127.0.0.1:1")],
)
def test_a_scheduler_that_is_not_there(tmp_path, monkeypatch, capsys, address, sentence):
    pytest.importorskip("distributed")
    monkeypatch.setattr("attsvm_papers.runs.command._ANSWER", "1s")
    words = ["reproduce", "graph-6", "--out", str(tmp_path / "o"), "--dask", address]
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_missing_dask_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = ["reproduce", "graph-6", "--out", str(tmp_path / "o"), "--dask", "login1:8786"]
    assert main(words) == 2
    assert "pip install 'attsvm[dask]'" in capsys.readouterr().err


@pytest.mark.processes
def test_dask_finds_the_same_numbers(tmp_path, capsys):
    distributed = pytest.importorskip("distributed")
    words = ["reproduce", "graph-6", "--quick", "--json", "--out"]
    assert main([*words, str(tmp_path / "own"), "--jobs", "1"]) == 0
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        assert main([*words, str(tmp_path / "dask"), "--dask", address]) == 0
    own, dask = (tmp_path / name / "graph-6" / "arrays.safetensors" for name in ("own", "dask"))
    assert own.read_bytes() == dask.read_bytes()
