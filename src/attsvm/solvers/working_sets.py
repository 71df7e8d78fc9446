r"""Programmes of many rows, solved on the rows that matter.

The programme is solved on a working set of rows; all rows are looked at with the weights found, and
those that fall short most join, until no row is short:

.. math:: S_{k+1}=S_k\cup\{\text{worst rows of } W_k\},\qquad
   W_k=\arg\min\{\|W\|:\langle A_c,W\rangle\ge b_c,\ c\in S_k\}.

With :math:`\mu` the smallest ratio of a margin of :math:`W_k` to its right-hand side,

.. math:: \frac{b^\top\lambda}{\|A^\top\lambda\|_*}\ \le\ \min\|W\|\ \le\ \frac{\|W_k\|}{\mu}.

The multipliers :math:`\lambda` of the working set, with zeros for all other rows, are multipliers
of the whole programme, so the left side holds for all rows; :math:`W_k/\mu` meets all rows, so the
right side does too. Where the rows of the working set contradict each other, their certificate is
one for all rows. Cutting planes for support vector machines go back to Joachims, *Training linear
SVMs in linear time* (2006).

A margin computed as :math:`\hat\delta^\top\widehat{Wz}` differs from the true one by at most

.. math:: (d_x+d_z+4)\,u\;\|x\|_2\;\big\|\,|W||z|\,\big\|_2,

with :math:`u=2^{-53}` and :math:`x` the vectors that are multiplied. This is taken off every
margin, so what is said of all rows holds without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins, PairMargins
from attsvm.margins.block_rows import BlockRows, block_rows
from attsvm.norms import Norm
from attsvm.solvers.outcomes import Request, certified_solution
from attsvm.solvers.proofs import certify_hard, certify_soft, lower_bound
from attsvm.solvers.solution import MarginSolution


class WorkingSetOptions(NamedTuple):
    """Numbers of the working-set method, :func:`solve_on_working_sets`. All are untuned but those
    that say what chose them.
    """

    few_rows: int = 2000  # of pairs of tokens, that are written out in a moment
    rows_per_unknown: int = 4  # from which most rows cannot matter
    written_entries: int = 1 << 21  # of differences, up to which pairs are written out: 16 MiB
    stalling_rows: int = 50_000  # from which the other solvers stall where unknowns are few
    passes: int = 60  # over all rows, at most
    joining_margin: float = 0.2  # rows that exceed their right-hand side by less, relative, join
    sequence_rows: int = 3  # that one pass hands over per sequence, beyond what unknowns ask for
    new_rows_per_unknown: int = 4  # that join in one pass,
    new_rows: int = 1000  # and at least so many
    leaving_margin: float = 0.5  # rows without multiplier that exceed it by more, relative, leave
    first_tol: float = 1e-2  # of the first working sets
    later_tol: float = 0.1  # of later ones, as a share of the error over all rows
    last_tol: float = 0.25  # of the last ones, as a share of the tolerance that was asked for
    refinement: float = 1e-3  # of the tolerance, when no row joins and the error is too large
    rounding: float = 0.1  # share of the tolerance that the rounding of a pass may take
    support_margin: float = (
        1e-3  # rows without multiplier that exceed it by less stay in a solution
    )


OPTIONS = WorkingSetOptions()

SubsetSolver = Callable[[Margins, float, FloatArray | None, float | None], MarginSolution]
"""Solves a working set: margins, tolerance, multipliers to start from, and seconds."""


class ScanRequest(NamedTuple):
    """Instructions for one pass over all rows: weights, and which rows to hand over.

    Attributes:
        W: ``(d_x, d_z)`` weights; ``None`` for the sum of the rows themselves.
        joining_margin: rows whose margin is below ``(1 + joining_margin) b_c``, or
            ``joining_margin`` where ``b_c`` is zero, are handed over,
        sequence_rows: of one sequence at most so many, the worst,
        rows: and of the programme at most so many, the worst.
        exact: margins from differences of tokens, not from their products.
    """

    W: FloatArray | None
    joining_margin: float
    sequence_rows: int
    rows: int
    exact: bool


class RowSubset(NamedTuple):
    """Some rows of a programme, sorted by their numbers in it.

    Attributes:
        ids: ``(m,)`` numbers of the rows.
        shortfall: ``(m,)`` right-hand side minus margin.
        margins: the rows; its ``numbers`` are those of the sequences.
    """

    ids: IntArray
    shortfall: FloatArray
    margins: Margins

    def take(self, rows: Any) -> RowSubset:
        """The rows of an index or mask, without the sequences that have none left."""
        index = np.arange(len(self.ids))[rows]
        if len(index) == len(self.ids):
            return self
        # Sequences that have lost all rows would keep their queries in memory.
        subset = self.margins.restricted(index)
        sequences = np.flatnonzero(np.diff(subset.offsets))
        margins = replace(
            subset,
            queries=subset.queries[sequences],
            offsets=np.append(subset.offsets[sequences], subset.m),
            selected=subset.selected[sequences],
            origin=None if subset.origin is None else subset.origin[sequences],
            numbers=_sequence_numbers(subset)[sequences],
        )
        return RowSubset(self.ids[index], self.shortfall[index], margins)


class ScanResult(NamedTuple):
    """Result of one pass over all rows.

    Attributes:
        least_ratio: smallest ratio of a margin to its right-hand side, where that is positive;
            ``inf`` without such rows.
        zero_violation: largest amount by which a margin falls below a right-hand side of zero.
        slack: sum of the shortfalls of all rows that miss their right-hand side.
        rounding: bound of the rounding of a margin, which was taken off every margin.
        rows: the rows that were asked for.
    """

    least_ratio: float
    zero_violation: float
    slack: float
    rounding: float
    rows: RowSubset


class Candidate(NamedTuple):
    """Weights with their certificate over all rows.

    Attributes:
        rows: those of the working set that support the weights.
        dual: ``(m,)`` their multipliers.
        subset_solution: the solution of the working set, for rank, uniqueness and solver.
        W: ``(d_x, d_z)`` its weights, scaled to meet all rows.
        norm: of ``W``.
        gap: relative duality gap over all rows.
        zero_violation: largest amount by which a margin falls below a right-hand side of zero.
    """

    rows: RowSubset
    dual: FloatArray
    subset_solution: MarginSolution
    W: FloatArray
    norm: float
    gap: float
    zero_violation: float

    @property
    def error(self) -> float:
        """The larger of gap and violation."""
        return max(self.gap, self.zero_violation)


class RowSource(Protocol):
    """The rows of a programme, in memory or in blocks. :meth:`first_rows` is called first."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weights."""

    @property
    def sequences(self) -> int:
        """Number of sequences."""

    @property
    def capacity(self) -> int:
        """Largest number of rows of a working set."""

    def first_rows(self) -> RowSubset:
        """The first working set: from each sequence the rows that fall short most when the weights
        are the sum of all rows.
        """

    def room(self, rows: RowSubset, supporting: int) -> int:
        """Number of rows that may join a working set of which ``supporting`` rows must stay.

        Raises:
            InputError: none, because memory is too small.
        """

    def scan(self, request: ScanRequest) -> ScanResult:
        """One pass over all rows."""

    def solution(self, candidate: Candidate, request: Request, iterations: int) -> MarginSolution:
        """The solution over all rows."""

    def contradiction(
        self, rows: RowSubset, subset_solution: MarginSolution, iterations: int
    ) -> MarginSolution:
        """The verdict over all rows where a working set has no weights."""


