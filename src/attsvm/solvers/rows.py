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
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins, PairMargins
from attsvm.margins.block_rows import BlockRows, block_rows
from attsvm.norms import Norm
from attsvm.solvers.outcomes import Request, solved
from attsvm.solvers.proofs import certify_hard, certify_soft, lower_bound
from attsvm.solvers.solution import MarginSolution

_UNIT = 2.0**-53
_WRITTEN = 1 << 21  # entries up to which rows are written out and solved together
_MANY = 4  # rows per unknown from which most rows cannot matter
_VAST = 50_000  # rows from which the ordinary solvers stall where there are few unknowns
_ROUNDS = 60
_WITHIN = 0.2  # rows whose margin is at most so much above its right-hand side join, too
_EACH = 3  # rows of each sequence, beyond what the unknowns ask for
_NEW, _LEAST = 4, 1000  # rows that join in a round: so many per unknown, and at least so many
_IDLE = 0.5  # rows without a multiplier whose margin is so far above its right-hand side leave
_ROUGH = 1e-2  # tolerance of the first working sets,
_FINER = 0.1  # and that of later ones as a share of the error over all rows
_NOISE = 0.1  # share of the tolerance that the rounding of a pass may take
_CLOSE = 1e-3  # rows with no multiplier that are kept with a solution have no larger margin

Inner = Callable[[Margins, float, FloatArray | None, float | None], MarginSolution]
"""Solves a working set to a tolerance, from multipliers, in so many seconds."""


class Wanted(NamedTuple):
    """What a pass asks of the rows.

    Attributes:
        W: the weights; None for the sum of the rows themselves.
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
        part = self.margins.restricted(index)
        kept = np.flatnonzero(np.diff(part.offsets))
        margins = replace(
            part,
            queries=part.queries[kept],
            offsets=np.append(part.offsets[kept], part.m),
            selected=part.selected[kept],
            origin=None if part.origin is None else part.origin[kept],
            numbers=_numbers(part)[kept],
        )
        return Rows(self.ids[index], self.short[index], margins)


class Priced(NamedTuple):
    """What a pass says of the weights.

    Attributes:
        smallest: margin over right-hand side, at least, of all rows where that is positive; ``inf``
            without such rows.
        below: how far, at most, a margin falls below a right-hand side of zero.
        missed: the sum of what rows fall short.
        rounding: what was taken off for it.
        rows: those that were asked for.
    """

    smallest: float
    below: float
    missed: float
    rounding: float
    rows: Rows


class Best(NamedTuple):
    """The weights of least error so far, over all rows.

    Attributes:
        rows: of the working set, those that support the weights.
        dual: ``(m,)`` their multipliers.
        part: the solution of the working set, for what is said of it.
        W: its weights, scaled to meet all rows.
        gap: over all rows; so are ``upper``, their norm, and
        below: how far a margin falls below a right-hand side of zero.
    """

    rows: Rows
    dual: FloatArray
    part: MarginSolution
    W: FloatArray
    upper: float
    gap: float
    below: float


class Source(Protocol):
    """The rows of a programme, wherever they are. What it is asked first is :meth:`first`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""

    @property
    def sequences(self) -> int:
        """How many there are."""

    @property
    def most(self) -> int:
        """How many rows a working set may have."""

    def first(self) -> Rows:
        """Of every sequence the rows that fall short most for the sum of all rows."""

    def room(self, rows: Rows, needed: int) -> int:
        """How many rows may join a working set of which so many are needed."""

    def price(self, wanted: Wanted) -> Priced:
        """One pass over all rows."""

    def answer(self, best: Best, request: Request, iterations: int) -> MarginSolution:
        """The solution over all rows."""

    def contradiction(self, rows: Rows, part: MarginSolution, iterations: int) -> MarginSolution:
        """A working set without weights as an answer for all rows."""


