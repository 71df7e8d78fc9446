"""The Frobenius max-margin programme: attsvm beside other people's solvers, same instances, same process, one thread.

    python benchmarks/solve.py --sizes S,M,L,XL --json solve.json

Every solution is certified with one formula: its weights are rescaled to a smallest margin of one, and its own multipliers bound the
norm from below.
Times are CPU seconds of this process, the median of the repeats, compiled code warm. A peer that passes the limit at one size is
left out of the larger ones.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing as mp
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from attsvm.data import AttentionData  # noqa: E402
from attsvm.geometry import Frobenius  # noqa: E402
from attsvm.margins import Margins, selection_margins  # noqa: E402
from attsvm.solvers import max_margin  # noqa: E402
from attsvm.solvers.certificates import certify_hard  # noqa: E402

SIZES = {"S": (6, 8, 10), "M": (20, 16, 32), "L": (50, 32, 64), "XL": (200, 64, 128)}
MATRIX_LIMIT = 1 << 25  # entries of the written-out programme beyond which matrix peers are not run
Found = tuple[np.ndarray, np.ndarray]


def instance(n: int, T: int, d: int, seed: int) -> Margins:
    """Random unit tokens and queries; the best token under a random signed head is selected."""
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> np.ndarray:
        a = rng.standard_normal(shape)
        return a / np.linalg.norm(a, axis=-1, keepdims=True)

    v, Y = unit(d), np.where(rng.standard_normal(n) > 0, 1.0, -1.0)
    X, Z = unit(n, T, d), unit(n, d)
    return selection_margins(AttentionData(X, Y, Z), (Y[:, None] * (X @ v)).argmax(axis=1))


def rows(margins: Margins) -> np.ndarray:
    Z = margins.queries[margins.sequence]
    return np.einsum("ca,ce->cae", margins.differences, Z).reshape(margins.m, -1)


def ours(margins: Margins) -> Found:
    solution = max_margin(margins)
    return solution.W, solution.dual


def through_cvxpy(margins: Margins) -> Found:
    import cvxpy

    A = rows(margins)
    w = cvxpy.Variable(A.shape[1])
    limits = A @ w >= 1
    cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(w)), [limits]).solve()
    return w.value.reshape(margins.shape), np.asarray(limits.dual_value)


def through_daqp(margins: Margins) -> Found:
    import daqp

    A = rows(margins)
    m, k = A.shape
    # daqp's H = identity is passed in full: it has no sparse or factored form.
    w, _, _, info = daqp.solve(np.eye(k), np.zeros(k), A, np.full(m, 1e30), np.ones(m), np.zeros(m, dtype=np.int32))
    return w.reshape(margins.shape), np.abs(np.asarray(info["lam"]))


def through_nnls(margins: Margins) -> Found:
    """Dual NNQP by Lawson-Hanson on the Cholesky factor of the Gram matrix, the quickest way we know to use it."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import nnls

    G = margins.gram()
    R = np.linalg.cholesky(G + 1e-13 * np.eye(len(G))).T
    dual, _ = nnls(R, solve_triangular(R, np.ones(len(G)), trans="T"), maxiter=30 * len(G))
    return margins.adjoint(dual), dual


def through_quadprog(margins: Margins) -> Found:
    """On the dual, whose matrix is the Gram matrix: the primal matrix would be d^2 by d^2."""
    import quadprog

    G = margins.gram()
    m = len(G)
    dual = np.maximum(quadprog.solve_qp(G + 1e-13 * np.eye(m), np.ones(m), np.eye(m), np.zeros(m))[0], 0.0)
    return margins.adjoint(dual), dual


def through_piqp(margins: Margins) -> Found:
    """On the dual, like quadprog: measured quicker than the primal."""
    import piqp

    G = margins.gram()
    m = len(G)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-12
    solver.setup(G, -np.ones(m), x_l=np.zeros(m))
    solver.solve()
    dual = np.maximum(np.asarray(solver.result.x), 0.0)
    return margins.adjoint(dual), dual


