"""``attsvm reproduce`` from the outside."""

import json
import sys

import pytest

from attsvm.cli import main

QUICK = ["--quick", "--jobs", "1", "--json", "--out"]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The numbers of an experiment of three cells, computed in this process."""
    folder = tmp_path_factory.mktemp("own")
    assert main(["reproduce", "rates-4", *QUICK, str(folder)]) == 0
    return numbers(folder)


def numbers(folder):
    return (folder / "rates-4" / "arrays.safetensors").read_bytes()


def test_verdicts_are_printed_and_what_has_no_trials_is_left_out(tmp_path, capsys):
    words = ["reproduce", "tfsvm-1", "graph-4", "--seeds", "2", "--shift-seeds", "500"]
    assert main([*words, *QUICK, str(tmp_path / "o")]) == 2
    told = capsys.readouterr()
    assert "tfsvm-1 is left out: tfsvm-1 has no random trials, so seeds do not apply" in told.err
    (entry,) = json.loads(told.out)["experiments"]
    assert (entry["id"], entry["paper"]) == ("graph-4", "graph")
    assert entry["scale"] == "quick, 2 seeds, seeds 500 later"
    assert {claim["verdict"] for claim in entry["claims"]} <= {
        *("holds", "fails", "undecided", "not applicable")
    }


def test_a_scale_is_named_and_its_page_has_the_command(tmp_path, capsys):
    words = ["reproduce", "graph-4", "--scale", "smoke", "--seeds", "2", "--jobs", "1"]
    assert main([*words, "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().out
    assert str(tmp_path / "o" / "index.html") in said
    assert "; null, " in said
    run = json.loads((tmp_path / "o" / "graph-4" / "run.json").read_text())
    assert run["scale"] == "smoke, 2 seeds"
    assert "--scale smoke" in (tmp_path / "o" / "graph-4" / "report.html").read_text()


@pytest.mark.processes
def test_cells_in_two_processes_give_the_same_numbers(own, tmp_path):
    words = ["reproduce", "rates-4", "--quick", "--jobs", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    assert numbers(tmp_path) == own


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("", "--dask has no address"),
        ("127.0.0.1:1", "no Dask scheduler answers at 127.0.0.1:1"),
        ("login1:8786", "pip install 'attsvm[dask]'"),
    ],
)
def test_a_scheduler_or_a_dask_that_is_not_there(tmp_path, monkeypatch, capsys, address, sentence):
    pytest.importorskip("distributed")
    if "pip" in sentence:
        monkeypatch.setitem(sys.modules, "distributed", None)
    dask = pytest.importorskip("dask")
    words = ["reproduce", "rates-4", "--out", str(tmp_path / "o"), "--dask", address]
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.processes
def test_dask_finds_the_same_numbers(own, tmp_path):
    """A worker in this process, spoken to over a socket; processes are started by slow tests."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(processes=False, protocol="tcp://", **options) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        words = ["reproduce", "rates-4", "--quick", "--out", str(tmp_path), "--dask", address]
        assert main(words) == 0
    assert numbers(tmp_path) == own
