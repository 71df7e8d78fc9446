"""What a run with records costs in memory, measured from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMME = """
import resource
import sys
from pathlib import Path

from attsvm.datasets import unit_sphere
from attsvm.dynamics import LogSpaced, train
from attsvm.models import Attention
from attsvm.optim import SteepestDescent

data, v = unit_sphere(6, 8, 10, seed=list(range(100)))
model = Attention.cross(data, v)
trajectory = train(model, data, SteepestDescent(model.parameters(), lr=0.1), 2000, LogSpaced(50))
assert trajectory.W.shape[1] == 100

# ru_maxrss of a process starts at what its parent held before exec; VmHWM is this process alone.
status = Path("/proc/self/status")
if status.exists():
    lines = status.read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    print(peak * 1024)
else:
    unit = 1 if sys.platform == "darwin" else 1024
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
"""


@pytest.mark.processes
def test_a_hundred_runs_with_fifty_records_stay_below_a_gibibyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMME], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 2**30
