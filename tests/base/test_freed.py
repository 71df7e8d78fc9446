"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from attsvm.base.freed import return_freed_memory


@pytest.mark.skipif(
    not (Path("/proc/self/status").exists() and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="the C library is not that of GNU, or the system does not tell what a process holds",
)
def test_memory_below_a_block_in_use_goes_back_to_the_system():
    blocks = [b"x" * 50_000 for _ in range(2000)]
    blocks = blocks[-1:]
    before = held_memory()
    return_freed_memory()
    assert len(blocks) == 1
    assert held_memory() < before - 50e6


def held_memory() -> float:
    """Bytes of memory of this process."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])