def through_clarabel(margins: Margins) -> Found:
    import clarabel
    from scipy import sparse

    A = rows(margins)
    m, k = A.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    solver = clarabel.DefaultSolver(
        sparse.eye(k, format="csc"), np.zeros(k), sparse.csc_matrix(-A), -np.ones(m), [clarabel.NonnegativeConeT(m)], settings
    )
    found = solver.solve()
    return np.array(found.x).reshape(margins.shape), np.array(found.z)


PEERS: dict[str, Callable[[Margins], Found]] = {
    "attsvm": ours,
    "cvxpy default": through_cvxpy,
    "daqp": through_daqp,
    "piqp": through_piqp,
    "scipy nnls": through_nnls,
    "quadprog": through_quadprog,
    "clarabel": through_clarabel,
}


def measure(name: str, size: str, seed: int, repeats: int, answer: Any) -> None:
    """Solve once to warm up, then ``repeats`` times; runs in a process of its own so that a limit can end it."""
    margins = instance(*SIZES[size], seed)
    solve = PEERS[name]
    try:
        small = instance(*SIZES["S"], 1)
        solve(small)  # imports and compilation
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            W, dual = solve(margins)
            seconds.append(time.process_time() - start)
            if sum(seconds) > 20:
                break
        proof = certify_hard(margins, Frobenius(), W, np.maximum(dual, 0.0))
        answer.put({"cpu_s": statistics.median(seconds), "gap": proof.gap, "violation": proof.violation, "repeats": len(seconds)})
    except Exception as error:  # a peer that fails is a result, not a crash
        answer.put({"failed": f"{type(error).__name__}: {error}"[:200]})


def limited(name: str, size: str, seed: int, repeats: int, limit: float) -> dict[str, Any]:
    context = mp.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=measure, args=(name, size, seed, repeats, answer))
    process.start()
    try:
        result: dict[str, Any] = answer.get(timeout=limit)
    except Exception:
        result = {"failed": f"stopped after {limit:g} s"}
        process.terminate()
    process.join()
    return {"peer": name, "size": size, **result}


def table(results: list[dict[str, Any]]) -> str:
    mine = {r["size"]: r["cpu_s"] for r in results if r["peer"] == "attsvm" and "cpu_s" in r}
    lines = ["| size | solver | CPU ms | gap | violation | times attsvm |", "|---|---|---|---|---|---|"]
    for r in results:
        n, T, d = SIZES[r["size"]]
        where = f"{r['size']} ({n}, {T}, {d})"
        if "failed" in r:
            lines.append(f"| {where} | {r['peer']} | {r['failed']} | | | |")
        else:
            ratio = f"{r['cpu_s'] / mine[r['size']]:.3g}" if r["size"] in mine else ""
            lines.append(f"| {where} | {r['peer']} | {1e3 * r['cpu_s']:.3g} | {r['gap']:.0e} | {r['violation']:.0e} | {ratio} |")
    return "\n".join(lines)


def versions() -> dict[str, str]:
    names = ("numpy", "scipy", "numba", "cvxpy", "osqp", "daqp", "piqp", "quadprog", "clarabel")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--sizes", default="S,M,L,XL")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limit", type=float, default=120.0, help="wall seconds a peer may take for its repeats at one size")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()
    results: list[dict[str, Any]] = []
    given_up: set[str] = set()
    for size in options.sizes.split(","):
        n, T, d = SIZES[size]
        for peer in options.peers.split(","):
            too_large = n * (T - 1) * d * d > MATRIX_LIMIT and peer != "attsvm"
            if peer in given_up or too_large:
                continue
            results.append(limited(peer, size, options.seed, options.repeats, options.limit))
            if "failed" in results[-1]:
                given_up.add(peer)
            print(results[-1], file=sys.stderr, flush=True)
    print(table(results))
    print(
        f"\nLoad average {before[0]:.1f} before, {os.getloadavg()[0]:.1f} after; {platform.machine()}, {os.cpu_count()} cores; {versions()}"
    )
    if options.json:
        options.json.write_text(json.dumps({"results": results, "versions": versions(), "load": [before[0], os.getloadavg()[0]]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
