"""Parallel kernels: torch keeps its number of threads, and short sections stay on one."""

import os
import subprocess
import sys

import numba
import pytest

from attsvm import parallel

STARTS = {
    "a kernel": """
import numpy as np
from attsvm_papers.md.published import published_descent
from attsvm.datasets import unit_sphere
data, v = unit_sphere(2, 3, 4, seed=[0, 1])
published_descent(data, v, np.zeros((2, 4, 4)), 2.0, 0.1, 2, [1])
""",
    "training": """
from attsvm.datasets import unit_sphere
from attsvm.dynamics import train
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
data, v = unit_sphere(2, 3, 4, seed=[0, 1])
model = Attention.cross(data, v)
train(model, data, SteepestDescent(model.parameters(), lr=0.1), 2, backend="compiled")
""",
    "an optimiser": """
import torch
from attsvm.optim import MirrorDescent
weight = torch.ones(8, requires_grad=True)
weight.sum().backward()
MirrorDescent([weight], 0.1, p=3, fused=True).step()
""",
    "a limit": """
from attsvm.parallel import threads_for
with threads_for(1e6): pass
""",
}


@pytest.mark.parametrize(
    "start",
    [pytest.param(each, marks=[] if each == "a limit" else pytest.mark.slow) for each in STARTS],
)
def test_torch_keeps_its_number_of_threads(start):
    """In a process of its own: only the first parallel section of a process could change it."""
    script = (
        STARTS[start]
        + "\nimport numba, torch\nprint(torch.get_num_threads(), numba.get_num_threads())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    told = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.stdout.split() == ["1", "2"]


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")
def test_short_sections_take_one_thread():
    before = numba.get_num_threads()
    with parallel.threads_for(1.0):
        assert numba.get_num_threads() == 1
    with parallel.threads_for(1e6):
        assert numba.get_num_threads() == before