def solve_on_working_sets(
    source: RowSource,
    norm: Norm,
    request: Request,
    solve_subset: SubsetSolver,
    options: WorkingSetOptions = OPTIONS,
) -> MarginSolution:
    """The solution over all rows of a source.

    1. Solve the working set; where its rows contradict each other, so do all rows.
    2. Scan all rows with its weights.
    3. Certify the weights over all rows, and remember the best of all rounds.
    4. Form the next working set: rows that support the weights, and those that fall short most.
    5. Where no row is new, solve to a smaller tolerance; end when that is small already.

    Raises:
        InputError: what the source refuses.
    """
    rows = source.first_rows()
    sequence_rows = options.sequence_rows + rows_per_sequence(source.shape, source.sequences)
    if request.slack is not None:
        sequence_rows = source.capacity  # every row that is missed has a multiplier
    dual, error, refinement, exact = np.zeros(rows.margins.m), 1.0, 1.0, False
    best: Candidate | None = None
    iterations = 0
    least_tol = options.last_tol * request.tol
    for _ in range(options.passes):
        # 1. Solve the working set, no finer than the error over all rows asks for.
        tol = max(least_tol, refinement * min(options.first_tol, options.later_tol * error))
        start = dual if dual.any() else None
        subset_solution = solve_subset(rows.margins, tol, start, _seconds_left(request))
        iterations += max(subset_solution.iterations, 1)
        if subset_solution.status == "infeasible" or not subset_solution.has_weights:
            return source.contradiction(rows, subset_solution, iterations)
        # 2. Scan all rows.
        room = source.room(rows, int(np.count_nonzero(subset_solution.dual)))
        scan = source.scan(
            ScanRequest(subset_solution.W, options.joining_margin, sequence_rows, room, exact)
        )
        # 3. Certify.
        candidate = _certify_over_all_rows(norm, request, rows, subset_solution, scan, options)
        error = candidate.error
        if best is None or error < best.error:
            best = candidate
        if best.error <= request.tol or _seconds_left(request) == 0.0:
            break
        # 4. The next working set.
        # Rows may leave and come back; only one that was not there before is progress.
        earlier_ids = rows.ids
        rows, dual = _next_working_set(rows, subset_solution, scan.rows, source.capacity, options)
        rounding_matters = scan.rounding > options.rounding * request.tol
        if not np.isin(rows.ids, earlier_ids).all() or (rounding_matters and not exact):
            refinement, exact = 1.0, exact or rounding_matters
        # 5. No row is new.
        elif tol > least_tol:
            refinement *= options.refinement
        else:
            break
    assert best is not None
    return source.solution(best, request, iterations)


