r"""Soft margins in the norms whose balls are polyhedra: interior points
(:mod:`attsvm.solvers.interior`), and splitting where programmes are too large for dense factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import Margins
from attsvm.norms import Frobenius, Lp, Norm
from attsvm.solvers import frobenius, interior, polyhedral, splitting
from attsvm.solvers.column_sizes import Even, even_columns
from attsvm.solvers.interior import SOLVER, InteriorPoints
from attsvm.solvers.optimality_checks import unique_weights
from attsvm.solvers.outcomes import Request, certified_solution, zero_solution
from attsvm.solvers.proofs import Certificate, certify_soft
from attsvm.solvers.solution import MarginSolution


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what comes of it is certified
def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    assert isinstance(norm, Lp)
    slack = request.slack
    assert slack is not None
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    if not interior.fits_interior(margins.m, math.prod(margins.shape)):
        return splitting.solve(margins, norm, request)
    best: Certificate | None = None
    iterations = 0

    def consider(W: FloatArray, dual: FloatArray) -> float:
        """Certify weights and multipliers and keep the best; their gap."""
        nonlocal best
        certificate = certify_soft(margins, norm, W, np.clip(dual, 0.0, slack), slack)
        if best is None or certificate.gap < best.gap:
            best = certificate
        return certificate.gap

    def best_solution(best: Certificate) -> MarginSolution:
        """The solution of the best certificate."""
        solution = certified_solution(margins, best, request, SOLVER, iterations)
        solution = replace(solution, geometry=norm)
        return replace(solution, unique=unique_weights(solution, norm.p))

    # Where a penalty is so low that all rows are missed, all multipliers are at it.
    most = np.full(margins.m, slack)
    pull = margins.adjoint(most)
    W = float(norm.dual_value(pull)) * np.asarray(norm.steepest(pull))
    if np.isfinite(W).all() and consider(W, most) <= request.tol:
        assert best is not None
        if (best.values <= margins.rhs).all():
            return best_solution(best)

    # Soft margins take no equalities.
    no_equality = np.zeros(margins.m, dtype=np.bool_)
    even = even_columns(margins)
    # Most end with the first start; the others cost a solve.
    for start, all_missed in _starts(margins, norm, even, request):
        method = InteriorPoints(
            even,
            norm.p != 1.0,
            request,
            no_equality,
            consider,
            start=start,
            all_missed=all_missed,
        )
        method.run()
        iterations += method.iterations
        if (best is not None and best.gap <= request.tol) or request.late:
            break
    solution = None
    if best is not None:
        solution = best_solution(best)
        if solution.status == "optimal" or request.late:
            return solution
    by_splitting = splitting.solve(margins, norm, request)
    if solution is None or by_splitting.gap <= solution.gap:
        return by_splitting
    return solution


def _starts(
    margins: Margins, norm: Norm, even: Even, request: Request
) -> Iterator[tuple[FloatArray | None, bool]]:
    """Weights to begin near, and whether to begin with all rows missed: neither; and where features
    have different units all rows missed, as selections that contradict each other leave most, the
    weights of the hard margin, whose norm may be another by many orders, and of the Frobenius norm.
    """
    yield None, False
    if not even.uneven:
        return
    yield None, True
    cold = replace(request, warm_start=None, warm_weights=None)
    hard = polyhedral.solve(margins, norm, replace(cold, slack=None))
    if hard.has_weights:
        yield np.ldexp(hard.W, even.powers), False
    yield frobenius.solve(even.margins, Frobenius(), cold).W, False
