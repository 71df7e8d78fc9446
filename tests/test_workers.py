"""Workers: the same processes for every batch, errors where they belong, one job in this
process, and none that outlives who started it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attsvm.errors import AttsvmError
from attsvm.workers import Workers

TELL = (
    "import os, pathlib, time; time.sleep(0.05); pathlib.Path({!r}).write_text(f'{{os.getpid()}}"
    ' {{os.environ["OMP_NUM_THREADS"]}}\')'
)


def test_the_same_processes_work_for_all_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    paths = [tmp_path / str(index) for index in range(12)]
    with Workers(exec, 2) as workers:
        for part in (paths[:8], paths[8:]):
            assert len(list(workers.start([(TELL.format(str(path)),) for path in part]))) == len(
                part
            )
    told = [path.read_text().split() for path in paths]
    processes = {process for process, _ in told}
    assert 1 <= len(processes) <= 2
    assert str(os.getpid()) not in processes
    assert {threads for _, threads in told} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


class Eager:
    """An executor whose call has run before it returns it, as a thread's may."""

    def __init__(self, executor):
        self.executor = executor

    def submit(self, *arguments):
        call = self.executor.submit(*arguments)
        call.result()
        return call


def test_an_error_is_raised_to_whoever_asks(tmp_path):
    path = tmp_path / "done"
    with Workers(exec, 2) as workers, pytest.raises(ZeroDivisionError):
        list(workers.start([("import time; time.sleep(1); 1 / 0",), (TELL.format(str(path)),)]))
    assert path.exists()


@pytest.mark.parametrize(("jobs", "count"), [(1, 3), (2, 1)])
def test_a_single_process_is_this_one_and_works_when_asked(jobs, count):
    done: list[int] = []
    with Workers(done.append, jobs) as workers:
        batch = workers.start([(index,) for index in range(count)])
        assert done == []
        assert next(batch) is None
        assert done == [0]
        assert len(list(batch)) == count - 1
    assert done == list(range(count))


def sleeper(path, portable):
    """A piece of work that tells its process and never ends; without Linux's signal if asked."""
    import ctypes

    if portable and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 0)
    partial = Path(f"{path}.partial")
    partial.write_text(str(os.getpid()))
    partial.rename(path)
    time.sleep(300)


PROGRAM = """
from test_workers import sleeper
from attsvm.workers import Workers
if __name__ == '__main__':
    with Workers(sleeper, 2) as workers:
        list(workers.start([(path, {portable}) for path in {paths}]))
"""


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def until(true, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(os.name == "nt", reason="ends processes by their number")
@pytest.mark.parametrize("portable", [False, True])
def test_no_process_outlives_the_one_that_started_it(tmp_path, portable):
    paths = [str(tmp_path / str(k)) for k in range(2)]
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(paths=paths, portable=portable))
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": here})
    try:
        until(lambda: all(map(os.path.exists, paths)) or parent.poll() is not None)
        children = [int(Path(path).read_text()) for path in paths]
        assert all(map(alive, children))
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    until(lambda: not any(map(alive, children)), 10.0)


def test_a_process_that_was_killed_is_one_sentence():
    with Workers(exec, 2) as workers:
        batch = workers.start([("import os; os.kill(os.getpid(), 9)",), ("1",)])
        with pytest.raises(AttsvmError, match="ended before its run did"):
            list(batch)
