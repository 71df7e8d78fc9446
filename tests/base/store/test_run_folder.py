import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.base.files import atomic_write, read_json, write_json
from attsvm.base.store import (
    RunFolder,
    announce,
    environment,
    finished_run,
    read_run,
)

REQUEST = {"command": "fit", "parameters": {"lr": 0.1, "steps": 10}}


def test_a_finished_run_is_read_back_and_its_checkpoint_is_gone(tmp_path):
    assert finished_run(tmp_path / "run", REQUEST) is None
    with RunFolder(tmp_path / "run", REQUEST) as folder:
        assert finished_run(folder.path, REQUEST) is None
        folder.save_stage("s", {"W": np.ones(2)}, done=False)
        run = folder.finish({"format": "attsvm-run/1", "answer": 42})
    assert run["answer"] == 42
    assert finished_run(tmp_path / "run", REQUEST) == run == read_run(tmp_path / "run")
    assert finished_run(tmp_path / "run", {"command": "fit"}) is None
    for key in ([], {}, None):
        write_json(tmp_path / "run" / "run.json", {**run, "key": key})
        assert finished_run(tmp_path / "run", REQUEST) is None
    write_json(tmp_path / "run" / "run.json", {**run, "format": "attsvm-run/0"})
    assert finished_run(tmp_path / "run", REQUEST) is None
    write_json(tmp_path / "run" / "run.json", run)
    (tmp_path / "run" / "request.json").unlink()  # nothing says whose run it is
    assert finished_run(tmp_path / "run", REQUEST) is None
    assert not (tmp_path / "run" / "checkpoint").exists()


OTHER = {"command": "fit", "parameters": {"lr": 0.2}}


def finish(folder, request, files=("W.bin", "figures/a.svg"), **options):
    """A run that leaves these files, and a checkpoint while it goes on."""
    with RunFolder(folder, request, files=files[:1], **options) as run:
        run.save_stage("s", {"W": np.ones(2)}, done=False)
        run.announce(files)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(request))
        run.finish({"format": "attsvm-run/1", "of": request})


def tree(folder):
    """Everything in a folder: links as links, files with content and time."""
    return {
        str(path.relative_to(folder)): (
            str(path.readlink())
            if path.is_symlink()
            else (path.read_bytes(), path.stat().st_mtime_ns)
            if path.is_file()
            else None
        )
        for path in folder.rglob("*")
    }


def test_another_request_is_refused_with_what_differs_and_nothing_changes(tmp_path):
    request = {**REQUEST, "models": ("a", "b")}  # lists, as they are read back
    finish(tmp_path, request)
    (tmp_path / ".lock").unlink()
    before = tree(tmp_path)
    other = {**request, "parameters": {"lr": 0.2, "steps": 10}}
    sentence = r"holds another run \(lr was 0\.1, now 0\.2\); choose another folder or pass over"
    with pytest.raises(InputError, match=sentence):
        RunFolder(tmp_path, other).__enter__()
    assert tree(tmp_path) == before
    with pytest.raises(InputError, match=r"another run \(command was 'fit', now 'probe'\)"):
        RunFolder(tmp_path, {"command": "probe", "attsvm": "0.2.0"}).__enter__()
    for parameters in (None, [0.1, 10]):
        with pytest.raises(InputError, match=r"\(parameters was \{.*\}, now (None|\[0\.1, 10\])\)"):
            RunFolder(tmp_path, {**request, "parameters": parameters}).__enter__()


def test_the_checkpoint_of_an_overwritten_run_goes_with_it(tmp_path):
    with RunFolder(tmp_path, REQUEST) as run:  # and is not finished
        run.save_stage("s", {"W": np.ones(2)}, done=True)
    with RunFolder(tmp_path, REQUEST) as run:
        assert run.load_stage("s")[1]
    with RunFolder(tmp_path, OTHER, overwrite=True) as run:
        assert run.load_stage("s") == (None, False)


def test_a_thread_of_the_run_may_say_what_it_writes(tmp_path):
    with RunFolder(tmp_path, REQUEST) as run:
        worker = threading.Thread(target=run.announce, args=(["a.bin"],), daemon=True)
        worker.start()
        worker.join(timeout=60.0)  # it would wait for the lock of its own run for ever
        assert not worker.is_alive()
    assert read_json(tmp_path / "request.json")["files"] == ["a.bin", "run.json"]


