"""``attsvm bench``: this machine, attsvm against its peers."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from attsvm.cli.arguments import add_output, positive_float, positive_int
from attsvm.cli.output import show_json, show_lines
from attsvm.errors import InputError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="measure this machine: attsvm against its peers",
        description=(
            "Measure attsvm and every installed peer on the same instances in the same run."
        ),
    )
    kinds = parser.add_subparsers(dest="kind", metavar="WHAT", required=True)
    for add in (_add_step, _add_train):
        add(kinds)


def _add_step(kinds: Any) -> None:
    parser = kinds.add_parser(
        "step",
        help="optimiser steps: time, bytes per second and memory beside torch's optimisers",
        description=(
            "Step a list of transformer parameters with every optimiser of attsvm and torch, in"
            " interleaved rounds."
        ),
    )
    parser.add_argument(
        "--parameters", default="10M,100M", help="of 1M, 10M, 100M, 1G, heads (default %(default)s)"
    )
    parser.add_argument(
        "--optimisers",
        default="all",
        help="all, or names separated by semicolons (default %(default)s)",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument(
        "--rounds",
        type=positive_int,
        default=9,
        metavar="N",
        help="measured steps of each (default %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=positive_float,
        default=20.0,
        metavar="LIMIT",
        help=(
            "wall seconds of measured steps after which an optimiser takes no further round"
            " (default %(default)s)"
        ),
    )
    _add_shared(parser)
    parser.set_defaults(run=run_step)


def _add_train(kinds: Any) -> None:
    parser = kinds.add_parser(
        "train",
        help="training many seeds at once beside the textbook loop",
        description=(
            "Train attention layers with this library's batched kernels and with the loop that"
            " everybody writes."
        ),
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    _add_shared(parser)
    parser.set_defaults(run=run_train)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        metavar="N",
        help="of every numerical library (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=(
            "write report.html, bench.md and bench.json there; finished cells are not measured"
            " again"
        ),
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the files of another run in DIR"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_output(parser)


def run_step(options: argparse.Namespace) -> int:
    """Measure optimisers, print the tables."""
    from attsvm.bench import step

    chosen = (
        step.CONTENDERS
        if options.optimisers == "all"
        else _words(options.optimisers, "optimisers", ";")
    )
    plan = step.Plan(
        parameters=_words(options.parameters, "parameters"),
        device=options.device,
        threads=options.threads,
        rounds=options.rounds,
        seconds=options.seconds,
        contenders=tuple(chosen),
    )

    def measure(cells: Any, progress: Any) -> tuple[dict[str, Any], str]:
        measured = step.run(plan, cells, progress)
        return {"cells": measured}, step.tables(measured, by_cpu=plan.by_cpu)

    return _record("step", vars(plan), options, measure)


def run_train(options: argparse.Namespace) -> int:
    """Measure training, print the table."""
    from attsvm.bench import train

    def measure(cells: Any, progress: Any) -> tuple[dict[str, Any], str]:
        measured = train.run(options.threads, cells, progress, quick=options.quick)
        return {"cells": measured}, train.table(measured)

    return _record("train", {"threads": options.threads, "quick": options.quick}, options, measure)


def _record(kind: str, settings: dict[str, Any], options: argparse.Namespace, measure: Any) -> int:
    """Measure inside the run folder, write both files, print one of them."""
    from attsvm.bench import record
    from attsvm.progress import ProgressBars
    from attsvm.store.code import code_fingerprint

    before, code = record.load(), code_fingerprint(measure)
    with (
        contextlib.closing(ProgressBars(quiet=options.quiet)) as progress,
        record.recording(
            options.out, kind, settings, code=code, overwrite=options.overwrite
        ) as cells,
    ):
        content, text = measure(cells, progress)
        progress.close()
        document = record.document(
            kind, settings, options.command_line, before, options.threads, **content
        )
        text = f"{text}\n\n{record.origin(document)}"
        if options.out is not None:
            record.write(options.out, document, text)
    show_json(document) if options.json else show_lines(text)
    return 0


def _words(text: str, what: str, separator: str = ",") -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(separator) if word.strip()))
    if not words:
        raise InputError(f"--{what} is empty; give names separated by {separator!r}")
    return words
