"""Programmes on an executor: the bits of the same list in this process."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from instances import cross, ragged, sphere, with_rhs

from attsvm.base.errors import InputError
from attsvm.margins import Margins, MarginsBatch
from attsvm.solvers import max_margin_batch


class Elsewhere(Executor):
    """Calls at once, with everything sent there and back."""

    _max_workers = 3

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        called, given = pickle.loads(pickle.dumps((function, arguments)))
        try:
            future.set_result(pickle.loads(pickle.dumps(called(*given))))
        except Exception as error:
            future.set_exception(error)
        return future


def mixture() -> list[Margins]:
    """Of two shapes, infeasible ones among them."""
    rng = np.random.default_rng(3)
    again = [ragged(rng, 5, 6, 4, 3, k % 3 > 0) for k in range(10)]
    never = cross([[[1.0, 0.0], [0.0, 1.0]]] * 2, [[1.0], [-1.0]], [0, 0])
    return [*again, never, *(sphere(4, 5, 6, seed) for seed in range(9))]


@pytest.mark.parametrize("norm", ["fro", "lp:1.75", "nuc"])
def test_bits_are_those_of_this_process(norm: str) -> None:
    programmes, executor = mixture(), Elsewhere()
    here, there = (
        max_margin_batch(programmes, norm),
        max_margin_batch(programmes, norm, executor=executor),
    )
    assert executor.calls == 10
    for name in ("status", "norm", "gap", "violation", "dual", "rows"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)
    for k, (one, other) in enumerate(zip(here, there, strict=True)):
        assert other.margins is programmes[k]
        np.testing.assert_array_equal(other.W, one.W)
        np.testing.assert_array_equal(other.support, one.support)
        assert (other.message, other.iterations) == (one.message, one.iterations)
    assert {"optimal", "infeasible"} <= set(here.status.tolist())


def test_a_stack_of_one_shape_stays_one() -> None:
    batch = MarginsBatch.stack([sphere(4, 5, 6, seed) for seed in range(25)])
    here, there = max_margin_batch(batch), max_margin_batch(batch, executor=Elsewhere())
    assert isinstance(there.W, np.ndarray)
    np.testing.assert_array_equal(there.W, here.W)
    assert there.margins is batch


def test_processes_solve_too() -> None:
    programmes = [sphere(4, 5, 6, seed) for seed in range(6)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        there = max_margin_batch(programmes, "lp:1.75", executor=pool)
    np.testing.assert_array_equal(there.W, max_margin_batch(programmes, "lp:1.75").W)


def test_what_is_refused_has_its_place_in_the_whole_list() -> None:
    programmes = [sphere(4, 5, 6, seed) for seed in range(30)]
    rhs = np.ones(programmes[17].m)
    programmes[17] = with_rhs(programmes[17], np.where(np.arange(len(rhs)) == 2, -1.0, rhs))
    with pytest.raises(InputError, match=r"programme 17: margins.rhs\[2\] is -1"):
        max_margin_batch(programmes, executor=Elsewhere())


def test_an_empty_list_needs_no_executor() -> None:
    assert max_margin_batch([], executor=Elsewhere()).status.tolist() == []
