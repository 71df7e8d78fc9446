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


def test_parameters_are_set_by_name_and_named_in_the_run(tmp_path, capsys):
    words = ["reproduce", "graph-4", "--quick", "--jobs", "1", "--quiet", "--seeds", "2"]
    setting = ["--set", "steps=50", "d=10", "--out", str(tmp_path / "o")]
    assert main([*words, *setting]) == 0
    assert "steps=50, d=10" in capsys.readouterr().out
    run = json.loads((tmp_path / "o" / "graph-4" / "run.json").read_text())
    assert (run["parameters"]["steps"], run["parameters"]["d"]) == (50, 10)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("step=50", "graph-4 has no parameter 'step'; did you mean steps?"),
        ("steps=many", "graph-4 does not take steps=many"),
        ("steps", "steps is not of the form NAME=VALUE"),
    ],
)
def test_a_parameter_that_is_not_there_or_takes_no_such_value(tmp_path, capsys, setting, sentence):
    words = ["reproduce", "graph-4", "--out", str(tmp_path / "o"), "--set", setting]
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_strict_exits_1_when_a_claim_fails(tmp_path):
    experiment = tmp_path / "fails.py"
    experiment.write_text(FAILING)
    words = ["reproduce", str(experiment), "--jobs", "1", "--quiet", "--out", str(tmp_path / "o")]
    assert main(words) == 0
    assert main([*words, "--strict"]) == 1


FAILING = '''"""One is two.

Every number of a list is one.

Source: nobody
"""
from attsvm_papers import kit


@kit.run(seeds=kit.seeds(3, by=3))
def numbers(seeds):
    return {"number": [1.0 for _ in seeds]}


@kit.claim(kit.at_least(2.0, "as is said"))
def O1(e):
    """One is two."""
    return e["number"]
'''


def test_figures_are_saved_as_pdf_too(tmp_path):
    words = ["reproduce", "graph-4", "--quick", "--jobs", "1", "--quiet", "--seeds", "2"]
    assert main([*words, "--out", str(tmp_path), "--format", "pdf", "--format", "svg"]) == 0
    figures = {path.name for path in (tmp_path / "graph-4" / "figures").iterdir()}
    names = {name.partition(".")[0] for name in figures}
    assert figures == {f"{name}.{kind}" for name in names for kind in ("pdf", "png", "svg")}
