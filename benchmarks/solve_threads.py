"""Solves at the default number of threads beside solves with one thread, same process, in
turns: wall and CPU milliseconds, the least of the repeats.

    python benchmarks/solve_threads.py --norms fro,nuc --sizes S,M,L --repeats 9

Do not set ``OPENBLAS_NUM_THREADS`` and its kin. ``all`` is what solves took before they chose:
every thread that the process has.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from unittest import mock

from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from attsvm.solvers import max_margin
from attsvm.solvers.threads import ThreadOptions, thread_options
from programmes import SIZES, random_instance

WAYS = ("default", "one", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--norms", default="fro,lp:1.75,l1,linf,nuc,spec")
    parser.add_argument("--sizes", default="S,M,L")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ways", default="default,one")
    options = parser.parse_args()
    ways = options.ways.split(",")
    print(
        f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, BLAS threads"
        f" {[each['num_threads'] for each in threadpool_info() if each['user_api'] == 'blas']}"
    )
    print("| norm, size | " + " | ".join(f"{way}: wall ms, CPU ms" for way in ways) + " |")
    print("|---" * (1 + len(ways)) + "|", flush=True)
    for size in options.sizes.split(","):
        for norm in options.norms.split(","):
            programme = random_instance(*SIZES[size], 0)
            order = list(SIZES)
            warm = random_instance(*SIZES[min(size, "XL", key=order.index)], 0)
            best = dict.fromkeys(ways, (float("inf"), float("inf")))
            for repeat in range(1 + options.repeats):  # the first one loads compiled code
                for way in ways:
                    with ExitStack() as stack:
                        if way == "one":
                            stack.enter_context(threadpool_limits(1, user_api="blas"))
                            stack.enter_context(mock.patch.dict(os.environ, ATTSVM_THREADS="1"))
                        if way == "all":
                            stack.enter_context(thread_options(ThreadOptions(large_programme=0)))
                        wall, cpu = time.perf_counter(), time.process_time()
                        max_margin(programme if repeat else warm, norm)
                        spent = time.perf_counter() - wall, time.process_time() - cpu
                    if repeat:
                        best[way] = min(best[way][0], spent[0]), min(best[way][1], spent[1])
            cells = [f"{1e3 * best[way][0]:.3g}, {1e3 * best[way][1]:.3g}" for way in ways]
            print(f"| {norm}, {size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