def solve(source: Source, norm: Norm, request: Request, inner: Inner) -> MarginSolution:
    """The solution over all rows of a source.

    Raises:
        InputError: what the source refuses.
    """
    rows = source.first()
    each = _EACH + per_sequence(source.shape, source.sequences)
    if request.slack is not None:
        each = source.most  # every row that is missed has a multiplier
    known, error, fine, exact = np.zeros(rows.margins.m), 1.0, 1.0, False
    best: Best | None = None
    least, iterations = math.inf, 0
    for _ in range(_ROUNDS):
        tol = max(0.25 * request.tol, fine * min(_ROUGH, _FINER * error))
        part = inner(rows.margins, tol, known if known.any() else None, _left(request))
        iterations += max(part.iterations, 1)
        if part.status == "infeasible" or not part.has_weights:
            return source.contradiction(rows, part, iterations)
        room = source.room(rows, int(np.count_nonzero(part.dual)))
        priced = source.price(Wanted(part.W, _WITHIN, each, room, exact))
        found = _judged(norm, request, rows, part, priced)
        error = max(found.gap, found.below)
        if best is None or error < least:
            best, least = found, error
        if least <= request.tol or _left(request) == 0.0:
            break
        before = rows.ids
        rows, known = _next(rows, part, priced.rows, source.most)
        noisy = priced.rounding > _NOISE * request.tol
        if not np.isin(rows.ids, before).all() or (noisy and not exact):
            fine, exact = 1.0, exact or noisy
        elif tol > 0.25 * request.tol:
            fine *= 1e-3
        else:
            break
    assert best is not None
    return source.answer(best, request, iterations)


def _left(request: Request) -> float | None:
    """Seconds."""
    if request.max_seconds is None:
        return None
    return max(request.max_seconds - (time.monotonic() - request.started), 0.0)


def _judged(norm: Norm, request: Request, rows: Rows, part: MarginSolution, priced: Priced) -> Best:
    """The weights of a working set, with their gap over all rows."""
    margins, W, upper, gap, below = rows.margins, part.W, part.norm, 1.0, priced.below
    if request.slack is not None:
        primal = 0.5 * upper**2 + request.slack * priced.missed
        size = float(norm.dual_value(margins.adjoint(part.dual)))
        bound = float(margins.rhs @ part.dual) - 0.5 * size**2
        gap, below = max(0.0, primal - bound) / max(primal, np.finfo(np.float64).tiny), 0.0
    elif priced.smallest == math.inf:  # no right-hand side is positive
        gap = part.gap
    elif priced.smallest > 0.0:
        W, upper, below = W / priced.smallest, upper / priced.smallest, below / priced.smallest
        gap = max(0.0, 1.0 - lower_bound(margins, norm, part.dual) / upper)
    else:
        below = 1.0
    close = (part.dual != 0.0) | (margins(W) <= margins.rhs + _CLOSE)
    return Best(rows.taken(close), part.dual[close], part, W, upper, gap, below)


def _next(rows: Rows, part: MarginSolution, new: Rows, most: int) -> tuple[Rows, FloatArray]:
    """The next working set with the multipliers that are known: those rows that have one, and of
    all others those whose margins are least.
    """
    margins = rows.margins
    over = margins(part.W) - margins.rhs
    idle = part.dual == 0.0
    stay = ~(idle & (over > _IDLE * np.where(margins.rhs > 0.0, margins.rhs, 1.0)))
    join = ~np.isin(new.ids, rows.ids)
    rank = np.concatenate([np.where(idle, over, -np.inf), -new.short])
    rank[~np.concatenate([stay, join])] = np.inf
    if np.isfinite(rank).sum() + (~idle).sum() > most:
        last = np.partition(rank, most - 1)[most - 1]
        stay, join = np.split(rank <= last, [len(stay)])
    old = rows.taken(stay)
    both = joined([replace(old, short=-over[stay]), new.taken(join)])
    known = np.zeros(len(both.ids))
    known[np.isin(both.ids, old.ids)] = part.dual[stay]
    return both, known


def per_sequence(shape: tuple[int, int], sequences: int) -> int:
    """How many rows of each sequence a pass hands over: one, and more where the sequences are fewer
    than the unknowns.
    """
    return 1 + shape[0] * shape[1] // max(sequences, 1)


