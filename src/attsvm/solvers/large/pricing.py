r"""One pass over the blocks of a programme: the smallest margin of weights, and the rows that fall
short most.

A margin computed as :math:`\hat\delta^\top\widehat{Wz}` differs from the true one by at most

.. math:: (d_x+d_z+4)\,u\;\|x\|_2\;\big\|\,|W||z|\,\big\|_2,

with :math:`u=2^{-53}` and :math:`x` the vectors that are multiplied. A pass takes this off every
margin, so what it says of all rows holds without rounding.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.errors import AttsvmError, InputError
from attsvm.margins import MarginBlocks, Margins
from attsvm.margins.block_rows import BlockRows, block_rows
from attsvm.solvers.programme.threads import one_thread
from attsvm.workers import PROCESS_ENDED, Workers, wait_for_any

_UNIT = 2.0**-53
_AHEAD = 2  # calls of an executor that wait for each one that runs


@dataclass(frozen=True)
class Seen:
    """What the first pass has found out about a block.

    Attributes:
        checksum: of its bytes.
        kind: of its margins, and the shape of the weights.
        rows: numbers that its rows take, ``constraints`` of which are constraints.
        sequences: how many it has, and how many ``texts`` these are taken from.
        nbytes: its memory.
        size: a bound of what is multiplied with moved queries, for the rounding of margins.
    """

    checksum: int
    kind: tuple[str, tuple[int, int]]
    rows: int
    constraints: int
    sequences: int
    texts: int
    nbytes: int
    size: float


class Wanted(NamedTuple):
    """What a pass asks of every block.

    Attributes:
        W: the weights; None for the sum of the block's own rows.
        within: rows whose margin is below ``(1 + within) b_c`` (or ``within``) are handed over,
        each: of each sequence no more than so many, the worst,
        most: and of the programme no more than so many, the worst.
        exact: margins from differences of tokens, not from their products.
    """

    W: FloatArray | None
    within: float
    each: int
    most: int
    exact: bool


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a programme by their numbers in it, sorted.

    Attributes:
        ids: ``(m,)`` numbers of the rows.
        short: ``(m,)`` how far each falls short; what is left over is negative.
        margins: the rows; ``numbers`` are those of the sequences.
    """

    ids: IntArray
    short: FloatArray
    margins: Margins

    def taken(self, rows: Any) -> Rows:
        """These of the rows, without sequences that have none left."""
        index = np.arange(len(self.ids))[rows]
        if len(index) == len(self.ids):
            return self
        return Rows(self.ids[index], self.short[index], only(self.margins, index))


def only(margins: Margins, rows: IntArray) -> Margins:
    """These rows of a working set, without sequences that have none left."""
    part = margins.restricted(rows)
    kept = np.flatnonzero(np.diff(part.offsets))
    return replace(
        part,
        queries=part.queries[kept],
        offsets=np.append(part.offsets[kept], part.m),
        selected=part.selected[kept],
        origin=None if part.origin is None else part.origin[kept],
        numbers=_numbers(part)[kept],
    )


class Priced(NamedTuple):
    """What a pass, or one block of it, says of the weights.

    Attributes:
        smallest: margin over right-hand side, at least, of all rows where that is positive; ``inf``
            without such rows.
        below: how far, at most, a margin falls below a right-hand side of zero.
        rounding: what was taken off for it.
        rows: those that were asked for.
    """

    smallest: float
    below: float
    rounding: float
    rows: Rows


