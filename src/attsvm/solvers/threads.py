"""How many threads BLAS takes while a programme is solved.

Most products and factorisations are so small that a second thread costs more than it saves: it
waits for the first one, at full load, between any two calls. Programmes are solved with one thread.
To ask for it costs as much as the smallest solves, whose products no BLAS shares out, so these do
not ask. In programmes whose rows are many, factorisations of thousands of rows take the threads
that the process has; the loops over rows are shared out among threads of our own
(:mod:`attsvm.base.cores`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from attsvm.base.thread_limits import lifted, one_thread, thread_pools

_FEW = 320  # rows of programmes that one compiled call takes whole
_LARGE = 1 << 30  # rows times the rows that can be active from which factorisations may be large
_MANY = 1500  # rows from which one pays
# OpenBLAS takes one thread for products of matrices with so few multiplications, and for products
# with a vector of matrices with so few numbers
_MULTIPLICATIONS, _NUMBERS = 1 << 18, 9000
_here = threading.local()


def threads_that_pay(rows: int, unknowns: int) -> AbstractContextManager[None]:
    """One thread of BLAS in this block, but for :func:`all_threads` where the programme of so many
    rows and unknowns is large; as before after it.
    """
    if rows * unknowns <= _NUMBERS and rows**2 * unknowns <= _MULTIPLICATIONS:
        return nullcontext()
    return _one_but_for_large(rows, unknowns)


@contextmanager
def _one_but_for_large(rows: int, unknowns: int) -> Iterator[None]:
    before = getattr(_here, "large", False)
    _here.large = rows * min(rows, unknowns) >= _LARGE
    try:
        with one_thread(scipy=rows > _FEW):  # smaller ones may do without SciPy's
            yield
    finally:
        _here.large = before


def all_threads(rows: int) -> AbstractContextManager[None]:
    """The threads of BLAS that the process has, for a factorisation of so many rows, where the
    programme that this thread solves is large.
    """
    if rows < _MANY or not getattr(_here, "large", False):
        return nullcontext()
    return lifted(*thread_pools("blas", scipy=False))