def test_overwriting_leaves_the_files_of_others(tmp_path):
    """Wherever they lie in the folder, and whatever they are."""
    finish(tmp_path, REQUEST)
    theirs = ("thesis.txt", "src/main.py", "figures/mine.svg", ".W.mine.partial.bin", "W.txt")
    for name in theirs:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("years of work")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "notes").write_text("years of work")
    finish(tmp_path, OTHER, files=("other.bin",), overwrite=True)
    assert set(tree(tmp_path)) == {
        *(".lock", "request.json", "run.json", "other.bin", "src", "figures", "checkpoint"),
        *("checkpoint/notes", *theirs),
    }
    assert all((tmp_path / name).read_text() == "years of work" for name in theirs)


def test_an_overwritten_run_leaves_no_empty_folders(tmp_path):
    deep = ("W.bin", "figures/a.svg", "figures/heads/late/b.svg", "tables/c/d.csv")
    finish(tmp_path, REQUEST, files=deep)
    (tmp_path / "tables" / "mine").write_text("years of work")
    finish(tmp_path, OTHER, files=("other.bin",), overwrite=True)
    assert set(tree(tmp_path)) == {
        *(".lock", "request.json", "run.json", "other.bin", "tables", "tables/mine")
    }


def test_what_is_announced_in_a_run_is_of_the_run(tmp_path):
    announce(tmp_path, ["page.html"])  # no run's folder: nothing to say, nothing to refuse
    assert list(tmp_path.iterdir()) == []
    finish(tmp_path, REQUEST)
    (tmp_path / "mine.html").write_text("years of work")
    with pytest.raises(InputError, match=r"mine\.html is in the way"):
        announce(tmp_path, ["page.html", "mine.html"])
    announce(tmp_path, ["page.html"])
    (tmp_path / "page.html").write_text("drawn")
    announce(tmp_path, ["page.html"])  # and may be drawn again
    finish(tmp_path, OTHER, files=("other.bin",), overwrite=True)
    assert not (tmp_path / "page.html").exists()
    assert (tmp_path / "mine.html").read_text() == "years of work"


def test_a_file_in_the_way_is_named_and_nothing_changes(tmp_path):
    finish(tmp_path, REQUEST)
    (tmp_path / "other.bin").write_text("years of work")
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"other\.bin is in the way: .*move it, or choose"):
        RunFolder(tmp_path, OTHER, files=["other.bin"], overwrite=True).__enter__()
    assert tree(tmp_path) == before
    with RunFolder(tmp_path, OTHER, overwrite=True) as run, pytest.raises(InputError, match="way"):
        run.announce(["other.bin"])
    assert (tmp_path / "other.bin").read_text() == "years of work"


def test_links_in_a_run_folder_are_not_followed(tmp_path):
    finish(tmp_path / "run", REQUEST)
    home = tmp_path / "home"
    (home / "figures").mkdir(parents=True)
    for name in ("W.bin", "figures/a.svg"):
        (home / name).write_text("years of work")
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "figures").rmdir()
    (tmp_path / "run" / "figures").symlink_to(home / "figures")
    (tmp_path / "run" / "W.bin").symlink_to(home / "W.bin")
    before = tree(home)
    with RunFolder(tmp_path / "run", OTHER, overwrite=True) as run:
        with pytest.raises(InputError, match="figures is in the way"):
            run.announce(["figures/a.svg"])
        with pytest.raises(InputError, match=r"W\.bin is in the way"):
            run.announce(["W.bin"])
    assert tree(home) == before
    assert (tmp_path / "run" / "W.bin").is_symlink()


def test_a_checkpoint_elsewhere_is_not_cleared_through_a_link(tmp_path):
    with RunFolder(tmp_path / "run", REQUEST) as run:
        run.save_stage("s", {"W": np.ones(2)}, done=True)
        (tmp_path / "run" / "checkpoint").rename(tmp_path / "home")
        (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "home")
        before = tree(tmp_path / "home")
        run.finish({"format": "attsvm-run/1"})
    assert finished_run(tmp_path / "run", REQUEST) is not None
    assert tree(tmp_path / "home") == before


