"""Compiled kernels: each calls its own copies of the functions that it uses."""

from typing import Any

import numba
import numpy as np
from llvmlite.binding import Linkage
from numpy.typing import NDArray

from attsvm.jit import summing_kernel
from attsvm.parallel import parallel_part, start_threads


@summing_kernel
def middle(values: NDArray[np.float64]) -> float:
    """Numba's sort is too long to be put in place of a call."""
    return float(np.sort(values)[len(values) // 2])


@summing_kernel
def whole(values: NDArray[np.float64]) -> float:
    return middle(values) + middle(values[1:])


@summing_kernel
def caller(values: NDArray[np.float64]) -> float:
    return middle(values) * middle(values[2:])


@parallel_part
def shared(values: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for i in numba.prange(out.size):
        out[i] = middle(values[i:])


def test_no_function_of_a_kernel_can_be_replaced_by_one_loaded_before() -> None:
    """Numba lets whichever was loaded first stand for all of one name. Kernels that may split and
    fuse sums then round differently after compiling and after reading the cache.
    """
    assert whole(np.array([3.0, 1.0, 4.0])) == 7.0
    start_threads()
    out = np.zeros(2)
    shared(np.array([3.0, 1.0, 4.0]), out)
    assert out.tolist() == [3.0, 4.0]
    for dispatcher in (whole, shared):
        copies = _copies(dispatcher)
        assert copies
        assert {f.linkage for f in copies} == {Linkage.private}


@summing_kernel
def counted(values: NDArray[np.float64], first: int) -> float:
    return float(np.sort(values[first:])[0])


@summing_kernel
def counting(values: NDArray[np.float64]) -> float:
    done, total = 0, 0.0
    while done < len(values):
        total += counted(values, done) + counted(values, 0) + counted(values, 1)
        done += 2
    return total


def test_constants_are_not_compiled_for_on_their_own() -> None:
    """One call with a variable that begins with a constant and two with constants: numba made
    machine code for each.
    """
    assert counting(np.array([3.0, 1.0, 4.0, 2.0])) == 1 + 1 + 1 + 2 + 1 + 1
    assert len(counted.signatures) == 1  # type: ignore[attr-defined]


def test_a_copy_does_not_stand_for_the_function_itself() -> None:
    """A copy may lack what its own kernel does not look at, such as the sign that all went well.
    Where the loader knew it by its name, kernels compiled later called it, and ended in a
    segmentation fault.
    """
    middle(np.arange(3.0))
    compiled = _compiled(middle)
    engine = compiled.library._codegen._engine

    def address() -> int:
        return int(engine.get_function_address(compiled.fndesc.mangled_name))

    before = address()
    assert before != 0
    caller(np.arange(4.0))
    assert _copies(caller)
    assert address() == before


def _compiled(dispatcher: Any) -> Any:
    (compiled,) = dispatcher.overloads.values()
    return compiled


def _copies(dispatcher: Any) -> list[Any]:
    name = dispatcher.py_func.__name__
    functions = _compiled(dispatcher).library._final_module.functions
    return [
        f
        for f in functions
        if not f.is_declaration and f"jit{len(name)}{name}" not in f.name and f.name[:4] != "NRT_"
    ]
