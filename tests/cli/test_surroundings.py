"""The command line away from home: full disks, closed pipes, other encodings, containers."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm.cli import main

SOURCES = Path(attsvm.__file__).parents[1]
ATTSVM = f"{shlex.quote(sys.executable)} -m attsvm"
SHORT = ["--steps", "20", "--records", "2", "--quiet"]
STEERING = "\x1b]0;title\x07\x1b[2J\u202e\x9b"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


def shell(line, folder=None, **environment):
    """A line of the shell."""
    known = {"PYTHONPATH": str(SOURCES)}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env={**os.environ, **known, **environment},
        capture_output=True,
        check=False,
        timeout=300,
    )


@needs_full
@pytest.mark.parametrize("words", ["list", "list --json", "--help", "solve tfsvm-1"])
def test_output_that_cannot_be_written_is_one_sentence(words):
    done = shell(f"{ATTSVM} {words} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (8192, ["fit", "data.npz", *SHORT, "--out", "run"]),
        (1024, ["solve", "tfsvm-1", "--out", "a.npz"]),
    ],
    ids=("fit", "solve"),
)
def test_a_disk_that_is_too_small_is_one_sentence(size, words, tmp_path, monkeypatch, capsys):
    resource = pytest.importorskip("resource", reason="limits files as Linux does")
    monkeypatch.chdir(tmp_path)
    # a compiled module that the limit cuts short would be read by whoever imports it later
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    X = np.random.default_rng(0).normal(size=(40, 3, 3))
    np.savez("data.npz", X=X, y=np.where(X[:, 0, 0] > 0, 1.0, -1.0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        code = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said
    assert "File too large" in said
    assert not list(tmp_path.rglob("*.partial*"))


@pytest.mark.slow
def test_a_memory_that_is_too_small_is_one_sentence(tmp_path):
    done = shell(f"ulimit -v 3000000; exec {ATTSVM} solve unit_sphere:20000,200,50,0", tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr


@needs_full
@pytest.mark.parametrize(("words", "code"), [("list", 0), ("solve nowhere.npz", 2)])
def test_a_full_standard_error_changes_nothing(words, code):
    done = shell(f"{ATTSVM} {words} 2>/dev/full")
    assert (done.returncode, bool(done.stdout)) == (code, code == 0)


def test_a_reader_that_leaves_is_no_error():
    done = shell(f"{ATTSVM} list --json | head -c 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{", b"")


def test_a_closed_standard_output_is_no_traceback():
    done = shell(f"{ATTSVM} solve tfsvm-1 >&-")
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_what_goes_to_a_closed_standard_error_does_not_go_among_the_data():
    done = shell(f"{ATTSVM} solve nowhere.npz 2>&-")
    assert (done.returncode, done.stdout) == (2, b"")
    done = shell(f"{ATTSVM} list --json 2>&- <&-")
    assert (done.returncode, set(json.loads(done.stdout)) >= {"datasets"}) == (0, True)


def test_an_encoding_that_lacks_characters_is_enough():
    poor = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for words in (["list"], ["list", "--json"]):
        done = shell(f"{ATTSVM} {' '.join(words)}", **poor)
        assert (done.returncode, done.stderr) == (0, b"")
        shown = done.stdout.decode("ascii")
    assert json.loads(shown) == json.loads(shell(f"{ATTSVM} list --json", PYTHONUTF8="1").stdout)


def test_what_files_hold_does_not_steer_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": f"word{k % 5} {STEERING} more{k % 3} and the rest", "label": "ab"[k % 2]}
        for k in range(24)
    ]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for words in (
        ["fit", "texts.jsonl", "--dimension", "4", "--label", STEERING],
        ["fit", f"{STEERING}.npz"],
    ):
        assert main(words) == 2
        for stream in capsys.readouterr():
            assert not set(stream) & set("\x1b\x07\x9b\u202e\x00"), words


@pytest.mark.slow
def test_a_name_that_is_not_utf8_is_a_name_like_any_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, X = os.fsdecode(b"d\xff\xfe.npz"), np.random.default_rng(0).normal(size=(12, 3, 4))
    np.savez(tmp_path / "a.npz", X=X, y=np.resize([1.0, -1.0], 12))
    try:
        (tmp_path / "a.npz").rename(tmp_path / name)
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    assert main(["fit", name, *SHORT, "--out", "run"]) in (0, 3)
    capsys.readouterr()
    written = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert written["dataset"]["name"] == r"d\xff\xfe.npz"
    assert r"d\xff\xfe.npz" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert main(["report", "run"]) == 0


def test_capitals_in_a_suffix_change_nothing(tmp_path, capsys):
    X = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])
    np.savez(tmp_path / "a.npz", X=X, y=np.array([1.0, -1.0]), v=np.array([1.0, 0.0]))
    shutil.copy(tmp_path / "a.npz", tmp_path / "B.NPZ")
    answers = []
    for name in ("a.npz", "B.NPZ"):
        assert main(["solve", str(tmp_path / name), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[0]["selected"] == [1, 0]


def as_a_stranger():
    """The words that start Python as a user without a name, with the one right to read, because
    the Python of a test machine may lie in a home that only its owner may look into; a skipped test
    where there are none.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv on this machine")
    nobody = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    reader = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words = [*nobody, *reader, sys.executable]
    tried = subprocess.run([*words, "-c", "import numpy"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("another user cannot run this Python")
    return words


@pytest.mark.slow
def test_a_container_without_home_name_or_writable_sources(tmp_path):
    """A user whom nobody knows, with sources that it cannot write and a home that is not there."""
    words = [*as_a_stranger(), "-m", "attsvm", "fit", "digits", *SHORT, "--out", "run"]
    site, work = tmp_path / "site", tmp_path / "work"
    shutil.copytree(
        Path(attsvm.__file__).parent, site / "attsvm", ignore=shutil.ignore_patterns("__pycache__")
    )
    work.mkdir()
    os.chown(work, 54321, 54321)
    kept = {"PATH", "LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name in kept}
    done = subprocess.run(
        words,
        cwd=work,
        env={**environment, "PYTHONPATH": str(site), "HOME": "/nonexistent", "TMPDIR": str(work)},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert (work / "run" / "report.html").is_file()
    assert not list(site.rglob("__pycache__"))


@pytest.mark.slow
def test_a_backend_that_does_not_exist_is_nobodys_trouble(tmp_path):
    done = shell(
        f"{ATTSVM} fit digits {' '.join(SHORT)} --out run", tmp_path, MPLBACKEND="nonsense"
    )
    assert done.returncode in (0, 3), done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    assert list((tmp_path / "run" / "figures").glob("*.png"))
