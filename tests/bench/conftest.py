"""Peers that misbehave, importable by the processes that the benchmark starts."""

import pytest

STRANGE = """
import os, time
from pathlib import Path

def small(margins):  # the warm-up
    return margins.m < 10

def spins(margins, norm, accuracy):
    while not small(margins):
        pass

def sleeps(margins, norm, accuracy):
    if not small(margins):
        time.sleep(1000)

def raises(margins, norm, accuracy):
    raise ArithmeticError("no pivot")

def dies(margins, norm, accuracy):
    if not small(margins):
        os.kill(os.getpid(), 11)

def logs(margins, norm, accuracy):
    from attsvm.bench.entrants import PEERS
    if not small(margins):
        with Path(os.environ["ATTSVM_TEST_LOG"]).open("a") as log:
            log.write("solved\\n")
    return PEERS["attsvm"].solve(margins, norm, accuracy)

def work(job):
    what, seconds = job
    from attsvm.bench.worker import cpu_limit
    print("noise")
    with cpu_limit(seconds):
        if what == "spin":
            while True:
                pass
        if what == "sleep":
            time.sleep(1000)
        if what == "raise":
            raise ArithmeticError("no pivot")
        if what == "die":
            os.kill(os.getpid(), 11)
    return {"outcome": "finished", "what": what, "threads": os.environ["OMP_NUM_THREADS"]}
"""


@pytest.fixture
def strange(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "strange_peers.py").write_text(STRANGE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "strange_peers", raising=False)
    import strange_peers

    return strange_peers
