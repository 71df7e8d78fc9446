"""``attsvm list``: what there is to choose from."""

from __future__ import annotations

import argparse
from typing import Any

from attsvm.cli.arguments import add_output
from attsvm.cli.others import commands_of_others
from attsvm.cli.output import show, show_json


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("list", help="list named data sets, norms and experiments")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print names, a line each."""
    from attsvm.datasets import names
    from attsvm.norms import norm_names

    listing = {"datasets": names(), "norms": norm_names()}
    for command in commands_of_others():
        listing |= command.names() if hasattr(command, "names") else {}
    if options.json:
        show_json(listing)
        return 0
    for title, entries in listing.items():
        show(f"{title}:")
        width = max(len(name) for name in entries)
        for name, line in entries.items():
            show(f"  {name:<{width}}  {line}")
    return 0
