"""Compiled kernels: each calls its own copies of the functions that it uses."""

from typing import Any

import numpy as np
from llvmlite.binding import Linkage
from numpy.typing import NDArray

from attsvm.jit import summing_kernel


@summing_kernel
def middle(values: NDArray[np.float64]) -> float:
    """Numba's sort is too long to be put in place of a call."""
    return float(np.sort(values)[len(values) // 2])


@summing_kernel
def whole(values: NDArray[np.float64]) -> float:
    return middle(values) + middle(values[1:])


def test_no_function_of_a_kernel_can_be_replaced_by_one_loaded_before() -> None:
    """Numba lets whichever was loaded first stand for all of one name. Kernels that may split and
    fuse sums then round differently after compiling and after reading the cache.
    """
    assert whole(np.array([3.0, 1.0, 4.0])) == 7.0
    dispatcher: Any = whole
    (compiled,) = dispatcher.overloads.values()
    functions = [f for f in compiled.library._final_module.functions if not f.is_declaration]
    copies = [f for f in functions if "whole" not in f.name and not f.name.startswith("NRT_")]
    assert copies
    assert {f.linkage for f in copies} == {Linkage.internal}
