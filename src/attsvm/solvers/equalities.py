r"""Equalities for solvers that know inequalities only.

An equality :math:`\langle A_c,W\rangle=b_c` is the pair :math:`\langle A_c,W\rangle\ge b_c`,
:math:`\langle -A_c,W\rangle\ge-b_c`, and its multiplier of any sign is the difference of theirs. So
any solver that takes right-hand sides of both signs takes equalities: it is handed the pairs, and
its multipliers are folded back. Rows stay rank one, and the certificates are those of the pairs,
which bound the same programme: :math:`b^\top\lambda/\|A^\top\lambda\|_*` with :math:`\lambda_c` of
any sign on equalities. A programme of equalities alone that do not contradict each other is, in the
Frobenius norm, a least-norm problem with a closed solution.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins, least_norm
from attsvm.norms import Frobenius, Norm
from attsvm.solvers.outcomes import Request, Solver, certified_solution
from attsvm.solvers.proofs import Certificate, lower_bound
from attsvm.solvers.solution import MarginSolution


@np.errstate(over="ignore")  # what leaves float64 on the way is certified all the same
def solve(margins: Margins, norm: Norm, request: Request, solver: Solver) -> MarginSolution:
    """The solution of a programme with equalities.

    Raises:
        InputError: a soft margin.
    """
    equal = margins.equalities
    if request.slack is not None:
        raise InputError(
            "the soft margin takes no equalities; leave out slack, or penalise fewer constraints"
        )
    if equal.all() and (margins.rhs != 0).any() and norm == Frobenius():
        solution = _solve_least_norm(margins, norm, request)
        if solution is not None:
            return solution
    # Equalities become pairs of opposite rows that know each other.
    pairs, source, sign = opposite_pairs(margins)
    opposite = np.full(pairs.m, -1)
    opposite[np.flatnonzero(sign < 0)] = partner = np.flatnonzero((sign > 0) & equal[source])
    opposite[partner] = np.flatnonzero(sign < 0)
    # A multiplier of any sign is split over its pair.
    start = (
        None if request.warm_start is None else np.maximum(sign * request.warm_start[source], 0.0)
    )
    of_pairs = solver(pairs, norm, replace(request, warm_start=start, opposite=opposite))
    return _fold_pairs(margins, norm, of_pairs, source, sign)


def _fold_pairs(
    margins: Margins, norm: Norm, of_pairs: MarginSolution, source: IntArray, sign: FloatArray
) -> MarginSolution:
    """The solution of the programme with equalities, from that of their pairs: multipliers of a
    pair are subtracted, and the gap is computed anew from the differences.
    """
    dual = np.zeros(margins.m)
    np.add.at(dual, source, sign * of_pairs.dual)
    if of_pairs.status in ("infeasible", "almost infeasible") and dual.any():
        dual = dual / np.abs(dual).max()
        support = np.flatnonzero(dual)
    else:
        support = np.unique(source[of_pairs.support])
        support = np.union1d(support, np.flatnonzero(margins.equalities))
    gap = of_pairs.gap
    if of_pairs.status != "infeasible" and 0.0 < of_pairs.norm < np.inf and dual.any():
        # A multiplier of an equality is a difference, which rounds once more.
        gap = max(0.0, 1.0 - lower_bound(margins, norm, dual) / of_pairs.norm)
    return replace(
        of_pairs,
        margins=margins,
        dual=dual,
        gap=gap if of_pairs.gap < 1.0 else 1.0,
        status="inaccurate"
        if of_pairs.status == "optimal" and gap > of_pairs.tol
        else of_pairs.status,
        support=support,
        slacks=np.zeros(margins.m),
    )


def _solve_least_norm(margins: Margins, norm: Norm, request: Request) -> MarginSolution | None:
    """The closed solution of equalities alone; ``None`` where they contradict each other, or are
    too many to be written out.
    """
    try:
        least = least_norm(margins, request.tol)
    except InputError:
        return None
    if not least.consistent:
        return None
    length = float(norm.value(least.W))
    gap = max(0.0, 1.0 - lower_bound(margins, norm, least.dual) / length) if length > 0 else 1.0
    values = margins(least.W)
    certificate = Certificate(least.W, least.dual, values, length, gap, least.residual, 0.0)
    return certified_solution(margins, certificate, request, "least norm", 1)


def opposite_pairs(margins: Margins) -> tuple[Margins, IntArray, FloatArray]:
    """The programme with every equality as two opposite inequalities, and for each of its rows
    ``(source, sign)``: the row that it comes from, and 1 or -1.
    """
    equal = np.flatnonzero(margins.equalities)
    source = np.concatenate([np.arange(margins.m), equal])
    sign = np.concatenate([np.ones(margins.m), -np.ones(len(equal))])
    order = np.argsort(margins.sequence[source], kind="stable")
    source, sign = source[order], sign[order]
    offsets = np.concatenate(
        [[0], np.cumsum(np.bincount(margins.sequence[source], minlength=margins.n))]
    )
    differences = sign[:, None] * margins.differences[source]
    rhs = sign * margins.rhs[source] + 0.0
    pairs = replace(
        margins,
        differences=differences,
        offsets=offsets,
        rhs=rhs,
        token=margins.token[source],
        equality=None,
    )
    return pairs, source, sign
