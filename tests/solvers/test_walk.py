"""How far a programme travels: from the front door to the innermost loop there are at most 20 calls
in 8 files, and a small one is handed to no more than that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import attsvm
from attsvm.margins import Margins, selection_margins
from attsvm.solvers import max_margin

ROOT = Path(attsvm.__file__).parent
STOPS, FILES = 20, 8

Stop = tuple[str, str]


def walked(call: Callable[[], object]) -> tuple[list[Stop], set[Stop]]:
    """The deepest chain of calls in the library, and the functions that were handed margins."""
    deepest: list[Stop] = []
    chain: list[Stop] = []
    handed: set[Stop] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal deepest
        code = frame.f_code
        path = Path(code.co_filename)
        if ROOT not in path.parents:
            return
        if event == "call":
            chain.append((path.relative_to(ROOT).as_posix(), code.co_qualname))
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), Margins) for name in names):
                handed.add(chain[-1])
            if len(chain) > len(deepest):
                deepest = list(chain)
        elif event == "return" and chain:
            chain.pop()

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return deepest, handed


def programme(n: int, T: int, d: int) -> Margins:
    """Feasible: the tokens that some weights select."""
    rng = np.random.default_rng(0)
    X, Z, W = rng.normal(size=(n, T, d)), rng.normal(size=(n, d)), rng.normal(size=(d, d))
    data = attsvm.AttentionData(X, np.resize([1.0, -1.0], n), Z)
    return selection_margins(data, np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1))


def few(stops: list[Stop] | set[Stop]) -> bool:
    return len(stops) <= STOPS and len({file for file, _ in stops}) <= FILES


@pytest.mark.parametrize("norm", ["fro", pytest.param("nuc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", [(40, 5, 12), (400, 6, 12)])
@pytest.mark.experiment
def test_the_innermost_loop_is_near(sizes: tuple[int, int, int], norm: str) -> None:
    margins = programme(*sizes)
    max_margin(margins, norm)  # what is imported and compiled on first use is no part of the walk
    deepest, _ = walked(lambda: max_margin(margins, norm))
    assert deepest[0] == ("solvers/front.py", "max_margin")
    assert few(deepest), deepest


def test_a_small_programme_is_handed_to_few_functions() -> None:
    margins = programme(40, 5, 12)
    max_margin(margins)
    deepest, handed = walked(lambda: max_margin(margins))
    assert "solvers/frobenius.py" in {file for file, _ in deepest}
    assert ("solvers/outcomes.py", "certified_solution") in handed
    assert few(handed), sorted(handed)
