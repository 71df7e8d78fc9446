"""A fit that is killed at any moment goes on and ends with the same results."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

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
