"""``attsvm bias``: which margin an optimiser maximises."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from attsvm.cli.arguments import (
    add_output,
    assignment,
    exponent,
    positive_float,
    positive_int,
    seed,
)
from attsvm.cli.output import show, show_json


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bias",
        help="which margin does an optimiser maximise? Its share of the largest, norm by norm",
        description=(
            "Train an attention layer from many seeds and report, for every norm, the share of the"
            " largest margin that its weights reach."
        ),
    )
    parser.add_argument(
        "--optimizer",
        metavar="NAME",
        required=True,
        help=(
            "gd, ngd, momentum, sign, muon, adam, adam-eps0, adamw, lion, mirror:P, or an import"
            " path package.module:Class, also from the current folder"
        ),
    )
    parser.add_argument("--lr", type=positive_float, default=0.01, help="step size (default 0.01)")
    parser.add_argument(
        "--set",
        type=assignment,
        nargs="+",
        action="extend",
        metavar="NAME=VALUE",
        default=[],
        help="other arguments of the optimiser, such as weight_decay=0.1",
    )
    parser.add_argument(
        "--decay",
        type=exponent,
        default=0.0,
        metavar="A",
        help="step sizes fall like (t + 1)^-A, such as A = 0.5 (default 0: constant)",
    )
    parser.add_argument(
        "--seeds", type=positive_int, default=20, metavar="N", help="number of runs (default 20)"
    )
    parser.add_argument(
        "--first-seed", type=seed, default=0, metavar="S", help="first seed (default 0)"
    )
    parser.add_argument(
        "--steps",
        type=positive_int,
        default=20_000,
        metavar="N",
        help="number of steps (default 20000)",
    )
    parser.add_argument(
        "--norm",
        action="append",
        metavar="NORM",
        help="norm to measure in; may be repeated (default fro, l1, linf, spec, nuc and two ℓp)",
    )
    parser.add_argument(
        "--train",
        choices=("W", "KQ", "head"),
        default="W",
        help="what to train: W, the factors K and Q, or W and the head (default W)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder (default runs/bias-NAME)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace another run in DIR")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, measure, write, print."""
    from attsvm.base.progress import ProgressBars
    from attsvm.base.store import RunFolder
    from attsvm.norms import parse_norm
    from attsvm.theory.bias_page import FILES, write_bias
    from attsvm.theory.optimiser_bias import NORMS, implicit_bias
    from attsvm.theory.optimiser_per_run import named_optimizer

    if os.getcwd() not in sys.path:  # noqa: PTH109 - an optimiser may be a module of this folder
        sys.path.append(os.getcwd())  # noqa: PTH109
    arguments = {name: _value(text) for name, text in options.set}
    title, make_optimizer = named_optimizer(options.optimizer, options.lr, **arguments)
    words = "".join(c if c.isalnum() else "-" for c in options.optimizer)
    folder = options.out or Path("runs") / f"bias-{words}"
    decay = options.decay
    for norm in options.norm or []:
        parse_norm(norm)  # what is refused leaves no run behind
    request = {
        "command": "bias",
        "optimizer": options.optimizer,
        "lr": options.lr,
        "arguments": {name: repr(value) for name, value in arguments.items()},
        "decay": decay,
        "seeds": [options.first_seed, options.seeds],
        "steps": options.steps,
        "norms": options.norm or list(NORMS),
        "train": options.train,
    }
    with (
        RunFolder(folder, request, files=FILES, overwrite=options.overwrite),
        contextlib.closing(ProgressBars(quiet=options.quiet or options.json)) as progress,
    ):
        bias = implicit_bias(
            make_optimizer,
            norms=request["norms"],
            steps=options.steps,
            seeds=range(options.first_seed, options.first_seed + options.seeds),
            parameters="W and head" if options.train == "head" else options.train,
            schedule=(lambda step: (step + 1.0) ** -decay) if decay else None,
            name=title,
            progress=lambda done, total, _: progress("training", done, total),
        )
        record = write_bias(folder, bias, options.command_line)
    if options.json:
        show_json(record)
        return 0
    for line in str(bias).splitlines():
        show(line)
    show(f"written: {folder / 'report.html'}")
    return 0


def _value(text: str) -> Any:
    """The value of an argument; what is no number, boolean or tuple is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