def test_a_file_where_a_folder_should_be_is_in_the_way(tmp_path):
    (tmp_path / "run").mkdir()
    finish(tmp_path / "run", REQUEST, files=("W.bin",))
    (tmp_path / "run" / "figures").write_text("years of work")
    with pytest.raises(InputError, match="figures is in the way"):
        announce(tmp_path / "run", ["figures/a.svg"])


def forged(folder, **content):
    (folder / "run").mkdir()
    (folder / "run" / "request.json").write_text(
        json.dumps({"format": "attsvm-run/1", "key": "0", "request": {}, **content})
    )


@pytest.mark.parametrize("name", ["../thesis.txt", "a/../../thesis.txt", "{}/thesis.txt", ""])
def test_a_list_that_leads_out_of_the_folder_is_none(tmp_path, name):
    (tmp_path / "thesis.txt").write_text("years of work")
    forged(tmp_path, files=[name.format(tmp_path)])
    before = tree(tmp_path)
    with pytest.raises(InputError, match="holds files that are not a run of attsvm"):
        RunFolder(tmp_path / "run", OTHER, overwrite=True).__enter__()
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [
        {"thesis.txt": "years of work"},
        {"request.json": "{}", "thesis.txt": "years of work"},
        {"request.json": '{"command": "fit"}', "run.json": "{}", ".lock": "", "src/a.py": ""},
        {"run.json": '{"format": "mine"}'},
        {"run.json": '{"format": "attsvm-run/1", "files": ["thesis.txt"]}', "thesis.txt": ""},
        {"run.json": "[" * 100_000},
        {".lock": "", "src/a.py": ""},
        {".git/config": "", "a.py": ""},
    ],
)
def test_a_folder_of_somebody_else_is_left_alone(tmp_path, content):
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"holds files that are not a run of attsvm \(.*\)"):
            RunFolder(tmp_path, REQUEST, overwrite=overwrite).__enter__()
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("names", "words"),
    [("ab", r"\(a, b\)"), ("abc", r"\(a, b, c\)"), ("abcde", r"\(a, b, c and 2 more\)")],
)
def test_the_first_files_of_somebody_else_are_named(tmp_path, names, words):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"holds files that are not a run of attsvm {words};"):
        RunFolder(tmp_path, REQUEST).__enter__()


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file, but a run needs a folder"):
        RunFolder(tmp_path / "run", REQUEST).__enter__()
    with pytest.raises(InputError, match="cannot be written to"):
        RunFolder(tmp_path / "run" / "inside", REQUEST).__enter__()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a link to nowhere"):
        RunFolder(tmp_path / "link", REQUEST).__enter__()
    for folder in (Path("/"), Path.home()):
        if folder.is_dir() and any(folder.iterdir()):
            with pytest.raises(InputError, match="not a run of attsvm"):
                RunFolder(folder, REQUEST, overwrite=True).__enter__()


class Killed(BaseException):
    pass


