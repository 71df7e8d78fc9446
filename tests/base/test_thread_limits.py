"""Limits on threads: the smallest that holds counts, and the process ends as it began."""

import sys
import threading

import pytest
import torch
from threadpoolctl import threadpool_limits

from attsvm.base.cores import at_most_threads, lifted, thread_pools


class Pool:
    """A library with one number for the whole process, of which one thread has the say."""

    def __init__(self, count, mine=True):
        self.count, self.filepath, self.mine, self.user_api = count, object(), mine, "blas"

    def get_num_threads(self):
        return self.count

    def set_num_threads(self, count):
        if self.mine:
            self.count = count


@pytest.fixture(params=["torch", "blas", "openmp", "pool"])
def library(request):
    """A library, and how many of four threads it takes."""
    if request.param == "pool":
        yield Pool(4), 4
        return
    found = {"torch": torch} | {
        each.user_api: each for each in thread_pools("blas", "openmp", scipy=True)
    }
    each = found[request.param]
    before = each.get_num_threads()
    with threadpool_limits(None):  # gives the say over a BLAS back afterwards
        each.set_num_threads(4)
        yield each, each.get_num_threads()
        each.set_num_threads(before)


def test_the_smallest_limit_counts_and_all_is_as_before(library):
    library, most = library
    for outer, inner in ((3, 2), (2, 3), (2, 2), (8, 2), (2, 8)):
        with at_most_threads(outer, library):
            with at_most_threads(inner, library):
                assert library.get_num_threads() == min(inner, outer, most)
            assert library.get_num_threads() == min(outer, most)
        assert library.get_num_threads() == most


def test_what_the_block_sets_ends_with_it(library):
    library, most = library
    with at_most_threads(sys.maxsize, library):
        library.set_num_threads(2)
    assert library.get_num_threads() == most
    with pytest.raises(ZeroDivisionError), at_most_threads(1, library):
        raise ZeroDivisionError
    assert library.get_num_threads() == most


def test_blocks_of_several_threads_overlap():
    pool, begun, end = Pool(4), threading.Event(), threading.Event()

    def first():
        with at_most_threads(2, pool):
            begun.set()
            end.wait(10.0)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10.0)
    with at_most_threads(3, pool):
        assert pool.count == 2
        end.set()
        thread.join()
        assert pool.count == 3
    assert pool.count == 4


def test_a_number_of_another_thread_is_left_to_it():
    pool = Pool(4, mine=False)
    with at_most_threads(2, pool):
        pool.count = 6  # the thread that has the say
        pool.mine = True
    assert pool.count == 6


def test_a_library_that_does_not_tell_is_left_alone():
    pool = Pool(None)
    with at_most_threads(1, pool):
        assert pool.count is None


def test_a_limit_may_be_lifted_for_a_while():
    pool = Pool(4)
    with lifted(pool), at_most_threads(2, pool):  # nothing holds yet
        with lifted(pool):
            assert pool.count == 4
        assert pool.count == 2
    assert pool.count == 4


def test_libraries_that_share_a_number_are_given_back_in_turn():
    """Torch's threads are those of its OpenMP: the inner limit is lifted first."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with at_most_threads(1, torch, *thread_pools("blas", "openmp", scipy=True)):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
