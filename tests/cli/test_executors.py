"""``--executor``: what is understood, and one sentence for the rest."""

import sys

import pytest

from attsvm.cli import main
from attsvm.cli.executors import executor
from attsvm.errors import InputError, MissingExtraError, UnavailableError


def asked(text, folder):
    with executor(text, folder) as found:
        return found


def test_processes_of_this_machine(tmp_path):
    assert asked(None, tmp_path) == (None, None)
    assert asked("local:8", tmp_path) == (None, 8)


@pytest.mark.parametrize("text", ["local:", "local:0", "local:x", "dask:1", "slurm:gpu", "", ":"])
def test_another_word_is_one_sentence(tmp_path, text, capsys):
    with pytest.raises(InputError, match="give local:J"):
        asked(text, tmp_path)
    assert main(["reproduce", "graph-6", "--out", str(tmp_path), "--executor", text]) == 2
    assert "give local:J" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "package"), [("dask://here:1", "distributed"), ("submitit:gpu", "submitit")]
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, text, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=package):
        asked(text, tmp_path)


def test_a_scheduler_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("attsvm.cli.executors._ANSWER", "1s")
    with pytest.raises(UnavailableError, match="no Dask scheduler answers"):
        asked("dask://127.0.0.1:1", tmp_path)


def test_options_of_submitit(tmp_path):
    pytest.importorskip("submitit")
    found, jobs = asked("submitit:local?timeout_min=7", tmp_path / "out")
    assert jobs is None
    assert found._executor.parameters["timeout_min"] == 7
    with pytest.raises(InputError, match="option that submitit does not take"):
        asked("submitit:local?colour=blue", tmp_path / "out")
