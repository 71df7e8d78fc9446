"""Solvers take one thread of BLAS where more do not pay, and give back what they found."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from instances import sphere
from threadpoolctl import ThreadpoolController, threadpool_limits

from attsvm.base.cores import one_thread
from attsvm.base.errors import InputError
from attsvm.margins import Margins
from attsvm.norms import Lp
from attsvm.solvers import max_margin
from attsvm.solvers.threads import (
    ThreadOptions,
    all_threads,
    thread_options,
    threads_that_pay,
)

importlib.import_module("scipy.linalg.lapack")  # brings a BLAS of its own


def pools() -> list[Any]:
    """The BLAS libraries of NumPy and SciPy: other packages may have brought their own."""
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [each for each in found if re.search("numpy|scipy", each.filepath)]
    return own or found


def counts() -> list[int]:
    return [each.get_num_threads() for each in pools()]


def paid(margins: Margins) -> AbstractContextManager[None]:
    return threads_that_pay(margins.m, margins.shape[0] * margins.shape[1])


def give(library: Any, count: int) -> None:
    """Threads to a BLAS, whichever thread had the say over it, and none has afterwards."""
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(count)
    release(force=True)


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    libraries = pools()
    before = [each.get_num_threads() for each in libraries]
    try:
        for library in libraries:
            give(library, 2)
        if set(counts()) != {2}:
            pytest.skip("this BLAS does not take two threads")
        yield
        assert set(counts()) == {2}
    finally:
        for library, count in zip(libraries, before, strict=True):
            give(library, count)


def test_one_inside_and_as_before_after() -> None:
    with paid(sphere(8, 10, 12, 0)):
        assert set(counts()) == {1}
        with paid(sphere(8, 10, 12, 1)):
            assert set(counts()) == {1}
        assert set(counts()) == {1}
    assert set(counts()) == {2}


def test_large_factorisations_of_large_programmes_take_the_threads_of_the_process() -> None:
    with paid(sphere(8, 10, 12, 0)), all_threads(10**6):
        assert set(counts()) == {1}  # the programme is not large
    large = ThreadOptions(large_programme=72 * 72)
    with thread_options(large), paid(sphere(8, 10, 12, 0)):
        with all_threads(2):
            assert set(counts()) == {1}
        with all_threads(10**6):
            assert set(counts()) == {2}
            with one_thread(), all_threads(10**6):
                assert set(counts()) == {2}
        assert set(counts()) == {1}
    with (
        thread_options(large),
        threadpool_limits(1, user_api="blas"),
        paid(sphere(8, 10, 12, 0)),
        all_threads(10**6),
    ):
        assert set(counts()) == {1}  # a limit of the caller holds


@pytest.mark.parametrize("norm", ["fro", "lp:1.1", "schatten:3"])
def test_the_smallest_programmes_do_not_ask_and_have_the_bits_of_one_thread(norm: str) -> None:
    programme = sphere(6, 8, 10, 0)
    with paid(programme):
        assert set(counts()) == {2}
    found = max_margin(programme, norm)
    with one_thread(scipy=True):
        alone = max_margin(programme, norm)
    assert found.W.tobytes() == alone.W.tobytes()
    assert found.dual.tobytes() == alone.dual.tobytes()


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_solves_of_large_programmes_give_back(norm: str) -> None:
    alone = max_margin(sphere(20, 16, 32, 0), norm)
    with thread_options(ThreadOptions(large_programme=0, large_factorisation=0)):
        found = max_margin(sphere(20, 16, 32, 0), norm)
    assert found.norm == pytest.approx(alone.norm, rel=1e-9)
    assert (found.rank, found.rank_bound) == (alone.rank, alone.rank_bound)
    assert set(counts()) == {2}


class CountsThreads(Lp):
    """A norm that notes how many threads BLAS has when a certificate asks for its value."""

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self.threads: list[int] = []

    def value(self, W: np.ndarray) -> np.ndarray:
        if len(self.threads) < 10:
            self.threads.extend(counts())
        return super().value(W)


@pytest.mark.parametrize("p", [1.0, 1.75, 3.0])
def test_solves_take_one_and_give_back(p: float) -> None:
    norm = CountsThreads(p)
    assert max_margin(sphere(8, 10, 12, 0), norm).status == "optimal"
    assert set(norm.threads) == {1}
    assert set(counts()) == {2}


def test_after_an_exception() -> None:
    with pytest.raises(InputError, match="warm_start"):
        max_margin(sphere(8, 10, 12, 0), "nuc", warm_start=np.ones(3))
    assert set(counts()) == {2}


def test_solves_that_overlap_give_back_once() -> None:
    """The first to begin is not the last to end."""
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with paid(sphere(8, 10, 12, 0)):
            entered.set()
            leave.wait(10.0)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(10.0)
    with paid(sphere(8, 10, 12, 1)):
        leave.set()
        thread.join()
        assert set(counts()) == {1}
    assert set(counts()) == {2}


def test_the_first_to_begin_ends_in_another_thread() -> None:
    entered, leave = threading.Event(), threading.Event()

    def last() -> None:
        with paid(sphere(8, 10, 12, 0)):
            entered.set()
            leave.wait(10.0)
        assert set(counts()) == {2}

    thread = threading.Thread(target=last)
    with paid(sphere(8, 10, 12, 1)):
        thread.start()
        entered.wait(10.0)
    assert set(counts()) == {1}
    leave.set()
    thread.join()
    assert set(counts()) == {2}


def test_a_limit_of_the_caller_holds() -> None:
    with threadpool_limits(1, user_api="blas"):
        max_margin(sphere(8, 10, 12, 0), "lp:1.75")
        assert set(counts()) == {1}
    assert set(counts()) == {2}


def test_many_at_once() -> None:
    programmes = [sphere(6, 8, 10, seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: max_margin(each, "lp:1.75").norm, programmes))
    assert set(counts()) == {2}
    alone = [max_margin(each, "lp:1.75").norm for each in programmes]
    np.testing.assert_allclose(found, alone, rtol=1e-12)
