"""Programmes of blocks: rows that are made or read a block at a time, once for each pass.

The working set, the solver and the blocks that are looked at stay within the memory given. Blocks
that are not the same at each pass are refused.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.base.thread_limits import one_thread
from attsvm.base.workers import results, slots, workers
from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import MarginBlocks
from attsvm.margins.block_rows import block_rows
from attsvm.norms import Frobenius, Norm
from attsvm.solvers.active_set import JOINING
from attsvm.solvers.outcomes import Request, solved
from attsvm.solvers.proofs import Certificate
from attsvm.solvers.rows import Best, Priced, Rows, Wanted, joined, priced
from attsvm.solvers.solution import MarginSolution

_MEMORY = "2GiB"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_COPIES = 4  # of the rows of the working set and of their queries, in a solver and beside it
_BESIDE = 16  # numbers that a row has beside its difference
_SYSTEM = 4000  # equations of the largest linear system of a solver
_SQUARES = 4  # matrices of that size
_NEW, _LEAST = 4, 1000  # rows that join in a round: so many per unknown, and at least so many


def bytes_of(memory: str | int | None) -> int:
    """A number of bytes, or a text such as ``"2GiB"`` or ``"500 MB"``.

    Raises:
        InputError: neither.
    """
    memory = _MEMORY if memory is None else memory
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
    unit = found[2].casefold() if found else None
    if isinstance(memory, str) and found and unit in _UNITS and float(found[1]) > 0:
        return int(float(found[1]) * _UNITS[unit])
    raise InputError(f"memory is {kind(memory)}; give a number of bytes or a text such as '2GiB'")


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


class InBlocks:
    """A source of rows (:class:`attsvm.solvers.rows.Source`): the blocks of one programme.

    Args:
        blocks: the programme.
        norm: in which it is solved.
        memory: bytes for the working set, its solver, and the blocks that are looked at.
        executor: calls :func:`look` instead of this process.
    """

    def __init__(self, blocks: MarginBlocks, norm: Norm, memory: int, executor: Any) -> None:
        self.blocks, self.norm, self.memory, self.executor = blocks, norm, memory, executor
        self.seen: list[Seen] = []
        self.passes = 0

    @property
    def shape(self) -> tuple[int, int]:
        """As :class:`attsvm.solvers.rows.Source`."""
        return self.seen[0].kind[1]

    @property
    def sequences(self) -> int:
        """As :class:`attsvm.solvers.rows.Source`."""
        return sum(each.sequences for each in self.seen)

    def first(self) -> Rows:
        """Of every sequence the row that falls short most for the sum of its block's rows."""
        most = self.memory // 64  # of which those that there is room for are kept
        rows = self.price(Wanted(None, math.inf, 1, most, False)).rows
        self.most = self._most()
        if len(rows.ids) > self.most:
            rows = rows.taken(np.sort(np.argsort(-rows.short, kind="stable")[: self.most]))
        return rows

    def _most(self) -> int:
        """How many rows a working set may have: each row takes numbers of its own, and a solver
        matrices with a row and a column for each, up to the largest system.
        """
        dx, dz = self.shape
        largest = max(each.nbytes for each in self.seen)
        together = 1 if self.executor is None else slots(self.executor)
        left = self.memory - 3 * together * largest
        each, queries = 8 * _COPIES * (dx + _BESIDE), 8 * _COPIES * dz
        if queries * self.sequences < left / 2:  # all of them, or else one for each row
            left -= queries * self.sequences
        else:
            each += queries
        # in the Frobenius norm few more rows than unknowns are looked at together
        system = min(_SYSTEM, dx * dz + JOINING) if self.norm == Frobenius() else _SYSTEM
        square = 8 * _SQUARES
        most = (left - square * system**2) // each
        if most < system:  # the matrices are of all rows then: square m^2 + each m = left
            root = math.sqrt(each**2 + 4.0 * square * max(left, 0))
            most = int((root - each) / (2.0 * square))
        if most < 2 * (dx + dz):
            raise InputError(
                f"memory of {self.memory / 2**20:.4g} MiB has room for {max(most, 0)} rows of"
                f" {dx} x {dz} weights beside blocks of {largest / 2**20:.4g} MiB; give"
                " more, or smaller blocks"
            )
        return most

    def room(self, rows: Rows, needed: int) -> int:
        """As :class:`attsvm.solvers.rows.Source`."""
        if needed >= self.most:
            raise InputError(
                f"memory of {self.memory / 2**20:.4g} MiB has room for {self.most} rows, and all of"
                f" them matter after {self.passes} passes over the blocks; give more"
            )
        return min(self.most - needed, max(_NEW * self.shape[0] * self.shape[1], _LEAST))

    def price(self, wanted: Wanted) -> Priced:
        """One pass.

        Raises:
            InputError: a block that cannot be used, differs from the others, or has changed.
            AttsvmError: a process of the executor was killed.
        """
        first = not self.seen
        seen: dict[int, Seen] = {}
        smallest, below, missed, rounding = np.inf, 0.0, 0.0, 0.0
        found: dict[int, Rows] = {}
        with workers(1, self.executor) as chosen:
            for k, now, part in _looked(chosen, self._calls(wanted)):
                if not first and now.checksum != self.seen[k].checksum:
                    raise InputError(
                        f"block {k} has changed since the first pass over the blocks; make it the"
                        f" same each time, for instance with numpy.random.default_rng([seed, {k}])"
                    )
                seen[k] = now
                smallest, missed = min(smallest, part.smallest), missed + part.missed
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
        rows = self._together(_worst(found, wanted.most))
        return Priced(smallest, below, missed, rounding, rows)

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

    def answer(self, best: Best, request: Request, iterations: int) -> MarginSolution:
        """As :class:`attsvm.solvers.rows.Source`: the last pass is the proof."""
        margins, part = best.rows.margins, best.part
        values: FloatArray = margins(best.W)
        found = Certificate(best.W, best.dual, values, best.upper, best.gap, best.below, 0.0)
        solver = f"blocks, {part.solver}"
        told = solved(margins, found, request, solver, iterations, self.constraints)
        unique = True if part.unique else None
        told = replace(told, geometry=self.norm, rank=part.rank, unique=unique)
        return self._told(told, iterations)

    def contradiction(self, rows: Rows, part: MarginSolution, iterations: int) -> MarginSolution:
        """As :class:`attsvm.solvers.rows.Source`."""
        return self._told(part, iterations)

    @property
    def constraints(self) -> int:
        """How many all blocks have."""
        return sum(each.constraints for each in self.seen)

    def _told(self, part: MarginSolution, iterations: int) -> MarginSolution:
        return replace(
            part,
            iterations=iterations,
            constraints=self.constraints,
            passes=self.passes,
            blocks=self.blocks.count,
            rank_bound=None,
        )


def look(
    k: int, make: Callable[[], Any], count: int, wanted: Wanted, size: float | None
) -> tuple[int, Seen, Priced]:
    """Make block ``k`` of ``count`` and look at its rows; ``size`` as the first pass found it."""
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        block = block_rows(make(), k)
        sequences = len(block.offsets) - 1
        seen = Seen(
            block.checksum(),
            (block.kind, block.shape),
            int(block.offsets[-1]),
            block.constraints,
            sequences,
            block.texts,
            block.nbytes,
            block.size(False) if size is None else size,
        )
        reach = block.size(True) if wanted.exact else seen.size
        return k, seen, priced(block, count * sequences, wanted, reach)


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


def _looked(chosen: Any, calls: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """What :func:`look` says of each block, as it comes."""
    try:
        yield from results(chosen, look, calls)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise InputError(
            f"the blocks cannot be sent to another process ({error}); give a function at the top"
            " of a module, or no executor"
        ) from None
