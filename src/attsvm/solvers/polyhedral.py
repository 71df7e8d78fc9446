r"""Hard margins in the norms whose balls are polyhedra, :math:`\ell_1` and :math:`\ell_\infty`.

.. math:: \min_W \|W\|_p \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c, \qquad p\in\{1,\infty\},

are linear programmes. Interior points in compiled code (``native/interior.cpp``) come near the
solution and end at the vertex that strict complementarity points to: as many rows that are tight as
entries that move give one square system for the weights and one for the multipliers. A solve goes
through these stages, and ends with the first that is good enough:

1. the caller's weights and multipliers are certified;
2. small programmes go to interior points whole;
3. the Frobenius solver says which programmes have no solution, which does not depend on the norm;
4. where features have different units, interior points take all rows
   (:mod:`attsvm.solvers.interior`);
5. else they take working sets of rows: first those that the Frobenius weights have near tight, then
   also those that are missed.

Everything is certified from the caller's margins, and the best certified answer is returned.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm import native
from attsvm.base.cores import map_on_threads, threads
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins, MarginsBatch
from attsvm.norms import Frobenius, Lp, Norm
from attsvm.solvers import compiled, frobenius
from attsvm.solvers.column_sizes import Even, even_columns
from attsvm.solvers.optimality_checks import unique_weights
from attsvm.solvers.outcomes import (
    STATUS,
    Request,
    certified_solution,
    is_within_tolerance,
    zero_solution,
)
from attsvm.solvers.programme import Programme, equilibrate
from attsvm.solvers.proofs import Certificate, certify_hard, lower_bound
from attsvm.solvers.scaling import scaled
from attsvm.solvers.solution import MarginSolution

SOLVER = "interior points"
"""What solutions of this method name as their solver."""

_PAIRS = (("lam", "s"), ("u", "zu"), ("v", "zv"))  # arrays whose products go to zero
_ROUNDING = 1e-14  # of the square of the norm and the bound, relative


class RoughStage(NamedTuple):
    """A stage of working sets that need not be exact.

    Attributes:
        gap: relative gap at which rows join.
        reach: distance to tightness, relative to the largest right-hand side, of rows that do.
    """

    gap: float
    reach: float


class PolyhedralOptions(NamedTuple):
    """Numbers of the method. They decide how long it takes, never what is certified; chosen on
    random programmes of 300 to 30,000 rows.

    Attributes:
        aim: relative gap that is aimed at: a vertex gives it nearly always.
        few_rows: rows, and
        few_entries: entries of the rows written out, up to which all rows are taken at once.
        near: margins of the Frobenius weights, over their right-hand sides, of the first rows.
        rough: stages before the exact one.
        stays: times the reach of a stage within which its rows stay.
        behind: gap over what new rows miss, below which points are too near their boundary to go on
            from.
        stages: working sets, at most; untuned.
        floor: least slack of new rows, in roots of their complementarity.
        iterations: of interior points on one working set, at most.
        patience: iterations without progress that end them, and
        uneven_patience: where entries cost differently.
        lapack_rows: rows from which LAPACK factorises.
        nearly_balanced: relative distance of the bound to the norm's square below which multipliers
            are not scaled where that
        worse_gap: multiplies their gap by more than this.
        ranges_per_thread: of a batch, so that no thread waits long for another; untuned.
    """

    aim: float = 1e-13
    few_rows: int = 256
    few_entries: int = 1 << 14
    near: float = 1.04
    rough: tuple[RoughStage, ...] = (
        RoughStage(1e-1, 0.05),
        RoughStage(1e-2, 0.02),
        RoughStage(1e-3, 0.002),
    )
    stays: float = 5.0
    behind: float = 0.3
    stages: int = 30
    floor: float = 0.3
    iterations: int = 60
    patience: int = 5
    uneven_patience: int = 20
    lapack_rows: int = 100
    nearly_balanced: float = 1e-6
    worse_gap: float = 1.01
    ranges_per_thread: int = 8


POLYHEDRAL = PolyhedralOptions()


@np.errstate(over="ignore")  # what leaves float64 on the way is certified all the same
def solve(
    margins: Margins, norm: Norm, request: Request, options: PolyhedralOptions = POLYHEDRAL
) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    assert isinstance(norm, Lp)
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    return _PolyhedralSolve(margins, norm, request, options).run()


class _PolyhedralSolve:
    """One solve: the stages of this module, and the best certificate so far.

    Attributes:
        margins: the caller's programme.
        box: whether the norm is the largest of the entries.
        rows: positions of one row for each pair of opposite rows, and of all others.
        folded: the programme of these rows.
        has_any_sign: of these rows, 1 for one that stands for a pair.
        best: the best certificate so far.
        systems: linear systems so far.
    """

    def __init__(
        self, margins: Margins, norm: Lp, request: Request, options: PolyhedralOptions
    ) -> None:
        self.margins, self.norm, self.request, self.options = margins, norm, request, options
        self.box = norm.p != 1.0
        self.rows, self.folded = np.arange(margins.m), margins
        self.has_any_sign = np.zeros(margins.m, np.uint8)
        if request.opposite is not None:
            # One row stands for a pair, with a multiplier of any sign.
            is_paired, rhs = request.opposite >= 0, margins.rhs
            stands_for_pair = (rhs > 0.0) | ((rhs == 0.0) & (self.rows < request.opposite))
            self.rows = np.flatnonzero(~is_paired | stands_for_pair)
            self.folded = margins.restricted(self.rows)
            self.has_any_sign = is_paired[self.rows].view(np.uint8)
        self.best: Certificate | None = None
        self.systems = 0

    def run(self) -> MarginSolution:
        """The solution, or what the Frobenius solver says of a programme that has none."""
        request, folded = self.request, self.folded
        # 1. The caller's weights.
        if request.warm_start is not None and request.warm_weights is not None:
            self._consider(request.warm_weights, request.warm_start)
        # 2. A small programme whole.
        if not self._is_within_tolerance() and fits_polyhedral(
            folded.m, folded.shape, self.options
        ):
            batch = compiled_points(folded, self.box, self.has_any_sign, self.options)
            self.systems += int(batch.systems[0])
            if batch.gap[0] < 1.0:
                self._consider(batch.W[0], self._unfold(batch.dual))
        if not self._is_within_tolerance():
            # 3. The Frobenius solution.
            # Columns of one size, because whether weights exist does not depend on them.
            even = even_columns(self.margins)
            cold = replace(request, warm_start=None, warm_weights=None)
            start = frobenius.solve(even.margins, Frobenius(), cold)
            if not start.has_weights:
                return replace(start, margins=self.margins)
            self._consider(even.restored(start.W), start.dual)
            hopeless = start.status == "almost infeasible" and start.gap > STATUS.hopeless
            # 4. All rows, or 5. working sets.
            if not hopeless and not (even.uneven and self._solve_all_rows(even, start.W)):
                self._solve_working_sets(even, start)
        assert self.best is not None
        certificate = balance(self.margins, self.norm, self.best)
        return polyhedral_solution(self.margins, self.norm, certificate, request, self.systems)

    def _fold(self, even: Even) -> Margins:
        """The rows with columns of one size, one for each pair of opposite ones."""
        margins = even.margins
        return margins if len(self.rows) == margins.m else margins.restricted(self.rows)

    def _unfold(self, dual: FloatArray) -> FloatArray:
        """Multipliers of all rows, of a pair of opposite rows on the one that their sign says."""
        if self.request.opposite is None:
            return dual
        is_pair = self.has_any_sign == 1
        unfolded = np.zeros(self.margins.m)
        unfolded[self.rows] = np.where(is_pair, np.maximum(dual, 0.0), dual)
        opposite = self.request.opposite[self.rows[is_pair]]
        unfolded[opposite] = np.maximum(-dual[is_pair], 0.0)
        return unfolded

    def _solve_all_rows(self, even: Even, start: FloatArray) -> bool:
        """Interior points on all rows, which take columns that cost next to nothing; whether the
        programme is small enough for them.
        """
        # few programmes come here, and the import takes longer than most of them
        from attsvm.solvers.interior import InteriorPoints, fits_interior

        if not fits_interior(len(self.rows), math.prod(self.margins.shape)):
            return False
        is_equality = self.has_any_sign == 1

        def consider(W: FloatArray, dual: FloatArray) -> float:
            non_negative = np.where(is_equality, dual, np.maximum(dual, 0.0))
            return self._consider(W, self._unfold(non_negative))

        method = InteriorPoints(
            even._replace(margins=self._fold(even)),
            self.box,
            self.request,
            is_equality,
            consider,
            start=start,
        )
        method.run()
        self.systems += method.iterations
        return True

    def _solve_working_sets(self, even: Even, start: MarginSolution) -> None:
        """Interior points on rows that the start has near tight, and on those that they miss.

        1. The first working set: rows near tight, with a multiplier, or of a pair.
        2. Interior points on the working set, from the last point that was not exact, to the gap of
           the stage.
        3. What their weights miss of all rows. Only exact points, and those that miss nothing, are
           certified.
        4. Points that lie too near their boundary for what new rows miss are given up.
        5. Rows that are far from tight leave, once each, and rows that are missed join.
        """
        options, tol = self.options, self.request.tol
        p, cost = equilibrate(self._fold(even), None), even.costs()
        W, dual = np.ldexp(start.W, -p.weight_exponent), start.dual[self.rows]
        # weights near one are what interior points begin with
        size_exponent = int(np.frexp(np.abs(W).max())[1])
        p = replace(p, b=np.ldexp(p.b, -size_exponent))
        weight_exponent = p.weight_exponent + size_exponent
        values = p.values(np.ldexp(start.W, -weight_exponent))
        # 1. The first working set.
        is_pair = self.has_any_sign == 1
        is_working = (values <= options.near * p.b) | (dual != 0.0) | is_pair
        rough_points: list[_WorkingSet] = []
        has_left = np.zeros(p.m, np.bool_)
        largest_rhs = float(p.b.max())
        for _ in range(options.stages):
            # 2. Interior points.
            is_exact = len(rough_points) >= len(options.rough)
            target, reach = (options.aim, 0.0) if is_exact else options.rough[len(rough_points)]
            # Points that are not exact are inside; from a vertex there is no way on.
            before = rough_points[-1] if rough_points else None
            rows = np.flatnonzero(is_working)
            working = _WorkingSet(p, cost, rows, self.has_any_sign, self.box, before, options)
            working.run(target, self.request)
            self.systems += working.points.systems
            # 3. What is missed.
            W, multipliers = working.best()
            values = p.values(W)
            # Weights scaled to the working set, so that its own rows miss nothing.
            ratio = working.least_ratio(values)
            missed = p.b - values / ratio if ratio > 0.0 else np.where(is_working, 0.0, largest_rhs)
            # A tenth of the tolerance leaves room for the scaling of the weights.
            is_missed = (missed > 0.1 * tol * p.b) & ~is_working
            misses_some = bool(is_missed.any())
            if is_exact or not misses_some or self.request.late:
                dual = np.zeros(p.m)
                dual[working.rows] = multipliers
                weights = even.restored(np.ldexp(W, weight_exponent))
                self._consider(weights, self._unfold(np.ldexp(dual, p.dual_exponent)))
            has_reached = working.points.gap <= max(target, 0.1 * tol)
            if self._is_within_tolerance() or self.request.late or (is_exact and not misses_some):
                break
            if not has_reached and not rough_points and not misses_some:
                break
            # 4. Points to go on from.
            worst = float(missed[is_missed].max(initial=0.0)) / largest_rhs
            if not has_reached:
                rough_points = []
            elif not is_exact:
                rough_points.append(working)
            while rough_points and rough_points[-1].points.gap < options.behind * worst:
                rough_points.pop()
            # 5. The next working set.
            if rough_points and rough_points[-1] is working:
                # A row that has come back stays, or it would go round in circles.
                stays = (missed > -options.stays * reach * largest_rhs) | is_pair | has_left
                has_left |= is_working & ~stays
                is_working &= stays
            is_working |= missed > 0.1 * tol * p.b - reach * largest_rhs

    def _consider(self, W: FloatArray, dual: FloatArray) -> float:
        """Keep weights and multipliers if they are better certified than the best so far.

        Returns:
            Their certified error; infinite where they are not finite.
        """
        if not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return np.inf
        certificate = certify_hard(self.margins, self.norm, W, dual)
        if self.best is None or certificate.error < self.best.error:
            self.best = certificate
        return certificate.error

    def _is_within_tolerance(self) -> bool:
        best = self.best
        return best is not None and is_within_tolerance(best.error, best.rounding, self.request.tol)


class _WorkingSet:
    """Interior points on some rows of a programme, from where they were on other rows.

    Attributes:
        rows: positions of the rows.
        points: the interior points, as the compiled core has them.
    """

    def __init__(
        self,
        p: Programme,
        cost: FloatArray,
        rows: IntArray,
        has_any_sign: NDArray[np.uint8],
        box: bool,
        before: _WorkingSet | None,
        options: PolyhedralOptions,
    ) -> None:
        self._p, self.rows, self._options = p, rows, options
        counts = np.bincount(p.sequence[rows], minlength=len(p.Z))
        sequences = np.flatnonzero(counts)
        offsets = np.concatenate([[0], np.cumsum(counts[sequences])])
        m = len(rows)
        self._programme = native.ProgrammeRows(
            p.D[rows], p.Z[sequences], p.b[rows], np.full(m, np.inf), offsets, has_any_sign[rows]
        )
        is_even = cost.min() == cost.max()
        patience = options.patience if is_even else options.uneven_patience
        self.points = native.Interior(m, cost, box, patience)
        native.library.interior_begin(self._programme, self.points)
        if before is not None:
            self._go_on(before)

    def _go_on(self, before: _WorkingSet) -> None:
        """Take over the point of ``before``; rows that are new get slacks from its weights and
        multipliers of the same complementarity.
        """
        p, arrays, arrays_before = self._p, self.points.arrays, before.points.arrays
        for name in ("w", "u", "v", "zu", "zv"):
            arrays[name][:] = arrays_before[name]
        self.points.tau = before.points.tau
        # The mean complementarity of the point, which new rows get too.
        products = sum(float(arrays_before[a] @ arrays_before[b]) for a, b in _PAIRS)
        mu = products / (len(before.rows) + 2 * p.dof)
        # all rows first as if they were new
        values = p.values(arrays_before["w"].reshape(p.shape))[self.rows]
        rhs = p.b[self.rows] * (self.points.tau if self.points.box else 1.0)
        arrays["s"][:] = np.maximum(values - rhs, self._options.floor * np.sqrt(mu))
        arrays["lam"][:] = mu / arrays["s"]
        # then those that were there
        positions = np.searchsorted(self.rows, before.rows)
        stays = self.rows[np.minimum(positions, len(self.rows) - 1)] == before.rows
        for name in ("s", "lam"):
            arrays[name][positions[stays]] = arrays_before[name][stays]

    def run(self, enough: float, request: Request) -> None:
        """Go on to a relative gap on these rows of ``enough``, or as far as the points go."""
        points, options = self.points, self._options
        blas = native.blas() if len(self.rows) > options.lapack_rows else None
        if request.max_seconds is None:
            native.library.interior(self._programme, points, blas, enough, options.iterations)
            return
        for _ in range(options.iterations):
            # One iteration at a time, to look at the clock between them.
            points.seconds = request.left
            native.library.interior(self._programme, points, blas, enough, 1)
            if points.gap <= enough or points.idle > points.patience or request.late:
                return

    def best(self) -> tuple[FloatArray, FloatArray]:
        """Weights and multipliers of the least gap."""
        arrays = self.points.arrays
        return arrays["best_w"].reshape(self._p.shape), arrays["best_lam"]

    def least_ratio(self, values: FloatArray) -> float:
        """The least margin over its right-hand side among these rows."""
        b = self._p.b[self.rows]
        return float((values[self.rows][b > 0.0] / b[b > 0.0]).min())


class CompiledPoints(NamedTuple):
    """Interior points of programmes that lie end to end.

    Attributes:
        W: ``(B, d_x, d_z)`` weights.
        dual: ``(M,)`` multipliers.
        gap: ``(B,)`` relative gaps; below 1 where there are weights.
        systems: ``(B,)`` linear systems.
    """

    W: FloatArray
    dual: FloatArray
    gap: FloatArray
    systems: IntArray


def compiled_points(
    margins: Margins | MarginsBatch,
    box: bool,
    has_any_sign: NDArray[np.uint8] | None = None,
    options: PolyhedralOptions = POLYHEDRAL,
) -> CompiledPoints:
    """The interior points of one programme or of many, by one compiled call for each thread."""
    D, Z, b = (
        np.ascontiguousarray(array, np.float64)
        for array in (margins.differences, margins.queries, margins.rhs)
    )
    m, offsets = len(b), np.ascontiguousarray(margins.offsets, np.int64)
    instances = (
        np.ascontiguousarray(margins.instances, np.int64)
        if isinstance(margins, MarginsBatch)
        else np.array([0, len(Z)])
    )
    signs = np.zeros(m, np.uint8) if has_any_sign is None else has_any_sign
    programme = native.ProgrammeRows(D, Z, b, b, offsets, signs)
    count = len(instances) - 1
    points = CompiledPoints(
        np.zeros((count, D.shape[1], Z.shape[1])),
        np.zeros(m),
        np.full(count, np.inf),
        np.zeros(count, np.int64),
    )
    addresses = (
        native.address(points.W, np.float64, *points.W.shape),
        native.address(points.dual, np.float64, m),
        native.address(points.gap, np.float64, count),
        native.address(points.systems, np.int64, count),
    )
    starts = native.address(instances, np.int64, count + 1)

    def solve_range(first_and_last: tuple[int, int]) -> None:
        native.library.interior_many(
            programme, starts, *first_and_last, box, options.aim, *addresses
        )

    if count == 1:
        solve_range((0, 1))
    else:
        cuts = np.linspace(0, count, options.ranges_per_thread * threads() + 1).astype(int)
        map_on_threads(solve_range, list(itertools.pairwise(np.unique(cuts).tolist())))
    return points


class CertifiedBatch(NamedTuple):
    """Solutions of a batch, and the certificates of those that are settled, by position."""

    solutions: compiled.CompiledSolutions
    certificates: dict[int, Certificate]


def fits_polyhedral(
    rows: int, shape: tuple[int, int], options: PolyhedralOptions = POLYHEDRAL
) -> bool:
    """Whether a programme is small enough for compiled code from end to end."""
    return rows <= options.few_rows and rows * shape[0] * shape[1] <= options.few_entries


def certify_batch(batch: MarginsBatch, norm: Norm, request: Request) -> CertifiedBatch:
    """Many programmes at once; those without a good point are left to :func:`solve`."""
    assert isinstance(norm, Lp)
    points = compiled_points(batch, norm.p != 1.0)
    solutions = compiled.unsolved(batch.differences, batch.queries, batch.instances)._replace(
        W=points.W, dual=points.dual, systems=points.systems
    )
    certificates: dict[int, Certificate] = {}
    for k in np.flatnonzero(points.gap <= request.tol).tolist():
        margins, rows = batch[k], slice(batch.rows[k], batch.rows[k + 1])
        certificate = certify_hard(margins, norm, points.W[k], points.dual[rows])
        certificate = balance(margins, norm, certificate)
        is_optimal = is_within_tolerance(certificate.error, certificate.rounding, request.tol)
        # Programmes far from one are scaled first, by the ordinary solver.
        if is_optimal and scaled(margins).margins is margins:
            figures = certificate.norm, certificate.gap, certificate.violation
            solutions.figures[k] = *figures, certificate.rounding
            points.W[k], points.dual[rows] = certificate.W, certificate.dual
            solutions.outcome[k], certificates[k] = compiled.WEIGHTS, certificate
    return CertifiedBatch(solutions, certificates)


def balance(
    margins: Margins,
    norm: Norm,
    certificate: Certificate,
    options: PolyhedralOptions = POLYHEDRAL,
) -> Certificate:
    """The certificate with multipliers such that ``b @ dual`` is the square of the norm."""
    total = float(margins.rhs @ certificate.dual)
    if not (total > 0.0 and certificate.gap < 1.0):
        return certificate
    imbalance = abs(certificate.norm**2 / total - 1.0)
    if imbalance <= _ROUNDING:
        return certificate
    dual = certificate.dual * (certificate.norm / total) * certificate.norm
    # the gap once more, since the multipliers are rounded once more
    gap = max(0.0, 1.0 - lower_bound(margins, norm, dual) / certificate.norm)
    # Small multipliers cancel what others leave over, to their last digits: scaling loses these.
    is_worse = gap > options.worse_gap * certificate.gap + options.aim
    if is_worse and imbalance < options.nearly_balanced:
        return certificate
    return certificate._replace(dual=dual, gap=gap)


def polyhedral_solution(
    margins: Margins, norm: Norm, certificate: Certificate, request: Request, systems: int
) -> MarginSolution:
    """The solution of a certificate, and whether its weights are the only ones."""
    assert isinstance(norm, Lp)
    solution = replace(
        certified_solution(margins, certificate, request, SOLVER, systems), geometry=norm
    )
    return replace(solution, unique=unique_weights(solution, norm.p))