def _seconds_left(request: Request) -> float | None:
    """Seconds until the time limit; ``None`` without one."""
    return None if request.max_seconds is None else request.left


def _certify_over_all_rows(
    norm: Norm,
    request: Request,
    rows: RowSubset,
    subset_solution: MarginSolution,
    scan: ScanResult,
    options: WorkingSetOptions,
) -> Candidate:
    """The weights of a working set, with their gap over all rows: the formula of this module, or
    for soft margins primal minus dual objective.
    """
    margins, dual = rows.margins, subset_solution.dual
    W, size, gap = subset_solution.W, subset_solution.norm, 1.0
    zero_violation = scan.zero_violation
    if request.slack is not None:
        primal = 0.5 * size**2 + request.slack * scan.slack
        bound = float(margins.rhs @ dual)
        # The dual objective needs the working set only: other multipliers are zero.
        bound -= 0.5 * float(norm.dual_value(margins.adjoint(dual))) ** 2
        gap = max(0.0, primal - bound) / max(primal, np.finfo(np.float64).tiny)
        zero_violation = 0.0
    elif scan.least_ratio == math.inf:  # no right-hand side is positive
        gap = subset_solution.gap
    elif scan.least_ratio > 0.0:
        # W / ratio meets all rows.
        W, size = W / scan.least_ratio, size / scan.least_ratio
        zero_violation /= scan.least_ratio
        gap = max(0.0, 1.0 - lower_bound(margins, norm, dual) / size)
    else:
        zero_violation = 1.0
    # Rows that are far from tight say nothing of a solution; blocks forget them.
    supporting = (dual != 0.0) | (margins(W) <= margins.rhs + options.support_margin)
    return Candidate(
        rows.take(supporting), dual[supporting], subset_solution, W, size, gap, zero_violation
    )


def _next_working_set(
    rows: RowSubset,
    subset_solution: MarginSolution,
    scanned: RowSubset,
    capacity: int,
    options: WorkingSetOptions,
) -> tuple[RowSubset, FloatArray]:
    """The next working set of at most ``capacity`` rows, with multipliers to start from: rows that
    have a multiplier, and of all others those whose margins are least.
    """
    margins = rows.margins
    excess = margins(subset_solution.W) - margins.rhs
    idle = subset_solution.dual == 0.0
    # A row without multiplier holds nothing, and leaves once it is far from tight.
    far = excess > options.leaving_margin * np.where(margins.rhs > 0.0, margins.rhs, 1.0)
    stays = ~(idle & far)
    joins = ~np.isin(scanned.ids, rows.ids)
    # The rows that would be too many are those with the largest margins.
    order = np.concatenate([np.where(idle, excess, -np.inf), -scanned.shortfall])
    # Rows that leave, and those that are there already, are not counted.
    order[~np.concatenate([stays, joins])] = np.inf
    if np.isfinite(order).sum() + (~idle).sum() > capacity:
        largest = np.partition(order, capacity - 1)[capacity - 1]
        stays, joins = np.split(order <= largest, [len(stays)])
    staying = rows.take(stays)
    merged = merge_rows([staying._replace(shortfall=-excess[stays]), scanned.take(joins)])
    dual = np.zeros(len(merged.ids))
    # New rows begin without multiplier.
    dual[np.isin(merged.ids, staying.ids)] = subset_solution.dual[stays]
    return merged, dual


