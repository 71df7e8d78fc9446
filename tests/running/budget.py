"""What a test may cost: seconds of a processor, its own and those of the processes that it has
started and waited for.

A test that costs more needs the mark ``slow`` and runs with ``make test-slow``; fixtures that a
module shares may cost :data:`FIXTURES`. The mark ``processes`` is for the few that must start
some: importing torch alone takes seconds there. ``experiment`` is for what runs whole
experiments, pages or programmes. The seconds are those of a processor that takes
:data:`REFERENCE` for a small loop; a slower one has more of them, and one that many processes
share, twice as many. With several threads in a library there is no budget.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

import pytest

SECONDS = 3.0
MARGIN = 1.5
"""How much more a test may take before it fails: processors, caches and neighbours differ."""
FIXTURES = 8.0
MARKED = {"processes": 12.0, "experiment": 20.0}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
REFERENCE = 0.011
"""Seconds that :func:`loop` takes on the processor that the budget is meant for."""


def loop() -> float:
    """CPU seconds of a small loop."""
    began = time.process_time()
    sum(k * k % 7 for k in range(200_000))
    return time.process_time() - began


def slowness() -> float:
    """How much slower than the reference this processor is now; at least 1. Threads of a numerical
    library that wait for each other are busy, so that with several of them nothing is known.
    """
    if any(os.environ.get(name, "1") != "1" for name in THREADS):
        return math.inf
    shared = hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    slower = max(1.0, min(loop() for _ in range(3)) / REFERENCE)
    return slower * (2.0 if shared else 1.0)


def spent() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


class Budget:
    """Fails a test that costs more than it may."""

    def __init__(self) -> None:
        self.slowness = slowness()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        began = spent()
        yield
        self.check(item, "the fixtures of this test", spent() - began, FIXTURES)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        began = spent()
        yield
        self.check(item, "this test", spent() - began, SECONDS)

    def check(self, item: pytest.Item, what: str, cost: float, least: float) -> None:
        """Fail where ``cost`` is too much."""
        least = max([least, *(MARKED[mark] for mark in MARKED if mark in item.keywords)])
        if cost <= MARGIN * least or "slow" in item.keywords:
            return
        allowed = MARGIN * least * max(self.slowness, slowness())
        if cost > allowed:
            pytest.fail(
                f"{what} took {cost:.1f} s of CPU and may take {least:.0f}, here {allowed:.1f} at"
                " most: make it smaller, or mark it slow",
                pytrace=False,
            )
