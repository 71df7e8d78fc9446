"""What the compiled core reads of next-token problems, and calls of it shared out among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm import native
from attsvm.base.cores import shared_out, shares, threads
from attsvm.datasets.attention_data import FloatArray, IntArray

NORMALIZED, PLAIN, POLYAK = range(3)
LOSSES = {"cross_entropy": 0, "squared": 1, "squared_softmax": 2, "log_mass": 3}


def corpus(
    tokens: tuple[IntArray, FloatArray, IntArray, IntArray],
    sentences: tuple[IntArray, IntArray, IntArray, FloatArray],
    gram: FloatArray,
    classes: int,
) -> native.Corpus:
    """The struct of these sentences, which it keeps alive.

    Args:
        tokens: ``token``, logarithms of ``count``, ``start`` and ``run_start`` of
            :class:`~attsvm.theory.next_token.Problem`.
        sentences: ``query``, ``own``, ``label`` and logarithms of ``weight``.
        gram: ``(runs, K, K)``, products of the embeddings.
        classes: how many labels a value has entries for.
    """
    token, log_count, start, run_start = tokens
    runs, K, _ = gram.shape
    of_run = int(np.diff(start[run_start]).max()), int(np.diff(run_start).max())
    made = native.Corpus(K, classes, *of_run)
    orthonormal = (gram == np.eye(K)).all(axis=(-2, -1))
    count, N = len(token), len(start) - 1
    arrays = {
        "token": (token, np.int64, (count,)),
        "log_count": (log_count, np.float64, (count,)),
        "start": (start, np.int64, (N + 1,)),
        "run_start": (run_start, np.int64, (runs + 1,)),
        "gram": (gram, np.float64, (runs, K, K)),
        "orthonormal": (orthonormal, np.bool_, (runs,)),
    }
    for name, array in zip(("query", "own", "label", "log_weight"), sentences, strict=True):
        arrays[name] = array, np.float64 if name == "log_weight" else np.int64, (N,)
    made.arrays = [np.ascontiguousarray(array, dtype) for array, dtype, _ in arrays.values()]
    for kept, (name, (_, dtype, shape)) in zip(made.arrays, arrays.items(), strict=True):
        setattr(made, name, native.address(kept, dtype, *shape))
    return made


def course(
    runs: int, marks: IntArray, settings: dict[str, Any], arrays: dict[str, FloatArray]
) -> native.Course:
    """The struct of a training, which keeps its arrays alive.

    Args:
        runs: how many.
        marks: increasing steps at which to look.
        settings: numbers of the struct by name.
        arrays: ``(runs, ...)`` by name: ``lr``, ``lr_output``, ``floor``, ``A``, ``scores``, ``B``,
            ``values``, ``looks``, ``outputs``.
    """
    made = native.Course(**settings)
    ends = np.tile(np.array([-1, 0, -1], dtype=np.int64), (runs, 1))
    made.count, made.marks = len(marks), native.address(marks, np.int64, len(marks))
    made.ends = native.address(ends, np.int64, runs, 3)
    for name, array in arrays.items():
        setattr(made, name, native.address(array, np.float64, runs, *array.shape[1:]))
    made.arrays = {"marks": marks, "ends": ends, **arrays}
    return made


def room(made: native.Corpus) -> FloatArray:
    """Room for the work of a thread."""
    return np.empty(native.library.sentences_room(made))


def share_runs(train: Callable[..., None], made: native.Corpus, steps: native.Course) -> IntArray:
    """All runs of a training, shared out among threads; ``(runs, 3)``: the step that could not be
    taken (-1 without one), the number of rises of the loss, and the step of the last.
    """
    ends: IntArray = steps.arrays["ends"]

    def of(part: tuple[int, int]) -> None:
        work = room(made)
        train(made, steps, *part, work.ctypes.data)

    shared_out(of, shares(len(ends), threads()))
    return ends