def priced(block: BlockRows, sequences: int, wanted: Wanted, size: float) -> Priced:
    """What ``wanted`` asks of the rows of a block, out of so many sequences in all; ``size`` bounds
    what is multiplied with moved queries.
    """
    W, each = wanted.W, wanted.each
    if W is None:
        W = block.mean()
        W = W / max(float(np.linalg.norm(W)), np.finfo(np.float64).tiny)
        each = per_sequence(block.shape, sequences)
    values, b = block.values(W, wanted.exact), block.rhs
    moved: FloatArray = np.abs(block.queries) @ np.abs(W).T
    reach = float(np.sqrt(np.einsum("nd,nd->n", moved, moved).max(initial=0.0)))
    rounding = (sum(block.shape) + 4) * _UNIT * size * reach
    positive = b > 0.0
    zero = values[~positive]
    smallest = float(((values - rounding)[positive] / b[positive]).min(initial=np.inf))
    short = b - values
    missed = float(np.maximum(short, 0.0).sum())
    near = np.flatnonzero(short > -wanted.within * np.where(positive, b, 1.0))
    near = _worst_of_each(block.offsets, short, near, each)
    if len(near) > wanted.most:
        near = np.sort(near[np.argpartition(-short[near], wanted.most)[: wanted.most]])
    return Priced(
        smallest if smallest == smallest else -np.inf,  # infinities that cancel prove nothing
        max(0.0, rounding - float(zero.min(initial=np.inf))),
        missed,
        rounding,
        Rows(near, short[near], block.write_out(near)),
    )


def _worst_of_each(offsets: IntArray, short: FloatArray, among: IntArray, most: int) -> IntArray:
    """Of every sequence the rows among these that fall short most."""
    sequence = np.searchsorted(offsets, among, side="right") - 1
    order = np.lexsort((-short[among], sequence))
    first = np.searchsorted(sequence, sequence)  # place of the first row of the same sequence
    found: IntArray = np.sort(among[order[np.arange(len(among)) - first < most]])
    return found


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


def worth(margins: Margins) -> bool:
    """Whether working sets pay: more rows than can matter, or than should be written out. Where all
    rows are written out already, only far more rows than that.
    """
    unknowns = math.prod(margins.shape)
    if not isinstance(margins, PairMargins):
        return margins.m > max(_VAST, _MANY * unknowns)
    return margins.m > max(2000, _MANY * unknowns) or margins.m * margins.shape[0] > _WRITTEN


class InMemory:
    """A source: margins that are there, checked before."""

    most = 1 << 62

    def __init__(self, margins: Margins, norm: Norm) -> None:
        self.margins, self.norm = margins, norm
        self.shape, self.sequences = margins.shape, margins.n
        self.block = block_rows(margins, 0)
        self.sizes: dict[bool, float] = {}

    def first(self) -> Rows:
        """As :class:`Source`."""
        return self.price(Wanted(None, math.inf, 1, self.margins.m, False)).rows

    def room(self, rows: Rows, needed: int) -> int:
        """As many as there are: of soft margins half of all rows may matter."""
        return max(_NEW * self.shape[0] * self.shape[1], _LEAST, rows.margins.m)

    def price(self, wanted: Wanted) -> Priced:
        """As :class:`Source`."""
        if wanted.exact not in self.sizes:
            self.sizes[wanted.exact] = self.block.size(wanted.exact)
        return priced(self.block, self.sequences, wanted, self.sizes[wanted.exact])

    def answer(self, best: Best, request: Request, iterations: int) -> MarginSolution:
        """Certified anew from all rows."""
        margins, part = self.margins, best.part
        dual = np.zeros(margins.m)
        dual[best.rows.ids] = best.dual
        found = (
            certify_hard(margins, self.norm, best.W, dual)
            if request.slack is None
            else certify_soft(margins, self.norm, best.W, dual, request.slack)
        )
        solution = solved(margins, found, request, f"working sets, {part.solver}", iterations)
        return replace(
            solution,
            rank=part.rank,
            rank_bound=part.rank_bound,
            unique=True if part.unique else None,
            geometry=self.norm,
        )

    def contradiction(self, rows: Rows, part: MarginSolution, iterations: int) -> MarginSolution:
        """As :class:`Source`."""
        dual = np.zeros(self.margins.m)
        dual[rows.ids] = part.dual
        return replace(
            part,
            margins=self.margins,
            dual=dual,
            support=rows.ids[part.support],
            slacks=np.zeros(self.margins.m),
            iterations=iterations,
        )
