"""Bags: attsvm beside its peers, in the same folds and on the same bags.

    python benchmarks/bags RESULTS --data DATA benchmarks   # MUSK1, MUSK2, Elephant: 5 x 10 folds
    python benchmarks/bags RESULTS --data DATA assumption   # unit tests of the assumption
    python benchmarks/bags RESULTS --data DATA witnesses    # planted witnesses
    python benchmarks/bags RESULTS --data DATA slides       # simulated slides of patches
    python benchmarks/bags RESULTS --data DATA images       # bags of MNIST digits
    python benchmarks/bags RESULTS --data DATA texts        # sentences of reviews
    python benchmarks/bags RESULTS --data DATA speed        # fits, as ratios
    python benchmarks/bags RESULTS tables                   # what RESULTS holds
    python benchmarks/bags RESULTS slides --tasks "60 x 200 x 128" --picture slides.svg

``RESULTS`` is a folder of small files, one per task and method; a call that is repeated computes
only what is missing. ``DATA`` holds ``musk1/``, ``bags/``, ``mnist/``, ``rt-polarity/`` and
``imdb/``. Peers are optional: torch, and sawmil with osqp. Every method sees features scaled to
mean 0 and deviation 1 by its training instances.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import drawing
import folds
import graded
import sets
import speed
import tables

import peers
from attsvm.base.store import versions
from attsvm_papers.networks.published_data import VARIABLE


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("what", choices=("benchmarks", *graded.TASKS, "speed", "tables"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", choices=sets.NAMES, default=list(sets.NAMES))
    parser.add_argument(
        "--methods", nargs="+", help="names as the tables print them; all by default"
    )
    parser.add_argument("--tasks", nargs="+", help="such as linear/10, 50 or imdb; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(folds.SEEDS))
    parser.add_argument("--picture", type=Path, help="SVG of the first task of slides")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing later")
    options = parser.parse_args()
    os.environ[VARIABLE] = str(options.data)
    graded_task = options.what in graded.TASKS
    found, missing = peers.methods("GRADED" if graded_task else "METHODS")
    for sentence in missing:
        print(sentence, file=sys.stderr)
    chosen = options.methods or list(found)
    until = time.monotonic() + options.seconds
    if options.what == "benchmarks":
        for seed in options.seeds:
            for name in options.sets:
                for method in chosen:
                    folds.run(
                        options.results,
                        options.data,
                        name,
                        method,
                        found[method],
                        seed,
                        _say,
                        until,
                    )
    elif graded_task:
        fits = {method: found[method] for method in chosen}
        names = options.tasks or graded.names(options.what)
        graded.run(options.results, options.data, options.what, names, fits, _say, until)
    elif options.what == "speed":
        speed.run(options.results, options.data, _say, until)
    tables.show_all(options.results, options.what)
    if options.picture is not None:
        task = (options.tasks or graded.names("slides"))[0]
        drawing.draw_slides(options.results, task, options.picture)
    print(
        ", ".join(
            f"{name} {version}"
            for name, version in versions(
                "attsvm", "numpy", "scikit-learn", "torch", "sawmil", "osqp"
            ).items()
        )
    )
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
