"""``attsvm report``: redraw the figures and the page of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from attsvm.cli.arguments import add_format, add_output, further_formats
from attsvm.cli.output import show, show_json


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("report", help="redraw the figures and the page of a finished run")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a finished run")
    add_format(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the path of the page."""
    from attsvm.report import write
    from attsvm.report.style import PictureOptions, saved_with

    with saved_with(PictureOptions(formats=further_formats(options))):
        page = write(options.folder)
    if options.json:
        show_json({"report": str(page)})
    else:
        show(page)
    return 0
