"""Programmes of blocks: rows that are made or read a block at a time, once for each pass.

The working set, the solver and the blocks that are scanned stay within the memory given. Blocks
that are not the same at each pass are refused.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from attsvm.base.cores import one_thread
from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.base.workers import results, slots, workers
from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import MarginBlocks
from attsvm.margins.block_rows import block_rows
from attsvm.norms import Frobenius, Norm
from attsvm.solvers.active_set import ACTIVE_SETS
from attsvm.solvers.outcomes import Request, certified_solution
from attsvm.solvers.proofs import Certificate
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.working_sets import OPTIONS as WORKING_SETS
from attsvm.solvers.working_sets import (
    Candidate,
    RowSubset,
    ScanRequest,
    ScanResult,
    WorkingSetOptions,
    merge_rows,
    scan_rows,
)


class MemoryOptions(NamedTuple):
    """Sizes with which :class:`RowsInBlocks` counts memory. Copies and matrices are those of the
    solvers' code; ``benchmarks/blocks.py`` compares them to measured memory.
    """

    default: str = "2GiB"
    row_copies: int = 4  # of a working set's differences and queries, in a solver and beside it
    row_numbers: int = 16  # that a row has beside its difference
    largest_system: int = 4000  # equations of the largest linear system of a solver
    square_matrices: int = 4  # of that size
    block_copies: int = 3  # of a block, while it is scanned
    first_row_bytes: int = 64  # of the memory, for each row of the first pass


OPTIONS = MemoryOptions()


def parse_memory(memory: str | int | None, options: MemoryOptions = OPTIONS) -> int:
    """Bytes of a number, or of a text such as ``"2GiB"`` or ``"500 MB"``.

    Raises:
        InputError: neither.
    """
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    units |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
    memory = options.default if memory is None else memory
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
    unit = match[2].casefold() if match else None
    if isinstance(memory, str) and match and unit in units and float(match[1]) > 0:
        return int(float(match[1]) * units[unit])
    raise InputError(f"memory is {kind(memory)}; give a number of bytes or a text such as '2GiB'")


@dataclass(frozen=True)
class BlockSummary:
    """Sizes of a block, from the first pass.

    Attributes:
        checksum: of its bytes.
        form: the kind of its margins, and the shape of the weights.
        rows: how many row numbers it takes, ``constraints`` of which are constraints.
        constraints: number of constraints.
        sequences: number of sequences, which come from ``texts`` texts.
        texts: number of texts.
        nbytes: its memory, in bytes.
        size: bound of the vectors that are multiplied with moved queries, for the rounding of
            margins.
    """

    checksum: int
    form: tuple[str, tuple[int, int]]
    rows: int
    constraints: int
    sequences: int
    texts: int
    nbytes: int
    size: float


class RowsInBlocks:
    """The blocks of one programme, a source of rows
    (:class:`attsvm.solvers.working_sets.RowSource`).

    Args:
        blocks: the programme.
        norm: in which it is solved.
        memory: bytes for the working set, its solver, and the blocks that are scanned.
        executor: calls :func:`scan_block` instead of this process.
        options: what memory is counted with.
        working_sets: numbers of the working-set method.
    """

    def __init__(
        self,
        blocks: MarginBlocks,
        norm: Norm,
        memory: int,
        executor: Any,
        options: MemoryOptions = OPTIONS,
        working_sets: WorkingSetOptions = WORKING_SETS,
    ) -> None:
        self.blocks, self.norm, self.memory, self.executor = blocks, norm, memory, executor
        self.options, self.working_sets = options, working_sets
        self.summaries: list[BlockSummary] = []
        self.passes = 0
        self.capacity = 0  # known after the first pass

    @property
    def shape(self) -> tuple[int, int]:
        """As :class:`attsvm.solvers.working_sets.RowSource`."""
        return self.summaries[0].form[1]

    @property
    def sequences(self) -> int:
        """As :class:`attsvm.solvers.working_sets.RowSource`."""
        return sum(summary.sequences for summary in self.summaries)

    @property
    def constraints(self) -> int:
        """Number of constraints of all blocks."""
        return sum(summary.constraints for summary in self.summaries)

    def first_rows(self) -> RowSubset:
        """The first working set: from each sequence the row that falls short most when the weights
        are the sum of its block's rows.
        """
        most = self.memory // self.options.first_row_bytes
        rows = self.scan(ScanRequest(None, math.inf, 1, most, False)).rows
        self.capacity = self._capacity()
        if len(rows.ids) > self.capacity:
            # How many rows fit is known only now that the sizes of all blocks are.
            worst = np.argsort(-rows.shortfall, kind="stable")[: self.capacity]
            rows = rows.take(np.sort(worst))
        return rows

    def _capacity(self) -> int:
        """Largest number of rows of a working set: a row takes numbers of its own, and a solver
        takes matrices with a row and a column for each, up to its largest system.

        1. Take off the blocks that are scanned at the same time.
        2. Count the bytes of one row; queries once for all sequences, or else once per row.
        3. Solve ``square_matrices * m^2 + row * m = bytes`` for the number of rows ``m``.
        """
        options, (dx, dz), number = self.options, self.shape, np.dtype(np.float64).itemsize
        # 1. Blocks.
        largest_block = max(summary.nbytes for summary in self.summaries)
        scanned = 1 if self.executor is None else slots(self.executor)
        left = self.memory - options.block_copies * scanned * largest_block
        # 2. Rows.
        row = number * options.row_copies * (dx + options.row_numbers)
        query = number * options.row_copies * dz
        # Where all queries take less than half, rows share them.
        if query * self.sequences < left / 2:
            left -= query * self.sequences
        else:
            row += query
        # 3. Matrices. In the Frobenius norm few more rows than unknowns are in one system.
        system = options.largest_system
        if self.norm == Frobenius():
            system = min(system, dx * dz + ACTIVE_SETS.joining)
        square = number * options.square_matrices
        capacity = (left - square * system**2) // row
        if capacity < system:  # the matrices have a row for each row then
            root = math.sqrt(row**2 + 4.0 * square * max(left, 0))
            capacity = int((root - row) / (2.0 * square))
        if capacity < 2 * (dx + dz):
            raise InputError(
                f"memory of {self.memory / 2**20:.4g} MiB has room for {max(capacity, 0)} rows of"
                f" {dx} x {dz} weights beside blocks of {largest_block / 2**20:.4g} MiB; give"
                " more, or smaller blocks"
            )
        return capacity

    def room(self, rows: RowSubset, supporting: int) -> int:
        """As :class:`attsvm.solvers.working_sets.RowSource`."""
        if supporting >= self.capacity:
            raise InputError(
                f"memory of {self.memory / 2**20:.4g} MiB has room for {self.capacity} rows, and"
                f" all of them matter after {self.passes} passes over the blocks; give more"
            )
        new = self.working_sets.new_rows_per_unknown * math.prod(self.shape)
        return min(self.capacity - supporting, max(new, self.working_sets.new_rows))

    def scan(self, request: ScanRequest) -> ScanResult:
        """One pass over all blocks.

        1. Scan each block, and refuse one that has changed since the first pass.
        2. Combine what was computed; the rows that fall short most are held, within memory.
        3. After the first pass, check that all blocks have one form.

        Raises:
            InputError: a block that cannot be used, differs from the others, or has changed.
            AttsvmError: a process of the executor was killed.
        """
        is_first = not self.summaries
        summaries: dict[int, BlockSummary] = {}
        least_ratio, zero_violation, slack, rounding = np.inf, 0.0, 0.0, 0.0
        rows_of_block: dict[int, RowSubset] = {}
        with workers(1, self.executor) as pool:
            for k, summary, result in self._scan_blocks(pool, request):
                # 1. Refuse changes.
                if not is_first and summary.checksum != self.summaries[k].checksum:
                    raise InputError(
                        f"block {k} has changed since the first pass over the blocks; make it the"
                        f" same each time, for instance with numpy.random.default_rng([seed, {k}])"
                    )
                # 2. Combine.
                summaries[k] = summary
                least_ratio, slack = min(least_ratio, result.least_ratio), slack + result.slack
                zero_violation = max(zero_violation, result.zero_violation)
                rounding = max(rounding, result.rounding)
                rows_of_block[k] = result.rows
                # Some more than are asked for are held, so that not every block sorts them all.
                if _count_rows(rows_of_block) > 1.25 * request.rows:
                    rows_of_block = _worst_rows(rows_of_block, request.rows)
        self.passes += 1
        # 3. Check the forms.
        if is_first:
            self.summaries = [summaries[k] for k in range(self.blocks.count)]
            form = self.summaries[0].form
            for k, summary in enumerate(self.summaries):
                if summary.form != form:
                    raise InputError(
                        f"block {k} holds {summary.form[0]} margins of {summary.form[1]} weights,"
                        f" block 0 {form[0]} margins of {form[1]}; all blocks belong to one"
                        " programme"
                    )
        rows = self._number_in_programme(_worst_rows(rows_of_block, request.rows))
        return ScanResult(least_ratio, zero_violation, slack, rounding, rows)

    def _scan_blocks(self, pool: Any, request: ScanRequest) -> Iterator[Any]:
        """The results of :func:`scan_block`, as they come."""
        try:
            yield from results(pool, scan_block, self._scan_arguments(request))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            try:
                pickle.dumps(self.blocks.maker(0))
            except (pickle.PicklingError, AttributeError, TypeError):
                raise InputError(
                    f"the blocks cannot be sent to another process ({error}); give a function at"
                    " the top of a module, or no executor"
                ) from None
            raise

    def _scan_arguments(self, request: ScanRequest) -> Iterator[tuple[Any, ...]]:
        """Arguments of :func:`scan_block`, for each block."""
        for k in range(self.blocks.count):
            size = self.summaries[k].size if self.summaries else None
            yield k, self.blocks.maker(k), self.blocks.count, request, size

    def _number_in_programme(self, rows_of_block: dict[int, RowSubset]) -> RowSubset:
        """The rows of all blocks, with numbers of rows, sequences and texts that count through the
        blocks.
        """
        counts = [[s.rows, s.sequences, s.texts] for s in self.summaries]
        before = np.cumsum([[0, 0, 0], *counts], axis=0)
        subsets = []
        for k, subset in sorted(rows_of_block.items()):
            rows, sequences, texts = before[k].tolist()
            margins, origin = subset.margins, subset.margins.origin
            if origin is not None and margins.kind == "position":
                origin = origin + np.array([texts] + [0] * (origin.shape[1] - 1))
            assert margins.numbers is not None
            # Blocks number from zero; the programme numbers through.
            margins = replace(margins, numbers=margins.numbers + sequences, origin=origin)
            subsets.append(RowSubset(subset.ids + rows, subset.shortfall, margins))
        return merge_rows(subsets)

    def solution(self, candidate: Candidate, request: Request, iterations: int) -> MarginSolution:
        """As :class:`attsvm.solvers.working_sets.RowSource`: the last pass is the proof."""
        margins, subset_solution = candidate.rows.margins, candidate.subset_solution
        values: FloatArray = margins(candidate.W)
        certificate = Certificate(
            candidate.W,
            candidate.dual,
            values,
            candidate.norm,
            candidate.gap,
            candidate.zero_violation,
            0.0,
        )
        solver = f"blocks, {subset_solution.solver}"
        solution = certified_solution(
            margins, certificate, request, solver, iterations, self.constraints
        )
        return replace(
            self._with_counts(solution, iterations),
            geometry=self.norm,
            rank=subset_solution.rank,
            unique=True if subset_solution.unique else None,
        )

    def contradiction(
        self, rows: RowSubset, subset_solution: MarginSolution, iterations: int
    ) -> MarginSolution:
        """As :class:`attsvm.solvers.working_sets.RowSource`."""
        return self._with_counts(subset_solution, iterations)

    def _with_counts(self, subset_solution: MarginSolution, iterations: int) -> MarginSolution:
        """The solution of a working set as one that speaks of all blocks."""
        return replace(
            subset_solution,
            iterations=iterations,
            constraints=self.constraints,
            passes=self.passes,
            blocks=self.blocks.count,
            rank_bound=None,
        )


def scan_block(
    k: int, make: Callable[[], Any], count: int, request: ScanRequest, size: float | None
) -> tuple[int, BlockSummary, ScanResult]:
    """The number of a block, its sizes, and the scan of its rows.

    Args:
        k: the number.
        make: makes the block.
        count: number of blocks.
        request: what to compute.
        size: as the first pass has computed it (:class:`BlockSummary`).
    """
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        block = block_rows(make(), k)
        sequences = len(block.offsets) - 1
        summary = BlockSummary(
            block.checksum(),
            (block.kind, block.shape),
            int(block.offsets[-1]),
            block.constraints,
            sequences,
            block.texts,
            block.nbytes,
            block.size(False) if size is None else size,
        )
        longest = block.size(True) if request.exact else summary.size
        return k, summary, scan_rows(block, count * sequences, request, longest)


def _count_rows(rows_of_block: dict[int, RowSubset]) -> int:
    """Number of rows of all blocks."""
    return sum(len(subset.ids) for subset in rows_of_block.values())


def _worst_rows(rows_of_block: dict[int, RowSubset], count: int) -> dict[int, RowSubset]:
    """The ``count`` rows of all blocks that fall short most; of equal ones the first."""
    if _count_rows(rows_of_block) <= count:
        return rows_of_block
    blocks = sorted(rows_of_block)
    shortfall = np.concatenate([rows_of_block[k].shortfall for k in blocks])
    is_worst = np.zeros(len(shortfall), dtype=np.bool_)
    is_worst[np.argsort(-shortfall, kind="stable")[:count]] = True
    ends = np.cumsum([len(rows_of_block[k].ids) for k in blocks])[:-1]
    return {
        k: rows_of_block[k].take(mask)
        for k, mask in zip(blocks, np.split(is_worst, ends), strict=True)
        if mask.any()
    }
