"""Before the first step: whether anything can be selected, the units of the data, the number of
steps, and the split.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.norms import Frobenius


def selection_steps(data: AttentionData) -> int:
    """Steps of the selection stage that take at most ten seconds of one core, between 100 and
    8000: no clock decides the result.
    """
    return int(np.clip(8e9 / step_work(data), 100, 8_000))


def step_work(data: AttentionData) -> float:
    """What a step takes: it reads every feature of every token and moves every query."""
    return float(data.lengths.sum()) * data.d_x + data.n * data.d_x * data.d_z / 3.0


def root_mean_square(rows: FloatArray) -> float:
    """Root of the mean squared norm of rows; 1 for rows that are all zero."""
    return float(Frobenius().value(rows[None])[0]) / len(rows) ** 0.5 or 1.0


def units(data: AttentionData) -> tuple[float, float]:
    """The root-mean-square norms of visible tokens and of queries; 1 where these are all zero."""
    norm, count = Frobenius(), 64  # sequences at a time, because the norm copies what it reads
    lengths = [
        float(norm.value(data.tokens[start : start + count][data.mask[start : start + count]]))
        for start in range(0, data.n, count)
    ]
    tokens = float(norm.value(np.array([lengths]))) / float(data.lengths.sum()) ** 0.5
    return tokens or 1.0, root_mean_square(data.queries)


def check_selectable(data: AttentionData) -> None:
    """Refuse data in which no token can be selected.

    Raises:
        InputError: every sequence has one token, or a sequence holds the same token twice.
    """
    if (data.lengths < 2).all():
        raise InputError(
            f"each of the {data.n} sequences has a single token, so there is nothing to select;"
            " give sequences of two or more"
        )
    duplicate = data.duplicate_tokens()
    if duplicate.any():
        i, t = (int(k) for k in np.argwhere(duplicate)[0])
        visible = np.flatnonzero(data.mask[i, :t])
        first = int(visible[(data.tokens[i, visible] == data.tokens[i, t]).all(axis=1)][0])
        raise InputError(
            f"sequence {i} holds the same token at positions {first} and {t}, and equal tokens tie"
            f" for the maximum whatever the weights ({int(duplicate.any(axis=1).sum())} of {data.n}"
            " sequences have such ties); mask them, or leave them out with without_duplicates()"
        )


def split_by_class(
    labels: IntArray,
    share: float,
    seed: int,
    classes: Sequence[str],
    least: int = 1,
    noun: str = "sequence",
) -> tuple[IntArray, IntArray]:
    """Sorted positions ``(rest, part)`` with about ``share`` of each class in ``part``, one or more
    of each, and ``least`` or more in the rest.

    Args:
        labels: ``(n,)`` positions in ``classes``.
        share: of the sequences.
        seed: of the draw.
        classes: their names.
        least: sequences of a class that stay.
        noun: what one of them is called.

    Raises:
        InputError: ``share`` is not between 0 and 1, or a class has too few sequences.
    """
    if not 0.0 < share < 1.0:
        raise InputError(f"test_size is {share}; it must lie between 0 and 1")
    small = small_classes(np.bincount(labels, minlength=len(classes)), classes, least + 1, noun)
    if small:
        raise InputError(
            f"{small}; at least {least + 1} of each class are needed, so that one can be held out"
        )
    generator = np.random.default_rng(seed)
    held_out = []
    for k in range(len(classes)):
        members = np.flatnonzero(labels == k)
        count = min(max(round(share * len(members)), 1), len(members) - least)
        held_out.append(generator.permutation(members)[:count])
    chosen = np.sort(np.concatenate(held_out))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def small_classes(counts: IntArray, classes: Sequence[str], least: int, noun: str) -> str:
    """How many sequences each class has that has fewer than ``least``, in words, of many classes
    the first few; empty where there is none.

    Args:
        counts: ``(K,)``: sequences of each class.
        classes: their names.
        least: sequences of a class that is not small.
        noun: what one of them is called.
    """
    small = np.flatnonzero(counts < least).tolist()
    named = small if len(small) <= _NAMED + 1 else small[:_NAMED]
    sentences = [
        f"class {classes[k]} has {counts[k]} {noun}{'s' * (int(counts[k]) != 1)}" for k in named
    ]
    if len(named) < len(small):
        sentences.append(f"{len(small) - len(named)} more classes have fewer than {least}")
    *first, last = sentences or [""]
    return " and ".join([", ".join(first), last] if first else [last])


_NAMED = 4  # classes that a sentence names
