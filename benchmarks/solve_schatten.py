"""The nuclear and spectral max-margin programmes: attsvm beside SCS and CLARABEL through cvxpy, same instances, same process, one thread.

    python benchmarks/solve_schatten.py --sizes S,M,L,XL --json solve_schatten.json

Every solution is certified with one formula: its weights are rescaled to a smallest margin of one, and its own multipliers bound the
norm from below. Times are CPU seconds of this process, compiled code warm, with the time cvxpy takes to compile the programme (that
is what its user waits for). Peers that would need minutes are not run: SCS beyond L, CLARABEL beyond M.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solve import SIZES, Found, instance  # sets one thread before NumPy is imported

import numpy as np  # isort: skip

from attsvm.geometry import Nuclear, Schatten, Spectral
from attsvm.margins import Margins
from attsvm.solvers import max_margin
from attsvm.solvers.certificates import certify_hard

PEERS = {"SCS": ("S", "M", "L"), "CLARABEL": ("S", "M")}
NORMS: dict[str, Schatten] = {"nuclear": Nuclear(), "spectral": Spectral(), "schatten:3": Schatten(3.0)}


def peer(margins: Margins, norm: Schatten, solver: str) -> Found:
    import cvxpy

    Z = margins.queries[margins.sequence]
    A = np.einsum("ca,ce->cae", margins.differences, Z).reshape(margins.m, -1)
    W = cvxpy.Variable(margins.shape)
    limits = A @ cvxpy.vec(W, order="C") >= 1
    size = cvxpy.normNuc(W) if norm.p == 1.0 else cvxpy.sigma_max(W)
    cvxpy.Problem(cvxpy.Minimize(size), [limits]).solve(solver=solver)
    return W.value, np.maximum(np.asarray(limits.dual_value), 0.0)


def measured(run: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return statistics.median(times), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="S,M,L")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("attsvm", "numpy", "cvxpy", "scs", "clarabel")}
    print(f"python {platform.python_version()}, {versions}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    rows: list[dict[str, Any]] = []

    def add(name: str, size: str, solver: str, tol: float | None, cpu: float, gap: float, rank: int) -> None:
        rows.append({"norm": name, "size": size, "solver": solver, "tol": tol, "cpu": cpu, "gap": gap, "rank": rank})
        asked = "" if tol is None else f"{tol:.0e}"
        print(f"| {name} | {size} | {solver} | {asked} | {cpu:.4f} | {gap:.1e} | {rank} |", flush=True)

    print("| norm | size | solver | asked | CPU s | gap | rank at 1e-3 |\n|---|---|---|---|---|---|---|")
    for name, norm in NORMS.items():
        max_margin(instance(*SIZES["S"], 1), norm)
        for size in arguments.sizes.split(","):
            margins = instance(*SIZES[size], arguments.seed)
            for tol in (1e-6, 1e-9):
                cpu, solution = measured(lambda m=margins, k=norm, t=tol: max_margin(m, k, tol=t), arguments.repeats)
                add(name, size, "attsvm", tol, cpu, solution.gap, solution.rank or 0)
            for solver, sizes in PEERS.items():
                if size not in sizes or not (norm.p == 1.0 or np.isinf(norm.p)):
                    continue
                cpu, (W, dual) = measured(lambda m=margins, k=norm, s=solver: peer(m, k, s), 1)
                found = certify_hard(margins, norm, W, dual)
                values = np.linalg.svd(found.W, compute_uv=False)
                add(name, size, solver, None, cpu, found.gap, int((values > 1e-3 * values[0]).sum()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
