"""Programmes of blocks: certified gap, time, memory and passes from 1e5 to 1e7 constraints.

    python benchmarks/blocks.py --sequences 200 2000 20000 --json blocks.json
    python benchmarks/blocks.py --sequences 2000 --in-memory
    python benchmarks/blocks.py --random --sequences 100 --tokens 51 --features 32

A sequence has ``--tokens`` tokens, so ``tokens - 1`` constraints. The instances are planted: W
solves the margins of one pair of tokens in every fifth sequence, and all other tokens are moved
along W z until their margin is 1 plus a positive number (exponential, of mean ``--spread``). So W
solves the whole programme, its norm is known, and no gap separates the rows that matter from the
others. With ``--random`` tokens are those of the papers (``attsvm.datasets.unit_sphere``), and the
selected one is the best under a random head.

Every block is made anew in each pass; the time for that is reported apart. Seconds are CPU seconds
of the process with one thread, memory is the peak of the process. By what it grows is predicted:

    3 blocks + 32 (d + 16) rows of the largest working set + 32 d sequences + 16 k^2 bytes

with k positive multipliers, at most those of the largest linear system.

    python benchmarks/blocks.py --json blocks.json --draw blocks.png
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from attsvm.base.store import versions  # noqa: E402
from attsvm.datasets.attention_data import FloatArray, IntArray  # noqa: E402
from attsvm.margins import Margins  # noqa: E402
from attsvm.norms import parse_norm  # noqa: E402
from attsvm.report.style import (  # noqa: E402
    ATTENTION,
    FAINT,
    INK,
    TRAINED,
    canvas,
    label_ends,
    logarithmic,
)
from attsvm.solvers import front, max_margin, max_margin_blocks  # noqa: E402
from attsvm.solvers.pivoting import PIVOTING  # noqa: E402
from programmes import PACKAGES  # noqa: E402

Block = tuple[FloatArray, FloatArray, IntArray]


class Timed:
    """What makes blocks, with the seconds that this takes, and those until the next one is asked
    for: the look at its rows.
    """

    making, looking, ended = 0.0, 0.0, 0.0

    def __call__(self, k: int) -> Block:
        began = time.process_time()
        if k:
            self.looking += began - self.ended
        block = self.block(k)
        self.ended = time.process_time()
        self.making += self.ended - began
        return block

    def block(self, k: int) -> Block:
        raise NotImplementedError


class Planted(Timed):
    """Sequences whose solution is known."""

    def __init__(
        self, n: int, T: int, d: int, norm: str, spread: float, seed: int, each: int = 10
    ) -> None:
        self.n, self.T, self.d, self.each = n, T, d, each
        self.spread, self.seed = spread, seed
        self.count = -(-n // each)
        self.planted = np.arange(0, n, 5)
        k = len(self.planted)
        rng = np.random.default_rng([seed, n])
        self.pairs, self.queries = self._vectors(rng, k, 2), self._vectors(rng, k)
        places = np.zeros(k, dtype=np.int64)
        rows = self.pairs[:, 0] - self.pairs[:, 1]
        known = Margins(rows, self.queries, np.arange(k + 1), np.ones(k), places, places)
        found = max_margin(known, norm, tol=1e-9)
        self.W, self.norm, self.support = found.W, found.norm, int((found.dual > 0.0).sum())

    def _vectors(self, rng: np.random.Generator, *shape: int) -> FloatArray:
        """Entries of 256 values with mean about 0 and variance 1 / d, one byte of chance each."""
        count = int(np.prod(shape)) * self.d
        words = rng.integers(2**64, size=-(-count // 8), dtype=np.uint64)
        drawn = words.view(np.int8)[:count].reshape(*shape, self.d)
        return np.multiply(drawn, np.sqrt(3.0 / self.d) / 128.0, dtype=np.float64)

    def block(self, k: int) -> Block:
        first, last = k * self.each, min((k + 1) * self.each, self.n)
        rng = np.random.default_rng([self.seed, self.n, k])
        X, Z = self._vectors(rng, last - first, self.T), self._vectors(rng, last - first)
        selected, every = rng.integers(self.T, size=last - first), np.arange(last - first)
        here = np.flatnonzero((self.planted >= first) & (self.planted < last))
        place = self.planted[here] - first
        Z[place], X[place, selected[place]] = self.queries[here], self.pairs[here, 0]
        moved = Z @ self.W.T
        logits = np.matmul(X, moved[:, :, None])[:, :, 0]
        margin = 1.0 + rng.exponential(self.spread, logits.shape)
        push = logits[every, selected][:, None] - logits - margin
        push[every, selected] = 0.0
        push /= np.einsum("nd,nd->n", moved, moved)[:, None]
        for x, far, direction in zip(X, push, moved, strict=True):
            x += far[:, None] * direction
        X[place, (selected[place] + 1) % self.T] = self.pairs[here, 1]
        return X, Z, selected


class Random(Timed):
    """Sequences of the papers, whose solution is not known."""

    norm, support = float("nan"), -1

    def __init__(self, n: int, T: int, d: int, seed: int, each: int = 40) -> None:
        self.n, self.T, self.d, self.each, self.seed = n, T, d, each, seed
        self.count = -(-n // each)
        self.head = np.random.default_rng([seed, n]).standard_normal(d)

    def block(self, k: int) -> Block:
        rng = np.random.default_rng([self.seed, self.n, k])
        count = min(self.each, self.n - k * self.each)
        X = rng.standard_normal((count, self.T, self.d))
        X /= np.linalg.norm(X, axis=2, keepdims=True)
        Z = rng.standard_normal((count, self.d))
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)
        return X, Z, (X @ self.head).argmax(axis=1)


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[int, int]]]:
    """Rows of every programme that is solved inside, and how many of their multipliers are not
    zero.
    """
    sizes, solve = [], front.solve_all_rows

    def spied(part: Margins, *arguments: Any, **options: Any) -> Any:
        found = solve(part, *arguments, **options)
        sizes.append((part.m, int((found.dual != 0.0).sum())))
        return found

    front.solve_all_rows = spied
    try:
        yield sizes
    finally:
        front.solve_all_rows = solve


def in_memory(instance: Any) -> Margins:
    """All rows written out."""
    D, Z, tokens, winners = [], [], [], []
    for k in range(instance.count):
        X, queries, selected = instance(k)
        every, others = np.arange(len(X)), np.ones(X.shape[:2], dtype=np.bool_)
        others[every, selected] = False
        sequence, token = np.nonzero(others)
        D.append(X[sequence, selected[sequence]] - X[sequence, token])
        Z.append(queries)
        tokens.append(token)
        winners.append(selected)
    m = sum(map(len, tokens))
    offsets = np.arange(instance.n + 1) * (instance.T - 1)
    together = [np.concatenate(part) for part in (D, Z, tokens, winners)]
    return Margins(together[0], together[1], offsets, np.ones(m), together[2], together[3])


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One programme in this process."""
    n, T, d = options.sequences[0], options.tokens, options.features
    instance: Any = (
        Random(n, T, d, options.seed)
        if options.random
        else Planted(n, T, d, options.norm, options.spread, options.seed)
    )
    norm = parse_norm(options.norm)
    if options.in_memory:
        solve = partial(max_margin, in_memory(instance), norm, tol=options.tol)
    else:
        blocks = Margins.from_blocks(instance, instance.count)
        solve = partial(max_margin_blocks, blocks, norm, tol=options.tol, memory=options.memory)
    instance.making = instance.looking = 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, wall = time.process_time(), time.monotonic()
    with watched() as sizes:
        found = solve()
    cpu, wall = time.process_time() - began, time.monotonic() - wall
    most, free = (
        max(m for m, _ in sizes),
        min(max(k for _, k in sizes), d * d, PIVOTING.largest_system),
    )
    per_row, each = 32 * (d + 16), 8 * T * d * getattr(instance, "each", 0)
    predicted = 3 * each + per_row * most + 32 * d * n + 16 * free**2
    return {
        "rows": n * (T - 1),
        "in_memory": options.in_memory,
        "norm": options.norm,
        "status": found.status,
        "gap": found.gap,
        "error_of_norm": found.norm / instance.norm - 1.0,
        "planted": instance.support,
        "support": len(found.support),
        "working_set": found.margins.m,
        "largest_set": most,
        "multipliers": free,
        "predicted_mib": predicted / 2**20,
        "passes": found.passes,
        "cpu_s": cpu,
        "making_s": instance.making,
        "looking_s": instance.looking,
        "solving_s": cpu - instance.making - instance.looking,
        "wall_s": wall,
        "rss_before_mib": before / 1024,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "message": found.message,
    }


