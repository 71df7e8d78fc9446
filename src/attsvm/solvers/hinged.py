r"""Soft margins in the norms whose balls are polyhedra: interior points
(:mod:`attsvm.solvers.interior`), and splitting where programmes are too large for dense factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import Margins
from attsvm.norms import Frobenius, Lp, Norm
from attsvm.solvers import frobenius, polyhedral, splitting
from attsvm.solvers.interior import SOLVER, InteriorOptions, InteriorPoints
from attsvm.solvers.optimality_checks import unique_weights
from attsvm.solvers.outcomes import Request, certified_solution, zero_solution
from attsvm.solvers.proofs import Certificate, certify_soft
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.units import Even, evened


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what comes of it is certified
def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    assert isinstance(norm, Lp)
    slack = request.slack
    assert slack is not None
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    options = InteriorOptions()
    k = margins.shape[0] * margins.shape[1]
    if margins.m * k > options.largest or min(margins.m, k) > options.widest:
        return splitting.solve(margins, norm, request)
    best: list[Certificate] = []

    def consider(W: FloatArray, dual: FloatArray) -> float:
        dual = np.clip(dual, 0.0, slack)
        found = certify_soft(margins, norm, W, dual, slack)
        if not best or found.gap < best[0].gap:
            best[:] = [found]
        return found.gap

    free = np.zeros(margins.m, dtype=np.bool_)
    even, iterations = evened(margins), 0
    for start in _starts(margins, norm, even, request):
        method = InteriorPoints(even, norm.p != 1.0, request, free, consider, options, start)
        method.run()
        iterations += method.iterations
        if (best and best[0].gap <= request.tol) or request.late:
            break
    found = None
    if best:
        found = certified_solution(margins, best[0], request, SOLVER, iterations)
        found = replace(found, geometry=norm)
        found = replace(found, unique=unique_weights(found, norm.p))
        if found.status == "optimal" or request.late or even.uneven:
            return found
    other = splitting.solve(margins, norm, request)
    return other if found is None or other.gap <= found.gap else found


def _starts(
    margins: Margins, norm: Norm, even: Even, request: Request
) -> Iterator[FloatArray | None]:
    """Weights to begin near: none; and where features have different units, those of the hard
    margin, whose norm may be another by many orders, and of the Frobenius norm.
    """
    yield None
    if not even.uneven:
        return
    limit = replace(request, warm_start=None, warm_weights=None)
    hard = polyhedral.solve(margins, norm, replace(limit, slack=None))
    if hard.has_weights:
        yield np.ldexp(hard.W, even.powers)
    yield frobenius.solve(even.margins, Frobenius(), limit).W
