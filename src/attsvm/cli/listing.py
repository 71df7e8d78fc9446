"""``attsvm list``: what there is to choose from."""

from __future__ import annotations

import argparse
from typing import Any

from attsvm.cli.arguments import add_output
from attsvm.cli.output import show, show_json


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("list", help="named data sets, norms and experiments")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print names, a line each."""
    from attsvm.datasets import names
    from attsvm.geometry import norm_names
    from attsvm_papers.kit import titles

    listing = {
        "datasets": names(),
        "norms": norm_names(),
        "experiments": titles(),
    }
    if options.json:
        show_json(listing)
        return 0
    for title, entries in listing.items():
        show(f"{title}:")
        width = max(len(name) for name in entries)
        for name, line in entries.items():
            show(f"  {name:<{width}}  {line}")
    return 0