def figure(results: list[dict[str, Any]], out: Path) -> None:
    """Seconds against rows, each part apart, with the number of passes."""
    rows = np.array([each["rows"] for each in results])
    lines = {
        "all": ("cpu_s", INK),
        "making blocks": ("making_s", FAINT),
        "looking at rows": ("looking_s", TRAINED),
        "solving": ("solving_s", ATTENTION),
    }
    with canvas(3.2, width=6.0) as (drawing, axes):
        ends = []
        for label, (name, colour) in lines.items():
            values = np.array([each[name] for each in results])
            axes[0].plot(rows, values, "o-", color=colour, markersize=3)
            ends.append((float(values[-1]), label, colour))
        logarithmic(axes[0].xaxis, rows)
        every = [each[name] for each in results for name, _ in lines.values()]
        logarithmic(axes[0].yaxis, np.array(every))
        for each in results:
            axes[0].annotate(
                str(each["passes"]),
                (each["rows"], each["cpu_s"]),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
            )
        axes[0].set_title("CPU seconds, with the number of passes", loc="left")
        axes[0].set_xlabel("constraints")
        label_ends(axes[0], ends)
        drawing.savefig(out, dpi=160, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[200, 2000, 20000])
    parser.add_argument("--tokens", type=int, default=501)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--norm", default="fro")
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--memory", default="1.75GiB")
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="not planted")
    parser.add_argument("--in-memory", action="store_true", help="all rows written out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path, help="draw what is in the file of --json instead")
    options = parser.parse_args()
    if options.draw:
        figure(json.loads(options.json.read_text())["results"], options.draw)
        return 0
    if len(options.sequences) == 1:
        results = [measured(options)]
    else:  # a process each, so that each has a peak of its own
        of_one = [
            argparse.Namespace(**{**vars(options), "sequences": [n]}) for n in options.sequences
        ]
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            results = list(pool.map(measured, of_one))
    for each in results:
        print(json.dumps(each), flush=True)
    if options.json:
        record = {
            "results": results,
            "versions": versions(*PACKAGES),
            "machine": platform.machine(),
        }
        options.json.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
