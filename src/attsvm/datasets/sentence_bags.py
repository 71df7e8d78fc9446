"""Texts as bags of sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from attsvm.bags import Bags
from attsvm.data import IntArray, real_array
from attsvm.errors import InputError

_NEXT = r"\s+(?=[\"'(\[]?[A-Z0-9])"
_BREAK = re.compile(rf"(?:<br\s*/?>|\n)+|(?<=[.!?]){_NEXT}|(?<=[.!?][\"')\]]){_NEXT}")
_WORD = re.compile(r"\w")


def sentences(texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """The sentences of all texts, and the text that each is from: what ``fit(rows, y,
    groups=groups)`` takes once the sentences have been made vectors.

    A sentence ends at a line break, a ``<br>``, or a full stop, question or exclamation mark before
    a capital letter or a digit. Pieces without a letter or digit are left out.

    Raises:
        InputError: a text without a sentence.
    """
    found: list[str] = []
    groups: list[int] = []
    for i, text in enumerate(texts):
        parts = [part.strip() for part in _BREAK.split(text)]
        parts = [part for part in parts if _WORD.search(part)]
        if not parts:
            raise InputError(f"text {i} holds no letter and no digit; drop it")
        found += parts
        groups += [i] * len(parts)
    return found, np.array(groups, dtype=np.int64)


def mixed_reviews(
    vectors: ArrayLike,
    polarity: ArrayLike,
    n: int,
    seed: int,
    *,
    instances: int = 8,
    agreeing: int = 6,
) -> Bags:
    """``n`` bags of sentences whose own polarity is known, every second bag positive: ``agreeing``
    of the ``instances`` sentences of a bag have its polarity, the others the opposite one.

    Args:
        vectors: ``(m, d)``, one for each sentence.
        polarity: ``(m,)``; positive where it is larger than 0.
        n: bags.
        seed: equal seeds give equal bits.
        instances: sentences of a bag.
        agreeing: those that have the bag's polarity, more than half.

    Returns:
        bags with labels -1 and +1, instance labels 1 where a sentence is positive and 0 elsewhere,
        and the positions of the sentences in ``vectors`` as
        :attr:`~attsvm.bags.Bags.source`.

    Raises:
        InputError: sizes that make no sense, or sentences of one polarity only.
    """
    rows, positive = real_array("vectors", vectors), np.asarray(polarity) > 0
    if not (n >= 1 and 2 * agreeing > instances >= agreeing):
        raise InputError(
            f"{agreeing} agreeing sentences of {instances} in {n} bags; give at least one bag, and"
            " more than half of its sentences agreeing"
        )
    if positive.shape != (len(rows),) or positive.all() or not positive.any():
        raise InputError(
            f"polarity of shape {positive.shape} must hold one value for each of the {len(rows)}"
            " vectors, some positive and some not"
        )
    rng = np.random.default_rng([seed, instances, agreeing])
    labels = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    wanted = rng.permuted(np.tile(np.arange(instances) < agreeing, (n, 1)), axis=1)
    wanted = (wanted == (labels[:, None] > 0)).reshape(-1)
    source = np.empty(n * instances, dtype=np.int64)
    for sign in (True, False):
        source[wanted == sign] = rng.choice(
            np.flatnonzero(positive == sign), size=int((wanted == sign).sum())
        )
    return Bags(
        np.asarray(rows[source], dtype=np.float64),
        np.arange(n + 1) * instances,
        labels,
        source,
        positive[source].astype(np.int64),
    )
