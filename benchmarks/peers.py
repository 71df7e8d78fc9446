"""Max-margin solvers side by side: CPU time at certified accuracies, as Markdown.

    python benchmarks/peers.py
    python benchmarks/peers.py --norms fro,nuc --sizes S,M,L --accuracies 1e-6,1e-9 --seconds 20
    python benchmarks/peers.py --checkout ../former

A row is one solver, a column one accuracy. Every answer is certified by one formula from the data,
its weights and its multipliers: a solver that meets its own tolerance but not the gap has not
reached the accuracy. Shown are CPU seconds of a whole call after a first one, the median over the
instances that reached the accuracy, over ours in brackets, then the share of instances that did.
Every solver runs in a process of its own with one thread, and is not asked again at a size at which
it exceeded the limit. ``--checkout`` adds another checkout of this library as a solver.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.margins import Margins
from attsvm.norms import Norm, as_norm
from programmes import (
    SIZES,
    FloatArray,
    certified_gap,
    gram,
    random_instance,
    reduced,
    written_out,
)

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ATTSVM_THREADS")
OURS, FORMER = "attsvm", "attsvm, the other checkout"
HARD = 1e9  # the penalty that stands for a hard margin
RIDGE = 1e-13  # makes a rank-deficient Gram matrix pass a Cholesky factorisation
FINEST = 1e-10  # the smallest tolerance that HiGHS takes
SHORT = 0.1  # CPU seconds for which a call is repeated, and the median counts
LONG = 1.0  # CPU seconds from which a call is made once, with what it loads first
Answer = tuple[FloatArray, FloatArray]


def ours(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    from attsvm.solvers import max_margin

    solution = max_margin(margins, norm, tol=accuracy)
    return solution.W, solution.dual


def daqp(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Dual active set on the primal, whose identity is passed in full: it has no other form."""
    import daqp

    A = written_out(margins)
    m, k = A.shape
    sides, senses = (np.full(m, 1e30), np.ones(m)), np.zeros(m, dtype=np.int32)
    w, _, _, info = daqp.solve(np.eye(k), np.zeros(k), A, *sides, senses, primal_tol=accuracy / 10)
    return np.asarray(w).reshape(margins.shape), np.abs(np.asarray(info["lam"]))


