"""Sweeps: the same numbers whoever computes, every cell once, and work that others lose is done."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from attsvm.errors import AttsvmError
from attsvm.pipeline import sweep
from attsvm.pipeline.reproduce import reproduce
from attsvm.pipeline.sweep import Outcome, Sweep, compute
from attsvm.store.leases import Watch, take
from attsvm.workers import Workers

FIGURE = '''"""Squares.

Every cell notes who computes it.

Source: nowhere
"""

import os
import time
from pathlib import Path

from attsvm_papers.kit import grid

LOG = Path({log!r})
HOLD = LOG.with_name("hold")


@grid(first=list(range({cells})))
def run(first):
    with LOG.open("a") as log:
        log.write(f"begin {{first}} {{os.getpid()}}\\n")
    while HOLD.exists():
        time.sleep(0.01)
    time.sleep({seconds})
    if first == {broken}:
        raise ValueError("the power went out")
    with LOG.open("a") as log:
        log.write(f"end {{first}} {{os.getpid()}}\\n")
    return {{"square": [first**2]}}
'''


class Toy:
    """An experiment in a file, and what its cells have noted."""

    def __init__(self, home, cells=12, seconds=0.02, broken=-1):
        home.mkdir(exist_ok=True)
        self.log, self.path = home / "log.txt", home / f"{home.name}.py"
        self.hold = home / "hold"  # cells that have begun go on when this file is gone
        self.path.write_text(
            FIGURE.format(log=str(self.log), cells=cells, seconds=seconds, broken=broken)
        )

    def reproduce(self, out, **options):
        (run,) = reproduce([str(self.path)], out, **options)
        return run, (out / run["id"] / "arrays.safetensors").read_bytes()

    def notes(self, word):
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(int(cell), int(process)) for kind, cell, process in lines if kind == word]


class Queue(Executor):
    """An executor that loses calls: its worker dies while it computes."""

    def __init__(self, losses):
        self._losses, self._max_workers = losses, 2

    def submit(self, function, /, *arguments, **named):
        future = Future()
        if self._losses:
            self._losses -= 1
            future.set_exception(ConnectionError("the worker is gone"))
        else:
            future.set_result(function(*arguments, **named))
        return future


class Job:
    """What a queue of a cluster returns, which is no future."""

    def __init__(self, function, arguments):
        self._function, self._arguments, self.cancelled = function, arguments, False

    def done(self):
        return True

    def result(self):
        return self._function(*self._arguments)

    def cancel(self):
        self.cancelled = True


class Cluster:
    """The interface of submitit."""

    def __init__(self):
        self.jobs = []

    def submit(self, function, *arguments):
        self.jobs.append(Job(function, arguments))
        return self.jobs[-1]


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def test_numbers_do_not_depend_on_who_computes(tmp_path, toy):
    _, expected = toy.reproduce(tmp_path / "alone", jobs=1)
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2) as processes:
        for name, executor in {
            "threads": threads,
            "processes": processes,
            "losing": Queue(5),
            "cluster": Cluster(),
        }.items():
            assert toy.reproduce(tmp_path / name, executor=executor)[1] == expected
    assert toy.reproduce(tmp_path / "own", jobs=2)[1] == expected
    assert sorted(cell for cell, _ in toy.notes("end")) == sorted(6 * list(range(12)))


def test_jobs_of_a_cluster_are_few(tmp_path, toy):
    cluster = Cluster()
    toy.reproduce(tmp_path / "out", executor=cluster, jobs=3)
    assert len(cluster.jobs) == 3


def test_an_executor_that_only_loses_is_one_sentence(tmp_path, toy):
    with pytest.raises(AttsvmError, match=r"has lost 13 calls .* the worker is gone"):
        toy.reproduce(tmp_path / "out", executor=Queue(10**9))


@pytest.mark.parametrize("executor", [None, "processes"])
def test_the_error_of_a_cell_ends_the_sweep_and_says_where(tmp_path, executor):
    toy = Toy(tmp_path, broken=3)
    with contextlib.ExitStack() as stack:
        pool = executor and stack.enter_context(ProcessPoolExecutor(1))
        with pytest.raises(ValueError, match="the power went out") as caught:
            toy.reproduce(tmp_path / "out", executor=pool, jobs=1)
    assert "cell {'first': 3" in caught.value.__notes__[0]
    assert 3 not in dict(toy.notes("end"))


def test_a_cell_of_a_lost_worker_is_computed_and_its_rest_removed(tmp_path, toy):
    out = tmp_path / "out"
    toy.reproduce(out, jobs=1)
    (cell, *_) = (out / "cells").rglob("*.safetensors")
    cell.unlink()
    cell.with_name(f".{cell.name}.lease-0").write_text("free")
    rest = cell.with_name(f".{cell.stem}.0123abcd.partial.safetensors")
    rest.touch()
    toy.reproduce(out, jobs=1)
    assert len(toy.notes("end")) == 13
    assert not list(out.rglob(".*lease*"))
    assert not rest.exists()


def test_another_clients_cell_is_waited_for_and_not_computed(tmp_path, toy):
    out = tmp_path / "out"
    toy.reproduce(out, jobs=1)
    (cell, *_) = (out / "cells").rglob("*.safetensors")
    content = cell.read_bytes()
    cell.unlink()

    def other():
        time.sleep(1.0)
        cell.write_bytes(content)

    with take(cell):
        writer = threading.Thread(target=other)
        writer.start()
        toy.reproduce(out, jobs=1)
        writer.join()
    assert len(toy.notes("end")) == 12


def client(toy, out):
    code = (
        "import sys; from pathlib import Path; from attsvm.pipeline.reproduce import reproduce\n"
        "reproduce([sys.argv[1]], Path(sys.argv[2]), jobs=1)"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(toy.path), str(out)])


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whether a process lives")
def test_two_clients_share_and_a_third_goes_on_after_a_kill(tmp_path):
    toy, out = Toy(tmp_path, cells=16, seconds=0.25), tmp_path / "out"
    _, expected = Toy(tmp_path, cells=16, seconds=0.0).reproduce(tmp_path / "alone", jobs=1)
    toy.log.unlink()
    toy = Toy(tmp_path, cells=16, seconds=0.25)
    toy.hold.touch()
    clients = [client(toy, out) for _ in range(2)]
    deadline = time.monotonic() + 120
    while not toy.log.exists() or len(set(dict(toy.notes("begin")).values())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    toy.hold.unlink()
    while not toy.log.exists() or len(set(dict(toy.notes("end")).values())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    clients[0].kill()
    for each in clients:
        each.wait()
    assert clients[1].returncode == 0
    assert toy.reproduce(out, jobs=1)[1] == expected
    done = [cell for cell, _ in toy.notes("end")]
    assert set(done) == set(range(16))
    assert len(done) <= 17  # the kill may fall between the last note and the file
    assert len({process for _, process in toy.notes("end")}) == 2
    assert not list(out.rglob(".*lease*"))


def test_a_round_that_follows_goes_ahead_of_other_experiments(tmp_path):
    first = Toy(tmp_path / "first", cells=2)
    staged = Toy(tmp_path / "staged", cells=1)
    with staged.path.open("a") as file:
        file.write("\n\ndef then(parameters, evidence):\n    yield {'first': 9}\n")
    last = Toy(tmp_path / "last", cells=40, seconds=0.1)
    told = []
    runs = reproduce(
        [str(toy.path) for toy in (first, staged, last)],
        tmp_path / "out",
        jobs=2,
        progress=lambda name, done, of: told.append((name, done, of)),
    )
    assert [run["trials"] for run in runs] == [2, 2, 40]
    assert (runs[1]["id"] + " (2)", 1, 1) in told
    when = [path.stat().st_mtime for path in (staged.log, last.log)]
    assert when[0] < when[1] - 1.0  # seconds: of more than two on two processes


def test_a_call_ends_after_its_seconds(tmp_path):
    toy = Toy(tmp_path, cells=5, seconds=0.05)
    tasks = [(str(toy.path), {"first": k}, tmp_path / f"{k}.safetensors") for k in range(5)]
    assert len(compute(tasks, 0.0).done) == 1
    assert len(compute(tasks, 60.0, threads=1).done) == 5


class Prompt(Executor):
    """An executor that is done at once: every file of a call is written."""

    _max_workers = 4

    def submit(self, function, /, tasks, *_):
        future = Future()
        for task in tasks:
            task[2].touch()
        future.set_result(Outcome([task[2] for task in tasks], []))
        return future


def test_folders_are_listed_now_and_then_and_no_file_is_asked_for(tmp_path, monkeypatch):
    """At 10,000 cells on a file system of a network every question is a millisecond."""
    listed, asked, list_folder, now = [], [], os.scandir, [0.0]
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or list_folder(path))
    monkeypatch.setattr(Watch, "held", lambda self, path: asked.append(path))
    monkeypatch.setattr(Path, "exists", lambda self: asked.append(self))
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now[0])
    paths = [tmp_path / f"{k % 2}" / f"{k}.safetensors" for k in range(3000)]
    for k in range(2):
        (tmp_path / f"{k}").mkdir()
    with Workers(compute, executor=Prompt()) as workers:
        found = Sweep(workers)
        found.add([("toy", {}, path) for path in paths])
        assert len(listed) == 2
        left = []
        for missing in found.finish(paths):
            now[0] += 0.1
            left.append(missing)
            assert len(listed) <= 2 * (1 + len(left) // 5)
    assert len(left) > 10
    assert left[-1] == 0
    assert asked == []


def test_a_job_whose_time_is_over_is_followed_by_another(tmp_path, toy, monkeypatch):
    """Submitit raises its error in the middle of whatever the job computes."""
    over = type("UncompletedJobError", (Exception,), {"__module__": "submitit.core.utils"})
    left, work = [1, 2, 4], sweep.work

    def until_the_signal(*task):
        left[0] -= 1
        if left[0] < 0:
            left.pop(0)
            raise over("Job not requeued because: timed-out and not checkpointable.")
        work(*task)

    monkeypatch.setattr(sweep, "work", until_the_signal)
    left.append(100)
    cluster = Cluster()
    toy.reproduce(tmp_path / "out", executor=cluster, jobs=1)
    assert len(cluster.jobs) == 4
    assert sorted(cell for cell, _ in toy.notes("end")) == list(range(12))
    assert not list(tmp_path.rglob(".*lease*"))


class Busy(Cluster):
    """A cluster whose jobs do not end."""

    def submit(self, function, *arguments):
        job = super().submit(function, *arguments)
        job.done = lambda: False
        return job


class BusyProcesses(Executor):
    """Processes at work on something long."""

    _max_workers = 4

    def __init__(self):
        self.given = []

    @property
    def calls(self):
        return len(self.given)

    def submit(self, function, /, *arguments):
        self.given.append(Future())
        return self.given[-1]


@pytest.mark.parametrize(("cells", "calls"), [(100, 8), (12, 4)])
def test_calls_wait_in_line_while_there_is_much_to_do(tmp_path, cells, calls):
    executor = BusyProcesses()
    with Workers(compute, executor=executor) as workers:
        found = Sweep(workers)
        found.add([("toy", {}, tmp_path / f"{k}.safetensors") for k in range(cells)])
    assert executor.calls == calls


class Jobs(BusyProcesses):
    """An executor whose processes are begun for a call, as a cluster's jobs are."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def submit(self, function, tasks, /, *arguments):
        self.asked.append(len(tasks))
        return super().submit(function, tasks, *arguments)


