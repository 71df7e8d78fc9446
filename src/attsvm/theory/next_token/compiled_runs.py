"""Structs of next-token problems for the compiled core, and its calls shared out among threads."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Literal, get_args

import numpy as np

from attsvm import native
from attsvm.base.cores import shared_out, shares, threads
from attsvm.datasets.attention_data import FloatArray, IntArray

SentenceLoss = Literal["cross_entropy", "squared", "squared_softmax", "log_mass"]
LOSSES = {name: number for number, name in enumerate(get_args(SentenceLoss))}
"""Numbers of the losses in the compiled loops."""


class RuleNumber(IntEnum):
    """Numbers of the step rules in the compiled loops."""

    NORMALIZED = 0
    PLAIN = 1
    POLYAK = 2


def sentences_struct(
    tokens: tuple[IntArray, FloatArray, IntArray, IntArray],
    sentences: tuple[IntArray, IntArray, IntArray, FloatArray],
    gram: FloatArray,
    classes: int,
) -> native.Corpus:
    """The struct of these sentences, which keeps its arrays alive.

    Args:
        tokens: ``token``, logarithms of ``count``, ``start`` and ``run_start`` of
            :class:`~attsvm.theory.next_token.Problem`.
        sentences: ``query``, ``winner``, ``label`` and logarithms of ``weight``.
        gram: ``(runs, K, K)``, products of the embeddings.
        classes: labels that a value has entries for.
    """
    token, log_count, start, run_start = tokens
    runs, K, _ = gram.shape
    largest_run = int(np.diff(start[run_start]).max()), int(np.diff(run_start).max())
    corpus = native.Corpus(K, classes, *largest_run)
    orthonormal = (gram == np.eye(K)).all(axis=(-2, -1))
    count, N = len(token), len(start) - 1
    fields = {
        "token": (token, np.int64, (count,)),
        "log_count": (log_count, np.float64, (count,)),
        "start": (start, np.int64, (N + 1,)),
        "run_start": (run_start, np.int64, (runs + 1,)),
        "gram": (gram, np.float64, (runs, K, K)),
        "orthonormal": (orthonormal, np.bool_, (runs,)),
    }
    for name, array in zip(("query", "own", "label", "log_weight"), sentences, strict=True):
        fields[name] = array, np.float64 if name == "log_weight" else np.int64, (N,)
    corpus.arrays = [np.ascontiguousarray(array, dtype) for array, dtype, _ in fields.values()]
    # addresses are those of the contiguous copies, which the struct holds
    for array, (name, (_, dtype, shape)) in zip(corpus.arrays, fields.items(), strict=True):
        setattr(corpus, name, native.address(array, dtype, *shape))
    return corpus


def training_struct(
    runs: int, marks: IntArray, settings: dict[str, Any], arrays: dict[str, FloatArray]
) -> native.Course:
    """The struct of a training, which keeps its arrays alive.

    Args:
        runs: number of data sets.
        marks: increasing steps at which weights are recorded.
        settings: numbers of the struct by name.
        arrays: ``(runs, ...)`` by name: ``lr``, ``lr_output``, ``floor``, ``A``, ``scores``, ``B``,
            ``values``, ``looks``, ``outputs``.
    """
    training = native.Course(**settings)
    ends = np.tile(np.array([-1, 0, -1], dtype=np.int64), (runs, 1))
    training.count, training.marks = len(marks), native.address(marks, np.int64, len(marks))
    training.ends = native.address(ends, np.int64, runs, 3)
    for name, array in arrays.items():
        setattr(training, name, native.address(array, np.float64, runs, *array.shape[1:]))
    training.arrays = {"marks": marks, "ends": ends, **arrays}
    return training


def allocate_work(corpus: native.Corpus) -> FloatArray:
    """Uninitialised memory for the work of one thread."""
    return np.empty(native.library.sentences_room(corpus))


def share_runs(
    train: Callable[..., None], corpus: native.Corpus, training: native.Course
) -> IntArray:
    """Train all runs, shared out among threads.

    Returns:
        ``(runs, 3)``: the step that could not be taken (-1 without one), the number of rises of the
        loss, and the step of the last.
    """
    ends: IntArray = training.arrays["ends"]

    def train_share(first_and_last: tuple[int, int]) -> None:
        work = allocate_work(corpus)
        train(corpus, training, *first_and_last, work.ctypes.data)

    shared_out(train_share, shares(len(ends), threads()))
    return ends
