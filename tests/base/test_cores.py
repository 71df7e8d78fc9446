"""Threads of our own: how many, in which order errors are told, and that they are kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attsvm.base.cores import map_on_threads, threads


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm.base.cores.threads", lambda: 3)


def test_the_number_is_what_the_environment_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ATTSVM_THREADS", raising=False)
    assert threads() >= 1
    monkeypatch.setenv("ATTSVM_THREADS", "5")
    assert threads() == 5


def names(most: int | None = None) -> set[str]:
    """Of the threads that three parts are taken by, none of which ends before all have begun."""
    begun = threading.Barrier(most or 3, timeout=60.0)

    def work(_: int) -> str:
        begun.wait()
        return threading.current_thread().name

    return set(map_on_threads(work, range(most or 3), most))


def test_the_caller_works_and_the_others_are_kept() -> None:
    here = threading.current_thread().name
    first = names()
    assert len(first) == 3
    assert here in first
    assert names() == first
    assert (len(names(2)), names(1)) == (2, {here})


def test_the_error_of_the_first_part_is_told_and_nothing_begins_after_it() -> None:
    started, second, begun = threading.Barrier(3, timeout=60.0), threading.Event(), []

    def work(k: int) -> None:
        begun.append(k)
        if k < 3:
            started.wait()
        if k == 2:
            second.set()
            raise ValueError(k)
        second.wait(60.0)
        time.sleep(0.1)
        if k == 1:
            raise ValueError(k)

    with pytest.raises(ValueError, match="1"):
        map_on_threads(work, range(100))
    assert sorted(begun) == [0, 1, 2]
    assert map_on_threads(lambda k: k, range(3)) == [0, 1, 2]


def test_an_interrupt_is_told_when_what_runs_has_ended() -> None:
    here, begun, ended = threading.current_thread(), threading.Barrier(2, timeout=60.0), []

    def work(k: int) -> None:
        begun.wait()
        if threading.current_thread() is not here:
            time.sleep(0.1)  # long enough for the caller to wait
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            ended.append(k)

    with pytest.raises(KeyboardInterrupt):
        map_on_threads(work, range(2), 2)
    assert len(ended) == 1
    assert len(names()) == 3  # and work after it is shared


def test_work_within_work_stays_in_its_thread() -> None:
    def name(_: int) -> str:
        time.sleep(0.01)  # long enough for another thread to take a part
        return threading.current_thread().name

    found = map_on_threads(lambda _: {name(0), *map_on_threads(name, range(3))}, range(4))
    assert all(len(each) == 1 for each in found)
    assert len(names()) == 3  # and work after it does not


def test_callers_in_several_threads_share_the_helpers_and_get_their_results_in_order() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: map_on_threads(lambda k: k * k, range(50)), range(40)))
    assert found == [[k * k for k in range(50)]] * 40


def test_what_the_caller_has_set_holds_in_every_thread() -> None:
    begun = threading.Barrier(3, timeout=60.0)

    def work(_: int) -> str:
        begun.wait()
        return np.geterr()["divide"]

    with np.errstate(divide="ignore"):
        assert map_on_threads(work, range(3)) == ["ignore"] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_helpers_of_its_own() -> None:
    names()
    child = os.fork()
    if child == 0:
        os._exit(0 if len(names()) == 3 else 1)
    deadline = time.monotonic() + 30.0
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended[1] == 0
