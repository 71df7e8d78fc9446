r"""Programmes of blocks: constraint generation with one pass over the data per round.

The programme is solved on a working set of rows, a pass over all blocks finds the smallest margin
:math:`\mu` of these weights and the rows that fall short most, and these join:

.. math:: \frac{b^\top\lambda}{\|A^\top\lambda\|_*}\ \le\ \min\|W\|\ \le\ \frac{\|W\|}{\mu}.

The multipliers :math:`\lambda` of the working set, with zeros for all other rows, are multipliers
of the whole programme, so the left side holds for all rows; :math:`W/\mu` meets all rows, so the
right side does too. The round ends when both are within the tolerance: the last pass is the proof.
Where the rows of the working set contradict each other, their Farkas certificate is one for all
rows. Cutting planes for support vector machines go back to Joachims, *Training linear SVMs in
linear time* (2006).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Norm
from attsvm.margins import MarginBlocks, Margins
from attsvm.printable import kind
from attsvm.solvers.answers.outcomes import Request, solved
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.large.pricing import Pass, Priced, Rows, Wanted, joined, only, per_sequence
from attsvm.solvers.proofs.certificates import Certificate, lower_bound
from attsvm.workers import executor_slots

_MEMORY = "2GiB"
_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_COPIES = 4  # of the rows of the working set and of their queries, in a solver and beside it
_BESIDE = 16  # numbers that a row has beside its difference
_ROUNDS = 60
_WITHIN = 0.2  # rows whose margin is at most so much above its right-hand side join, too
_EACH = 3  # rows of each sequence, beyond what the unknowns ask for
_NEW = 4  # rows per unknown that join in a round
_IDLE = 0.5  # rows without a multiplier whose margin is so far above its right-hand side leave
_ROUGH = 1e-2  # tolerance of the first working sets,
_FINER = 0.1  # and that of later ones as a share of the gap over all rows
_CLOSE = 1e-3  # rows with no multiplier that are handed back have no larger margin than that
_NOISE = 0.1  # share of the tolerance that the rounding of a pass may take

Inner = Callable[[Margins, float, FloatArray | None, float | None], MarginSolution]


def bytes_of(memory: str | int | None) -> int:
    """A number of bytes, or a text such as ``"2GiB"`` or ``"500 MB"``.

    Raises:
        InputError: neither.
    """
    memory = _MEMORY if memory is None else memory
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
    if isinstance(memory, str) and found and found[2] in _UNITS and float(found[1]) > 0:
        return int(float(found[1]) * _UNITS[found[2]])
    raise InputError(f"memory is {kind(memory)}; give a number of bytes or a text such as '2GiB'")


def solve(
    blocks: MarginBlocks,
    norm: Norm,
    request: Request,
    inner: Inner,
    memory: str | int | None,
    executor: Any,
) -> MarginSolution:
    """The solution over all rows of the blocks.

    Args:
        blocks: the programme.
        norm: to minimise.
        request: tolerance and time limit.
        inner: solves a working set to a tolerance, from multipliers, in so many seconds.
        memory: of the working set, the solver, and the blocks that are looked at.
        executor: looks at the blocks; this process when left out.

    Raises:
        InputError: blocks that cannot be used or have changed, or too little memory.
    """
    return _Search(blocks, norm, request, inner, bytes_of(memory), executor).run()


class _Search:
    """One solve: the working set with its multipliers, the best proof, and the clock."""

    def __init__(
        self,
        blocks: MarginBlocks,
        norm: Norm,
        request: Request,
        inner: Inner,
        memory: int,
        executor: Any,
    ) -> None:
        self.norm, self.request, self.inner = norm, request, inner
        self.memory, self.started = memory, time.monotonic()
        self.slots = 1 if executor is None else executor_slots(executor) or 1
        self.look = Pass(blocks, executor)
        self.best: MarginSolution | None = None
        self.iterations = 0

    def run(self) -> MarginSolution:
        """Rounds until the proof is there, or nothing more is to be gained."""
        rows = self._first()
        seen = self.look.seen
        self.each = _EACH + per_sequence(rows.margins.shape, sum(s.sequences for s in seen))
        dual, error, fine, exact = np.zeros(rows.margins.m), 1.0, 1.0, False
        for _ in range(_ROUNDS):
            tol = max(0.25 * self.request.tol, fine * min(_ROUGH, _FINER * error))
            part = self.inner(rows.margins, tol, dual if dual.any() else None, self._left())
            self.iterations += max(part.iterations, 1)
            if part.status == "infeasible" or not part.has_weights:
                return self._told(part)
            wanted = Wanted(part.W, _WITHIN, self.each, self._room(rows, part.dual), exact)
            priced = self.look(wanted)
            error = self._judged(part, priced)
            assert self.best is not None
            if self.best.status == "optimal" or self._left() == 0.0:
                break
            before = rows.ids
            rows, dual = self._next(rows, part, priced)
            noisy = priced.rounding > _NOISE * self.request.tol
            if not np.isin(rows.ids, before).all() or (noisy and not exact):
                fine, exact = 1.0, exact or noisy
            elif tol > 0.25 * self.request.tol:
                fine *= 1e-3
            else:
                break
        assert self.best is not None
        return self._told(self.best)

    def _first(self) -> Rows:
        """Of every sequence the row that falls short most for the sum of its block's rows."""
        most = self.memory // 64  # of which those that there is room for are kept
        rows = self.look(Wanted(None, math.inf, 1, most, False)).rows
        self.most = self._most(rows.margins.shape)
        if len(rows.ids) > self.most:
            rows = rows.taken(np.sort(np.argsort(-rows.short, kind="stable")[: self.most]))
        return rows

    def _most(self, shape: tuple[int, int]) -> int:
        """How many rows the working set may have."""
        from attsvm.solvers.frobenius import LARGEST_SYSTEM

        largest = max(s.nbytes for s in self.look.seen)
        left = self.memory - 3 * self.slots * largest
        each, unknowns = 8 * _COPIES * (shape[0] + _BESIDE), shape[0] * shape[1]
        sequences = sum(s.sequences for s in self.look.seen)
        queries = 8 * _COPIES * shape[1]
        if queries * sequences < left / 2:  # all of them, or else one for each row
            left -= queries * sequences
        else:
            each += queries
        # in the Frobenius norm systems have at most as many equations as unknowns
        system = min(LARGEST_SYSTEM, unknowns) if self.norm == Frobenius() else LARGEST_SYSTEM
        most = (left - 16 * system**2) // each
        if most < system:  # the linear system is one of all rows then: 16 m^2 + each m = left
            most = int((math.sqrt(each**2 + 64.0 * max(left, 0)) - each) / 32.0)
        if most < 2 * sum(shape):
            raise InputError(
                f"memory of {self.memory / 2**20:.4g} MiB has room for {max(most, 0)} rows of"
                f" {shape[0]} x {shape[1]} weights beside blocks of {largest / 2**20:.4g} MiB; give"
                " more, or smaller blocks"
            )
        return most

    def _room(self, rows: Rows, dual: FloatArray) -> int:
        """How many rows may join."""
        needed = int(np.count_nonzero(dual))
        unknowns = rows.margins.shape[0] * rows.margins.shape[1]
        if needed >= self.most:
            raise InputError(
                f"memory of {self.memory / 2**20:.4g} MiB has room for {self.most} rows, and all of"
                f" them matter after {self.look.passes} passes over the blocks; give more"
            )
        return min(self.most - needed, max(_NEW * unknowns, 1000))

    def _left(self) -> float | None:
        """Seconds."""
        if self.request.max_seconds is None:
            return None
        return max(self.request.max_seconds - (time.monotonic() - self.started), 0.0)

    def _judged(self, part: MarginSolution, priced: Priced) -> float:
        """The error over all rows of the weights of a working set, which are kept if it is the
        least.
        """
        scale, margins = priced.smallest, part.margins
        upper, gap, W = part.norm, 1.0, part.W
        if 0.0 < scale < math.inf:
            W, upper = W / scale, part.norm / scale
            gap = max(0.0, 1.0 - lower_bound(margins, self.norm, part.dual) / upper)
        elif scale == math.inf:  # no right-hand side is positive
            gap, scale = part.gap, 1.0
        below = priced.below / scale if scale > 0.0 else 1.0
        found = Certificate(W, part.dual, margins(W), upper, gap, below, 0.0)
        if self.best is None or found.error < max(self.best.gap, self.best.violation):
            close = (part.dual != 0.0) | (found.values <= margins.rhs + _CLOSE)
            few, values = only(margins, np.flatnonzero(close)), found.values[close]
            # without the others' memory
            found = replace(found, dual=part.dual[close], values=values)
            told = solved(few, found, self.request, f"blocks, {part.solver}", self.iterations)
            self.best = replace(told, geometry=self.norm, rank=part.rank, step=part.step)
        return found.error

    def _next(self, rows: Rows, part: MarginSolution, priced: Priced) -> tuple[Rows, FloatArray]:
        """The next working set with the multipliers that are known: those rows that have one, and
        of all others those whose margins are least.
        """
        margins = rows.margins
        over = margins(part.W) - margins.rhs
        idle = part.dual == 0.0
        stay = ~(idle & (over > _IDLE * np.where(margins.rhs > 0.0, margins.rhs, 1.0)))
        join = ~np.isin(priced.rows.ids, rows.ids)
        rank = np.concatenate([np.where(idle, over, -np.inf), -priced.rows.short])
        rank[~np.concatenate([stay, join])] = np.inf
        if np.isfinite(rank).sum() + (~idle).sum() > self.most:
            last = np.partition(rank, self.most - 1)[self.most - 1]
            stay, join = np.split(rank <= last, [len(stay)])
        old, new = rows.taken(stay), priced.rows.taken(join)
        both = joined([replace(old, short=-over[stay]), new])
        known = np.zeros(len(both.ids))
        known[np.isin(both.ids, old.ids)] = part.dual[stay]
        return both, known

    def _told(self, part: MarginSolution) -> MarginSolution:
        """What is known of the working set as an answer for all rows."""
        total = sum(s.constraints for s in self.look.seen)
        passes = self.look.passes
        over = f"{total} constraints in {self.look.blocks.count} blocks, {passes} passes over them"
        if "infeasible" in part.status:
            message = f"{part.message}; these rows prove it for all {over}"
        else:
            message = f"{part.message}; for all {over}"
        return replace(
            part,
            message=message,
            iterations=self.iterations,
            constraints=total,
            passes=passes,
            rank_bound=None,
            rank_proved=None,
            unique=None,
        )