class Pass:
    """The blocks of one programme, as often as they are asked for.

    Args:
        blocks: the programme.
        executor: calls :func:`price` instead of this process.
    """

    def __init__(self, blocks: MarginBlocks, executor: Any) -> None:
        self.blocks, self.executor = blocks, executor
        self.seen: list[Seen] = []
        self.passes = 0

    def __call__(self, wanted: Wanted) -> Priced:
        """One pass.

        Raises:
            InputError: a block that cannot be used, differs from the others, or has changed.
            AttsvmError: a process of the executor was killed.
        """
        first = not self.seen
        seen: dict[int, Seen] = {}
        smallest, below, rounding = np.inf, 0.0, 0.0
        found: dict[int, Rows] = {}
        with Workers(_all, 1 if self.executor is None else None, executor=self.executor) as work:
            for k, now, part in _finished(work, self._calls(wanted), self.blocks.count):
                if not first and now.checksum != self.seen[k].checksum:
                    raise InputError(
                        f"block {k} has changed since the first pass over the blocks; make it the"
                        f" same each time, for instance with numpy.random.default_rng([seed, {k}])"
                    )
                seen[k] = now
                smallest = min(smallest, part.smallest)
                below, rounding = max(below, part.below), max(rounding, part.rounding)
                found[k] = part.rows
                if sum(len(each.ids) for each in found.values()) > 1.25 * wanted.most:
                    found = _worst(found, wanted.most)
        self.passes += 1
        if first:
            self.seen = [seen[k] for k in range(self.blocks.count)]
            for k, each in enumerate(self.seen):
                if each.kind != self.seen[0].kind:
                    raise InputError(
                        f"block {k} holds {each.kind[0]} margins of {each.kind[1]} weights, block 0"
                        f" {self.seen[0].kind[0]} margins of {self.seen[0].kind[1]}; all blocks"
                        " belong to one programme"
                    )
        return Priced(smallest, below, rounding, self._together(_worst(found, wanted.most)))

    def _calls(self, wanted: Wanted) -> Iterator[tuple[Any, ...]]:
        for k in range(self.blocks.count):
            size = self.seen[k].size if self.seen else None
            yield k, self.blocks.maker(k), self.blocks.count, wanted, size

    def _together(self, found: dict[int, Rows]) -> Rows:
        """The rows of all blocks, by their numbers in the programme."""
        before = np.cumsum([[0] * 3] + [[s.rows, s.sequences, s.texts] for s in self.seen], axis=0)
        parts = []
        for k, part in sorted(found.items()):
            rows, sequences, texts = before[k].tolist()
            m = part.margins
            origin = m.origin
            if origin is not None and m.kind == "position":
                origin = origin + np.array([texts] + [0] * (origin.shape[1] - 1))
            assert m.numbers is not None
            m = replace(m, numbers=m.numbers + sequences, origin=origin)
            parts.append(Rows(part.ids + rows, part.short, m))
        return joined(parts)


def price(
    k: int, make: Callable[[], Any], count: int, wanted: Wanted, size: float | None
) -> tuple[int, Seen, Priced]:
    """Make block ``k`` of ``count`` and look at its rows; ``size`` as the first pass found it."""
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        block = block_rows(make(), k)
        seen = Seen(
            block.checksum(),
            (block.kind, block.shape),
            int(block.offsets[-1]),
            block.constraints,
            len(block.offsets) - 1,
            block.texts,
            block.nbytes,
            block.size(False) if size is None else size,
        )
        return (
            k,
            seen,
            _priced(block, count, wanted, block.size(True) if wanted.exact else seen.size),
        )


def _priced(block: BlockRows, count: int, wanted: Wanted, size: float) -> Priced:
    W, exact = wanted.W, wanted.exact
    each = wanted.each
    if W is None:
        W = block.mean()
        W = W / max(float(np.linalg.norm(W)), np.finfo(np.float64).tiny)
        each = per_sequence(block.shape, count * (len(block.offsets) - 1))
    values, b = block.values(W, exact), block.rhs
    moved: FloatArray = np.abs(block.queries) @ np.abs(W).T
    reach = float(np.sqrt(np.einsum("nd,nd->n", moved, moved).max(initial=0.0)))
    rounding = (sum(block.shape) + 4) * _UNIT * size * reach
    positive = b > 0.0
    ratio = (values - rounding)[positive] / b[positive]
    zero = values[~positive]
    short = b - values
    near = np.flatnonzero(short > -wanted.within * np.where(positive, b, 1.0))
    near = _worst_of_each(block.offsets, short, near, each)
    if len(near) > wanted.most:
        near = np.sort(near[np.argpartition(-short[near], wanted.most)[: wanted.most]])
    rows = Rows(near, short[near], block.chosen(near))
    smallest = float(ratio.min(initial=np.inf))
    return Priced(
        smallest if smallest == smallest else -np.inf,  # infinities that cancel prove nothing
        max(0.0, rounding - float(zero.min(initial=np.inf))),
        rounding,
        rows,
    )


