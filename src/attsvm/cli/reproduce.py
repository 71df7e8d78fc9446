"""``attsvm reproduce``: the papers' figures and claims."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from attsvm.cli.arguments import add_output, positive_int
from attsvm.cli.progress import Progress


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "reproduce",
        help="compute figures and claims of the papers, with verdicts",
        description="Compute experiments of the papers and hold every claim against its measurement. What is already in the "
        "folder is not computed again.",
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="experiments such as tfsvm-3; `attsvm list` names them")
    parser.add_argument("--all", action="store_true", help="every experiment")
    parser.add_argument("--paper", metavar="KEY", action="append", help="every experiment of one paper, such as mmts (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="a small scale of each experiment, seconds instead of minutes")
    parser.add_argument("--seeds", type=positive_int, metavar="N", help="number of random trials instead of the experiment's own")
    parser.add_argument("--jobs", type=positive_int, metavar="J", help="processes (default: one per core)")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs/reproduce"), help="folder (default runs/reproduce)")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute, judge and print the verdicts."""
    from attsvm.errors import InputError
    from attsvm.experiments import identifiers
    from attsvm.pipeline.reproduce import reproduce, summary

    wanted = list(options.ids)
    for paper in options.paper or []:
        found = identifiers(paper)
        if not found:
            raise InputError(f"paper {paper!r} has no experiments yet; `attsvm list` names those there are")
        wanted += found
    if options.all:
        wanted += identifiers()
    if not wanted:
        raise InputError("nothing to reproduce; name experiments (`attsvm list`), or give --paper KEY or --all")
    progress = Progress(quiet=options.json)
    try:
        runs = reproduce(
            wanted,
            options.out,
            quick=options.quick,
            seeds=options.seeds,
            jobs=options.jobs,
            progress=progress,
            command_line=options.command_line,
        )
    finally:
        progress.close()
    if options.json:
        print(json.dumps({"experiments": [summary(each) for each in runs]}, indent=1, ensure_ascii=False))
        return 0
    for each in runs:
        print(f"{each['id']}  {each['title']}  ({each['scale']}, {each['trials']} trials, {each['seconds']:.3g} s)")
        for claim in each["claims"]:
            print(f"  {_MARKS[claim['verdict']]} {claim['id']:<8} {_sentence(claim)}")
    print(f"{options.out / 'index.html'}")
    return 0


_MARKS = {"holds": "holds         ", "fails": "FAILS         ", "not applicable": "not applicable"}


def _sentence(claim: dict[str, Any]) -> str:
    if claim["verdict"] == "not applicable":
        return f"{claim['statement']} (no instance has: {', '.join(claim['unmet'])})"
    measured = "not a number" if claim["measured"] is None else f"{claim['measured']:.4g}"
    counts = f", {claim['passed']} of {claim['counted']}" if claim["counted"] > 1 else ""
    interval = claim.get("interval")  # runs of earlier versions have none
    mean = "" if interval is None else f", 95% interval of the mean {interval[0]:.4g} to {interval[1]:.4g}"
    return f"{claim['statement']} (measured {measured}, expected {claim['expectation']}{counts}{mean})"
