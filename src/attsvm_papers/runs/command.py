"""``attsvm reproduce``: the papers' figures and claims."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError, UnavailableError
from attsvm.base.extras import imported
from attsvm.cli.arguments import (
    add_format,
    add_output,
    assignment,
    further_formats,
    positive_int,
)
from attsvm.cli.output import show, show_json, tell

CLAIM_FAILED = 1
"""Exit code of ``--strict`` when a claim fails."""


def names() -> dict[str, dict[str, str]]:
    """The names that ``attsvm list`` shows of this command."""
    from attsvm_papers.kit.registry import titles

    return {"experiments": titles()}


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "reproduce",
        help="compute the figures of the papers and test their claims",
        description=(
            "Compute experiments of the papers and test every claim. Finished work in the folder"
            " is not computed again."
        ),
    )
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="experiments, such as tfsvm-3 (see `attsvm list`), or the .py file of your own",
    )
    parser.add_argument("--all", action="store_true", help="every experiment")
    parser.add_argument(
        "--paper",
        metavar="KEY",
        action="append",
        help="every experiment of one paper, such as mmts (may be repeated)",
    )
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument(
        "--quick",
        action="store_true",
        help="the smallest scale of each experiment, in seconds (same as --scale smoke)",
    )
    scale.add_argument(
        "--scale",
        choices=("smoke", "small", "medium", "paper"),
        help=(
            "smoke: seconds; small: minutes on two cores; medium: hours on two cores; paper: the"
            " published sizes, with a GPU for trained networks (default: paper if a CPU can do it,"
            " else small)"
        ),
    )
    parser.add_argument(
        "--seeds",
        type=positive_int,
        metavar="N",
        help="number of random trials instead of the experiment's own",
    )
    parser.add_argument(
        "--shift-seeds",
        type=positive_int,
        metavar="N",
        default=0,
        help="add N to every seed, to test the same claims on other trials",
    )
    parser.add_argument(
        "--tuning-seeds",
        action="store_true",
        help="use the seeds on which thresholds were chosen, from 0 on, not the test seeds",
    )
    parser.add_argument(
        "--sizes",
        type=positive_int,
        nargs="+",
        metavar="B",
        help=(
            "numbers of blocks of the trained networks; the full published table is --scale paper"
            " --sizes 3 4 6"
        ),
    )
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="text for the experiments that read one, such as ntp-8 (default: their own)",
    )
    parser.add_argument(
        "--set",
        dest="values",
        type=assignment,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="override parameters of the experiments, such as d=12 n=8",
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if a claim fails")
    parser.add_argument(
        "--jobs",
        type=positive_int,
        metavar="J",
        help="number of processes (default: one per core)",
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help=(
            "Dask scheduler whose workers compute, such as login1:8786; all machines must see the"
            " folder of --out (default: processes on this machine)"
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("runs/reproduce"),
        help="run folder (default runs/reproduce)",
    )
    add_format(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute, judge and print the verdicts; an experiment asked for by name that cannot run here
    is an error in the end, and with ``--strict`` a claim that fails.
    """
    from attsvm.base.progress import ProgressBars
    from attsvm.report.style import PictureOptions, saved_with
    from attsvm_papers.kit.registry import identifiers
    from attsvm_papers.runs.gallery import note_on_changes
    from attsvm_papers.runs.reproduce import reproduce, summary

    formats = further_formats(options)
    requested = list(options.ids)
    for paper in options.paper or []:
        of_paper = identifiers(paper)
        if not of_paper:
            raise InputError(
                f"paper {paper!r} has no experiments yet; `attsvm list` names those there are"
            )
        requested += of_paper
    if options.all:
        requested += identifiers()
    if not requested:
        raise InputError(
            "nothing to reproduce; name experiments (`attsvm list`), or give --paper KEY or --all"
        )
    missing: list[tuple[str, str]] = []
    began = time.monotonic()
    with (
        contextlib.closing(ProgressBars(quiet=options.json or options.quiet)) as progress,
        _dask(options.dask) as executor,
        saved_with(PictureOptions(formats=formats)),
    ):
        runs = reproduce(
            requested,
            options.out,
            quick=options.quick,
            scale=options.scale,
            seeds=options.seeds,
            shift=options.shift_seeds,
            tuning=options.tuning_seeds,
            sizes=options.sizes,
            text=options.text,
            values=dict(options.values),
            jobs=options.jobs,
            executor=executor,
            progress=progress,
            skipped=lambda name, why: missing.append((name, why)),
            command_line=options.command_line,
        )
    for name, why in missing:
        tell(f"attsvm: {name} is left out: {why}")
    failed = any(claim["verdict"] == "fails" for content in runs for claim in content["claims"])
    code = CLAIM_FAILED if options.strict and failed else 0
    if missing and not options.all and not options.paper:
        code = InputError.exit_code
    if options.json:
        show_json({"experiments": [summary(reproduced) for reproduced in runs]})
        return code
    for content in runs:
        show(
            f"{content['id']}  {content['title']}  ({content['scale']}, {content['trials']} trials,"
            f" {content['seconds']:.3g} s of computing)"
        )
        if note := note_on_changes(content):
            show(f"  {note}")
        for claim in content["claims"]:
            show(f"  {_MARKS[claim['verdict']]} {claim['id']:<8} {_claim_line(claim)}")
    if runs:
        show(f"{time.monotonic() - began:.3g} s by the clock")
        show(f"{options.out / 'index.html'}")
    return code


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[Any]:
    """The executor of a scheduler, None without an address.

    Raises:
        InputError: no address.
        MissingExtraError: Dask is not installed.
        UnavailableError: no scheduler answers there.
    """
    if address is None:
        yield None
        return
    if not address.strip():
        raise InputError("--dask has no address; give the one that dask scheduler prints")
    distributed = imported("distributed", "--dask", "distributed", "dask")
    url = address if "://" in address else f"tcp://{address}"
    try:
        client = distributed.Client(url, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no Dask scheduler answers at {address} ({error}); start one with dask scheduler, and"
            " give the address that it prints"
        ) from None
    with client:
        yield client.get_executor(pure=False)


_MARKS = {
    "holds": "holds         ",
    "fails": "FAILS         ",
    "undecided": "undecided     ",
    "not shown": "not shown     ",
    "not applicable": "not applicable",
}


def _claim_line(claim: dict[str, Any]) -> str:
    if claim["verdict"] == "not applicable":
        return f"{claim['statement']} (no instance has: {', '.join(claim['unmet'])})"
    counts = f", {claim['passed']} of {claim['counted']}" if claim["counted"] > 1 else ""
    interval, null = claim.get("interval"), claim.get("null")  # a file may lack them
    mean = (
        ""
        if interval is None
        else f", 95% interval of the mean {interval[0]:.4g} to {interval[1]:.4g}"
    )
    beside = (
        "" if null is None else f"; null, {null['words']}: {_format_measured(null['measured'])}"
    )
    if claim["verdict"] == "undecided" and claim.get("halves"):
        counts += ", {} of {} halves of the trials hold".format(*claim["halves"])
    failure = f"{claim['failure']}: " if claim.get("failure") else ""
    where = f", not of {'; '.join(claim['failing'])}" if claim.get("failing") else ""
    return (
        f"{failure}{claim['statement']} (measured {_format_measured(claim['measured'])}, expected"
        f" {claim['expectation']}{counts}{where}{mean}{beside})"
    )


def _format_measured(measured: float | None) -> str:
    return "not a number" if measured is None else f"{measured:.4g}"
