"""Workers: processes of our own, errors where they belong, one job in this process, and none that
outlives who started it.
"""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from attsvm.base.errors import AttsvmError
from attsvm.base.workers import results, slots, workers

TELL = (
    "import os, pathlib, time; time.sleep(0.05); pathlib.Path({!r}).write_text(f'{{os.getpid()}}"
    ' {{os.environ["OMP_NUM_THREADS"]}}\')'
)


@pytest.mark.processes
def test_the_same_processes_work_for_all_calls_and_errors_come_to_whoever_asks(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    paths = [tmp_path / str(index) for index in range(12)]
    with workers(2) as executor:
        for part in (paths[:8], paths[8:]):
            calls = [(TELL.format(str(path)),) for path in part]
            assert len(list(results(executor, exec, calls))) == len(part)
        wrong = ("import time; time.sleep(0.5); 1 / 0",)
        with pytest.raises(ZeroDivisionError):
            list(results(executor, exec, [wrong, (TELL.format(str(tmp_path / "done")),)]))
    assert (tmp_path / "done").exists()
    told = [path.read_text().split() for path in paths]
    processes = {process for process, _ in told}
    assert 1 <= len(processes) <= 2
    assert str(os.getpid()) not in processes
    assert {threads for _, threads in told} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_a_single_job_is_this_process_which_works_when_asked():
    done: list[int] = []
    with workers(1) as executor:
        found = results(executor, done.append, ((index,) for index in range(3)))
        assert done == []
        assert next(found) is None
        assert done == [0]
        assert len(list(found)) == 2
    assert done == [0, 1, 2]


class Busy(Executor):
    """Four processes at work on something long; the first call is answered at once."""

    _max_workers = 4

    def __init__(self):
        self.calls = []

    def submit(self, function, /, *arguments):
        self.calls.append(Future())
        if len(self.calls) == 1:
            self.calls[0].set_result(function(*arguments))
        return self.calls[-1]


def test_calls_are_taken_a_few_ahead_and_cancelled_when_nobody_asks():
    executor, taken = Busy(), []
    found = results(executor, str, (taken.append(k) or (k,) for k in range(100)))
    assert next(found) == "0"
    assert len(taken) == len(executor.calls) == 8
    found.close()
    assert all(call.cancelled() for call in executor.calls[1:])


def test_slots_are_those_of_the_executor():
    with ThreadPoolExecutor(7) as threads:
        assert slots(threads) == 7
    assert slots(object()) == os.cpu_count()


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
from attsvm.base.workers import results, workers
if __name__ == '__main__':
    with workers(2) as executor:
        list(results(executor, sleeper, [(path, {portable}) for path in {paths}]))
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


@pytest.mark.processes
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


@pytest.mark.processes
def test_a_process_that_was_killed_is_one_sentence():
    calls = [("import os; os.kill(os.getpid(), 9)",), ("1",)]
    with pytest.raises(AttsvmError, match="ended before its run did"), workers(2) as executor:
        list(results(executor, exec, calls))
