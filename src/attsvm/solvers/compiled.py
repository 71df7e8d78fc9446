r"""Frobenius programmes of few rows in one compiled call, alone or many at a time.

The compiled core (``native/frobenius.cpp``) makes the Gram matrix of the rows, guesses the active
ones by sweeps of coordinate ascent, ends with the dual method of active sets, refines the weights
and computes norm, gap and violation. What float64 leaves open is ``UNSETTLED`` and goes through the
stages of :mod:`attsvm.solvers.frobenius`.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from attsvm import native
from attsvm.base.cores import map_on_threads, threads
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.native import library
from attsvm.norms import Frobenius
from attsvm.solvers.outcomes import Request, certified_solution, infeasible_solution
from attsvm.solvers.proofs import NO_MATTER, Certificate, certify_hard, certify_soft
from attsvm.solvers.solution import MarginSolution

UNSETTLED, WEIGHTS, CONTRADICTION = 0, 1, 2  # outcomes of the compiled core


class BatchOptions(NamedTuple):
    """Which programmes compiled code takes, and how a batch is shared out among threads."""

    few_rows: int = 320  # up to which one call is quicker than stages of array operations
    rows_worth_threads: int = 4000  # from which threads save more than their start costs
    ranges_per_thread: int = 8  # of programmes, so that no thread waits long for another; untuned


BATCH = BatchOptions()


class CompiledSolution(NamedTuple):
    """Solution of one programme, as the compiled core computed it.

    Attributes:
        W: ``(d_x, d_z)`` weights.
        dual: ``(m,)`` multipliers.
        norm: of the weights; infinite where the multipliers prove a contradiction.
        gap: relative duality gap.
        violation: largest amount by which a constraint is missed.
        rounding: bound of the rounding errors in gap and violation.
        values: ``(m,)`` margins of the weights, where they are at hand.
    """

    W: FloatArray
    dual: FloatArray
    norm: float
    gap: float
    violation: float
    rounding: float
    values: FloatArray | None = None

    def solution(self, margins: Margins, request: Request, iterations: int) -> MarginSolution:
        """The solution with status, support and message, certified anew where the core's figures
        do not decide.
        """
        W, dual = self.W, self.dual
        if self.norm == np.inf:
            return infeasible_solution(margins, dual, request, "active set", iterations)
        if request.slack is not None:
            dual = np.minimum(dual, request.slack)
            certificate = certify_soft(margins, Frobenius(), W, dual, request.slack)
        elif self.rounding > NO_MATTER:
            certificate = certify_hard(margins, Frobenius(), W, dual)
        else:
            values = margins(W) if self.values is None else self.values
            certificate = Certificate(
                W, dual, values, self.norm, self.gap, self.violation, self.rounding
            )
        return certified_solution(margins, certificate, request, "active set", iterations)


class CompiledSolutions(NamedTuple):
    """Solutions of ``B`` programmes that lie end to end, as the compiled core computed them.

    Attributes:
        W: ``(B, d_x, d_z)`` weights.
        dual: ``(M,)`` multipliers.
        figures: ``(B, 4)`` norm, gap, violation and rounding of hard margins; zeros of soft ones,
            which are certified in Python.
        outcome: ``(B,)`` ``UNSETTLED``, ``WEIGHTS`` or ``CONTRADICTION``.
        systems: ``(B,)`` steps of active sets.
        values: ``(M,)`` margins of the weights.
    """

    W: FloatArray
    dual: FloatArray
    figures: FloatArray
    outcome: IntArray
    systems: IntArray
    values: FloatArray


def solve_one(margins: Margins, request: Request) -> MarginSolution | None:
    """The solution or the contradiction of a programme of few rows, ``None`` where the compiled
    core does not settle it.
    """
    D, Z, offsets, b = margins.differences, margins.queries, margins.offsets, margins.rhs
    if margins.n > margins.m:  # most sequences have no rows
        filled = np.flatnonzero(np.diff(offsets))
        Z, offsets = Z[filled], np.append(offsets[filled], margins.m)
    D, Z, b = np.ascontiguousarray(D), np.ascontiguousarray(Z), np.ascontiguousarray(b)
    offsets, instances = np.ascontiguousarray(offsets, np.int64), np.array([0, len(Z)])
    solutions, batch = _compiled_batch(
        D, Z, b, offsets, instances, request.slack, request.warm_start
    )
    _run(batch, 0, 1)
    # The stages of the ordinary solver begin from nothing: they are other methods.
    if solutions.outcome[0] == UNSETTLED:
        return None
    norm, gap, violation, rounding = solutions.figures[0].tolist()
    compiled = CompiledSolution(
        solutions.W[0], solutions.dual, norm, gap, violation, rounding, solutions.values
    )
    solution = compiled.solution(margins, request, int(solutions.systems[0]))
    return solution if solution.status in ("optimal", "infeasible") else None


def solve_many(
    differences: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    rhs: FloatArray,
    slack: float | None = None,
    start: FloatArray | None = None,
    options: BatchOptions = BATCH,
) -> CompiledSolutions:
    """Solve programmes of few rows that lie end to end, on all cores when there is work for them.

    What is unsettled costs time, never correctness: weights come with figures computed from the
    given numbers, contradictions have a residual at rounding level and are proved before they are
    reported.

    Args:
        differences: ``(M, d_x)`` finite differences of all programmes.
        queries: ``(N, d_z)`` queries.
        offsets: ``(N + 1,)`` where the rows of each sequence begin.
        instances: ``(B + 1,)`` where the sequences of each programme begin.
        rhs: ``(M,)`` right-hand sides, none negative.
        slack: the penalty C of soft margins.
        start: ``(M,)`` multipliers to begin with.
        options: how they are shared out.

    Raises:
        TypeError: arrays that do not fit together.
    """
    D, Z, b = (np.ascontiguousarray(array, np.float64) for array in (differences, queries, rhs))
    offsets, instances = (np.ascontiguousarray(array, np.int64) for array in (offsets, instances))
    # a wrong offset would be an address outside of the arrays
    native.check_offsets("offsets", offsets, len(D))
    native.check_offsets("instances", instances, len(Z))
    solutions, batch = _compiled_batch(D, Z, b, offsets, instances, slack, start)
    first_rows = offsets[instances]  # of each programme
    alone = len(D) < options.rows_worth_threads
    ranges = [(0, len(instances) - 1)] if alone else balanced_ranges(first_rows, options)
    map_on_threads(lambda programmes: _run(batch, *programmes), ranges)
    return solutions


def _compiled_batch(
    D: FloatArray,
    Z: FloatArray,
    b: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    slack: float | None,
    start: FloatArray | None,
) -> tuple[CompiledSolutions, native.Batch]:
    """Arrays for the solutions, and the programmes with their addresses."""
    batch = native.Batch(D, Z, b, offsets, instances, start, math.inf if slack is None else slack)
    return CompiledSolutions(**batch.solutions), batch


def _run(batch: native.Batch, first: int, last: int) -> None:
    if not library.solve_programmes(batch, first, last):
        raise MemoryError("no memory is left for the programmes of a batch")


def unsolved(D: FloatArray, Z: FloatArray, instances: IntArray) -> CompiledSolutions:
    """Arrays of zeros for the solutions of these programmes, all of them ``UNSETTLED``."""
    rows, count = len(D), len(instances) - 1
    return CompiledSolutions(
        W=np.zeros((count, D.shape[1], Z.shape[1])),
        dual=np.zeros(rows),
        figures=np.zeros((count, 4)),
        outcome=np.zeros(count, np.int64),
        systems=np.zeros(count, np.int64),
        values=np.zeros(rows),
    )


def balanced_ranges(first_rows: IntArray, options: BatchOptions = BATCH) -> list[tuple[int, int]]:
    """Ranges ``(first, last)`` of consecutive programmes with about the same number of rows,
    several for each thread.

    Args:
        first_rows: ``(B + 1,)`` where the rows of each programme begin.
        options: how many for each thread.
    """
    # By rows, since the time of a programme grows with them.
    cuts = np.linspace(0, first_rows[-1], options.ranges_per_thread * threads() + 1)[1:-1]
    ends = np.unique([0, *np.searchsorted(first_rows, cuts), len(first_rows) - 1]).tolist()
    return list(itertools.pairwise(ends))
