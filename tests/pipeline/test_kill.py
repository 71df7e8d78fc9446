"""A fit that is killed at any moment goes on and ends with the same results."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from attsvm.cli import main

COMMAND = [
    sys.executable,
    "-m",
    "attsvm",
    "fit",
    "digits",
    "--steps",
    "1200",
    "--joint-steps",
    "60",
    "--records",
    "20",
    "--quiet",
]


def start(folder):
    return subprocess.Popen(
        [*COMMAND, "--checkpoint-seconds", "0.02", "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process):
    _, told = process.communicate(timeout=240)
    assert process.returncode == 0, told.decode()


def results(folder):
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return {key: value for key, value in record.items() if key not in ("timing", "command_line")}


def check_final_names(folder):
    """Whatever stands under a final name is whole."""
    for path in folder.rglob("*.json"):
        if not path.name.startswith("."):
            json.loads(path.read_text(encoding="utf-8"))
    for path in folder.rglob("*.safetensors"):
        if not path.name.startswith("."):
            from attsvm.files import load_arrays

            load_arrays(path)
    page = folder / "report.html"
    if page.exists():
        assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")


@pytest.mark.processes
def test_killed_at_its_first_checkpoint_it_goes_on(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 3, 3))
    np.savez(tmp_path / "data.npz", X=X, y=np.where(X[:, 0, 0] > 0, 1, -1))
    words = ["fit", str(tmp_path / "data.npz"), "--steps", "2000", "--joint-steps", "20"]
    words += ["--records", "5", "--quiet", "--checkpoint-seconds", "0.02", "--out"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", "attsvm", *words, str(killed)], stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(killed.glob("checkpoint/*")):
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it had ended before"
    check_final_names(killed)
    for folder in (killed, whole):
        assert main([*words, str(folder)]) in (0, 3)
    assert results(killed) == results(whole)
    arrays = "arrays.safetensors"
    assert (killed / arrays).read_bytes() == (whole / arrays).read_bytes()
    left = {str(path.relative_to(killed)) for path in killed.rglob("*")}
    assert left == {str(path.relative_to(whole)) for path in whole.rglob("*")}


@pytest.mark.slow  # test_kills kills runs that share their imports
@pytest.mark.parametrize("kills", [5, 20])
def test_sigkill_at_random_moments(tmp_path, kills):
    finish(start(tmp_path / "warm"))  # compiles whatever is not yet compiled on this machine
    began = time.monotonic()
    finish(start(tmp_path / "whole"))
    whole = time.monotonic() - began
    generator = random.Random(kills)
    killed = attempt = 0
    while killed < kills:
        folder = tmp_path / f"killed-{attempt}"
        process = start(folder)
        try:
            process.wait(timeout=generator.uniform(0.3, 1.0) * whole)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            killed += 1
        else:
            finish(process)
            attempt += 1  # this one got through: go on with a fresh folder
        check_final_names(folder)
    finish(start(folder))
    check_final_names(folder)
    runs = sorted(path.parent for path in tmp_path.glob("killed-*/run.json"))
    assert folder in runs
    for path in runs:
        assert results(path) == results(tmp_path / "whole")
        assert not (path / "checkpoint").exists()
        assert not list(path.rglob("*partial*"))
