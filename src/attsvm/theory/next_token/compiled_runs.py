"""Structs of next-token problems for the compiled core, and its calls shared out among threads."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Literal, get_args

import numpy as np

from attsvm import native
from attsvm.base.cores import map_on_threads, task_ranges, threads
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


def allocate_work(corpus: native.Corpus) -> FloatArray:
    """Uninitialised memory for the work of one thread."""
    return np.empty(native.library.sentences_room(corpus))


def share_runs(
    train: Callable[..., None], corpus: native.Corpus, training: native.SentenceDescent
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

    map_on_threads(train_share, task_ranges(len(ends), threads()))
    return ends