@contextmanager
def killed_after(monkeypatch, operations):
    """The process ends before one more change of the disk than that, and does nothing then."""
    left = operations
    with monkeypatch.context() as patch:

        def counted(name):
            real = getattr(Path, name)

            def change(self, *arguments, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return real(self, *arguments, **options)

            patch.setattr(Path, name, change)

        for name in ("unlink", "replace", "rmdir", "mkdir", "write_text"):
            counted(name)
        yield


@pytest.mark.parametrize("second", [0, 3, 9])
def test_two_kills_around_an_overwrite_never_leave_the_other_runs_result(
    tmp_path, monkeypatch, second
):
    """Killed before every single change of the disk: the folder is the old run, finished, or the
    new one, unfinished; and what is finished in the end is the new one.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut here
    for first in range(100):
        folder = tmp_path / f"{first}"
        finish(folder, REQUEST)
        try:
            with killed_after(monkeypatch, first):
                finish(folder, OTHER, overwrite=True)
        except Killed:
            pass
        else:
            break
        ledger = json.loads((folder / "request.json").read_text())
        if ledger["request"] == REQUEST:
            assert finished_run(folder, REQUEST)["of"] == REQUEST
            assert (folder / "figures" / "a.svg").exists()
        else:
            assert finished_run(folder, REQUEST) is None
            with pytest.raises(InputError):
                RunFolder(folder, REQUEST).__enter__()
        with suppress(Killed), killed_after(monkeypatch, second):
            finish(folder, OTHER, overwrite=True)
        found = finished_run(folder, OTHER)
        assert found is None or found["of"] == OTHER
        finish(folder, OTHER, overwrite=True)
        assert finished_run(folder, OTHER)["of"] == OTHER
        assert set(tree(folder)) == {
            *(".lock", "request.json", "run.json", "W.bin", "figures", "figures/a.svg")
        }
        assert json.loads((folder / "W.bin").read_text()) == OTHER
    assert first > 15


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    program = (
        "import sys, pathlib; from attsvm.base.store import RunFolder; from attsvm import"
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
    with atomic_write(tmp_path / "run.json") as partial:
        partial.write_text("{}")
    (tmp_path / "run.json").unlink()
    partial.write_text('{"half": ')
    with RunFolder(tmp_path, REQUEST):
        assert set(tree(tmp_path)) == {".lock", "request.json"}
    partial.with_name(partial.name.replace(".run.", ".request.")).write_text('{"half": ')
    (tmp_path / "request.json").unlink()
    with RunFolder(tmp_path, REQUEST):  # killed while it claimed an empty folder
        assert set(tree(tmp_path)) == {".lock", "request.json"}


def test_reading_a_run_says_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=r"has no run\.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": "attsvm-run/99"}))
    with pytest.raises(
        InputError, match=r"format 'attsvm-run/99', this version reads 'attsvm-run/1'"
    ):
        read_run(tmp_path)
    finish(tmp_path / "run", REQUEST)
    result = (tmp_path / "run" / "run.json").read_text()
    with RunFolder(tmp_path / "run", OTHER, overwrite=True):
        pass
    (tmp_path / "run" / "run.json").write_text(result)  # as a kill may leave it
    with pytest.raises(InputError, match=r"run\.json is of a run that is being overwritten"):
        read_run(tmp_path / "run")


def test_any_text_is_written_and_read_back(tmp_path):
    value = {"label": "half \ud83d of a pair, \U0001f600 whole, \x00 and \u2028"}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value


def test_json_refuses_what_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"gap": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_stage_goes_from_absent_to_partial_to_done_bit_for_bit(tmp_path):
    array = np.random.default_rng(0).normal(size=(3, 4)) * 1e-300
    with RunFolder(tmp_path, REQUEST) as run:
        assert run.load_stage("joint") == (None, False)
    for step, done in ((3, False), (9, True)):
        with RunFolder(tmp_path, REQUEST) as run:
            run.save_stage("joint", {"step": np.array(step), "W": array}, done=done)
        with RunFolder(tmp_path, REQUEST) as run:
            arrays, ended = run.load_stage("joint")
        assert (int(arrays["step"]), ended) == (step, done)
        assert arrays["W"].tobytes() == array.tobytes()
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["joint.done.safetensors"]


def test_a_run_knows_in_which_environments_its_stages_were_computed(tmp_path, monkeypatch):
    here = environment()
    moon = {**here, "platform": "moon"}
    with RunFolder(tmp_path, REQUEST) as run:
        assert run.environments == []
        run.save_stage("s", {"W": np.ones(2)}, done=True)
        run.save_stage("t", {"W": np.ones(2)}, done=False)
        assert run.environments == [here]
    monkeypatch.setattr("attsvm.base.store.run_folder.environment", lambda: moon)
    with RunFolder(tmp_path, REQUEST) as run:
        run.load_stage("t")
        assert run.environments == [here, moon]


def test_files_of_others_among_the_stages_stay(tmp_path):
    theirs = ("notes.txt", ".s.mine.partial.safetensors", "t.done.safetensors")
    with RunFolder(tmp_path / "run", REQUEST) as run:
        (tmp_path / "run" / "checkpoint").mkdir()
        for name in theirs:
            (tmp_path / "run" / "checkpoint" / name).write_text("years of work")
        run.save_stage("s", {"W": np.ones(2)}, done=False)
        run.save_stage("s", {"W": np.ones(2)}, done=True)
        with pytest.raises(InputError, match="is in the way"):
            run.save_stage("t", {"W": np.ones(2)}, done=True)
        run.finish({"format": "attsvm-run/1"})
    assert {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()} == set(theirs)
