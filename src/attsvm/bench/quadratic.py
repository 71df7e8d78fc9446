"""Peers of the Frobenius programme: quadratic solvers and support vector machines.

Each takes the programme in the form that was measured to be its quickest. Tolerances on residuals
are set ten times tighter than the gap that is asked for, because a residual is not a gap.
"""

from __future__ import annotations

import numpy as np

from attsvm.bench.instances import gram, written_out
from attsvm.data import FloatArray
from attsvm.geometry import Norm
from attsvm.margins import Margins

Answer = tuple[FloatArray, FloatArray | None]

_HARD = 1e9  # the penalty that stands for a hard margin
_RIDGE = 1e-13  # makes a rank-deficient Gram matrix pass a Cholesky factorisation


def daqp(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Dual active set on the primal; its H = identity is passed in full, as it has no other
    form.
    """
    import daqp

    A = written_out(margins)
    m, k = A.shape
    senses = np.zeros(m, dtype=np.int32)
    w, _, _, info = daqp.solve(
        np.eye(k), np.zeros(k), A, np.full(m, 1e30), np.ones(m), senses, primal_tol=accuracy / 10
    )
    return np.asarray(w).reshape(margins.shape), np.abs(np.asarray(info["lam"]))


def piqp(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Proximal interior point on the dual."""
    import piqp

    solver = piqp.DenseSolver()
    settings = solver.settings
    settings.check_duality_gap = True
    settings.eps_abs = settings.eps_rel = settings.eps_duality_gap_abs = (
        settings.eps_duality_gap_rel
    ) = accuracy / 10
    G = gram(margins)
    solver.setup(G, -np.ones(len(G)), x_l=np.zeros(len(G)))
    solver.solve()
    return _from_dual(margins, np.asarray(solver.result.x))


def quadprog(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Goldfarb-Idnani on the dual; it has no tolerance."""
    import quadprog

    G = gram(margins)
    m = len(G)
    return _from_dual(
        margins, quadprog.solve_qp(G + _RIDGE * np.eye(m), np.ones(m), np.eye(m), np.zeros(m))[0]
    )


def nnls(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Lawson-Hanson on the Cholesky factor of the Gram matrix; it has no tolerance."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import nnls

    G = gram(margins)
    R = np.linalg.cholesky(G + _RIDGE * np.eye(len(G))).T
    return _from_dual(
        margins, nnls(R, solve_triangular(R, np.ones(len(G)), trans="T"), maxiter=30 * len(G))[0]
    )


def clarabel(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Interior point on the primal, called without a modelling layer."""
    import clarabel
    from scipy import sparse

    A = written_out(margins)
    m, k = A.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy / 10
    cones = [clarabel.NonnegativeConeT(m)]
    found = clarabel.DefaultSolver(
        sparse.eye(k, format="csc"),
        np.zeros(k),
        sparse.csc_matrix(-A),
        -np.ones(m),
        cones,
        settings,
    ).solve()
    return np.array(found.x).reshape(margins.shape), np.array(found.z)


def linear_svc(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """LinearSVC with a huge penalty: every other row changes sign to make two classes. It keeps its
    multipliers to itself.
    """
    from sklearn.svm import LinearSVC

    A = written_out(margins)
    y = np.where(np.arange(len(A)) % 2 == 0, 1, -1)
    model = LinearSVC(
        C=_HARD,
        loss="hinge",
        fit_intercept=False,
        tol=accuracy / 10,
        max_iter=10**8,
        random_state=0,
    )
    model.fit(A * y[:, None], y)
    return model.coef_.reshape(margins.shape), None


def svc(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """SVC with a huge penalty on every row and its mirror image, so that the intercept that it
    insists on is zero.
    """
    from sklearn.svm import SVC

    m = margins.m
    G = gram(margins)
    model = SVC(C=_HARD, kernel="precomputed", tol=accuracy / 10)
    model.fit(np.block([[G, -G], [-G, G]]), np.repeat([1, -1], m))
    both = np.zeros(2 * m)
    both[model.support_] = np.abs(model.dual_coef_[0])
    return _from_dual(margins, both[:m] + both[m:])


def _from_dual(margins: Margins, dual: FloatArray) -> Answer:
    lam = np.maximum(dual, 0.0)
    return margins.adjoint(lam), lam
