"""Entrywise norms: attsvm beside cvxpy, same instances, same process, one thread, one certificate for both.

    python benchmarks/solve_lp.py --norms 1,1.1,1.75,3,inf --sizes S,M,L,XL --peer-sizes S,M --json lp.json

cvxpy minimises the p-norm under the written-out constraints: with CLARABEL in both of its forms (second-order cones for the nearest
rational exponent, its default, and power cones), and the linear programmes with HiGHS, which is quicker when called directly.
Times are CPU seconds of this process, the median of the repeats, compiled code warm; the weights of every solver are rescaled to a
smallest margin of one and its own multipliers bound the norm from below.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solve import SIZES, Found, instance, rows, versions  # sets one thread before NumPy is imported

import numpy as np  # isort: skip

from attsvm.geometry import Lp
from attsvm.margins import Margins
from attsvm.solvers import max_margin
from attsvm.solvers.certificates import certify_hard

Solve = Callable[[Margins, Lp], Found]


def ours(margins: Margins, norm: Lp) -> Found:
    solution = max_margin(margins, norm)
    return solution.W, solution.dual


def through_cvxpy(margins: Margins, norm: Lp, **form: Any) -> Found:
    import cvxpy

    A = rows(margins)
    w = cvxpy.Variable(A.shape[1])
    limits = A @ w >= 1
    if norm.p in (1.0, np.inf):
        size, solver = cvxpy.norm(w, 1 if norm.p == 1.0 else "inf"), cvxpy.HIGHS
    else:
        size, solver = cvxpy.pnorm(w, norm.p, **form), cvxpy.CLARABEL
    cvxpy.Problem(cvxpy.Minimize(size), [limits]).solve(solver=solver)
    return w.value.reshape(margins.shape), np.abs(np.asarray(limits.dual_value))


def through_power_cones(margins: Margins, norm: Lp) -> Found:
    return through_cvxpy(margins, norm, approx=False)


PEERS: dict[str, Solve] = {"attsvm": ours, "cvxpy": through_cvxpy, "cvxpy power cones": through_power_cones}


def measure(name: str, solve: Solve, norm: Lp, size: str, seed: int, repeats: int) -> dict[str, Any]:
    margins = instance(*SIZES[size], seed)
    solve(instance(*SIZES["S"], 1), norm)  # imports and compilation
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < 20:
        start = time.process_time()
        W, dual = solve(margins, norm)
        seconds.append(time.process_time() - start)
    proof = certify_hard(margins, norm, W, np.maximum(dual, 0.0))
    figures = {"cpu_s": statistics.median(seconds), "gap": proof.gap, "violation": proof.violation, "repeats": len(seconds)}
    return {"solver": name, "norm": repr(norm), "size": size, **figures}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--norms", default="1,1.1,1.75,3,inf")
    parser.add_argument("--sizes", default="S,M,L,XL")
    parser.add_argument("--peer-sizes", default="S,M", help="cvxpy needs minutes from L")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()
    results: list[dict[str, Any]] = []
    print("| norm | size | solver | CPU ms | gap | violation | times attsvm |\n|---|---|---|---|---|---|---|")
    for text in options.norms.split(","):
        norm = Lp(float(text))
        for size in options.sizes.split(","):
            mine = 0.0
            for name, solve in PEERS.items():
                if name != "attsvm" and size not in options.peer_sizes.split(","):
                    continue
                if solve is through_power_cones and norm.p in (1.0, np.inf):
                    continue
                r = measure(name, solve, norm, size, options.seed, options.repeats)
                results.append(r)
                mine = mine or r["cpu_s"]
                figures = f"{1e3 * r['cpu_s']:.3g} | {r['gap']:.0e} | {r['violation']:.0e} | {r['cpu_s'] / mine:.3g}"
                print(f"| {r['norm']} | {size} {SIZES[size]} | {name} | {figures} |", flush=True)
    print(f"\nLoad {before[0]:.1f} before, {os.getloadavg()[0]:.1f} after; {platform.machine()}, {os.cpu_count()} cores; {versions()}")
    if options.json:
        options.json.write_text(json.dumps({"results": results, "versions": versions(), "load": [before[0], os.getloadavg()[0]]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
