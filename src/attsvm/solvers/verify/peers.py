r"""Max-margin programmes in the forms of CLARABEL and HiGHS, to check this room's answers.

Rows are written out and divided by their size. No code here is shared with the solvers.

* CLARABEL (interior points; Goulart and Chen, 2024): quadratic objective (Frobenius), power cones
  (:math:`1<p<\infty`), linear inequalities (:math:`p=1,\infty`), positive semidefinite blocks
  (nuclear, spectral);
* HiGHS (simplex and active sets; Huangfu and Hall, 2018): quadratic programme (Frobenius), linear
  programme (:math:`p=1,\infty`), and for every norm the linear programme that asks whether any
  weights meet the margins.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Literal, NamedTuple

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Frobenius, Norm
from attsvm.geometry.conic import Cone, Cones
from attsvm.margins import Margins

_PEER_TOLERANCE = 1e-10
_PEER_CONTRADICTION = 1e-12


class Rows(NamedTuple):
    """``A w >= b`` (``= b`` where ``equal``), less slacks at a price of ``cost`` each (``None``: no
    slacks).
    """

    A: FloatArray
    b: FloatArray
    equal: Any
    cost: FloatArray | None
    shape: tuple[int, int]


class Answer(NamedTuple):
    """A peer's word, its meaning, the objective in the units of the rows, its relative gap, and
    whether it admits reduced accuracy.
    """

    status: str
    verdict: Literal["optimal", "infeasible", "none"]
    objective: float | None
    gap: float | None
    rough: bool


def invariant(norm: Norm) -> bool:
    """Whether the least weights lie in the spans of differences and queries."""
    return all(norm.invariant)


def _quadratic(norm: Norm) -> bool:
    return norm == Frobenius()


def written_out(margins: Margins, slack: float | None, unit: float, reducible: bool) -> Rows:
    """Rows of size one, on the spans of differences and queries where ``reducible``.

    Rows of size zero stay, because a positive right-hand side makes them a contradiction.
    """
    D, Z = np.asarray(margins.differences), np.asarray(margins.queries)
    if reducible:
        D, Z = (
            np.linalg.qr(each.T)[1].T if each.shape[0] < each.shape[1] else each for each in (D, Z)
        )
    long, wide = np.linalg.norm(D, axis=1), np.linalg.norm(Z, axis=1)
    D, Z = (
        D / np.where(long > 0.0, long, 1.0)[:, None],
        Z / np.where(wide > 0.0, wide, 1.0)[:, None],
    )
    size = (np.where(long > 0.0, long, 1.0)) * np.where(wide > 0.0, wide, 1.0)[margins.sequence]
    A = (D[:, :, None] * Z[margins.sequence][:, None, :]).reshape(
        margins.m, D.shape[1] * Z.shape[1]
    )
    b = margins.rhs / size / unit
    # In these units W is unit * w, and the slack of a row unit * size times the slack of the
    # divided row.
    cost = None if slack is None else slack * size / unit
    return Rows(A, b, margins.equalities, cost, (D.shape[1], Z.shape[1]))


class _Conic:
    """``minimise 1/2 x'Px + c'x  subject to  b - Ax in K``, assembled block by block."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.blocks: list[Any] = []
        self.rhs: list[FloatArray] = []
        self.cones: list[Any] = []

    def add(self, parts: list[tuple[int, Any]], rhs: FloatArray, *cones: Any) -> None:
        """``rhs - sum_k part_k @ x[start_k:]`` lies in the product of ``cones``."""
        from scipy.sparse import csc_matrix, hstack

        ordered, at, pieces = sorted(parts, key=lambda part: part[0]), 0, []
        for start, block in ordered:
            pieces += [csc_matrix((len(rhs), start - at)), csc_matrix(block)]
            at = start + block.shape[1]
        self.blocks.append(
            hstack([*pieces, csc_matrix((len(rhs), self.columns - at))], format="csc")
        )
        self.rhs.append(rhs)
        self.cones += cones