def test_jobs_are_asked_for_when_all_work_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(Workers, "keeps_processes", False)
    executor = Jobs()
    with Workers(compute, executor=executor) as workers:
        found = Sweep(workers)
        for name in ("first", "last"):
            found.add([("toy", {}, tmp_path / f"{name}-{k}.safetensors") for k in range(50)])
        assert list(found.finish([])) == []
    assert executor.asked == [100] * 4


def test_processes_get_more_to_do_between_results_that_are_there(tmp_path):
    executor = BusyProcesses()
    with Workers(compute, executor=executor) as workers:
        found = Sweep(workers)
        found.add([("toy", {}, tmp_path / f"{k}.safetensors") for k in range(100)])
        for call in executor.given[:3]:
            call.set_result(Outcome([], []))
        assert executor.calls == 8
        assert list(found.finish([])) == []
    assert executor.calls == 11


def test_slow_folders_are_listed_less_often(tmp_path, monkeypatch):
    now, listed, list_folder = [0.0], [], os.scandir

    def slow(path):
        listed.append(now[0])
        now[0] += 1.0
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", slow)
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now[0])
    with Workers(compute, executor=BusyProcesses()) as workers:
        found = Sweep(workers)
        found.add([("toy", {}, tmp_path / "cell.safetensors")])
        while now[0] < 100.0:
            now[0] += 0.5
            found._look()
    assert len(listed) == 5


