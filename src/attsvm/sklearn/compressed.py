r"""The optimum of few columns of :class:`~attsvm.sklearn.witness.Witnesses`, in few passes over the
bags.

A pass keeps of each long bag the *heavy* rows, which have nearly all of the attention, and for each
column one tangent for all others: with their mean :math:`m` under the attention at :math:`w_0`,

.. math:: \log\sum_{\text{others}}e^{g_t(w)}\ \ge\ \log\sum_{\text{others}}e^{g_t(w_0)}
          +m^\top(w-w_0).

The small problem of heavy rows and tangents has the loss and the gradient of the whole table at
:math:`w_0`. Short bags are kept whole, so where all are short it is the problem itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.rows import Block, matmul
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import CONSTANT
from attsvm.sklearn.lockstep import ColumnLoss, DescentOptions, descend_columns
from attsvm.sklearn.passes import map_shares
from attsvm.sklearn.witness import BagLoss, Witnesses

SMALL = DescentOptions()
"""How small problems of final weights are solved."""


@dataclass(frozen=True)
class PolishOptions:
    """When the optimum of columns is reached, and what passes keep.

    Attributes:
        gap: of the convex step, relative to its objective, at which a column is done.
        passes: most passes over the bags.
        descent: of the small problems.
        short: most instances of a bag that is kept whole.
        heavy: most rows that a pass chooses in a longer bag.
        light: share of the loss, in units of what an uncertain bag of mean weight has, that all
            rows which are not chosen may have.
        forgotten: such a share of a row, below which it is not kept for an earlier pass's sake.
    """

    gap: float = 1e-6
    passes: int = 40
    descent: DescentOptions = SMALL
    short: int = 64
    heavy: int = 64
    light: float = 1e-2
    forgotten: float = 1e-5


@dataclass(frozen=True, eq=False)
class Polished:
    """Columns at the end of :func:`polish`.

    Attributes:
        weights: ``(d + 1, C * G)``.
        objective: ``(C,)`` of the convex step: loss, entropy of the selection and penalty.
        gap: ``(C,)`` of the convex step, from the whole table.
        violation: ``(C,)``: norm of the gradient over that of the penalty's part of it.
        sums: ``(n, C, G)`` of the bags.
        iterations: evaluations of small problems.
    """

    weights: FloatArray
    objective: FloatArray
    gap: FloatArray
    violation: FloatArray
    sums: FloatArray
    iterations: int


@dataclass(frozen=True, eq=False)
class Objective:
    """The minimisation of columns: the loss of bags or a convex step, and penalties.

    Attributes:
        problem: the bags.
        loss: of their logarithms of sums.
        shares: ``(n, C)``.
        penalty: ``(C,)``.
        gain: ``(d + 1, C * G)``, the linear part of a convex step of fixed selections; None for the
            loss of bags, whose selections follow the weights.
    """

    problem: Witnesses
    loss: BagLoss
    shares: FloatArray
    penalty: FloatArray
    gain: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class _Pass:
    """Values, gradients and the small problem of one pass over the bags at some weights.

    Attributes:
        values: ``(C,)``: loss and penalty.
        gradients: ``(D, C)``: of both.
        entropies: ``(C,)``: what the objective of the convex step has more.
        sums: ``(n, C, G)``.
        loss: without penalty, of the small problem.
        rows: ``(H,)``: which rows were kept, for the next pass.
    """

    values: FloatArray
    gradients: FloatArray
    entropies: FloatArray
    sums: FloatArray
    loss: _SmallLoss
    rows: IntArray


@dataclass(eq=False)
class _Share:
    """What a share of the bags has of a pass.

    Attributes:
        value, entropies: ``(C,)``, as of :class:`_Pass`, the value without penalty.
        gradient: ``(d + 1, C * G)`` of the loss.
        heavy_rows: as they are in the table, a block at a time.
        chosen: which they are.
        light: of each long bag the means of the other rows, in units, and the logarithms of their
            sums.
    """

    value: FloatArray
    entropies: FloatArray
    gradient: FloatArray
    heavy_rows: list[FloatArray] = field(default_factory=list)
    chosen: list[IntArray] = field(default_factory=list)
    light: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)


def polish(
    objective: Objective, start: FloatArray, dtype: type, options: PolishOptions
) -> Polished:
    r"""Weights at which the convex step of every column is solved, from ``(d + 1, C * G)`` weights.

    1. A pass over the bags at the weights; it gives the certificate, and the weights are the best
       so far or not.
    2. A step that fell by less than its small problem promised makes the next one shorter, by a
       larger proximal term :math:`\tfrac\rho2\|w-w_{\text{best}}\|^2`.
    3. The small problem, with that term, is solved.

    Args:
        objective: of the columns.
        start: weights.
        dtype: of the products of a pass and of its small problem; that of the certificate must be
            float64.
        options: when to end.
    """
    penalty = objective.penalty
    size, count = len(start), len(penalty)
    points = _joined(start, count)
    near, least_near = penalty.copy(), penalty / 2.0
    tolerance = 1e-9 if dtype == np.float64 else 1e-6  # of products in this precision
    best_value, promised = np.full(count, np.inf), np.zeros(count)
    gap, violation, convex = (np.full(count, np.inf) for _ in range(3))
    best_points, sums = points.copy(), np.empty((0,))
    rows = np.zeros(0, dtype=np.int64)
    iterations = 0
    for k in range(options.passes):
        # 1. certificate
        now = _pass(objective, points, dtype, rows, options)
        better = now.values <= best_value * (1.0 + tolerance)
        if k == 0:
            sums = now.sums.copy()
        squares = np.einsum("dc,dc->c", now.gradients, now.gradients)
        steps = now.values + now.entropies
        norms = penalty * np.linalg.norm(points, axis=0)
        gap[better] = (squares / (2.0 * penalty * np.maximum(steps, 1e-300)))[better]
        violation[better] = (np.sqrt(squares) / np.maximum(norms, 1e-300))[better]
        convex[better], sums[:, better] = steps[better], now.sums[:, better]
        best_points[:, better] = points[:, better]
        # 2. the length of the next step
        if k:
            fall = (best_value - now.values) / np.maximum(promised, 1e-12 * np.abs(best_value))
            near = np.where(fall > 0.9, np.maximum(near / 2.0, least_near), near)
            near = np.where(fall < 0.6, 4.0 * near, near)
            near = np.where(better, near, np.maximum(near, 4.0 * penalty))
            least_near = np.where(better, least_near, 2.0 * penalty)
        best_value = np.where(better, now.values, best_value)
        if (gap <= options.gap).all() or k == options.passes - 1:
            break
        # 3. the small problem
        rows = now.rows
        around = near if not now.loss.is_whole else np.zeros(count)
        small = now.loss.penalised(points, now.gradients, penalty, around, best_points)
        points, inside, more = descend_columns(small, points, options.descent)
        promised = best_value - inside
        iterations += more
        del now, small  # their rows, before the next pass keeps its own
    return Polished(_parted(best_points, size), convex, gap, violation, sums, iterations)


def _joined(weights: FloatArray, count: int) -> FloatArray:
    """``(G * (d + 1), C)`` points of ``(d + 1, C * G)`` weights."""
    size = len(weights)
    return weights.reshape(size, count, -1).transpose(2, 0, 1).reshape(-1, count).copy()


def _parted(points: FloatArray, size: int) -> FloatArray:
    """``(d + 1, C * G)`` weights of ``(G * (d + 1), C)`` points."""
    count = points.shape[1]
    return points.reshape(-1, size, count).transpose(1, 2, 0).reshape(size, -1)


def _pass(
    objective: Objective,
    points: FloatArray,
    dtype: type,
    earlier: IntArray,
    options: PolishOptions,
) -> _Pass:
    """One pass over the bags; ``earlier`` are the rows that the last one kept."""
    problem, shares = objective.problem, objective.shares
    bags, groups = problem.bags, problem.columns
    size, count = bags.d + 1, len(objective.penalty)
    weights = _parted(points, size)
    sums = np.empty((bags.n, count * groups))
    # what an uncertain bag of mean weight has in a column
    scale = np.repeat(0.25 / np.maximum(np.count_nonzero(shares, axis=0), 1), groups)

    def read(blocks: Iterator[Block]) -> _Share:
        """What some of the bags have; their ``sums`` are filled in.

        For each block: 1. attention and losses of the bags; 2. the gradient; 3. entropies, for the
        value of the convex step; 4. heavy rows; 5. of each long bag the mean of the others.
        """
        share = _Share(np.zeros(count), np.zeros(count), np.zeros_like(weights))
        for block in blocks:
            at, cuts = block.bags, block.cuts
            # 1. losses
            attention, total = segments.softmax(problem.scores(block.rows, weights), cuts)
            sums[at] = total
            grouped = sums[at].reshape(len(at), count, groups)
            losses, slopes = objective.loss(grouped, problem.labels[at])
            share.value += np.einsum("nc,nc->c", shares[at], losses)
            # 2. the gradient
            slope = (slopes * shares[at][..., None]).reshape(len(at), -1)
            lengths = np.diff(cuts)
            pulled = attention * np.repeat(slope.astype(attention.dtype), lengths, axis=0)
            share.gradient[:-1] += segments.columns(block.rows.T, pulled) / problem.unit
            share.gradient[-1] += CONSTANT * slope.sum(axis=0)
            # 3. entropies
            if objective.gain is None:
                logs = attention * np.log(np.maximum(attention, 1e-30))
                entropy = -segments.sums(logs, cuts).reshape(grouped.shape)
                convex, _ = problem.convex_losses(grouped, problem.labels[at])
                selected = problem.chances(grouped, problem.labels[at]) * (grouped - entropy)
                extra = convex - selected.sum(axis=-1) - losses
                share.entropies += np.einsum("nc,nc->c", shares[at], extra)
            # 4. heavy rows
            begin = int(bags.offsets[at[0]])
            known = earlier[np.searchsorted(earlier, begin) :]
            known = known[: np.searchsorted(known, begin + len(block.rows))] - begin
            heavy = _heavy_rows(attention, np.abs(slope) / scale, cuts, known, options)
            share.heavy_rows.append(block.rows[heavy].astype(bags.rows.dtype))  # exact
            share.chosen.append(begin + heavy)
            # 5. the others of long bags
            ends = np.searchsorted(heavy, cuts)
            for i in np.flatnonzero(lengths > options.short):
                light = attention[cuts[i] : cuts[i + 1]].copy()
                light[heavy[ends[i] : ends[i + 1]] - cuts[i]] = 0.0
                mass = light.sum(axis=0, dtype=np.float64)
                mean = segments.columns(block.rows[cuts[i] : cuts[i + 1]].T, light).T
                mean = mean / (np.maximum(mass, 1e-30) * problem.unit)[:, None]
                rest = np.where(mass > 1e-12, total[i] + np.log(np.maximum(mass, 1e-30)), -1e4)
                share.light.append((mean.astype(dtype), rest))
        return share

    read_shares = map_shares(bags, dtype, read)
    value = np.sum([share.value for share in read_shares], axis=0)
    entropies = np.sum([share.entropies for share in read_shares], axis=0)
    gradient = np.sum([share.gradient for share in read_shares], axis=0)
    if objective.gain is not None:
        linear = (objective.gain * weights).sum(axis=0).reshape(count, groups).sum(axis=1)
        value -= linear
        gradient -= objective.gain
    gradients = _joined(gradient, count) + objective.penalty * points
    value += 0.5 * objective.penalty * np.einsum("dc,dc->c", points, points)
    rows = np.concatenate([rows for share in read_shares for rows in share.chosen])
    heavy_rows: FloatArray = np.empty((len(rows), bags.d), dtype)
    end = 0
    for of_block in (block_rows for share in read_shares for block_rows in share.heavy_rows):
        start, end = end, end + len(of_block)
        np.divide(of_block, problem.unit, out=heavy_rows[start:end], dtype=dtype)
    long = np.flatnonzero(bags.lengths > options.short)
    tangents: FloatArray = np.empty((count * groups, len(long), bags.d), dtype)
    levels = np.empty((len(long), count * groups))
    tangents_read = (pair for share in read_shares for pair in share.light)
    for k, (mean, rest) in enumerate(tangents_read):
        tangents[:, k] = mean
        levels[k] = rest - np.einsum("gd,dg->g", mean, weights[:-1]) - CONSTANT * weights[-1]
    small = _SmallLoss(
        objective,
        heavy_rows,
        np.searchsorted(rows, bags.offsets),
        long,
        tangents,
        levels,
    )
    by_column = sums.reshape(bags.n, count, groups)
    return _Pass(value, gradients, entropies, by_column, small, rows)


def _heavy_rows(
    attention: FloatArray,
    weights: FloatArray,
    cuts: IntArray,
    earlier: IntArray,
    options: PolishOptions,
) -> IntArray:
    """Rising positions of the rows of a block that are kept: all of short bags; of longer ones,
    those of most attention until the rest is light in every column; and those of an earlier pass
    that still count.
    """
    lengths = np.diff(cuts)
    keep = np.repeat(lengths <= options.short, lengths)
    if keep.all():
        return np.arange(cuts[-1])
    bag = np.repeat(np.arange(len(lengths)), lengths)
    wide = weights[bag]
    most = (attention * wide).max(axis=1)
    order = np.lexsort((-most, bag))
    ordered = attention[order].astype(np.float64)
    before = np.cumsum(ordered, axis=0) - ordered
    before -= np.repeat(before[cuts[:-1]], lengths, axis=0)
    rank = np.arange(len(order)) - np.repeat(cuts[:-1], lengths)
    is_needed = ((1.0 - before) * wide >= options.light).any(axis=1) & (rank < options.heavy)
    keep[order[is_needed | (rank == 0)]] = True
    keep[earlier[most[earlier] > options.forgotten]] = True
    return np.flatnonzero(keep)


class _SmallLoss:
    """The loss of heavy rows and tangents.

    Args:
        objective: of the columns.
        rows: ``(H, d)`` heavy rows in units.
        cuts: ``(n + 1,)``: where those of each bag begin.
        long: ``(L,)``: the bags that have tangents.
        tangents: ``(C * G, L, d)``: means of the other rows, in units.
        levels: ``(L, C * G)``: the logarithm of the sum of the others at weights of zero.
    """

    def __init__(
        self,
        objective: Objective,
        rows: FloatArray,
        cuts: IntArray,
        long: IntArray,
        tangents: FloatArray,
        levels: FloatArray,
    ) -> None:
        self.objective, self.rows, self.cuts, self.long = objective, rows, cuts, long
        self.tangents, self.levels = tangents, levels

    @property
    def is_whole(self) -> bool:
        """True where it is the problem itself, because every bag was kept whole."""
        return len(self.long) == 0

    def __call__(self, points: FloatArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
        """Values and gradients of some columns; see :data:`~attsvm.sklearn.lockstep.ColumnLoss`."""
        problem, shares = self.objective.problem, self.objective.shares[:, columns]
        groups, size = problem.columns, self.rows.shape[1] + 1
        of = (columns[:, None] * groups + np.arange(groups)).ravel()
        weights = _parted(points, size)
        rounded: FloatArray = weights[:-1].astype(self.rows.dtype)
        constant = CONSTANT * weights[-1]
        scores = segments.columns(self.rows, rounded).astype(np.float64) + constant
        top = segments.largest(scores, self.cuts)
        tangent = np.empty((len(self.long), len(of)))
        for k, column in enumerate(of):
            tangent[:, k] = matmul(self.tangents[column], np.ascontiguousarray(rounded[:, k]))
        tangent += self.levels[:, of] + constant
        top[self.long] = np.maximum(top[self.long], tangent)
        lengths = np.diff(self.cuts)
        powers = np.exp(scores - np.repeat(top, lengths, axis=0))
        total = segments.sums(powers, self.cuts)
        others = np.exp(tangent - top[self.long])
        total[self.long] += others
        sums = (top + np.log(total)).reshape(problem.bags.n, -1, groups)
        losses, slopes = self.objective.loss(sums, problem.labels)
        slope = (slopes * shares[..., None]).reshape(problem.bags.n, -1)
        pulled = slope / total
        powers *= np.repeat(pulled, lengths, axis=0)
        others *= pulled[self.long]
        gradient = np.empty_like(weights)
        gradient[:-1] = segments.columns(self.rows.T, powers.astype(self.rows.dtype))
        for k, column in enumerate(of if len(self.long) else []):
            gradient[:-1, k] += others[:, k].astype(self.rows.dtype) @ self.tangents[column]
        gradient[-1] = CONSTANT * slope.sum(axis=0)
        values = np.einsum("nc,nc->c", shares, losses)
        if self.objective.gain is not None:
            gain = self.objective.gain[:, of]
            values -= (gain * weights).sum(axis=0).reshape(len(columns), groups).sum(axis=1)
            gradient -= gain
        return values, _joined(gradient, len(columns))

    def penalised(
        self,
        here: FloatArray,
        gradients: FloatArray,
        penalty: FloatArray,
        near: FloatArray,
        around: FloatArray,
    ) -> ColumnLoss:
        r"""The loss with penalties, and :math:`\tfrac\rho2\|w-w_{\text{around}}\|^2` with ``near``
        for :math:`\rho`.

        Products are in single precision. A linear term takes off the error of the gradient at the
        points ``here``, where it is ``gradients``, as in iterative refinement.
        """
        everything = np.arange(len(penalty))
        error = gradients - (self(here, everything)[1] + penalty * here)

        def loss(points: FloatArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
            values, slopes = self(points, columns)
            far, moved = points - around[:, columns], points - here[:, columns]
            values += np.einsum("dc,dc->c", error[:, columns], moved)
            values += 0.5 * penalty[columns] * np.einsum("dc,dc->c", points, points)
            values += 0.5 * near[columns] * np.einsum("dc,dc->c", far, far)
            slopes += error[:, columns] + penalty[columns] * points + near[columns] * far
            return values, slopes

        return loss
