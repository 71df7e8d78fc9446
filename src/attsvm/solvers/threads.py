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
from typing import NamedTuple

from attsvm.base.cores import lifted, one_thread, thread_pools


class ThreadOptions(NamedTuple):
    """Sizes from which threads pay, on machines of two to sixteen cores
    (``benchmarks/solve_threads.py``).
    """

    # OpenBLAS takes one thread below these, as its sources say
    matrix_multiplications: int = 1 << 18  # in a product of matrices
    matrix_numbers: int = 9000  # of a matrix that is multiplied with a vector
    compiled_rows: int = 320  # of programmes that one compiled call solves, without SciPy's BLAS
    large_programme: int = 1 << 30  # rows times the rows that can be active
    large_factorisation: int = 1500  # rows, in a large programme


class _OfThisThread(threading.local):
    """Size and options of the programme that a thread solves."""

    is_large = False
    options = ThreadOptions()


_this_thread = _OfThisThread()


@contextmanager
def thread_options(options: ThreadOptions) -> Iterator[None]:
    """Other sizes for the programmes that this thread solves inside the block."""
    before, _this_thread.options = _this_thread.options, options
    try:
        yield
    finally:
        _this_thread.options = before


def threads_that_pay(rows: int, unknowns: int) -> AbstractContextManager[None]:
    """One thread of BLAS in this block, but for :func:`all_threads` where the programme of so many
    rows and unknowns is large; as before after it.
    """
    options = _this_thread.options
    if (
        rows * unknowns <= options.matrix_numbers
        and rows**2 * unknowns <= options.matrix_multiplications
    ):
        return nullcontext()
    return _one_thread_for(rows, unknowns, options)


@contextmanager
def _one_thread_for(rows: int, unknowns: int, options: ThreadOptions) -> Iterator[None]:
    """One thread of BLAS, and a note whether the programme is large."""
    before = _this_thread.is_large
    _this_thread.is_large = rows * min(rows, unknowns) >= options.large_programme
    try:
        with one_thread(scipy=rows > options.compiled_rows):
            yield
    finally:
        _this_thread.is_large = before


def all_threads(rows: int) -> AbstractContextManager[None]:
    """The threads of BLAS that the process has, for a factorisation of so many rows, where the
    programme that this thread solves is large.
    """
    if rows < _this_thread.options.large_factorisation or not _this_thread.is_large:
        return nullcontext()
    return lifted(*thread_pools("blas", scipy=False))
