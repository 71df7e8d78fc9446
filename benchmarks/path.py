"""Sequences of related programmes: each step from the solution before it (margin_path) beside each
step alone (max_margin).

    python benchmarks/path.py --json path.json

Both are this library, so the ratios say what warm starts are worth and nothing about other solvers.
Times are CPU seconds of this process, compiled code warm, the sum over all steps after the first.
Drift is relative noise on differences and queries, new at every step.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

import attsvm  # noqa: E402
from attsvm.base.store import versions  # noqa: E402
from attsvm.margins import Margins, selection_margins  # noqa: E402
from attsvm.norms import Frobenius, Lp, Norm, Nuclear, Spectral  # noqa: E402
from attsvm.solvers import MarginSolution, margin_path, max_margin  # noqa: E402
from programmes import PACKAGES, SIZES  # noqa: E402
from programmes import random_instance as instance  # noqa: E402

EXPONENTS = (2.0, 1.75, 1.5, 1.3, 1.2, 1.1, 1.05)
NORMS: tuple[Norm, ...] = (Frobenius(), Lp(1.1), Nuclear(), Spectral())


def drifting(margins: Margins, size: float, steps: int) -> list[Margins]:
    """The programme and ``steps`` more, each with noise of relative length ``size`` on rows of the
    one before.
    """
    rng = np.random.default_rng(0)
    out = [margins]
    for _ in range(steps):
        D, Z = out[-1].differences, out[-1].queries
        noise_d, noise_z = (rng.standard_normal(a.shape) / np.sqrt(a.shape[1]) for a in (D, Z))
        lengths = np.linalg.norm(D, axis=1, keepdims=True)
        out.append(
            replace(out[-1], differences=D + size * lengths * noise_d, queries=Z + size * noise_z)
        )
    return out


def flipped(size: str, steps: int) -> list[Margins]:
    """One sequence after the other selects its second-best token."""
    data, v = attsvm.datasets.unit_sphere(*SIZES[size], seed=0)
    scores = (data.labels[:, None] * (data.tokens @ v).reshape(data.n, -1)).argsort(axis=1)
    tokens, out = scores[:, -1].copy(), []
    for i in range(steps + 1):
        out.append(selection_margins(data, tokens.copy()))
        tokens[i] = scores[i, -2]
    return out


def alone(programmes: list[Margins], norms: list[Norm]) -> list[MarginSolution]:
    return [max_margin(m, norm) for m, norm in zip(programmes, norms, strict=True)]


def timed(
    run: Callable[[], list[MarginSolution]], first: Callable[[], Any], repeats: int
) -> tuple[float, list[MarginSolution]]:
    """Seconds without those of the first step."""
    times, found = [], []
    for _ in range(repeats):
        start = time.process_time()
        first()
        middle = time.process_time()
        found = run()
        times.append(time.process_time() - middle - (middle - start))
    return statistics.median(times), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="L", help="of the drift and of the flips (default L)")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    base = instance(*SIZES[options.size], 0)
    cases: list[tuple[str, list[Margins], list[Norm]]] = [
        (
            "exponents 2 to 1.05, M",
            [instance(*SIZES["M"], 0)] * len(EXPONENTS),
            [Lp(p) for p in EXPONENTS],
        )
    ]
    for norm in NORMS:
        for drift in (1e-3, 1e-2, 1e-1):
            programmes = drifting(base, drift, options.steps)
            cases.append(
                (f"drift {drift:g}, {norm!r}, {options.size}", programmes, [norm] * len(programmes))
            )
        programmes = flipped(options.size, options.steps)
        cases.append(
            (f"one token flipped, {norm!r}, {options.size}", programmes, [norm] * len(programmes))
        )
    results = []
    print(
        "| sequence | alone, CPU ms | path, CPU ms | ratio | iterations | largest gap"
        " |\n|---|---|---|---|---|---|"
    )
    for name, programmes, norms in cases:
        max_margin(programmes[0], norms[-1])  # imports and compilation
        first = lambda p=programmes, k=norms: max_margin(p[0], k[0])  # noqa: E731
        cold, each = timed(lambda p=programmes, k=norms: alone(p, k), first, options.repeats)
        warm, path = timed(lambda p=programmes, k=norms: margin_path(p, k), first, options.repeats)
        counts = [sum(s.iterations for s in found[1:]) for found in (each, path)]
        gap = max((s.gap for s in path if s.status != "infeasible"), default=1.0)
        same = all(
            a.status == b.status and (a.norm == b.norm or abs(a.norm / b.norm - 1) < 1e-5)
            for a, b in zip(each, path, strict=True)
        )
        assert same, name
        results.append(
            {"sequence": name, "alone_s": cold, "path_s": warm, "iterations": counts, "gap": gap}
        )
        print(
            f"| {name} | {1e3 * cold:.0f} | {1e3 * warm:.0f} | {cold / warm:.2f} | {counts[0]} /"
            f" {counts[1]} | {gap:.0e} |",
            flush=True,
        )
    print(
        f"\nLoad {os.getloadavg()[0]:.1f}; {platform.machine()}, {os.cpu_count()} cores;"
        f" {versions(*PACKAGES)}"
    )
    if options.json:
        options.json.write_text(
            json.dumps({"results": results, "versions": versions(*PACKAGES)}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
