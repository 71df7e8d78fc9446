"""The command line away from home: full disks, closed pipes, other encodings, containers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm.cli import main

SOURCES = Path(attsvm.__file__).parents[1]
FULL = Path("/dev/full")
STEERING = "\x1b]0;title\x07\x1b[2J\u202e\x9b"


def run(words, environment=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "attsvm", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCES), **(environment or {})},
        timeout=300,
        check=False,
        **{"capture_output": True, **options},
    )


@pytest.fixture
def texts(tmp_path):
    """Texts whose labels and words hold what a terminal would obey."""
    rows = [
        {
            "text": f"word{k % 5} {STEERING} caf\u00e9 more{k % 3} and the rest",
            "label": ("a", "b")[k % 2],
        }
        for k in range(24)
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"], ["solve", "tfsvm-1"]])
def test_output_that_cannot_be_written_is_one_sentence(words):
    with FULL.open("wb") as full:
        done = run(words, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


FIT = "fit data.npz --steps 20 --joint-steps 5 --quiet --out run"


def limited(limits, words, folder):
    """A command under limits of the shell, such as a size that no file may exceed.

    It writes no compiled modules: Python would cut them at that size, and whoever imports them
    later would fail.
    """
    return subprocess.run(
        ["bash", "-c", f"ulimit {limits}; exec {sys.executable} -m attsvm {words}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
        timeout=300,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("-f 8", FIT),
        ("-f 1", "solve tfsvm-1 --out a.npz"),
        pytest.param("-v 3000000", "solve unit_sphere:20000,200,50,0", marks=pytest.mark.slow),
    ],
    ids=("fit", "solve", "memory"),
)
def test_a_disk_or_a_memory_that_is_too_small_is_one_sentence(limits, words, tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 3, 3))
    np.savez(tmp_path / "data.npz", X=X, y=np.where(X[:, 0, 0] > 0, 1.0, -1.0))
    done = limited(limits, words, tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert not list(tmp_path.rglob("*.partial*"))


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_a_full_standard_error_changes_nothing():
    with FULL.open("wb") as full:
        assert (
            run(["list"], stdout=subprocess.PIPE, stderr=full, capture_output=False).returncode == 0
        )
        done = run(
            ["solve", "nowhere.npz"], stdout=subprocess.PIPE, stderr=full, capture_output=False
        )
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_reader_that_leaves_is_no_error():
    shell = f"{sys.executable} -m attsvm list --json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{", b"")


def test_a_closed_standard_output_is_no_traceback():
    shell = f"{sys.executable} -m attsvm solve tfsvm-1 >&-"
    done = subprocess.run(
        ["bash", "-c", shell],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


@pytest.mark.parametrize("words", [["list"], ["list", "--json"]])
def test_an_encoding_that_lacks_characters_is_enough(words):
    done = run(words, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"})
    assert (done.returncode, done.stderr) == (0, b"")
    done.stdout.decode("ascii")
    if "--json" in words:
        assert json.loads(done.stdout) == json.loads(run(words).stdout)


def test_what_files_hold_does_not_steer_the_terminal(texts, capsys, monkeypatch):
    monkeypatch.chdir(texts.parent)
    for words in (
        ["fit", "texts.jsonl", "--dimension", "4", "--label", STEERING],
        ["fit", f"{STEERING}.npz"],
    ):
        main(words)
        printed = capsys.readouterr()
        for stream in printed:
            assert not set(stream) & set("\x1b\x07\x9b\u202e\x00"), words


@pytest.mark.slow
def test_a_name_that_is_not_utf8_is_a_name_like_any_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"d\xff\xfe.npz")
    generator = np.random.default_rng(0)
    try:
        np.savez(
            tmp_path / "a.npz", X=generator.normal(size=(12, 3, 4)), y=np.resize([1.0, -1.0], 12)
        )
        (tmp_path / "a.npz").rename(tmp_path / name)
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    words = ["--steps", "20", "--joint-steps", "5", "--quiet", "--out", "run"]
    assert main(["fit", name, *words]) in (0, 3)
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


# Another user, without rights but one: to read, because the Python of a test machine may lie in a
# home that only its owner may look into.
NOBODY = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
READER = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


def as_a_stranger():
    """The words that start Python as a user without a name; a skipped test where there are none."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv on this machine")
    words = [*NOBODY, *READER, sys.executable]
    tried = subprocess.run([*words, "-c", "import numpy"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("another user cannot run this Python")
    return words


@pytest.mark.slow  # nothing is kept, so every kernel is compiled
def test_a_container_without_home_name_or_writable_sources(tmp_path):
    """A user whom nobody knows, with sources that it cannot write and a home that is not there. The
    fit solves, too: no second command, for all kernels are compiled again for each.
    """
    words = ["fit", "digits", *("--steps", "30", "--joint-steps", "3", "--records", "2")]
    stranger = as_a_stranger()
    site = tmp_path / "site"
    shutil.copytree(
        Path(attsvm.__file__).parent, site / "attsvm", ignore=shutil.ignore_patterns("__pycache__")
    )
    work = tmp_path / "work"
    work.mkdir()
    os.chown(work, 54321, 54321)
    kept = {"PATH", "LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name in kept}
    done = subprocess.run(
        [*stranger, "-m", "attsvm", *words, "--out", "run"],
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
    words = ["fit", "digits", "--joint-steps", "3", "--steps", "9", "--records", "2", "--quiet"]
    done = run([*words, "--out", str(tmp_path / "run")], {"MPLBACKEND": "nonsense"})
    assert done.returncode in (0, 3), done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    assert list((tmp_path / "run" / "figures").glob("*.png"))
