"""Least norms as one writes them in cvxpy, solved by CLARABEL, which shares nothing with us."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from attsvm.margins import Margins
from attsvm.norms import Lp, Norm

TIGHT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)


def least(margins: Margins, norm: Norm, unit: float = 1.0) -> float | None:
    """The least norm; ``inf`` where no weights meet the margins, ``None`` without an answer.

    Args:
        margins: the programme, of which rows are divided by their lengths.
        norm: one that cvxpy has.
        unit: about the least norm, so that absolute tolerances mean the same at every scale.
    """
    cp: Any = pytest.importorskip("cvxpy")
    rows = np.einsum("ca,ce->cae", margins.differences, margins.queries[margins.sequence])
    rows = rows.reshape(margins.m, -1)
    length = np.linalg.norm(rows, axis=1)
    length[length == 0.0] = 1.0
    W = cp.Variable(margins.shape)
    made = (rows / length[:, None]) @ cp.vec(W, order="C")
    sides, equal = margins.rhs / length / unit, margins.equalities
    conditions = [made[equal] == sides[equal]] if equal.any() else []
    conditions += [made[~equal] >= sides[~equal]] if not equal.all() else []
    problem = cp.Problem(cp.Minimize(_size(cp, W, norm)), conditions)
    with warnings.catch_warnings():  # of inaccurate solutions, which the status tells, too
        warnings.simplefilter("ignore", UserWarning)
        problem.solve(solver="CLARABEL", max_iter=500, tol_infeas_abs=1e-12, **TIGHT)
    if problem.status.startswith("infeasible"):
        return math.inf
    return float(problem.value) * unit if problem.status == "optimal" else None


def _size(cp: Any, W: Any, norm: Norm) -> Any:
    if isinstance(norm, Lp):
        return cp.pnorm(cp.vec(W, order="C"), norm.p)
    lengths = cp.norm(W, 2, axis=1)
    return {
        "fro": lambda: cp.norm(W, "fro"),
        "nuc": lambda: cp.normNuc(W),
        "spec": lambda: cp.sigma_max(W),
        "rows": lambda: cp.sum(lengths),
        "maxrow": lambda: cp.max(lengths),
    }[norm.name]()