def rows_per_sequence(shape: tuple[int, int], sequences: int) -> int:
    """Number of rows that a pass hands over per sequence: one, and more where the sequences are
    fewer than the unknowns.
    """
    return 1 + shape[0] * shape[1] // max(sequences, 1)


def scan_rows(block: BlockRows, sequences: int, request: ScanRequest, size: float) -> ScanResult:
    """One pass over the rows of a block.

    1. Compute all margins, and bound their rounding by the formula of this module.
    2. Summarise them: smallest ratio to a right-hand side, violation, and slack.
    3. Hand over the rows that fall short most.

    Args:
        block: the rows.
        sequences: of all blocks together.
        request: what to compute.
        size: bound of the vectors that are multiplied with moved queries.
    """
    W, sequence_rows = request.W, request.sequence_rows
    if W is None:
        # Without weights the sum of the rows stands for them: what it misses is hard to meet.
        W = block.mean()
        W = W / max(float(np.linalg.norm(W)), np.finfo(np.float64).tiny)
        sequence_rows = rows_per_sequence(block.shape, sequences)
    # 1. Margins and their rounding.
    values, rhs = block.values(W, request.exact), block.rhs
    # The bound takes sizes, because terms that cancel in a margin do not cancel in its rounding.
    moved: FloatArray = np.abs(block.queries) @ np.abs(W).T
    longest = float(np.sqrt(np.einsum("nd,nd->n", moved, moved).max(initial=0.0)))
    unit = 2.0**-53  # rounding of one operation in float64
    rounding = (sum(block.shape) + 4) * unit * size * longest
    # 2. Summary.
    positive = rhs > 0.0
    ratios = (values - rounding)[positive] / rhs[positive]
    least_ratio = float(ratios.min(initial=np.inf))
    if math.isnan(least_ratio):  # infinities that cancel prove nothing
        least_ratio = -np.inf
    zero_violation = max(0.0, rounding - float(values[~positive].min(initial=np.inf)))
    shortfall = rhs - values
    slack = float(np.maximum(shortfall, 0.0).sum())
    # 3. Rows to hand over.
    near = shortfall > -request.joining_margin * np.where(positive, rhs, 1.0)
    ids = _worst_per_sequence(block.offsets, shortfall, np.flatnonzero(near), sequence_rows)
    if len(ids) > request.rows:
        ids = np.sort(ids[np.argpartition(-shortfall[ids], request.rows)[: request.rows]])
    rows = RowSubset(ids, shortfall[ids], block.write_out(ids))
    return ScanResult(least_ratio, zero_violation, slack, rounding, rows)


def _worst_per_sequence(
    offsets: IntArray, shortfall: FloatArray, candidates: IntArray, count: int
) -> IntArray:
    """The candidate rows that fall short most, at most ``count`` per sequence, sorted."""
    sequence = np.searchsorted(offsets, candidates, side="right") - 1
    # Sorted by sequence, and in each by shortfall, the worst ones are the first of each run.
    order = np.lexsort((-shortfall[candidates], sequence))
    first = np.searchsorted(sequence, sequence)  # position of the first row of the same sequence
    worst: IntArray = np.sort(candidates[order[np.arange(len(candidates)) - first < count]])
    return worst


