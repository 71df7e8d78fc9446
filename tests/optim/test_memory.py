"""No array makes a compiled pass read or write beyond it: each entry in a process of its own, for a
crash is what is looked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("memory.py")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="guards pages by mprotect"
)


def fuzz(name: str, seed: int, rounds: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT), name, str(seed), str(rounds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(f"{rounds} rounds")


@pytest.mark.processes
def test_arrays_that_do_not_fit() -> None:
    fuzz("optimisers", 0, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimisers", "sequences", "descents", "sentences"])
def test_many_arrays_that_do_not_fit(name: str) -> None:
    """Others with another ``ATTSVM_SEED``. Sentences compile for every precision."""
    fuzz(name, int(os.environ.get("ATTSVM_SEED", "1")), 400)
