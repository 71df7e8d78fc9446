r"""Hard margins in the norms whose balls are polyhedra, :math:`\ell_1` and :math:`\ell_\infty`.

.. math:: \min_W \|W\|_p \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c, \qquad p\in\{1,\infty\},

are linear programmes. Interior points in compiled code (``native/interior.cpp``) come near the
solution and end at the vertex that strict complementarity points to: as many rows that are tight as
entries that move give one square system for the weights and one for the multipliers. Small
programmes go there whole. Of the others the Frobenius weights say which rows are near tight; these
are solved first, and rows that their weights miss join in batches. The Frobenius solver also says
which programmes have no solution, which does not depend on the norm. Everything is certified from
the caller's margins, and the best certified answer is returned.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm import native
from attsvm.base.cores import shared_out, threads
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins, MarginsBatch
from attsvm.norms import Frobenius, Lp, Norm
from attsvm.solvers import compiled, frobenius
from attsvm.solvers.interior import InteriorOptions, InteriorPoints
from attsvm.solvers.optimality_checks import unique_weights
from attsvm.solvers.outcomes import (
    HOPELESS,
    Request,
    certified_solution,
    is_within_tolerance,
    zero_solution,
)
from attsvm.solvers.programme import Programme, equilibrate
from attsvm.solvers.proofs import Certificate, certify_hard, lower_bound
from attsvm.solvers.scaling import scaled
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.units import Even, evened

SOLVER = "interior points"
_AIM = 1e-13  # relative gap: a vertex gives it nearly always
_FEW = 256  # rows, and
_LARGEST = 1 << 14  # entries of the written-out rows up to which all rows are taken at once
_NEAR = 1.04  # margins of the Frobenius weights, over their right-hand sides, of the first rows
# gaps at which rows join, and how far from tight, relative to their right-hand sides
_ROUGH = ((1e-1, 0.05), (1e-2, 0.02), (1e-3, 0.002))
_KEPT = 5.0  # times as far are rows that stay
_BEHIND = 0.3  # gap over what new rows miss, below which points are too near their boundary
_STAGES = 30
_PAIRS = (("lam", "s"), ("u", "zu"), ("v", "zv"))  # whose products go to zero
_FLOOR = 0.3  # least slack of new rows, in roots of these products
_MOST = 60  # iterations on one set of rows
_IDLE, _LONG_IDLE = 5, 20  # without progress
# times the gap that multipliers may have when they are scaled by less than a share
_WORSE, _BALANCED = 1.01, 1e-6
_ROUNDING = 1e-14  # of the square of the norm and the bound, relative
_SHARES = 8  # for each thread, so that none waits long for another


@np.errstate(over="ignore")  # what leaves float64 on the way is certified all the same
def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    assert isinstance(norm, Lp)
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    return _Search(margins, norm, request).run()


class _Search:
    """One solve: the rows, with one of free sign for every pair of opposite rows, and the best
    certificate so far.
    """

    def __init__(self, margins: Margins, norm: Lp, request: Request) -> None:
        self.margins, self.norm, self.request = margins, norm, request
        self.box = norm.p != 1.0
        self.rows, self.part = np.arange(margins.m), margins
        self.free = np.zeros(margins.m, np.uint8)
        if request.opposite is not None:
            paired, rhs = request.opposite >= 0, margins.rhs
            first = (rhs > 0.0) | ((rhs == 0.0) & (self.rows < request.opposite))
            self.rows = np.flatnonzero(~paired | first)
            self.part, self.free = margins.restricted(self.rows), paired[self.rows].view(np.uint8)
        self.best: Certificate | None = None
        self.systems = 0

    def run(self) -> MarginSolution:
        """The solution, or what the Frobenius solver says of a programme that has none."""
        request, part = self.request, self.part
        if request.warm_start is not None and request.warm_weights is not None:
            self._consider(request.warm_weights, request.warm_start)
        if not self._good() and fits(part.m, part.shape):
            found = points(part, self.box, self.free)
            self.systems += int(found.systems[0])
            if found.gap[0] < 1.0:
                self._consider(found.W[0], self._unfolded(found.dual))
        if not self._good():
            even = evened(self.margins)
            start = frobenius.solve(
                even.margins,
                Frobenius(),
                replace(request, warm_start=None, warm_weights=None),
            )
            if not start.has_weights:
                return replace(start, margins=self.margins)
            self._consider(even.restored(start.W), start.dual)
            if not (start.status == "almost infeasible" and start.gap > HOPELESS):
                if even.uneven and self._whole():
                    self._at_once(even, start.W)
                else:
                    self._on_working_sets(even, start)
        assert self.best is not None
        proof = balanced(self.margins, self.norm, self.best)
        return finished(self.margins, self.norm, proof, request, self.systems)

    def _whole(self) -> bool:
        """Whether all rows fit into the interior points of features in different units."""
        options, (d_x, d_z) = InteriorOptions(), self.margins.shape
        m, k = len(self.rows), d_x * d_z
        return m * k <= options.largest and min(m, k) <= options.widest

    def _rows_of(self, even: Even) -> Margins:
        """The rows with columns of one size, one for each pair of opposite ones."""
        margins = even.margins
        return margins if len(self.rows) == margins.m else margins.restricted(self.rows)

    def _at_once(self, even: Even, start: FloatArray) -> None:
        """Interior points on all rows, which take columns that cost next to nothing."""
        part = self._rows_of(even)

        def consider(W: FloatArray, dual: FloatArray) -> float:
            free = self.free == 1
            return self._consider(W, self._unfolded(np.where(free, dual, np.maximum(dual, 0.0))))

        method = InteriorPoints(
            even._replace(margins=part),
            self.box,
            self.request,
            self.free == 1,
            consider,
            InteriorOptions(),
            start,
        )
        method.run()
        self.systems += method.iterations

    def _on_working_sets(self, even: Even, start: MarginSolution) -> None:
        """Interior points on rows that the start has near tight, and on those that they miss."""
        part = self._rows_of(even)
        p, cost = equilibrate(part, None), even.costs()
        W, dual = np.ldexp(start.W, -p.weight_exponent), start.dual[self.rows]
        # weights near one are what interior points begin with
        p = replace(p, b=np.ldexp(p.b, -int(np.frexp(np.abs(W).max())[1])))
        unit = p.weight_exponent + int(np.frexp(np.abs(W).max())[1])
        values = p.values(np.ldexp(start.W, -unit))
        chosen = (values <= _NEAR * p.b) | (dual != 0.0) | (self.free == 1)
        loose: list[_State] = []
        left = np.zeros(p.m, np.bool_)  # rows that have left once stay when they join again
        top = float(p.b.max())
        for _ in range(_STAGES):
            target, reach = _ROUGH[len(loose)] if len(loose) < len(_ROUGH) else (_AIM, 0.0)
            state = _State(p, cost, np.flatnonzero(chosen), self.free, self.box, loose)
            state.run(target, self.request)
            self.systems += state.at.systems
            W, lam = state.best()
            values = p.values(W)
            ratio = state.ratio(values)
            missed = p.b - values / ratio if ratio > 0.0 else np.where(chosen, 0.0, top)
            bad = (missed > 0.1 * self.request.tol * p.b) & ~chosen
            if target == _AIM or not bad.any() or self.request.late:
                full = np.zeros(p.m)
                full[state.rows] = lam
                weights = even.restored(np.ldexp(W, unit))
                self._consider(weights, self._unfolded(np.ldexp(full, p.dual_exponent)))
            reached = state.at.gap <= max(target, 0.1 * self.request.tol)
            if self._good() or self.request.late or (target == _AIM and not bad.any()):
                break
            if not reached and not loose and not bad.any():
                break
            worst = float(missed[bad].max(initial=0.0)) / top
            if not reached:
                loose = []
            elif target != _AIM:
                loose.append(state)
            while loose and loose[-1].at.gap < _BEHIND * worst:
                loose.pop()
            if loose and loose[-1] is state:
                stays = (missed > -_KEPT * reach * top) | (self.free == 1) | left
                left |= chosen & ~stays
                chosen &= stays
            chosen |= missed > 0.1 * self.request.tol * p.b - reach * top

    def _unfolded(self, dual: FloatArray) -> FloatArray:
        """Multipliers of all rows, of a pair of opposite rows on the one that their sign says."""
        if self.request.opposite is None:
            return dual
        full = np.zeros(self.margins.m)
        full[self.rows] = np.where(self.free == 1, np.maximum(dual, 0.0), dual)
        paired = self.rows[self.free == 1]
        full[self.request.opposite[paired]] = np.maximum(-dual[self.free == 1], 0.0)
        return full

    def _consider(self, W: FloatArray, dual: FloatArray) -> float:
        """Keep a point if it is better certified than what is there; its error."""
        if not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return np.inf
        found = certify_hard(self.margins, self.norm, W, dual)
        if self.best is None or found.error < self.best.error:
            self.best = found
        return found.error

    def _good(self) -> bool:
        best = self.best
        return best is not None and is_within_tolerance(best.error, best.rounding, self.request.tol)


class _State:
    """Interior points on some rows of a programme, from where they were on fewer rows."""

    def __init__(
        self,
        p: Programme,
        cost: FloatArray,
        rows: IntArray,
        free: NDArray[np.uint8],
        box: bool,
        before: list[_State],
    ) -> None:
        self.p, self.rows = p, rows
        counts = np.bincount(p.sequence[rows], minlength=len(p.Z))
        some = np.flatnonzero(counts)
        offsets = np.concatenate([[0], np.cumsum(counts[some])])
        m = len(rows)
        self.programme = native.ProgrammeRows(
            p.D[rows], p.Z[some], p.b[rows], np.full(m, np.inf), offsets, free[rows]
        )
        self.at = native.Interior(m, cost, box, _IDLE if cost.min() == cost.max() else _LONG_IDLE)
        native.library.interior_begin(self.programme, self.at)
        if before:
            self._go_on(before[-1])

    def _go_on(self, before: _State) -> None:
        """Take over the point of ``before``; rows that are new get slacks from its weights and
        multipliers of the same complementarity.
        """
        p, now, then = self.p, self.at.arrays, before.at.arrays
        for name in ("w", "u", "v", "zu", "zv"):
            now[name][:] = then[name]
        self.at.tau = before.at.tau
        products = sum(float(then[a] @ then[b]) for a, b in _PAIRS)
        mu = products / (len(before.rows) + 2 * p.dof)
        values = p.values(then["w"].reshape(p.D.shape[1], p.Z.shape[1]))[self.rows]
        sides = p.b[self.rows] * (self.at.tau if self.at.box else 1.0)
        now["s"][:] = np.maximum(values - sides, _FLOOR * np.sqrt(mu))
        now["lam"][:] = mu / now["s"]
        old = np.searchsorted(self.rows, before.rows)
        still = self.rows[np.minimum(old, len(self.rows) - 1)] == before.rows
        for name in ("s", "lam"):
            now[name][old[still]] = then[name][still]

    def run(self, enough: float, request: Request) -> None:
        """To a relative gap on these rows of ``enough``, or as far as they go."""
        at = self.at
        blas = native.blas() if len(self.rows) > 100 else None
        if request.max_seconds is None:
            native.library.interior(self.programme, at, blas, enough, _MOST)
            return
        for _ in range(_MOST):
            at.seconds = request.left
            native.library.interior(self.programme, at, blas, enough, 1)
            if at.gap <= enough or at.idle > at.patience or request.late:
                return

    def best(self) -> tuple[FloatArray, FloatArray]:
        """The best weights and multipliers met."""
        p, arrays = self.p, self.at.arrays
        return arrays["best_w"].reshape(p.D.shape[1], p.Z.shape[1]), arrays["best_lam"]

    def ratio(self, values: FloatArray) -> float:
        """The least margin over its right-hand side among these rows."""
        b = self.p.b[self.rows]
        return float((values[self.rows][b > 0.0] / b[b > 0.0]).min())


class Points(NamedTuple):
    """Programmes that lie end to end: weights, multipliers, gaps, and systems solved."""

    W: FloatArray
    dual: FloatArray
    gap: FloatArray
    systems: IntArray


def points(
    margins: Margins | MarginsBatch, box: bool, free: NDArray[np.uint8] | None = None
) -> Points:
    """The interior points of one programme or of many, with a gap below 1 where there are any."""
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
    free = np.zeros(m, np.uint8) if free is None else free
    programme = native.ProgrammeRows(D, Z, b, b, offsets, free)
    count = len(instances) - 1
    found = Points(
        np.zeros((count, D.shape[1], Z.shape[1])),
        np.zeros(m),
        np.full(count, np.inf),
        np.zeros(count, np.int64),
    )
    at = (
        native.address(found.W, np.float64, *found.W.shape),
        native.address(found.dual, np.float64, m),
        native.address(found.gap, np.float64, count),
        native.address(found.systems, np.int64, count),
    )
    of = native.address(instances, np.int64, count + 1)

    def share(part: tuple[int, int]) -> None:
        native.library.interior_many(programme, of, *part, box, _AIM, *at)

    if count == 1:
        share((0, 1))
    else:
        ends = np.unique(np.linspace(0, count, _SHARES * threads() + 1).astype(int)).tolist()
        shared_out(share, list(itertools.pairwise(ends)))
    return found


class Certified(NamedTuple):
    """Programmes of a batch, and the certificates of those that are settled, by position."""

    found: compiled.CompiledSolutions
    proofs: dict[int, Certificate]


def fits(rows: int, shape: tuple[int, int]) -> bool:
    """Whether a programme is small enough for compiled code from end to end."""
    return rows <= _FEW and rows * shape[0] * shape[1] <= _LARGEST


def certified(batch: MarginsBatch, norm: Norm, request: Request) -> Certified:
    """Many programmes at once; those without a good point are left to :func:`solve`."""
    assert isinstance(norm, Lp)
    found = points(batch, norm.p != 1.0)
    settled = compiled.unsolved(batch.differences, batch.queries, batch.instances)._replace(
        W=found.W, dual=found.dual, systems=found.systems
    )
    proofs: dict[int, Certificate] = {}
    for k in np.flatnonzero(found.gap <= request.tol).tolist():
        each, rows = batch[k], slice(batch.rows[k], batch.rows[k + 1])
        proof = balanced(each, norm, certify_hard(each, norm, found.W[k], found.dual[rows]))
        if (
            is_within_tolerance(proof.error, proof.rounding, request.tol)
            and scaled(each).margins is each
        ):
            settled.figures[k] = proof.norm, proof.gap, proof.violation, proof.rounding
            found.W[k], found.dual[rows] = proof.W, proof.dual
            settled.outcome[k], proofs[k] = compiled.WEIGHTS, proof
    return Certified(settled, proofs)


def balanced(margins: Margins, norm: Norm, proof: Certificate) -> Certificate:
    """The certificate with multipliers such that ``b @ dual`` is the square of the norm."""
    total = float(margins.rhs @ proof.dual)
    if not (total > 0.0 and proof.gap < 1.0) or abs(proof.norm**2 / total - 1.0) <= _ROUNDING:
        return proof
    dual = proof.dual * (proof.norm / total) * proof.norm
    gap = max(0.0, 1.0 - lower_bound(margins, norm, dual) / proof.norm)  # rounded once more
    if gap > _WORSE * proof.gap + _AIM and abs(proof.norm**2 / total - 1.0) < _BALANCED:
        return proof  # small multipliers cancel what others leave over, to their last digits
    return proof._replace(dual=dual, gap=gap)


def finished(
    margins: Margins, norm: Norm, proof: Certificate, request: Request, systems: int
) -> MarginSolution:
    """The solution of a certificate, and whether its weights are the only ones."""
    assert isinstance(norm, Lp)
    solution = replace(certified_solution(margins, proof, request, SOLVER, systems), geometry=norm)
    return replace(solution, unique=unique_weights(solution, norm.p))
