"""Leases: one holder at a time, void when it has ended, and nothing left behind."""

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

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
def clock(monkeypatch):
    """The clock that watches go by; it stands still until a test moves it."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(leases, "time", clock)
    return clock


@pytest.fixture
def result(tmp_path):
    return tmp_path / "result"


def lease_file(path):
    return path.with_name(f".{path.name}.lease-0")


def beats(path):
    """How often the holder has rewritten its lease; None while it is rewriting it."""
    text = lease_file(path).read_text()
    return json.loads(text).get("beat", 0) if text else None


def wait_for_another_beat(path):
    deadline = time.monotonic() + 60
    while (before := beats(path)) is None:
        pass
    while beats(path) in (None, before):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def of_another_machine(path):
    """Make the lease on a file one of a machine that nobody here can ask."""
    file = lease_file(path)
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


def grab(path, start, tried, won):
    start.wait(60)
    won.put(take(path) is not None)
    tried.wait(60)  # a winner that ended before the others try would leave them a void lease


def test_of_many_threads_and_processes_one_wins(result):
    context = multiprocessing.get_context("spawn")
    start, tried, won = context.Barrier(10), context.Barrier(10), context.Queue()
    crowd = [context.Process(target=grab, args=(result, start, tried, won)) for _ in range(2)]
    crowd += [threading.Thread(target=grab, args=(result, start, tried, won)) for _ in range(8)]
    for each in crowd:
        each.start()
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


def test_a_lease_of_another_machine_expires_when_it_does_not_change(result, clock):
    lease = take(result)
    of_another_machine(result)
    watch = Watch()
    assert watch.held(result)
    clock.now += 0.9 * leases.PATIENCE
    assert watch.held(result)
    clock.now += 0.2 * leases.PATIENCE
    assert not watch.held(result)
    second = take(result)
    assert second.number == 2  # after the one that has expired, and the note that says so
    with lease:  # it was only slow
        assert take(result) is None
    assert take(result) is not None  # both are over


def test_a_lease_that_beats_never_expires(result, clock):
    with take(result) as lease:
        lease._holder["machine"] = "another"
        watch = Watch()
        assert watch.held(result)
        for _ in range(3):
            clock.now += 0.9 * leases.PATIENCE
            wait_for_another_beat(result)
            assert watch.held(result)


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
        wait_for_another_beat(result)
    assert failures == 0


def test_a_watch_goes_by_its_own_clock_alone(result, monkeypatch):
    """A server or a holder whose clock is an hour off changes nothing."""
    assert take(result).number == 0  # without its thread, which would write the file, too
    of_another_machine(result)
    watch = Watch()
    for hour in (-3600, 3600):
        file = lease_file(result)
        file.write_text(file.read_text() + " ")
        os.utime(file, (time.time() + hour,) * 2)
        monkeypatch.setattr(time, "time", lambda hour=hour: hour)
        assert watch.held(result)


def test_a_lease_that_is_being_written_is_held(result):
    lease_file(result).write_text("")
    assert take(result) is None
