"""What the compiled core reads of next-token problems, and calls of it shared out among threads."""

from __future__ import annotations

from collections.abc import Callable

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
    query, winner, label, log_weight = sentences

    def integers(array: IntArray) -> IntArray:
        return np.ascontiguousarray(array, np.int64)

    return native.Corpus(
        integers(token),
        np.ascontiguousarray(log_count, np.float64),
        *(integers(start), integers(run_start)),
        *(integers(query), integers(winner), integers(label)),
        np.ascontiguousarray(log_weight, np.float64),
        np.ascontiguousarray(gram, np.float64),
        classes,
    )


def room(made: native.Corpus) -> FloatArray:
    """Room for the work of a thread."""
    return np.empty(native.library.sentences_room(made))


def share_runs(
    train: Callable[..., None], made: native.Corpus, steps: native.SentenceDescent
) -> IntArray:
    """All runs of a training, shared out among threads; ``(runs, 3)``: the step that could not be
    taken (-1 without one), the number of rises of the loss, and the step of the last.
    """
    ends: IntArray = steps.arrays["ends"]

    def of(part: tuple[int, int]) -> None:
        work = room(made)
        train(made, steps, *part, work.ctypes.data)

    shared_out(of, shares(len(ends), threads()))
    return ends
