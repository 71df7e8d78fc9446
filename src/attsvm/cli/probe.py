"""``attsvm probe``: what the heads of a trained transformer select."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from attsvm.cli.arguments import add_device, add_output, positive_int, seed, share
from attsvm.cli.output import show, show_json, tell

_NUMBERS = {
    # option: (type, default, letter, help)
    "texts": (
        positive_int,
        64,
        "N",
        "number of texts to read; the page says how many were left out",
    ),
    "tokens": (positive_int, 256, "N", "number of tokens to read of each text"),
    "threshold": (share, 0.5, "P", "a query is sure of a token with at least this attention"),
    "queries": (positive_int, 80, "N", "sure queries per head in its max-margin programme"),
    "draws": (
        positive_int,
        3,
        "N",
        (
            "random draws of each null and of the texts; more give narrower intervals, at one"
            " programme per null and head each"
        ),
    ),
    "seed": (seed, 0, "S", "seed of the draws"),
}


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "probe",
        help="which token each head of a trained transformer selects, by what margin",
        description=(
            "Run a trained transformer on texts and report for every head what it selects, how"
            " firmly, which tokens decide, and whether its weights are nearer to the max-margin"
            " solution of its selections than those of nulls."
        ),
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help=(
            "folder or hub name of a Hugging Face model; several, or a folder of checkpoint-N"
            " folders, for curves over training; or 'demo', a small language model with a story"
            " that come with attsvm"
        ),
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8 file with one text per line"
    )
    parser.add_argument(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="folder of pictures, for vision models; tokens are patches",
    )
    add_device(parser, "that of the saved weights")
    parser.add_argument(
        "--device-map",
        choices=("auto", "balanced", "balanced_low_0", "sequential"),
        help="spread a large model over several devices (needs accelerate)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder (default runs/probe-NAME)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace another run in DIR")
    parser.add_argument(
        "--norm",
        action="append",
        metavar="NORM",
        help=(
            "norm of the max-margin solutions; may be repeated (default fro, about a second per"
            " head; nuc separates heads best from nulls and takes about ten)"
        ),
    )
    parser.add_argument(
        "--null",
        action="append",
        choices=("heads", "random", "rotated", "permuted", "reflected"),
        metavar="NULL",
        help="null: heads, random, rotated, permuted or reflected; may be repeated (default heads"
        " and permuted)",
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help="only statistics, without max-margin solutions: seconds for all heads",
    )
    for name, (parse, default, letter, text) in _NUMBERS.items():
        parser.add_argument(
            f"--{name}",
            type=parse,
            default=default,
            metavar=letter,
            help=f"{text} (default {default})",
        )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Load, run, audit, write, print."""
    from attsvm.base.progress import ProgressBars
    from attsvm.transformers.probe import ProbeRequest, probe

    request = ProbeRequest(
        models=tuple(options.models),
        text=options.text,
        images=options.images,
        device=options.device,
        dtype=options.dtype,
        device_map=options.device_map,
        norms=() if options.statistics else tuple(options.norm or ("fro",)),
        nulls=tuple(options.null or ("heads", "permuted")),
        **{name: getattr(options, name) for name in _NUMBERS},
    )
    name = "".join(c if c.isalnum() else "-" for c in Path(options.models[-1]).name) or "model"
    folder = options.out or Path("runs") / f"probe-{name}"

    def announce_page(page: Path) -> None:
        if not options.quiet:
            tell(f"{page}: statistics of all heads; written again as heads are compared")

    with contextlib.closing(ProgressBars(quiet=options.quiet)) as progress:
        record = probe(
            request,
            folder,
            overwrite=options.overwrite,
            command=options.command_line,
            progress=lambda done, total: progress("heads", done, total),
            on_first_page=announce_page,
        )
    if options.json:
        show_json(record)
        return 0
    show(record["headline"])
    show(record["detail"])
    for note in record["notes"]:
        show(note)
    show(f"written: {folder / 'report.html'}")
    return 0
