"""Who takes part in the solver benchmark, in which norms, and what must be installed for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attsvm.bench.instances import RefusedError, gram, reduced, written_out
from attsvm.data import FloatArray
from attsvm.errors import InputError
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
    options = _tolerances("HIGHS", accuracy)
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


Solve = Callable[[Margins, Norm, float], Answer]
Batch = Callable[[Sequence[Margins], Norm, float], list[Answer]]

OURS = "attsvm"
_COMMON = ("fro", "l1", "linf", "nuc", "spec", "lp", "schatten")


def kind(norm: Norm) -> str:
    """``fro``, ``l1``, ``linf``, ``nuc``, ``spec``, or the family ``lp`` or ``schatten`` of
    exponents strictly between 1 and infinity.
    """
    return {"lp:1": "l1", "lp:inf": "linf"}.get(norm.name, norm.name.partition(":")[0])


@dataclass(frozen=True)
class Peer:
    """A solver under a name.

    Attributes:
        solve: ``(margins, norm, accuracy)`` to weights and multipliers; ``None`` for the
            multipliers of a solver that reports none.
        norms: kinds of norms that it takes, see :func:`kind`; ``None`` for every norm.
        packages: modules that it imports.
        tolerance: False for a solver without tolerances, which is asked once instead of once per
            accuracy.
        cones: whether it takes other norms, as the cones that they state.
        batch: how it solves many programmes at once, where it is the quickest of its norm's
            peers and so takes part in the benchmark of many small ones.
    """

    solve: Solve
    norms: tuple[str, ...] | None
    packages: tuple[str, ...] = ()
    tolerance: bool = True
    cones: bool = False
    batch: Batch | None = None

    def takes(self, norm: Norm) -> bool:
        """Whether the norm is one of its own."""
        if self.norms is None or kind(norm) in self.norms:
            return True
        return self.cones and kind(norm) not in _COMMON and norm.cones((1, 1)) is not None

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


def _ours(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    from attsvm.solvers import max_margin

    solution = max_margin(margins, norm, tol=accuracy)
    return solution.W, solution.dual


def _our_batch(many: Sequence[Margins], norm: Norm, accuracy: float) -> list[Answer]:
    from attsvm.solvers import max_margin

    found = max_margin(many, norm, tol=accuracy)
    return list(zip(found.W, np.split(found.dual, found.rows[1:-1]), strict=True))


def _one_by_one(
    many: Sequence[Margins], norm: Norm, accuracy: float, *, solve: Solve
) -> list[Answer]:
    return [solve(margins, norm, accuracy) for margins in many]


_CVXPY = {
    "OSQP": ("cvxpy", "osqp"),
    "CLARABEL": ("cvxpy", "clarabel"),
    "SCS": ("cvxpy", "scs"),
    "HIGHS": ("cvxpy", "highspy"),
}


def _cvxpy(solver: str, *norms: str, power_cones: bool = False, cones: bool = False) -> Peer:
    solve = partial(through_cvxpy, solver=solver, power_cones=power_cones)
    looped = partial(_one_by_one, solve=solve) if power_cones else None
    return Peer(solve, norms, _CVXPY[solver], cones=cones, batch=looped)


def _reduced(solver: str) -> Peer:
    solve = partial(reduced_through_cvxpy, solver=solver)
    return Peer(solve, ("nuc", "spec"), _CVXPY[solver], batch=partial(_one_by_one, solve=solve))


PEERS: dict[str, Peer] = {
    OURS: Peer(_ours, None, batch=_our_batch),
    "daqp": Peer(daqp, ("fro",), ("daqp",), batch=partial(_one_by_one, solve=daqp)),
    "piqp": Peer(piqp, ("fro",), ("piqp",), batch=partial(_one_by_one, solve=piqp)),
    "quadprog": Peer(quadprog, ("fro",), ("quadprog",), tolerance=False),
    "nnls": Peer(nnls, ("fro",), tolerance=False),
    "clarabel": Peer(clarabel, ("fro",), ("clarabel",)),
    "linearsvc": Peer(linear_svc, ("fro",)),
    "svc": Peer(svc, ("fro",)),
    "highs": Peer(highs, ("l1", "linf"), batch=partial(_one_by_one, solve=highs)),
    "cvxpy-osqp": _cvxpy("OSQP", "fro"),
    "cvxpy-highs": _cvxpy("HIGHS", "l1", "linf"),
    "cvxpy-clarabel": _cvxpy("CLARABEL", "fro", "lp", "l1", "linf", "nuc", "spec", cones=True),
    "cvxpy-clarabel-power": _cvxpy("CLARABEL", "lp", power_cones=True),
    "cvxpy-clarabel-qr": _reduced("CLARABEL"),
    "cvxpy-scs": _cvxpy("SCS", "nuc", "spec"),
    "cvxpy-scs-qr": _reduced("SCS"),
}
"""Every contestant by name, ours first. A new peer is a new line here."""


def choose(names: str) -> list[str]:
    """Ours and the peers that ``names`` lists: ``all``, ``none``, or names separated by commas.

    Raises:
        InputError: a name is not in the registry.
    """
    if names in ("all", "none"):
        return list(PEERS) if names == "all" else [OURS]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PEERS:
            raise InputError(
                f"unknown peer {name!r}; known peers:"
                f" {', '.join(name for name in PEERS if name != OURS)}"
            )
    return [name for name in PEERS if name == OURS or name in wanted]
