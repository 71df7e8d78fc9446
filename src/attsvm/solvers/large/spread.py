"""Several programmes on an executor: it solves parts of the list, which come back as one batch.

A programme is solved by the same code with the same numbers in whichever part it lies, so the
batch has the bits of one that was solved in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attsvm.margins import Margins
from attsvm.solvers.large.batch import SolutionBatch
from attsvm.workers import Workers

Solve = Callable[[int, Sequence[Margins]], SolutionBatch]
"""Solves programmes of which the first has this number."""

_PARTS = 4  # for each call that can run at a time


def spread(programmes: Sequence[Margins], solve: Solve, executor: Any) -> SolutionBatch:
    """All the programmes, solved part by part.

    Args:
        programmes: at least one.
        solve: called by the executor; picklable.
        executor: a :class:`concurrent.futures.Executor`, or what :class:`~attsvm.workers.Workers`
            takes instead.

    Raises:
        InputError: what ``solve`` refuses.
        AttsvmError: a process of the executor was killed.
    """
    with Workers(_part, executor=executor) as workers:
        size = -(-len(programmes) // (_PARTS * workers.slots))
        firsts = range(0, len(programmes), size)
        batch = [(solve, first, list(programmes[first : first + size])) for first in firsts]
        found = dict(workers.start(batch))
    return _joined(programmes, [(first, found[first]) for first in firsts])


def _part(solve: Solve, first: int, programmes: Sequence[Margins]) -> tuple[int, SolutionBatch]:
    """The solutions without the programmes, which are known where they came from."""
    return first, replace(solve(first, programmes), margins=())


def _joined(
    programmes: Sequence[Margins], parts: Sequence[tuple[int, SolutionBatch]]
) -> SolutionBatch:
    batches = [batch for _, batch in parts]
    weights: list[Any] = [batch.W for batch in batches]
    shapes = {each.shape[1:] if isinstance(each, np.ndarray) else None for each in weights}
    begins = np.cumsum([0, *(batch.rows[-1] for batch in batches)])
    rows = [batch.rows[1:] + begin for batch, begin in zip(batches, begins, strict=False)]
    return SolutionBatch(
        programmes,
        np.concatenate([batch.status for batch in batches]),
        np.concatenate(weights)
        if len(shapes) == 1 and None not in shapes
        else [W for each in weights for W in each],
        np.concatenate([batch.norm for batch in batches]),
        np.concatenate([batch.gap for batch in batches]),
        np.concatenate([batch.violation for batch in batches]),
        np.concatenate([batch.dual for batch in batches]),
        np.concatenate([[0], *rows]),
        np.concatenate([batch._blur for batch in batches]),
        np.concatenate([batch._systems for batch in batches]),
        batches[0]._request,
        batches[0]._norm,
        {first + k: proof for first, batch in parts for k, proof in batch._proofs.items()},
        {
            first + k: replace(solution, margins=programmes[first + k])
            for first, batch in parts
            for k, solution in batch._written.items()
        },
    )
