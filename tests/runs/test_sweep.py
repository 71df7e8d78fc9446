"""Cells: the same numbers whoever computes them, each once, and what others leave is done."""

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from attsvm.base.errors import AttsvmError
from attsvm.base.store.entries import alone
from attsvm_papers import reproduce

FIGURE = '''"""Squares.

Every cell notes who computes it.

Source: nowhere
"""

import os
import time
from pathlib import Path

LOG = Path({log!r})


def cells(parameters):
    return [{{"first": first}} for first in range({cells})]


def run(first):
    with LOG.open("a") as log:
        log.write(f"begin {{first}} {{os.getpid()}}\\n")
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
        self.path.write_text(
            FIGURE.format(log=str(self.log), cells=cells, seconds=seconds, broken=broken)
        )

    def reproduce(self, out, **options):
        (run,) = reproduce([str(self.path)], out, **options)
        return run, (out / run["id"] / "arrays.safetensors").read_bytes()

    def notes(self, word):
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(int(cell), int(process)) for kind, cell, process in lines if kind == word]


class Losing(Executor):
    """An executor whose workers are gone."""

    def submit(self, function, /, *arguments, **named):
        future = Future()
        future.set_exception(ConnectionError("the worker is gone"))
        return future


class Cluster:
    """The interface of submitit, whose jobs are no futures."""

    def submit(self, function, *arguments):
        work = functools.partial(function, *arguments)
        return SimpleNamespace(done=lambda: True, result=work, cancel=lambda: None)


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def test_numbers_do_not_depend_on_who_computes(tmp_path, toy):
    _, expected = toy.reproduce(tmp_path / "alone", jobs=1)
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2) as processes:
        executors = {"threads": threads, "processes": processes, "cluster": Cluster()}
        for name, executor in executors.items():
            assert toy.reproduce(tmp_path / name, executor=executor)[1] == expected
    assert toy.reproduce(tmp_path / "own", jobs=2)[1] == expected
    assert sorted(cell for cell, _ in toy.notes("end")) == sorted(5 * list(range(12)))


def test_an_executor_that_loses_its_workers_is_one_sentence(tmp_path, toy):
    with pytest.raises(AttsvmError, match=r"has lost a call .* the worker is gone"):
        toy.reproduce(tmp_path / "out", executor=Losing())


@pytest.mark.parametrize("executor", [None, "processes"])
def test_the_error_of_a_cell_ends_the_sweep_and_says_where(tmp_path, executor):
    toy = Toy(tmp_path, broken=3)
    with contextlib.ExitStack() as stack:
        pool = executor and stack.enter_context(ProcessPoolExecutor(1))
        with pytest.raises(ValueError, match="the power went out") as caught:
            toy.reproduce(tmp_path / "out", executor=pool, jobs=1)
    assert "cell {'first': 3" in caught.value.__notes__[0]
    assert 3 not in dict(toy.notes("end"))


def test_an_error_that_cannot_be_sent_is_told_in_words(tmp_path):
    from attsvm_papers.runs import cells

    figure = tmp_path / "drawing.py"
    figure.write_text(
        "from attsvm.base.errors import MissingExtraError\n"
        "from attsvm_papers import kit\n"
        "@kit.run()\n"
        "def run(first=1):\n"
        "    raise MissingExtraError('a drawing', 'pencils', 'pencils')\n"
    )
    with pytest.raises(AttsvmError, match=r"MissingExtraError: a drawing needs .* while computing"):
        cells.work(str(figure), {"first": 1}, tmp_path / "a.safetensors")


def test_another_clients_cell_is_waited_for_and_not_computed(tmp_path, toy):
    out = tmp_path / "out"
    toy.reproduce(out, jobs=1)
    (cell, *_) = (out / "cells").rglob("*.safetensors")
    content = cell.read_bytes()
    cell.unlink()
    rest = cell.with_name(f".{cell.stem}.0123abcd.partial.safetensors")
    rest.touch()
    taken = threading.Event()

    def other():
        with alone(cell):
            taken.set()
            time.sleep(1.0)
            assert rest.exists()  # it is at work on it
            cell.write_bytes(content)

    writer = threading.Thread(target=other)
    writer.start()
    taken.wait()
    toy.reproduce(out, jobs=1)
    writer.join()
    assert len(toy.notes("end")) == 12


def client(toy, out):
    code = (
        "import sys; from pathlib import Path; from attsvm_papers import reproduce\n"
        "reproduce([sys.argv[1]], Path(sys.argv[2]), jobs=1)"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(toy.path), str(out)])


@pytest.mark.processes
def test_two_clients_compute_each_cell_once_and_a_third_goes_on_after_a_kill(tmp_path):
    toy, out = Toy(tmp_path, cells=16, seconds=0.1), tmp_path / "out"
    clients = [client(toy, out) for _ in range(2)]
    deadline = time.monotonic() + 120
    while not toy.log.exists() or len(toy.notes("end")) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    clients[0].kill()
    for each in clients:
        each.wait()
    assert clients[1].returncode == 0
    run, arrays = toy.reproduce(out, jobs=1)
    done = [cell for cell, _ in toy.notes("end")]
    assert run["trials"] == 16
    assert set(done) == set(range(16))
    assert len(done) <= 17  # the kill may fall between the last note and the file
    assert not list((out / "cells").rglob(".*"))
    assert toy.reproduce(tmp_path / "alone", jobs=1)[1] == arrays


@pytest.mark.slow
def test_a_dask_worker_dies_every_five_seconds_and_the_client_once(tmp_path):
    distributed = pytest.importorskip("distributed")
    toy, out = Toy(tmp_path, cells=200, seconds=0.5), tmp_path / "out"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        words = [sys.executable, "-m", "attsvm", "reproduce", str(toy.path), "--out", str(out)]
        words += ["--dask", cluster.scheduler_address]
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
    (run,) = out.glob("*/run.json")
    assert json.loads(run.read_text())["trials"] == 200
