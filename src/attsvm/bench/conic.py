"""Peers of the other norms: conic and linear solvers, through cvxpy and without it.

Tolerances on residuals are set ten times tighter than the gap that is asked for, because a residual
is not a gap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.bench.instances import RefusedError, reduced, written_out
from attsvm.bench.quadratic import Answer
from attsvm.geometry import Lp, Norm
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
    named = {
        "fro": lambda: 0.5 * cvxpy.sum_squares(w),
        "lp:1": lambda: cvxpy.norm(w, 1),
        "lp:inf": lambda: cvxpy.norm(w, "inf"),
        "nuc": lambda: cvxpy.normNuc(W),
        "spec": lambda: cvxpy.sigma_max(W),
    }
    conditions: list[Any] = []
    if norm.name in named:
        objective = named[norm.name]()
    elif isinstance(norm, Lp):
        objective = cvxpy.pnorm(w, norm.p, approx=not power_cones)
    else:
        objective, conditions = _in_cones(norm, w, margins.shape)
    cvxpy.Problem(cvxpy.Minimize(objective), [limits, *conditions]).solve(
        solver=solver, **_tolerances(solver, accuracy)
    )
    if W.value is None:
        raise RuntimeError(f"{solver} returned no weights")
    return W.value, np.abs(np.asarray(limits.dual_value))


def _in_cones(norm: Norm, w: Any, shape: tuple[int, int]) -> tuple[Any, list[Any]]:
    """The norm as it states itself, see :meth:`attsvm.geometry.Norm.cones`."""
    import cvxpy

    found = norm.cones(shape)
    assert found is not None  # asked by Peer.takes
    u = cvxpy.Variable(len(found.cost))
    conditions = []
    for cone in found.blocks:
        inside = cone.of_weights @ w + cone.of_extra @ u
        if cone.kind == "second order":
            conditions.append(cvxpy.SOC(inside[0], inside[1:]))
        elif cone.kind in ("zero", "nonnegative"):
            conditions.append(inside == 0 if cone.kind == "zero" else inside >= 0)
        else:
            raise RefusedError(f"cvxpy is not asked for cones that are {cone.kind}")
    return found.cost @ u, conditions


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
    if norm == Lp(1):
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
    w = found.x[:k] - found.x[k:] if norm == Lp(1) else found.x[:k]
    return w.reshape(margins.shape), -np.asarray(found.ineqlin.marginals)
