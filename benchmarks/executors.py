"""What a sweep costs beside its cells, on every executor.

    python benchmarks/executors.py --json executors.json
    python benchmarks/executors.py --cells 2000 --seconds 0 --only local,processes

The cells sleep, so a busy machine disturbs little, and import torch, as all that train do. Two
processes share them everywhere. Each
executor runs the whole of ``attsvm.reproduce`` in a fresh folder, in turns; of the repeats the one
with the least wall time is shown, and its parts as the cells noted them: seconds until the first
cell begins (processes start and import), between the end of a cell and the beginning of the next
one in the same process, from the end of the last cell to the end of the call (the page). A cluster
of Dask runs already, as it does in a laboratory; its workers have not imported attsvm.

``--model 10,40,160 --jobs 1`` predicts from small sweeps what larger ones take, and measures them:

    seconds of n cells on w processes = seconds of one cell's sweep + (ceil(n / w) - 1) (c + o),

where o is the mean time between the cells of a sweep of five on each process.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from attsvm.pipeline.reproduce import reproduce

FIGURE = '''"""Sleeps.

Every cell notes when it begins and ends, and who computes it.

Source: nowhere
"""

import os
import time
from pathlib import Path

import torch

from attsvm_papers import kit


@kit.run(first=list(range({cells})))
def run(first):
    began = time.time()
    time.sleep({seconds})
    with Path({log!r}).open("a") as log:
        log.write(f"{{os.getpid()}} {{began}} {{time.time()}}\\n")
    return {{"square": [first**2]}}
'''


@contextlib.contextmanager
def local(home: Path, jobs: int) -> Iterator[Any]:
    yield None


@contextlib.contextmanager
def processes(home: Path, jobs: int) -> Iterator[Any]:
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield pool


@contextlib.contextmanager
def dask(home: Path, jobs: int) -> Iterator[Any]:
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=jobs, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client.get_executor(pure=False)


@contextlib.contextmanager
def submitit(home: Path, jobs: int) -> Iterator[Any]:
    import submitit as package

    yield package.AutoExecutor(home / "logs", cluster="local")


EXECUTORS: dict[str, Callable[[Path, int], Any]] = {
    each.__name__: each for each in (local, processes, dask, submitit)
}


def sweep(name: str, cells: int, seconds: float, jobs: int) -> dict[str, Any]:
    """One sweep, with what its cells noted."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        log, figure = home / "log", home / "sleeps.py"
        figure.write_text(FIGURE.format(cells=cells, seconds=seconds, log=str(log)))
        with EXECUTORS[name](home, jobs) as executor:
            began, clock, cpu = time.time(), time.perf_counter(), time.process_time()
            reproduce([str(figure)], home / "out", jobs=jobs, executor=executor)
            wall, cpu = time.perf_counter() - clock, time.process_time() - cpu
        notes = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
    assert len(notes) == cells
    gaps = []
    for process in {note[0] for note in notes}:
        own = sorted(note[1:] for note in notes if note[0] == process)
        gaps += [after[0] - before[1] for before, after in itertools.pairwise(own)]
    return {
        "executor": name,
        "cells": cells,
        "seconds": seconds,
        "jobs": jobs,
        "wall": wall,
        "client_cpu": cpu,
        "first": min(note[1] for note in notes) - began,
        "between": statistics.mean(gaps) if gaps else 0.0,
        "last": began + wall - max(note[2] for note in notes),
    }


def table(found: list[dict[str, Any]]) -> str:
    base = next((each["wall"] for each in found if each["executor"] == "local"), math.nan)
    lines = [
        "| executor | wall s | over the local pool | to the first cell s | between cells ms |"
        " after the last s | CPU s of the client |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each['executor']} | {each['wall']:.1f} | {each['wall'] / base:.3f} |"
        f" {each['first']:.1f} | {1000 * each['between']:.0f} | {each['last']:.1f} |"
        f" {each['client_cpu']:.1f} |"
        for each in found
    ]
    return "\n".join(lines)


def model(seconds: float, sizes: list[int], jobs: int) -> list[dict[str, Any]]:
    """Sweeps of so many cells, predicted and measured."""
    sweep("local", jobs, seconds, jobs)  # what is imported and compiled once is no part of it
    # one cell for every process, so that all of them are started, then five
    one, few = (sweep("local", cells * jobs, seconds, jobs) for cells in (1, 5))
    cell = seconds + few["between"]
    found = []
    for cells in sizes:
        predicted = one["wall"] + (math.ceil(cells / jobs) - 1) * cell
        wall = sweep("local", cells, seconds, jobs)["wall"]
        found.append({"cells": cells, "jobs": jobs, "predicted": predicted, "wall": wall})
        print(f"{cells} cells: {predicted:.1f} s predicted, {wall:.1f} s")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a cell")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", default=",".join(EXECUTORS))
    parser.add_argument("--model", metavar="N,N,N", help="numbers of cells")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.model:
        best = model(options.seconds, [int(n) for n in options.model.split(",")], options.jobs)
    else:
        names = options.only.split(",")
        runs: list[dict[str, Any]] = []
        for _ in range(options.repeats):
            for name in names:
                runs.append(sweep(name, options.cells, options.seconds, options.jobs))
                print(runs[-1], file=sys.stderr)
        best = [
            min((run for run in runs if run["executor"] == name), key=lambda run: run["wall"])
            for name in names
        ]
        print(table(best))
    if options.json:
        options.json.write_text(json.dumps(best, indent=1))
