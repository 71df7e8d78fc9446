"""Work that is shared out among threads of our own."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = TypeVar("Part")
Result = TypeVar("Result")

_here = threading.local()


def threads() -> int:
    """How many threads work is shared out among: what ``NUMBA_NUM_THREADS`` says, or less where
    ``numba.set_num_threads`` has said so in this thread; one in work that is shared out already.
    """
    if getattr(_here, "at_work", False):
        return 1
    numba: Any = sys.modules.get("numba")
    if not hasattr(numba, "threading_layer"):  # not loaded, which takes longer than most solves
        return max(1, int(os.environ.get("NUMBA_NUM_THREADS") or _processors()))
    most = int(numba.config.NUMBA_NUM_THREADS)
    try:
        numba.threading_layer()
    except ValueError:  # numba has no threads yet, and to ask for their number would start them
        return most
    return min(most, int(numba.get_num_threads()))


def _processors() -> int:
    """Those that this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


WORTH_SHARING = 1e6
"""Operations from which on threads save more than their start costs: about half a millisecond."""


def shares(count: int, workers: int) -> list[tuple[int, int]]:
    """First and one past last of up to four consecutive shares of ``count`` for each of the
    workers, so that none waits long for another.
    """
    most = max(1, min(count, 4 * workers))
    return list(itertools.pairwise(count * k // most for k in range(most + 1)))


def shared_out(
    work: Callable[[Part], Result], parts: Sequence[Part], most: int | None = None
) -> list[Result]:
    """``work`` on every part, on all cores or on as many as ``most``.

    Threads of our own over kernels without the GIL: numba's would compile them twice and set
    OpenMP's defaults for torch. The caller is one of them; the others wait between calls.

    Raises:
        Exception: that of the first part, in their order, which has one.
    """
    count = len(parts)
    if count > 1:
        count = min(threads() if most is None else most, count)
    if count < 2 or getattr(_here, "at_work", False):
        return [work(part) for part in parts]
    left = deque(enumerate(parts))
    results, errors = dict[int, Result](), dict[int, BaseException]()

    def take() -> None:
        _here.at_work = True
        while (part := _next(left)) is not None:
            try:
                results[part[0]] = work(part[1])
            except BaseException as error:
                errors[part[0]] = error
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
    return [results[k] for k in range(len(parts))]


def _next(left: deque[tuple[int, Part]]) -> tuple[int, Part] | None:
    try:
        return left.popleft()
    except IndexError:
        return None


@functools.cache
def _helpers(process: int, count: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # where it is needed

    return ThreadPoolExecutor(count, "attsvm")
