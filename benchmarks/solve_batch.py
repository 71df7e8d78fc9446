"""Many small programmes: one call of attsvm beside a loop over other people's solvers, same
instances, same process.

    python benchmarks/solve_batch.py --count 1000 --json solve_batch.json
    python benchmarks/solve_batch.py --norms lp:1.75,l1,linf,nuc,spec --repeats 1

With ``--norms`` the peers are those of ``peers.py`` (``--peers`` chooses among them), and
everybody is asked for a gap of 1e-9; a ratio counts where both reached it on every instance. There
the data are warmed up with one programme, and attsvm is repeated three times as often as the peers.

Instances are those of the papers, ``attsvm.datasets.unit_sphere``. The peers are handed their
matrices ready made; the times of attsvm include the certificates, which for the peers are computed
afterwards, by the same formula. Wall milliseconds for the whole batch and CPU milliseconds of the
process, each the least of the repeats, taken in turns; compiled code warm. ``ATTSVM_THREADS`` sets
the threads of attsvm; the peers have one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import daqp  # noqa: E402
import numpy as np  # noqa: E402
import piqp  # noqa: E402
from scipy.linalg import solve_triangular  # noqa: E402
from scipy.optimize import nnls  # noqa: E402

from attsvm.base import cores  # noqa: E402
from attsvm.base.store import versions  # noqa: E402
from attsvm.datasets import unit_sphere  # noqa: E402
from attsvm.margins import (  # noqa: E402
    Margins,
    MarginsBatch,
    optimal_tokens,
    selection_batch,
)
from attsvm.norms import Frobenius, parse_norm  # noqa: E402
from attsvm.solvers import (  # noqa: E402
    SolutionBatch,
    max_margin,
    max_margin_batch,
)
from attsvm.solvers.proofs import certify_hard  # noqa: E402
from peers import OURS, PEERS, kind, missing  # noqa: E402
from programmes import PACKAGES, certified_gap  # noqa: E402
from programmes import written_out as rows  # noqa: E402

Answer = tuple[np.ndarray, np.ndarray]
Solve = Callable[[Any], Answer]


def daqp_primal(m: int, k: int) -> Solve:
    """The programme itself: H the identity, A the written-out rows."""
    H, f, upper, lower, sense = (
        np.eye(k),
        np.zeros(k),
        np.full(m, 1e30),
        np.ones(m),
        np.zeros(m, dtype=np.int32),
    )

    def solve(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w, _, _, info = daqp.solve(H, f, A, upper, lower, sense)
        return w, np.abs(np.asarray(info["lam"]))

    return solve


def piqp_dual(m: int) -> Solve:
    """On the dual, whose matrix is the Gram matrix: measured quicker than the primal."""
    c, low = -np.ones(m), np.zeros(m)

    def solve(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        solver = piqp.DenseSolver()
        solver.settings.eps_abs = solver.settings.eps_rel = 1e-12
        solver.setup(G, c, x_l=low)
        solver.solve()
        return np.empty(0), np.maximum(np.asarray(solver.result.x), 0.0)

    return solve


def nnls_dual(m: int) -> Solve:
    """Lawson-Hanson on the Cholesky factor of the Gram matrix; the factor and the right-hand side
    are ready made.
    """

    def solve(system: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return np.empty(0), nnls(*system, maxiter=30 * m)[0]

    return solve


def factored(margins: Margins) -> tuple[np.ndarray, np.ndarray]:
    G = margins.gram()
    R = np.linalg.cholesky(G + 1e-13 * np.eye(len(G))).T
    return R, solve_triangular(R, np.ones(len(G)), trans="T")


def worst_proof(
    batch: MarginsBatch, found: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[float, float]:
    gap = violation = 0.0
    for margins, (w, dual) in zip(batch, found, strict=True):
        W = w.reshape(margins.shape) if w.size else margins.adjoint(dual)
        proof = certify_hard(margins, Frobenius(), W, dual)
        gap, violation = max(gap, proof.gap), max(violation, proof.violation)
    return gap, violation


ACCURACY = 1e-9
MORE = 3  # repeats of attsvm for each repeat of a peer, which takes longer by more than that


def other_norms(
    names: list[str], peers: list[str], programmes: list[Margins], repeats: int
) -> None:
    """One call of attsvm, and a loop over each peer, in the norms other than Frobenius."""
    print("| norm | solver | wall ms | CPU ms | times attsvm, wall | CPU | worst gap |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        norm = parse_norm(name)

        def together(many: list[Margins], norm: Any = norm) -> list[Answer]:
            found = max_margin_batch(many, norm, tol=ACCURACY)
            return list(zip(found.W, np.split(found.dual, found.rows[1:-1]), strict=True))

        def each(many: list[Margins], norm: Any = norm) -> list[Answer]:
            return [(s.W, s.dual) for s in (max_margin(p, norm, tol=ACCURACY) for p in many)]

        contestants = {"attsvm, one call": together, "attsvm, one call each": each}
        for peer_name in peers:
            solve, kinds, packages = PEERS[peer_name]
            if peer_name != OURS and kind(norm) in kinds and not missing(packages):

                def loop(many: list[Margins], solve: Any = solve, norm: Any = norm) -> list[Answer]:
                    return [solve(p, norm, ACCURACY) for p in many]

                contestants[peer_name] = loop
        first = None
        for solver, run in contestants.items():
            best, answers = (np.inf, np.inf), run(programmes[:2])  # warms up
            for _ in range(repeats * (MORE if run is together else 1)):
                wall, cpu = time.perf_counter(), time.process_time()
                answers = run(programmes)
                spent = time.perf_counter() - wall, time.process_time() - cpu
                best = min(best[0], spent[0]), min(best[1], spent[1])
            gaps = [
                certified_gap(p, norm, np.asarray(W), dual)
                for p, (W, dual) in zip(programmes, answers, strict=True)
            ]
            first = first or best
            print(
                f"| {name} | {solver} | {1e3 * best[0]:.4g} | {1e3 * best[1]:.4g} |"
                f" {best[0] / first[0]:.3g} | {best[1] / first[1]:.3g} | {max(gaps):.0e} |",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--size", type=int, nargs=3, default=(6, 8, 10), metavar=("n", "T", "d"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--norms", help="other norms than Frobenius, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="of these norms")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    data, heads = unit_sphere(*options.size, seed=range(options.count))
    tokens = optimal_tokens(data, heads)
    batch = selection_batch(data, tokens)
    separate = list(batch)
    if options.norms:
        other_norms(options.norms.split(","), options.peers.split(","), separate, options.repeats)
        print(f"\nload average {before:.1f} before; {platform.machine()}; {versions(*PACKAGES)}")
        return 0
    m, k = separate[0].m, data.d_x * data.d_z

    def loop(solve: Solve, inputs: list[Any]) -> Callable[[], list[tuple[np.ndarray, np.ndarray]]]:
        return lambda: [solve(one) for one in inputs]

    contestants: dict[str, Callable[[], Any]] = {
        "attsvm, one call": lambda: max_margin_batch(batch),
        "attsvm, one call on a list of Margins": lambda: max_margin_batch(separate),
        "attsvm, margins and solve from the data": lambda: max_margin_batch(
            selection_batch(data, tokens)
        ),
        "attsvm, one call each": lambda: [max_margin(one) for one in separate],
        "daqp": loop(daqp_primal(m, k), [rows(one) for one in separate]),
        "piqp": loop(piqp_dual(m), [one.gram() for one in separate]),
        "scipy nnls": loop(nnls_dual(m), [factored(one) for one in separate]),
    }
    wall, cpu, answers = dict.fromkeys(contestants, np.inf), dict.fromkeys(contestants, np.inf), {}
    for repeat in range(1 + options.repeats):  # the first one warms up
        for name, run in contestants.items():
            start, spent = time.perf_counter(), time.process_time()
            answers[name] = run()
            took, used = time.perf_counter() - start, time.process_time() - spent
            if repeat:
                wall[name], cpu[name] = min(wall[name], took), min(cpu[name], used)
    results = []
    for name, answer in answers.items():
        if isinstance(answer, SolutionBatch):
            gap, violation = float(answer.gap.max()), float(answer.violation.max())
        elif name.startswith("attsvm"):
            gap, violation = max(s.gap for s in answer), max(s.violation for s in answer)
        else:
            gap, violation = worst_proof(batch, answer)
        results.append(
            {
                "solver": name,
                "wall_s": wall[name],
                "cpu_s": cpu[name],
                "gap": gap,
                "violation": violation,
            }
        )
    mine = results[0]
    print(
        f"| {options.count} programmes {tuple(options.size)} | wall ms | CPU ms | times attsvm,"
        " wall | CPU | worst gap | worst violation |"
    )
    print("|---|---|---|---|---|---|---|")
    for r in results:
        print(
            f"| {r['solver']} | {1e3 * r['wall_s']:.3g} | {1e3 * r['cpu_s']:.3g} |"
            f" {r['wall_s'] / mine['wall_s']:.3g} | {r['cpu_s'] / mine['cpu_s']:.3g} |"
            f" {r['gap']:.0e} | {r['violation']:.0e} |"
        )
    threads = cores.threads()
    after = os.getloadavg()[0]
    print(
        f"\n{threads} threads; load average {before:.1f} before, {after:.1f} after;"
        f" {platform.machine()}; {versions(*PACKAGES)}"
    )
    if options.json:
        record = {
            "results": results,
            "threads": threads,
            "load": [before, after],
            "versions": versions(*PACKAGES),
        }
        options.json.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