def by_clarabel(rows: Rows, norm: Norm) -> Answer:
    """What CLARABEL says."""
    from scipy.sparse import csc_matrix, diags_array, eye_array, vstack

    clarabel: Any = importlib.import_module("clarabel")

    k = rows.A.shape[1]
    ball = _ball(rows.shape, norm)
    extra = len(ball.cost)
    slacks = 0 if rows.cost is None else len(rows.b)
    columns = k + extra + slacks
    conic = _Conic(columns)
    for chosen, cone in (
        (rows.equal, clarabel.ZeroConeT),
        (~rows.equal, clarabel.NonnegativeConeT),
    ):
        count = int(chosen.sum())
        if count:
            parts: list[tuple[int, Any]] = [(0, -rows.A[chosen])]
            if slacks:
                parts.append((k + extra, -eye_array(slacks, format="csc")[chosen]))
            conic.add(parts, -rows.b[chosen], cone(count))
    if slacks:
        conic.add(
            [(k + extra, -eye_array(slacks))], np.zeros(slacks), clarabel.NonnegativeConeT(slacks)
        )
    for cone in ball.blocks:
        parts = [(0, -csc_matrix(cone.of_weights)), (k, -csc_matrix(cone.of_extra))]
        conic.add(parts, np.zeros(parts[0][1].shape[0]), *_cones(cone, clarabel))
    cost, value = np.zeros(columns), np.zeros((columns, 1))
    value[k : k + extra, 0] = ball.cost
    squares = np.where(np.arange(columns) < k, float(_quadratic(norm)), 0.0)
    soft = float(rows.cost is not None)
    if rows.cost is None:
        cost += value[:, 0]
    else:
        cost[k + extra :] = rows.cost
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _PEER_TOLERANCE
    settings.tol_infeas_abs = settings.tol_infeas_rel = _PEER_CONTRADICTION
    settings.max_iter = 500
    P = csc_matrix(diags_array(squares)) + csc_matrix(value) @ csc_matrix(value).T * soft
    solver = clarabel.DefaultSolver(
        csc_matrix(P),
        cost,
        csc_matrix(vstack(conic.blocks)),
        np.concatenate(conic.rhs),
        conic.cones,
        settings,
    )
    found = solver.solve()
    status = str(found.status)
    if status in ("PrimalInfeasible", "AlmostPrimalInfeasible"):
        return Answer(status, "infeasible", None, None, False)
    if status not in ("Solved", "AlmostSolved"):
        return Answer(status, "none", None, None, False)
    primal, dual = float(found.obj_val), float(found.obj_val_dual)
    gap = abs(primal - dual) / max(abs(primal), 1e-300)
    if _quadratic(norm) and rows.cost is None:
        primal = math.sqrt(max(2.0 * primal, 0.0))
    return Answer(status, "optimal", primal, gap, status == "AlmostSolved")


def _ball(shape: tuple[int, int], norm: Norm) -> Cones:
    """The norm as further variables with their costs and cones; none for the Frobenius norm, which
    is a quadratic objective.
    """
    found = Cones(np.zeros(0), ()) if _quadratic(norm) else norm.cones(shape)
    assert found is not None  # refused before, see check_verifier
    return found


def _cones(cone: Cone, clarabel: Any) -> list[Any]:
    rows = cone.of_weights.shape[0]
    if cone.kind == "power":
        return [clarabel.PowerConeT(cone.exponent)] * (rows // 3)
    if cone.kind == "semidefinite":
        return [clarabel.PSDTriangleConeT((math.isqrt(8 * rows + 1) - 1) // 2)]
    kinds = {"zero": "ZeroConeT", "nonnegative": "NonnegativeConeT"}
    return [getattr(clarabel, kinds.get(cone.kind, "SecondOrderConeT"))(rows)]


def by_highs(rows: Rows, norm: Norm) -> Answer:
    """What HiGHS says; for norms that are neither linear nor quadratic only whether the rows can be
    met.
    """
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    highspy: Any = importlib.import_module("highspy")

    m, k = rows.A.shape
    ball = None if _quadratic(norm) else norm.cones(rows.shape)
    linear = ball is not None and all(cone.kind in ("zero", "nonnegative") for cone in ball.blocks)
    extra = len(ball.cost) if linear and ball is not None else 0
    A, cost, low = csr_array(rows.A), np.zeros(k + extra), np.full(k + extra, -math.inf)
    row_low, row_high = rows.b, np.where(rows.equal, rows.b, math.inf)
    if linear and ball is not None:
        A, cost[k:] = hstack([A, csr_array((m, extra))]), ball.cost
        for cone in ball.blocks:
            A = vstack([A, hstack([cone.of_weights, cone.of_extra])])
            zero = np.zeros(cone.of_weights.shape[0])
            row_low = np.append(row_low, zero)
            row_high = np.append(row_high, zero if cone.kind == "zero" else zero + math.inf)
    A = csr_array(A)
    if rows.cost is not None:
        A = csr_array(hstack([A, eye_array(m)]))
        cost, low = np.concatenate([cost, rows.cost]), np.concatenate([low, np.zeros(m)])
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(row_low)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, low, np.full(len(cost), highspy.kHighsInf)
    lp.row_lower_, lp.row_upper_ = row_low, row_high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = A.indptr, A.indices, A.data
    model = highspy.HighsModel()
    model.lp_ = lp
    if _quadratic(norm):
        diagonal = np.concatenate([np.ones(k), np.zeros(len(cost) - k)])
        model.hessian_.dim_, model.hessian_.format_ = len(cost), highspy.HessianFormat.kTriangular
        model.hessian_.start_ = np.concatenate([np.arange(k + 1), np.full(len(cost) - k, k)])
        model.hessian_.index_, model.hessian_.value_ = np.arange(k), diagonal[:k]
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("primal_feasibility_tolerance", 1e-10),
        ("dual_feasibility_tolerance", 1e-10),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    status = solver.modelStatusToString(solver.getModelStatus())
    # the objective is bounded below by zero
    if status in ("Infeasible", "Primal infeasible or unbounded"):
        return Answer(status, "infeasible", None, None, False)
    if status != "Optimal":
        return Answer(status, "none", None, None, False)
    if not (linear or _quadratic(norm)):
        return Answer(status, "optimal", None, None, False)
    info = solver.getInfo()
    primal = float(info.objective_function_value)
    # added in a later version
    reported = float(getattr(info, "primal_dual_objective_error", math.nan))
    gap = reported if math.isfinite(reported) and reported >= 0.0 and not _quadratic(norm) else None
    if _quadratic(norm) and rows.cost is None:
        primal = math.sqrt(max(2.0 * primal, 0.0))
    return Answer(status, "optimal", primal, gap, False)