def per_sequence(shape: tuple[int, int], sequences: int) -> int:
    """How many rows of each sequence a pass hands over: one, and more where the sequences are fewer
    than the unknowns.
    """
    return 1 + shape[0] * shape[1] // max(sequences, 1)


def _worst_of_each(offsets: IntArray, short: FloatArray, among: IntArray, most: int) -> IntArray:
    """Of every sequence the rows among these that fall short most."""
    sequence = np.searchsorted(offsets, among, side="right") - 1
    order = np.lexsort((-short[among], sequence))
    first = np.searchsorted(sequence, sequence)  # place of the first row of the same sequence
    found: IntArray = np.sort(among[order[np.arange(len(among)) - first < most]])
    return found


def _worst(found: dict[int, Rows], most: int) -> dict[int, Rows]:
    """The ``most`` rows of all that fall short most; of equal ones the first."""
    if sum(len(each.ids) for each in found.values()) <= most:
        return found
    blocks = sorted(found)
    short = np.concatenate([found[k].short for k in blocks])
    kept = np.zeros(len(short), dtype=np.bool_)
    kept[np.argsort(-short, kind="stable")[:most]] = True
    ends = np.cumsum([len(found[k].ids) for k in blocks])[:-1]
    return {
        k: found[k].taken(part)
        for k, part in zip(blocks, np.split(kept, ends), strict=True)
        if part.any()
    }


def joined(parts: list[Rows]) -> Rows:
    """Rows in the order of their numbers, each once; of one that is there twice the first."""
    ids, index = np.unique(np.concatenate([p.ids for p in parts]), return_index=True)
    ends = np.cumsum([0] + [len(p.ids) for p in parts])
    base = np.cumsum([0] + [p.margins.n for p in parts])
    place = np.concatenate([p.margins.sequence + b for p, b in zip(parts, base, strict=False)])
    numbers = np.concatenate([_numbers(p.margins) for p in parts])
    _, first, counts = np.unique(numbers[place[index]], return_index=True, return_counts=True)
    kept = place[index][first]
    some = parts[0].margins
    differences = np.empty((len(ids), some.shape[0]))
    for part, start, end in zip(parts, ends, ends[1:], strict=False):  # no copy of all of them
        rows = np.flatnonzero((index >= start) & (index < end))
        differences[rows] = part.margins.differences[index[rows] - start]

    def of(name: str) -> Any:
        return np.concatenate([getattr(p.margins, name) for p in parts])

    margins = Margins(
        differences,
        of("queries")[kept],
        np.concatenate([[0], np.cumsum(counts)]),
        of("rhs")[index],
        of("token")[index],
        of("selected")[kept],
        kind=some.kind,
        origin=None if some.origin is None else of("origin")[kept],
        numbers=numbers[kept],
    )
    return Rows(ids, np.concatenate([p.short for p in parts])[index], margins)


def _numbers(margins: Margins) -> IntArray:
    assert margins.numbers is not None
    return margins.numbers


def _all(calls: list[tuple[Any, ...]]) -> list[tuple[int, Seen, Priced]]:
    return [price(*call) for call in calls]


def _finished(work: Workers[Any], calls: Iterator[tuple[Any, ...]], count: int) -> Iterator[Any]:
    """The results of ``count`` calls as they come, a few calls ahead; several calls together where
    each would be a job of a queue.
    """
    if work.alone(1):
        for call in calls:
            yield price(*call)
        return
    size = 1 if work.keeps_processes else -(-count // work.slots)
    waiting: list[Any] = []
    try:
        while together := list(islice(calls, size)):
            waiting.append(work.submit(together))
            while len(waiting) >= _AHEAD * work.slots:
                yield from _done(waiting)
        while waiting:
            yield from _done(waiting)
    except BrokenProcessPool:
        raise AttsvmError(PROCESS_ENDED) from None
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise InputError(
            f"the blocks cannot be sent to another process ({error}); give a function at the top"
            " of a module, or no executor"
        ) from None


def _done(waiting: list[Any]) -> Iterator[Any]:
    for call in wait_for_any(waiting, None):
        waiting.remove(call)
        yield from call.result()
