"""Work that is shared out among threads of our own."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Share = TypeVar("Share")
Result = TypeVar("Result")

VARIABLE = "ATTSVM_THREADS"
_here = threading.local()


def threads() -> int:
    """Number of threads that work is shared out among: the environment variable
    ``ATTSVM_THREADS``, all processors otherwise; one in work that is shared out already.
    """
    if getattr(_here, "at_work", False):
        return 1
    return max(1, int(os.environ.get(VARIABLE) or _processors()))


def _processors() -> int:
    """Number of processors that this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


WORTH_SHARING = 1e6
"""Operations from which on threads save more than their start costs: about half a millisecond."""


def shares(count: int, workers: int) -> list[tuple[int, int]]:
    """First and one past last of up to four consecutive shares of ``count`` for each of the
    workers, so that none waits long for another.
    """
    return even_shares(count, 4 * workers)


def even_shares(count: int, most: int) -> list[tuple[int, int]]:
    """First and one past last of at most ``most`` consecutive shares of ``count``."""
    most = max(1, min(count, most))
    return list(itertools.pairwise(count * k // most for k in range(most + 1)))


def shared_out(
    work: Callable[[Share], Result], shares: Sequence[Share], most: int | None = None
) -> list[Result]:
    """Results of ``work`` on every share, on all cores or on as many as ``most``.

    Compiled functions run without the GIL. The caller is one of the threads; the others wait
    between calls.

    Raises:
        Exception: that of the first share, in their order, which has one.
    """
    count = len(shares)
    if count > 1:
        count = min(threads() if most is None else most, count)
    if count < 2 or getattr(_here, "at_work", False):
        return [work(share) for share in shares]
    left = deque(enumerate(shares))
    results, errors = dict[int, Result](), dict[int, BaseException]()

    def take() -> None:
        _here.at_work = True
        while left:
            try:
                k, share = left.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                results[k] = work(share)
            except BaseException as error:
                errors[k] = error
                left.clear()
        _here.at_work = False

    pool = _helpers(os.getpid(), count - 1)  # threads do not survive a fork
    others = [pool.submit(copy_context().run, take) for _ in range(count - 1)]
    try:
        take()
        for other in others:
            if not other.cancel():  # one that has not begun finds nothing left to do
                other.result()
    finally:
        left.clear()
    if errors:
        raise errors[min(errors)]
    return [results[k] for k in range(len(shares))]


@functools.cache
def _helpers(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that wait for work, as long as this process runs."""
    from concurrent.futures import ThreadPoolExecutor  # where it is needed

    return ThreadPoolExecutor(count, "attsvm")
