"""The command line: exit codes, what it prints and writes, and what it costs to start."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import attsvm
from attsvm.base.files import load_arrays
from attsvm.cli import main

TOY = {
    "X": np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]]),
    "Z": np.array([[1.0, 0.0], [0.0, 1.0]]),
    "y": np.array([1.0, -1.0]),
    "v": np.array([1.0, 0.0]),
}


@pytest.fixture
def toy_file(tmp_path):
    path = tmp_path / "toy.npz"
    np.savez(path, **TOY)
    return path


def printed(capsys, *words, code=0):
    """The JSON that a command prints."""
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import attsvm", "torch sklearn matplotlib scipy numpy"),
        (
            "import attsvm.cli; attsvm.cli.parser()",
            "torch sklearn numpy dataclasses inspect",
        ),
        ("from attsvm.cli import main; main(['solve', {!r}])", "torch"),
    ],
)
def test_what_is_not_imported(program, heavy, toy_file):
    program = program.format(str(toy_file))
    standard = "import argparse, importlib.metadata, sys; before = set(sys.modules)\n"
    told = f"\nprint(set({heavy.split()}) & set(sys.modules) - before, file=sys.stderr)"
    program = standard + program + told
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "set()"


def test_help_starts_quickly():
    bare = min(_cpu_seconds([sys.executable, "-c", "import numpy"]) for _ in range(3))
    ours = min(_cpu_seconds([sys.executable, "-m", "attsvm", "--help"]) for _ in range(3))
    # processor time beside numpy's own import, which does not depend on the load
    assert ours < bare + 0.3


def _cpu_seconds(command):
    before = os.times()
    subprocess.run(command, capture_output=True, check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])  # of children


def test_solve_prints_only_data_with_json(toy_file, capsys):
    summary = printed(capsys, "solve", toy_file, "--tokens", "1,1")
    assert summary["selected"] == [1, 1]
    # By hand: delta_1 z_1' = ((1,0),(-1,0)) and delta_2 z_2' = ((0,1),(0,1)) are orthogonal with
    # squared norm 2, so |W|^2 = 1/2 + 1/2.
    assert summary["norm"] == pytest.approx(1.0, abs=1e-12)
    assert summary["gap"] <= 1e-12
    # W = [[1/2, 1/2], [-1/2, 1/2]], of four equal entries, is best in this norm too.
    other = printed(capsys, "solve", toy_file, "--tokens", "1,1", "--norm", "lp:1.75")
    assert other["norm"] == pytest.approx(4 ** (1 / 1.75) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("programme", "tokens", "shape"),
    [
        ("selection", "first", (2, 2)),
        ("prompt", "1,1", (2, 1)),
        ("decoder", "0,1", (2, 1)),
        ("sequence", "chosen", (2, 2)),
        ("causal", "chosen", (2, 2)),
    ],
)
@pytest.mark.parametrize("name", ["solution.npz", "solution.safetensors"])
def test_solve_writes_the_solution_of_every_programme(
    programme, tokens, shape, name, tmp_path, capsys
):
    path, out = tmp_path / "toy.npz", tmp_path / name
    X = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.3, -0.2], [1.0, 1.0]]])
    Z, chosen = {"Z": TOY["Z"]} if tokens == "first" else {}, np.array([[0, 1], [0, 1]])
    np.savez(path, X=X, y=TOY["y"], chosen=chosen, **Z)
    words = ["solve", str(path), "--programme", programme, "--tokens", tokens, "--out", str(out)]
    for _ in range(2):  # its own file may be written again
        assert main(words) == 0
        assert "optimal" in capsys.readouterr().out
    arrays = load_arrays(out)
    assert arrays["W"].shape == shape
    assert arrays["margins"].min() == pytest.approx(1.0, abs=1e-9)


def test_solve_writes_over_nothing_but_its_own(toy_file, tmp_path, capsys):
    mine, text = tmp_path / "mine.npz", tmp_path / "thesis.npz"
    np.savez(mine, W=np.ones(2))
    text.write_text("years of work")
    for out in (toy_file, mine, text):
        before = out.read_bytes()
        assert main(["solve", str(toy_file), "--tokens", "first", "--out", str(out)]) == 2
        assert "exists and was not written by attsvm solve" in capsys.readouterr().err
        assert out.read_bytes() == before


def test_an_infeasible_selection_is_an_answer(tmp_path, capsys):
    X = np.array([[[1.0], [0.0]], [[0.0], [1.0]]])
    np.savez(tmp_path / "x.npz", X=X, Z=np.ones((2, 1)), y=np.array([1.0, -1.0]))
    summary = printed(capsys, "solve", tmp_path / "x.npz", "--tokens", "0,0")
    assert summary["status"] == "infeasible"
    assert summary["certificate_residual"] <= 1e-12
    assert "sequence 0" in summary["message"]
    assert "sequence" in summary["message"].split("sequence 0", 1)[1]


def test_a_selection_that_float64_can_hardly_hold_exits_3(tmp_path, capsys):
    """Neither proved nor answered: scripts must not take it for either."""
    X = np.array([[[0.0, 0.0], [-1.0, -0.25], [1.0, np.nextafter(0.25, 0.0)]]])
    np.savez(tmp_path / "x.npz", X=X, Z=np.ones((1, 1)), y=np.ones(1))
    summary = printed(capsys, "solve", tmp_path / "x.npz", "--tokens", "0", code=3)
    assert summary["status"] == "almost infeasible"
    assert summary["certificate_residual"] <= 1e-15


@pytest.mark.parametrize(
    ("name", "norm"),
    [("mmts-1", 0.9950371902), ("mmts-3", 0.8617871), ("tfsvm-1", 8.6857347098698)],
)
def test_toys_answer_to_the_names_of_their_experiments(capsys, name, norm):
    assert printed(capsys, "solve", name)["norm"] == pytest.approx(norm, rel=1e-6)


def test_list_names_everything_loadable(capsys):
    listing = printed(capsys, "list")
    assert {"digits", "unit_sphere"} <= set(listing["datasets"])
    assert "fro" in listing["norms"]
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "digits" in shown
    assert "tfsvm-4" in shown


def test_probe_reads_as_much_as_it_is_told_to(tmp_path, capsys):
    numbers = {"texts": 1, "tokens": 12, "threshold": 0.6, "queries": 9, "draws": 2, "seed": 5}
    words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    out = tmp_path / "out"
    words += ["--statistics", "--quiet", "--out", str(out)]
    record = printed(capsys, "probe", "demo", *words)
    assert len(record["heads"]) == 40
    request = json.loads((out / "request.json").read_text(encoding="utf-8"))["request"]
    assert numbers.items() <= request.items()
    assert main(["probe", "demo", *words]) == 0  # read back
    said = capsys.readouterr().out.splitlines()
    page = f"written: {out / 'report.html'}"
    assert said == [record["headline"], record["detail"], *record["notes"], page]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"attsvm {attsvm.__version__}"


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: attsvm")


def test_a_shell_completes_options(tmp_path):
    """The protocol of argcomplete: the line in the environment, candidates on descriptor 8."""
    pytest.importorskip("argcomplete")
    line, candidates = "attsvm reproduce --sc", tmp_path / "candidates"
    shell = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": " ", "_ARGCOMPLETE_SHELL": "bash"}
    point = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": ""}
    environment = {**os.environ, **shell, **point}
    environment["_ARGCOMPLETE_STDOUT_FILENAME"] = str(candidates)
    subprocess.run([sys.executable, "-m", "attsvm"], env=environment, check=False, timeout=60)
    assert candidates.read_text().split() == ["--scale"]


def test_the_log_is_printed_on_request(toy_file, tmp_path, capsys, caplog):
    """And reaches every handler of the user's own without one."""
    folder = tmp_path / "o"
    words = ["fit", str(toy_file), "--out", str(folder), "--test-size", ".5"]
    assert main([*words, "-v"]) == 2
    assert f"attsvm.datasets.catalogue: {toy_file}: 2 rows" in capsys.readouterr().err
    assert main(["list", "--quiet"]) == 0
    assert "attsvm.datasets.catalogue" in {record.name for record in caplog.records}


def test_no_colour_is_printed(capsys):
    """What NO_COLOR asks for is always so."""
    for command in ("fit", "solve", "probe", "bias", "report", "list", "reproduce"):
        assert main([command, "--help"]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())