def merge_rows(subsets: list[RowSubset]) -> RowSubset:
    """All rows of several subsets, sorted and without repetitions; of a row that is in two subsets
    the first.
    """
    ids, index = np.unique(np.concatenate([s.ids for s in subsets]), return_index=True)
    ends = np.cumsum([0] + [len(s.ids) for s in subsets])
    # Sequences by their positions among those of all subsets; one that is in two subsets is one.
    base = np.cumsum([0] + [s.margins.n for s in subsets])
    position = np.concatenate(
        [s.margins.sequence + first for s, first in zip(subsets, base, strict=False)]
    )
    numbers = np.concatenate([_sequence_numbers(s.margins) for s in subsets])
    _, first, counts = np.unique(numbers[position[index]], return_index=True, return_counts=True)
    sequences = position[index][first]
    margins = subsets[0].margins
    differences = np.empty((len(ids), margins.shape[0]))
    for subset, start, end in zip(subsets, ends, ends[1:], strict=False):  # no copy of all of them
        # `index` counts through all subsets, so a range of it is one subset.
        rows = np.flatnonzero((index >= start) & (index < end))
        differences[rows] = subset.margins.differences[index[rows] - start]

    def concatenate(name: str) -> Any:
        return np.concatenate([getattr(s.margins, name) for s in subsets])

    merged = Margins(
        differences,
        concatenate("queries")[sequences],
        np.concatenate([[0], np.cumsum(counts)]),
        concatenate("rhs")[index],
        concatenate("token")[index],
        concatenate("selected")[sequences],
        kind=margins.kind,
        origin=None if margins.origin is None else concatenate("origin")[sequences],
        numbers=numbers[sequences],
    )
    return RowSubset(ids, np.concatenate([s.shortfall for s in subsets])[index], merged)


def _sequence_numbers(margins: Margins) -> IntArray:
    """``(n,)`` numbers of the sequences in the programme."""
    assert margins.numbers is not None
    return margins.numbers


def needs_working_sets(margins: Margins, options: WorkingSetOptions = OPTIONS) -> bool:
    """Whether working sets pay: more rows than can matter, or than should be written out. Where all
    rows are written out already, only far more rows than that.
    """
    enough = options.rows_per_unknown * math.prod(margins.shape)
    if not isinstance(margins, PairMargins):
        return margins.m > max(options.stalling_rows, enough)
    many = margins.m > max(options.few_rows, enough)
    return many or margins.m * margins.shape[0] > options.written_entries


class RowsInMemory:
    """A source of rows: margins in memory, checked before."""

    capacity = 1 << 62

    def __init__(self, margins: Margins, norm: Norm, options: WorkingSetOptions = OPTIONS) -> None:
        self.margins, self.norm, self.options = margins, norm, options
        self.shape, self.sequences = margins.shape, margins.n
        self.block = block_rows(margins, 0)
        self.sizes: dict[bool, float] = {}

    def first_rows(self) -> RowSubset:
        """As :class:`RowSource`."""
        everything = ScanRequest(
            W=None, joining_margin=math.inf, sequence_rows=1, rows=self.margins.m, exact=False
        )
        return self.scan(everything).rows

    def room(self, rows: RowSubset, supporting: int) -> int:
        """Up to as many rows as the working set has, which doubles it: of soft margins half of all
        rows may matter.
        """
        new = self.options.new_rows_per_unknown * math.prod(self.shape)
        return max(new, self.options.new_rows, rows.margins.m)

    def scan(self, request: ScanRequest) -> ScanResult:
        """As :class:`RowSource`."""
        if request.exact not in self.sizes:
            self.sizes[request.exact] = self.block.size(request.exact)
        return scan_rows(self.block, self.sequences, request, self.sizes[request.exact])

    def solution(self, candidate: Candidate, request: Request, iterations: int) -> MarginSolution:
        """The solution, certified anew from all rows."""
        margins, subset_solution = self.margins, candidate.subset_solution
        dual = np.zeros(margins.m)
        dual[candidate.rows.ids] = candidate.dual
        certificate = (
            certify_hard(margins, self.norm, candidate.W, dual)
            if request.slack is None
            else certify_soft(margins, self.norm, candidate.W, dual, request.slack)
        )
        solver = f"working sets, {subset_solution.solver}"
        return replace(
            certified_solution(margins, certificate, request, solver, iterations),
            rank=subset_solution.rank,
            rank_bound=subset_solution.rank_bound,
            unique=True if subset_solution.unique else None,
            geometry=self.norm,
        )

    def contradiction(
        self, rows: RowSubset, subset_solution: MarginSolution, iterations: int
    ) -> MarginSolution:
        """As :class:`RowSource`."""
        dual = np.zeros(self.margins.m)
        dual[rows.ids] = subset_solution.dual
        return replace(
            subset_solution,
            margins=self.margins,
            dual=dual,
            support=rows.ids[subset_solution.support],
            slacks=np.zeros(self.margins.m),
            iterations=iterations,
        )