def test_what_others_write_is_progress_without_a_call(tmp_path):
    """Jobs of a cluster return when all is done; the bar moves before."""
    paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
    with Workers(compute, 1, executor=Busy()) as workers:
        found = Sweep(workers)
        found.add([("toy", {}, path) for path in paths])
        writer = threading.Timer(0.3, paths[0].touch)
        writer.start()
        progress = found.finish(paths)
        assert next(progress) == 2
        paths[1].touch()
        paths[2].touch()
        assert list(progress)[-1] == 0


def test_slots_are_those_of_the_executor():
    with ThreadPoolExecutor(7) as threads:
        assert Workers(print, executor=threads).slots == 7
        assert Workers(print, 2, executor=threads).slots == 2
    assert Workers(print, executor=Cluster()).slots == os.cpu_count()


@pytest.mark.slow
def test_a_dask_worker_dies_every_five_seconds_and_the_client_once(tmp_path):
    distributed = pytest.importorskip("distributed")
    toy, out = Toy(tmp_path, cells=200, seconds=0.5), tmp_path / "out"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        words = [sys.executable, "-m", "attsvm", "reproduce", str(toy.path), "--out", str(out)]
        words += ["--executor", cluster.scheduler_address.replace("tcp", "dask")]
        began, first, killed = time.monotonic(), subprocess.Popen(words), 0
        client, chance = first, random.Random(int(os.environ.get("ATTSVM_SEED", "0")))
        while client.poll() is None:
            time.sleep(5.0)
            with distributed.Client(cluster, set_as_default=False) as look:
                workers = look.scheduler_info(n_workers=-1)["workers"]
                found = look.run(os.getpid, on_error="ignore").values() if workers else []
            if found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(list(found)), signal.SIGKILL)
                    killed += 1
            if client is first and time.monotonic() - began > 20:
                first.kill()
                first.wait()
                client = subprocess.Popen(words)
        assert client.returncode == 0
    done = [cell for cell, _ in toy.notes("end")]
    print(
        f"{killed} workers killed, {len(toy.notes('begin'))} cells begun, {len(done)} computed,"
        f" {time.monotonic() - began:.0f} s"
    )
    assert set(done) == set(range(200))
    assert len(done) <= 210
    assert json.loads((out / "toy" / "run.json").read_text())["trials"] == 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dask", "submitit"])
def test_the_library_of_executors_gives_the_same_bits(tmp_path, kind):
    names = ["tfsvm-4", "ntp-2", "graph-6", "rates-4", "md-1"]
    expected = tmp_path / "own"
    reproduce(names, expected, quick=True, jobs=2)
    out = tmp_path / kind
    with contextlib.ExitStack() as stack:
        if kind == "dask":
            distributed = pytest.importorskip("distributed")
            cluster = stack.enter_context(
                distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
            )
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
            executor = client.get_executor(pure=False)
        else:
            submitit = pytest.importorskip("submitit")
            executor = submitit.AutoExecutor(tmp_path / "logs", cluster="local")
        reproduce(names, out, quick=True, executor=executor, jobs=2)
    for each in Path(expected).glob("*/arrays.safetensors"):
        assert (out / each.relative_to(expected)).read_bytes() == each.read_bytes()
