"""Leases: one holder at a time, void when it has ended, and nothing left behind."""

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from attsvm.store import leases
from attsvm.store.leases import Watch, leased, take

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whether a process lives")
HOLD = """
import sys, time
from pathlib import Path
from attsvm.store.leases import take
with take(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.05)
    monkeypatch.setattr(leases, "PATIENCE", 0.4)


@pytest.fixture
def result(tmp_path):
    return tmp_path / "result"


def of_another_machine(path):
    """Make the lease on a file one of a machine that nobody here can ask."""
    file = path.with_name(f".{path.name}.lease-0")
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "another"}))


def killed_holder(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    assert take(path) is None
    process.kill()
    process.wait()
    process.stdout.close()


def test_one_holder_at_a_time_and_nothing_is_left(result):
    lease = take(result)
    assert take(result) is None
    assert leased(result.parent) == {result}
    with lease:
        assert Watch().held(result)
    assert not Watch().held(result)
    assert list(result.parent.iterdir()) == []
    assert take(result) is not None


def grab(path, start, won):
    start.wait()
    won.put(take(path) is not None)


def test_of_many_threads_and_processes_one_wins(result):
    context = multiprocessing.get_context("spawn")
    start, won = context.Event(), context.Queue()
    crowd = [context.Process(target=grab, args=(result, start, won)) for _ in range(2)]
    crowd += [threading.Thread(target=grab, args=(result, start, won)) for _ in range(8)]
    for each in crowd:
        each.start()
    time.sleep(0.5)
    start.set()
    found = [won.get(timeout=60) for _ in crowd]
    for each in crowd:
        each.join()
    assert sum(found) == 1


@LINUX
def test_the_lease_of_a_killed_process_of_this_machine_is_void_at_once(result):
    for number in (1, 2):
        killed_holder(result)
        assert not Watch().held(result)
        lease = take(result)
        assert lease.number == 1
        with lease:
            assert take(result) is None
        assert list(result.parent.iterdir()) == [], number


@LINUX
def test_void_leases_are_counted_on(result):
    killed_holder(result)
    lease = take(result)
    json_file = result.with_name(".result.lease-1")
    json_file.write_text("free")
    assert lease.number == 1
    assert take(result).number == 2


def test_a_lease_of_another_machine_expires_when_it_does_not_change(result):
    lease = take(result)
    of_another_machine(result)
    watch = Watch()
    assert watch.held(result)
    time.sleep(0.2)
    assert watch.held(result)
    time.sleep(0.3)
    assert not watch.held(result)
    second = take(result)
    assert second.number == 2  # after the one that has expired, and the note that says so
    with lease:  # it was only slow
        assert take(result) is None
    assert take(result) is not None  # both are over


def test_a_lease_that_beats_never_expires(result):
    with take(result) as lease:
        lease._holder["machine"] = "another"
        watch = Watch()
        deadline = time.monotonic() + 1.2
        while time.monotonic() < deadline:
            assert watch.held(result)
            time.sleep(0.05)


def test_beats_go_on_after_the_server_did_not_answer(result, monkeypatch):
    opened, failures = os.open, 3

    def stale(path, *flags):
        nonlocal failures
        if failures and str(path).endswith(".lease-0"):
            failures -= 1
            raise OSError(errno.ESTALE, "stale file handle")
        return opened(path, *flags)

    with take(result):
        monkeypatch.setattr(os, "open", stale)
        file = result.with_name(".result.lease-0")
        deadline = time.monotonic() + 10
        while '"beat": 5' not in file.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert failures == 0


def test_a_watch_goes_by_its_own_clock_alone(result, monkeypatch):
    """A server or a holder whose clock is an hour off changes nothing."""
    with take(result) as lease:
        of_another_machine(result)
        watch = Watch()
        for hour in (-3600, 3600):
            file = result.with_name(".result.lease-0")
            file.write_text(file.read_text() + " ")
            os.utime(file, (time.time() + hour,) * 2)
            monkeypatch.setattr(time, "time", lambda hour=hour: hour)
            assert watch.held(result)
    assert lease.number == 0


def test_a_lease_that_is_being_written_is_held(result):
    result.with_name(".result.lease-0").write_text("")
    assert take(result) is None
