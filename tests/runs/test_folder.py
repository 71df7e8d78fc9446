import json
import subprocess
import sys

import pytest

from attsvm.errors import InputError
from attsvm.runs import RunFolder, fingerprint, finished_run, read_run, write_json

REQUEST = {"command": "fit", "parameters": {"lr": 0.1, "steps": 10}}


def test_a_fingerprint_ignores_key_order_and_sees_values():
    assert fingerprint({"a": 1, "b": [1.5]}) == fingerprint({"b": [1.5], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_finished_run_is_read_back_and_its_checkpoint_is_gone(tmp_path):
    assert finished_run(tmp_path / "run", REQUEST) is None
    with RunFolder(tmp_path / "run", REQUEST) as folder:
        assert finished_run(folder.path, REQUEST) is None
        folder.checkpoint.mkdir()
        folder.finish({"format": "attsvm-run/1", "answer": 42})
    assert finished_run(tmp_path / "run", REQUEST) == {"format": "attsvm-run/1", "answer": 42}
    assert finished_run(tmp_path / "run", {"command": "fit"}) is None
    assert not folder.checkpoint.exists()


def test_another_request_is_refused_with_the_parameter_that_differs(tmp_path):
    with RunFolder(tmp_path, REQUEST):
        pass
    other = {"command": "fit", "parameters": {"lr": 0.2, "steps": 10}}
    with pytest.raises(
        InputError,
        match=(
            r"holds another run \(lr was 0\.1, now 0\.2\); choose another --out or pass --overwrite"
        ),
    ):
        RunFolder(tmp_path, other).__enter__()


def test_overwriting_throws_the_other_run_away(tmp_path):
    with RunFolder(tmp_path, REQUEST) as folder:
        folder.checkpoint.mkdir()
        folder.finish({"format": "attsvm-run/1"})
        (folder.path / "figures").mkdir()
    with RunFolder(tmp_path, {"command": "fit"}, overwrite=True) as folder:
        assert not (folder.path / "run.json").exists()
        assert not (tmp_path / "figures").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds files that are not a run of attsvm"):
        RunFolder(tmp_path, REQUEST, overwrite=True).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file; --out needs a folder"):
        RunFolder(tmp_path / "run", REQUEST).__enter__()


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    program = (
        "import sys, pathlib; from attsvm.runs import RunFolder; from attsvm.errors import"
        " InputError\ntry:\n    RunFolder(pathlib.Path(sys.argv[1]), {'command':"
        " 'fit'}).__enter__()\nexcept InputError as error:\n    print(error)"
    )
    with RunFolder(tmp_path, {"command": "fit"}):
        told = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert "another attsvm process is writing" in told


def test_leftovers_of_a_killed_write_are_cleared(tmp_path):
    with RunFolder(tmp_path, REQUEST):
        pass
    (tmp_path / ".run.0000.partial.json").write_text('{"half": ')
    with RunFolder(tmp_path, REQUEST):
        assert not list(tmp_path.glob(".*partial*"))


def test_reading_a_run_says_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=r"has no run\.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": "attsvm-run/99"}))
    with pytest.raises(
        InputError, match=r"format 'attsvm-run/99', this version reads 'attsvm-run/1'"
    ):
        read_run(tmp_path)


def test_json_refuses_what_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"gap": float("nan")})
    assert list(tmp_path.iterdir()) == []