def piqp(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Proximal interior point on the dual."""
    import piqp

    solver = piqp.DenseSolver()
    settings = solver.settings
    settings.check_duality_gap = True
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(settings, name, accuracy / 10)
    G = gram(margins)
    solver.setup(G, -np.ones(len(G)), x_l=np.zeros(len(G)))
    solver.solve()
    return from_dual(margins, np.asarray(solver.result.x))


def quadprog(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Goldfarb-Idnani on the dual; it has no tolerance."""
    import quadprog

    G = gram(margins)
    m = len(G)
    found = quadprog.solve_qp(G + RIDGE * np.eye(m), np.ones(m), np.eye(m), np.zeros(m))
    return from_dual(margins, found[0])


def nnls(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Lawson-Hanson on the Cholesky factor of the Gram matrix; it has no tolerance."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import nnls

    G = gram(margins)
    R = np.linalg.cholesky(G + RIDGE * np.eye(len(G))).T
    side = solve_triangular(R, np.ones(len(G)), trans="T")
    return from_dual(margins, nnls(R, side, maxiter=30 * len(G))[0])


def clarabel(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """Interior point on the primal, called without a modelling layer."""
    import clarabel
    from scipy import sparse

    A = written_out(margins)
    m, k = A.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy / 10
    matrices = sparse.eye(k, format="csc"), np.zeros(k), sparse.csc_matrix(-A), -np.ones(m)
    found = clarabel.DefaultSolver(*matrices, [clarabel.NonnegativeConeT(m)], settings).solve()
    return np.array(found.x).reshape(margins.shape), np.array(found.z)


def svc(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """SVC with a huge penalty on every row and its mirror image, so that its intercept is zero."""
    from sklearn.svm import SVC

    m, G = margins.m, gram(margins)
    model = SVC(C=HARD, kernel="precomputed", tol=accuracy / 10)
    model.fit(np.block([[G, -G], [-G, G]]), np.repeat([1, -1], m))
    both = np.zeros(2 * m)
    both[model.support_] = np.abs(model.dual_coef_[0])
    return from_dual(margins, both[:m] + both[m:])


def highs(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    """HiGHS as SciPy ships it: positive and negative parts for l1, the box for linf."""
    from scipy.optimize import linprog

    A = written_out(margins)
    m, k = A.shape
    eps = max(accuracy / 10, FINEST)
    options = {"primal_feasibility_tolerance": eps, "dual_feasibility_tolerance": eps}
    if norm.name == "lp:1":
        found = linprog(np.ones(2 * k), np.hstack([-A, A]), -np.ones(m), options=options)
    else:
        bounds = [(-1.0, 1.0)] * k + [(None, None)]
        rows = np.hstack([-A, np.ones((m, 1))])
        target = np.append(np.zeros(k), -1.0)
        found = linprog(target, rows, np.zeros(m), bounds=bounds, options=options)
    if found.x is None:
        raise RuntimeError(found.message)
    w = found.x[:k] - found.x[k:] if norm.name == "lp:1" else found.x[:k]
    return w.reshape(margins.shape), -np.asarray(found.ineqlin.marginals)


def cvxpy(
    margins: Margins, norm: Norm, accuracy: float, *, solver: str, spans: bool = False
) -> Answer:
    """The programme as one writes it in cvxpy, which compiles it; with ``spans`` in coordinates of
    the spans, for norms of singular values. p-norms are power cones.
    """
    import cvxpy

    whole, left, right = margins, None, None
    if spans:
        margins, left, right = reduced(whole)
    W = cvxpy.Variable(margins.shape)
    w = cvxpy.vec(W, order="C")
    limits = written_out(margins) @ w >= 1
    named: dict[str, Callable[[], Any]] = {
        "fro": lambda: 0.5 * cvxpy.sum_squares(w),
        "lp:1": lambda: cvxpy.norm(w, 1),
        "lp:inf": lambda: cvxpy.norm(w, "inf"),
        "nuc": lambda: cvxpy.normNuc(W),
        "spec": lambda: cvxpy.sigma_max(W),
    }
    size = named.get(norm.name, lambda: cvxpy.pnorm(w, float(norm.name[3:]), approx=False))()
    eps = accuracy / 10
    limit = (
        {"eps_abs": eps, "eps_rel": eps, "max_iters": 10**8}
        if solver == "SCS"
        else {"tol_gap_abs": eps, "tol_gap_rel": eps, "tol_feas": eps}
    )
    cvxpy.Problem(cvxpy.Minimize(size), [limits]).solve(solver=solver, **limit)
    if W.value is None:
        raise RuntimeError(f"{solver} returned no weights")
    found = W.value if left is None else left @ W.value @ right.T
    return found, np.abs(np.asarray(limits.dual_value))


def from_dual(margins: Margins, dual: FloatArray) -> Answer:
    lam = np.maximum(dual, 0.0)
    return margins.adjoint(lam), lam


PEERS: dict[str, tuple[Callable[..., Answer], tuple[str, ...], tuple[str, ...]]] = {
    OURS: (ours, ("fro", "l1", "linf", "nuc", "spec", "lp"), ()),
    "daqp": (daqp, ("fro",), ("daqp",)),
    "piqp": (piqp, ("fro",), ("piqp",)),
    "quadprog": (quadprog, ("fro",), ("quadprog",)),
    "scipy nnls": (nnls, ("fro",), ()),
    "clarabel": (clarabel, ("fro",), ("clarabel",)),
    "sklearn SVC": (svc, ("fro",), ()),
    "highs": (highs, ("l1", "linf"), ()),
    "cvxpy clarabel": (
        partial(cvxpy, solver="CLARABEL"),
        ("lp", "nuc", "spec"),
        ("cvxpy", "clarabel"),
    ),
    "cvxpy clarabel, spans": (
        partial(cvxpy, solver="CLARABEL", spans=True),
        ("nuc", "spec"),
        ("cvxpy", "clarabel"),
    ),
    "cvxpy scs": (partial(cvxpy, solver="SCS"), ("nuc", "spec"), ("cvxpy", "scs")),
    "cvxpy scs, spans": (
        partial(cvxpy, solver="SCS", spans=True),
        ("nuc", "spec"),
        ("cvxpy", "scs"),
    ),
}
"""Every solver by name: its call, the kinds of norms that it takes, the packages that it needs."""


def kind(norm: Norm) -> str:
    return {"lp:1": "l1", "lp:inf": "linf"}.get(norm.name, norm.name.partition(":")[0])


def missing(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def timed(solve: Callable[[], Answer]) -> tuple[float, Answer]:
    """CPU seconds of a call, the median of those after the first, and the answer; of the first
    where it is long.
    """
    times: list[float] = []
    while not times or (times[0] < LONG and sum(times[1:]) < SHORT):
        began = time.process_time()
        answer = solve()
        times.append(time.process_time() - began)
    return statistics.median(times[1:] or times), answer


def measure(peer: str, norm: Norm, size: str, accuracies: list[float], seeds: int) -> None:
    """Print a line of JSON for every accuracy and instance: CPU seconds and gap."""
    solve = PEERS[OURS if peer == FORMER else peer][0]
    solve(random_instance(2, 3, 4, 0), norm, 1e-3)
    for accuracy in accuracies:
        for seed in range(seeds):
            margins = random_instance(*SIZES[size], seed)
            seconds, (W, dual) = timed(partial(solve, margins, norm, accuracy))
            gap = certified_gap(margins, norm, np.asarray(W), np.asarray(dual))
            print(json.dumps({"accuracy": accuracy, "seconds": seconds, "gap": gap}), flush=True)


def cells(peer: str, norm: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process says of a solver at a size, and what stopped it."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    if peer == FORMER:
        environment["PYTHONPATH"] = str(options.checkout / "src")
    seeds = options.seeds or (3 if size == "S" else 1)
    asked = ["--one", peer, "--norms", norm, "--sizes", size, "--seeds", str(seeds)]
    command = [sys.executable, __file__, *asked, "--accuracies", options.accuracies]
    limit = options.seconds * seeds * len(options.accuracies.split(","))
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
        printed, stopped = done.stdout, done.stderr.strip().splitlines()[-1:]
        if done.returncode == 0:  # what a solver warned of is not what stopped it
            stopped = []
    except subprocess.TimeoutExpired as over:
        printed, stopped = (over.stdout or b"").decode(), ["over the limit"]
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {"found": found, "seeds": seeds, "stopped": stopped[0] if stopped else ""}


def entry(cell: dict[str, Any], accuracy: float, ours: float | None) -> tuple[float | None, str]:
    """Seconds, and what the table says: an answer counts for every accuracy that it reached."""
    reached = [each for each in cell["found"] if each["gap"] <= accuracy]
    asked = {each["accuracy"] for each in reached}
    if not asked:
        return None, cell["stopped"] or "fell short"
    per = {a: [e["seconds"] for e in reached if e["accuracy"] == a] for a in asked}
    whole = {a: times for a, times in per.items() if len(times) == cell["seeds"]} or per
    seconds = min(statistics.median(times) for times in whole.values())
    share = 100 * max(map(len, per.values())) // cell["seeds"]
    ratio = "" if ours is None else f" ({seconds / ours:.2g}x)"
    return seconds, f"{1e3 * seconds:.3g} ms{ratio}, {share}%"


def table(norm: str, size: str, options: argparse.Namespace, over: set[str]) -> None:
    """Print the table of a norm and a size."""
    accuracies = [float(each) for each in options.accuracies.split(",")]
    n, T, d = SIZES[size]
    print(f"\n**{norm}, {size}**: (n, T, d) = ({n}, {T}, {d}), {n * (T - 1)} constraints\n")
    print("| solver | " + " | ".join(f"gap {accuracy:.0e}" for accuracy in accuracies) + " |")
    print("|---" * (1 + len(accuracies)) + "|")
    best: dict[float, float | None] = dict.fromkeys(accuracies)
    chosen = [OURS, *([FORMER] if options.checkout else []), *list(PEERS)[1:]]
    for peer in chosen:
        _, kinds, packages = PEERS[OURS if peer == FORMER else peer]
        absent = missing(packages)
        if kind(as_norm(norm)) not in kinds or peer in over:
            continue
        if absent:
            print(f"| {peer} | not installed: {', '.join(absent)} |")
            continue
        cell = cells(peer, norm, size, options)
        if cell["stopped"] == "over the limit":
            over.add(peer)
        told = []
        for accuracy in accuracies:
            seconds, text = entry(cell, accuracy, best[accuracy])
            if peer == OURS:
                best[accuracy] = seconds
            told.append(text)
        print(f"| {peer} | " + " | ".join(told) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--norms", default="fro,l1,linf,nuc,spec,lp:1.75")
    parser.add_argument("--sizes", default="S,M", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--accuracies", default="1e-3,1e-6,1e-9", help="certified relative gaps")
    parser.add_argument("--seeds", type=int, help="instances; 3 of S, 1 of each larger size")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one solve, at most")
    parser.add_argument("--checkout", type=Path, help="another checkout of this library")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        accuracies = [float(each) for each in options.accuracies.split(",")]
        norm = as_norm(options.norms)
        measure(options.one, norm, options.sizes, accuracies, options.seeds)
        return
    for norm in options.norms.split(","):
        over: set[str] = set()
        for size in options.sizes.split(","):
            table(norm, size, options, over)


if __name__ == "__main__":
    main()
