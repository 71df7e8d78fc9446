"""The mirrors of the structs, the levels, and what the library is made of."""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import native

ROOT = Path(__file__).parents[2]


def _expected() -> list[int]:
    found = []
    for struct in native.STRUCTS:
        found.append(ctypes.sizeof(struct))
        found.extend(getattr(struct, name).offset for name, _ in struct._fields_)
    return found


def test_structs_have_the_layout_of_the_library() -> None:
    room = (ctypes.c_int64 * 200)()
    count = native.library.layout(room)
    assert list(room[:count]) == _expected()


def test_the_library_is_made_of_the_sources_that_lie_beside_it() -> None:
    digest = runpy.run_path(str(ROOT / "hatch_build.py"))["digest"]()
    assert native.library.sources().decode() == digest, "run `python hatch_build.py`"


def test_a_platform_that_nobody_compiles_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTSVM_PLATFORM", "amiga")
    this_platform = runpy.run_path(str(ROOT / "hatch_build.py"))["this_platform"]
    with pytest.raises(RuntimeError, match="take one of linux-x86_64, linux-aarch64"):
        this_platform()


@pytest.mark.processes
@pytest.mark.parametrize("level", ["baseline", "avx2"])
def test_each_level_loads_in_a_process_of_its_own(level: str) -> None:
    if level == "avx2" and not native.library.fast_processor():
        level = "baseline"
    program = "from attsvm import native; print(native.LEVEL, native.library.fast_processor() >= 0)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ATTSVM_PROCESSOR": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [level, "True"]


@pytest.mark.processes
def test_an_unknown_level_is_refused_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import attsvm.native"],
        env={**os.environ, "ATTSVM_PROCESSOR": "sse9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ATTSVM_PROCESSOR is 'sse9'; it must be baseline or avx2" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 3), np.float32),
        np.zeros((3, 4)),
        np.zeros((4, 6))[:, ::2],
        np.asfortranarray(np.zeros((4, 3))),
    ],
)
def test_arrays_of_another_kind_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(TypeError, match="where the compiled core takes"):
        native.address(wrong, np.float64, 4, 3)


def test_address_of_every_kind_of_array() -> None:
    """Also of those that are read-only or empty, which have no writable buffer."""
    whole = np.arange(12.0).reshape(4, 3)
    fixed = whole.copy()
    fixed.flags.writeable = False
    for array in (whole, whole[2:], fixed, np.empty((0, 3)), np.array(3.0)):
        assert native.address(array, np.float64, *array.shape) == array.ctypes.data


def test_offsets_that_leave_the_rows_are_refused() -> None:
    D, Z, b = np.ones((3, 2)), np.ones((2, 2)), np.ones(3)
    free = np.zeros(3, np.uint8)
    for offsets in ([0, 2, 4], [1, 2, 3], [0, 4, 3]):
        with pytest.raises(TypeError, match="offsets"):
            native.ProgrammeRows(D, Z, b, b, np.array(offsets), free)


def _sequences(**changed: Any) -> native.SequenceArrays:
    arrays = {
        "keys": np.ones((5, 3)),
        "queries": np.ones((2, 4)),
        "labels": np.ones(2),
        "start": np.array([0, 2, 5]),
    }
    return native.SequenceArrays(**{**arrays, **changed})


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: _sequences(labels=np.ones(3)), "SequenceArrays.labels"),
        (lambda: _sequences(start=np.array([0, 2, 5], np.int32)), "SequenceArrays.start"),
        (lambda: _sequences(start=np.array([0, 2, 6])), "rise from 0 to 5"),
        (lambda: _sequences(start=np.array([0, 5, 5])), "visible token"),
        (lambda: _descent(W=np.ones((3, 4))), "DescentRun.W"),
        (lambda: _descent(W=np.ones((4, 3)), dual=np.ones((4, 4))), "DescentRun.dual"),
        (lambda: _descent(K=np.ones((2, 3)), Q=np.ones((4, 3))), "DescentRun.Q"),
        (lambda: _descent(head_width=4), "4 trained entries"),
        (lambda: _descent().fix_scores(np.ones(4), np.ones(2)), "DescentRun.token_score"),
        (
            lambda: native.SplittingState(
                np.ones((2, 2)).T[:1], np.ones(3), np.ones(9), target=1.0
            ),
            "W is",
        ),
    ],
)
def test_structs_refuse_arrays_that_do_not_fit(build: Any, field: str) -> None:
    """A wrong shape would be a corrupted heap."""
    with pytest.raises(TypeError, match=field):
        build()


def _descent(**arrays: Any) -> native.DescentRun:
    outputs = {"winner": np.zeros(2, np.int64), "margin": np.ones(2), "softmax_sum": np.ones(2)}
    return native.DescentRun(_sequences(), head=np.ones(4), **outputs, **arrays)


def test_structs_keep_their_arrays_alive() -> None:
    run = _descent(W=np.full((4, 3), 7.0))
    assert run.arrays["W"][3, 2] == 7.0
    assert run.arrays["W"].ctypes.data == run.W
    assert run.sequences.arrays["labels"].ctypes.data == run.data.contents.labels


def _splitting_state(W: np.ndarray) -> native.SplittingState:
    return native.SplittingState(W, np.ones(3), np.ones(9), target=1.0)
