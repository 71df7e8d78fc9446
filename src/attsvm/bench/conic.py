"""Peers of the other norms: conic and linear solvers, through cvxpy and without it.

Tolerances on residuals are set ten times tighter than the gap that is asked for, because a residual
is not a gap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.bench.instances import reduced, written_out
from attsvm.bench.quadratic import Answer
from attsvm.geometry import Norm
from attsvm.margins import Margins

_FINEST = 1e-10  # the smallest tolerance that HiGHS takes


def _tolerances(solver: str, accuracy: float) -> dict[str, Any]:
    eps = accuracy / 10
    if solver == "OSQP":
        return {"eps_abs": eps, "eps_rel": eps, "max_iter": 10**8}
    if solver == "SCS":
        return {"eps_abs": eps, "eps_rel": eps, "max_iters": 10**8}
    if solver == "CLARABEL":
        return {"tol_gap_abs": eps, "tol_gap_rel": eps, "tol_feas": eps}
    eps = max(eps, _FINEST)
    return {"primal_feasibility_tolerance": eps, "dual_feasibility_tolerance": eps}


def through_cvxpy(
    margins: Margins, norm: Norm, accuracy: float, *, solver: str, power_cones: bool = False
) -> Answer:
    """The programme as one writes it in cvxpy; the time cvxpy takes to compile it is part of the
    answer's price.

    p-norms are second-order cones for the nearest rational exponent (cvxpy's default) or
    ``power_cones``.
    """
    import cvxpy

    A = written_out(margins)
    W = cvxpy.Variable(margins.shape)
    w = cvxpy.vec(W, order="C")
    limits = A @ w >= 1
    objectives = {
        "fro": lambda: 0.5 * cvxpy.sum_squares(w),
        "lp:1": lambda: cvxpy.norm(w, 1),
        "lp:inf": lambda: cvxpy.norm(w, "inf"),
        "nuc": lambda: cvxpy.normNuc(W),
        "spec": lambda: cvxpy.sigma_max(W),
    }
    objective = objectives.get(norm.name, lambda: cvxpy.pnorm(w, norm.p, approx=not power_cones))()
    cvxpy.Problem(cvxpy.Minimize(objective), [limits]).solve(
        solver=solver, **_tolerances(solver, accuracy)
    )
    if W.value is None:
        raise RuntimeError(f"{solver} returned no weights")
    return W.value, np.abs(np.asarray(limits.dual_value))


def reduced_through_cvxpy(margins: Margins, norm: Norm, accuracy: float, *, solver: str) -> Answer:
    """The same after QR of differences and queries; right for unitarily invariant norms only."""
    spans = reduced(margins)
    B, dual = through_cvxpy(spans.margins, norm, accuracy, solver=solver)
    return spans.lifted(B), dual


def highs(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    r"""HiGHS as scipy ships it, without a modelling layer.

    :math:`\ell_1`: positive and negative parts. :math:`\ell_\infty`: the largest margin in the box,
    whose bounds cost no rows.
    """
    from scipy.optimize import linprog

    A = written_out(margins)
    m, k = A.shape
    eps = max(accuracy / 10, _FINEST)
    options = {"primal_feasibility_tolerance": eps, "dual_feasibility_tolerance": eps}
    if norm.p == 1.0:
        found = linprog(
            np.ones(2 * k),
            A_ub=np.hstack([-A, A]),
            b_ub=-np.ones(m),
            method="highs",
            options=options,
        )
    else:
        objective, bounds = np.append(np.zeros(k), -1.0), [(-1.0, 1.0)] * k + [(None, None)]
        found = linprog(
            objective,
            np.hstack([-A, np.ones((m, 1))]),
            np.zeros(m),
            bounds=bounds,
            method="highs",
            options=options,
        )
    if found.x is None:
        raise RuntimeError(found.message)
    w = found.x[:k] - found.x[k:] if norm.p == 1.0 else found.x[:k]
    return w.reshape(margins.shape), -np.asarray(found.ineqlin.marginals)
