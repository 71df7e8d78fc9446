"""How many threads BLAS takes while a programme is solved.

Products and factorisations of the usual programmes are so small that a second thread costs more
than it saves: it waits for the first one, at full load, between any two calls. They are solved with
one thread; programmes whose matrices are large keep the threads that the process has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from attsvm.margins import Margins
from attsvm.solvers.choice import FEW
from attsvm.thread_limits import at_most_threads, thread_pools

_LARGE = 1 << 30  # rows times the rows that can be active from which threads pay


@contextmanager
def threads_that_pay(margins: Margins) -> Iterator[None]:
    """One thread of BLAS in this block unless the programme is large; as before after it."""
    if margins.m * min(margins.m, margins.shape[0] * margins.shape[1]) >= _LARGE:
        yield
        return
    with one_thread(scipy=margins.m > FEW):  # smaller ones may do without SciPy's
        yield


def one_thread(*, scipy: bool = False) -> AbstractContextManager[None]:
    """One thread of BLAS, of SciPy's too if asked, inside; as before after it."""
    return at_most_threads(1, *thread_pools("blas", scipy=scipy))
