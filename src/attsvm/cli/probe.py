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
        "read the first N texts; the page says how many were not read",
    ),
    "tokens": (positive_int, 256, "N", "read the first N tokens of a text"),
    "threshold": (share, 0.5, "P", "top mass from which a query is sure of its selection"),
    "queries": (positive_int, 80, "N", "sure queries per head that join its programme"),
    "draws": (
        positive_int,
        3,
        "N",
        (
            "draws of each null and of texts; more make intervals narrower, and each is one more"
            " programme per null and head"
        ),
    ),
    "seed": (seed, 0, "S", "of draws"),
}


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "probe",
        help="which token each head of a trained transformer selects, by what margin",
        description=(
            "Run a trained transformer on texts and look at every head: what it selects, how"
            " firmly, which tokens decide it, and how near its weights are to the max-margin"
            " solution of its own selections, beside nulls."
        ),
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help=(
            "a folder or hub name of a Hugging Face model; several, or a folder of checkpoint-N"
            " folders, for curves over a training; 'demo' for a small language model that comes"
            " with attsvm and a story of its own"
        ),
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="a UTF-8 file, a text per line")
    parser.add_argument(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="a folder of pictures, for models of images; their tokens are patches",
    )
    add_device(parser, "that of the saved weights")
    parser.add_argument(
        "--device-map",
        choices=("auto", "balanced", "balanced_low_0", "sequential"),
        help="spread a large model over several devices, by accelerate",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default runs/probe-NAME")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument(
        "--norm",
        action="append",
        metavar="NORM",
        help=(
            "compare in this norm; may be repeated (default fro, about a second a head; nuc is"
            " where trained heads differ most from their nulls, and takes about ten)"
        ),
    )
    parser.add_argument(
        "--null",
        action="append",
        choices=("heads", "random", "rotated", "permuted", "reflected"),
        metavar="NULL",
        help="heads, random, rotated, permuted or reflected; may be repeated (default heads and"
        " permuted)",
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help="no max-margin solutions, statistics alone: seconds for all heads",
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
