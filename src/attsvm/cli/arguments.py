"""Arguments that several commands share, and the numbers they accept."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from attsvm.fitting import LONGEST_STEP


def positive_int(text: str) -> int:
    """A whole number of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return value


def positive_float(text: str) -> float:
    """A finite number above zero."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def share(text: str) -> float:
    """A number strictly between zero and one."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return value


def seed(text: str) -> int:
    """A seed of random numbers: a whole number of at most 32 bits, which every library takes."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to {2**32 - 1}")
    return value


def step_length(text: str) -> float:
    """The length of a step: thousands of steps of it, squared, must be a number."""
    value = positive_float(text)
    if value > LONGEST_STEP:
        raise argparse.ArgumentTypeError(f"{text} is not at most {LONGEST_STEP:g}")
    return value


def penalty(text: str) -> float:
    """A price of shortfalls: multiplied with margins, it must stay a number."""
    value = positive_float(text)
    if not 1 / LONGEST_STEP <= value <= LONGEST_STEP:
        raise argparse.ArgumentTypeError(
            f"{text} does not lie between {1 / LONGEST_STEP:g} and {LONGEST_STEP:g}"
        )
    return value


def add_data(parser: argparse.ArgumentParser) -> None:
    """DATA and everything that says how to read it."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help=(
            ".npz or .safetensors with X and y (optional Z, mask); .csv, .tsv, .jsonl or .parquet"
            " with text and label columns (.gz and .xz too); a folder with pos/ and neg/; or a name"
            " from `attsvm list`"
        ),
    )
    group = parser.add_argument_group("text data")
    group.add_argument("--text", metavar="COLUMN", help="column that holds the text")
    group.add_argument(
        "--label", metavar="COLUMN", help="column that holds the label (two distinct values)"
    )
    group.add_argument(
        "--vectors",
        dest="model",
        metavar="MODEL",
        help="folder or hub name of a Hugging Face model whose input embeddings are the vectors",
    )
    group.add_argument(
        "--dimension",
        dest="dim",
        type=positive_int,
        metavar="D",
        help="features of a word vector: 64 learned ones, or at most 128 of a model's",
    )
    group.add_argument(
        "--max-tokens", type=positive_int, metavar="T", help="distinct words kept of each text"
    )


def data_options(options: argparse.Namespace) -> dict[str, str | int]:
    """The reading options that the user gave."""
    names = ("text", "label", "model", "dim", "max_tokens")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the results as JSON on standard output, and nothing else there",
    )


def default_folder(data: str) -> Path:
    """``runs/NAME`` for a file, folder or named data set."""
    name = Path(data).name.lstrip(".") or Path(data).resolve().name.lstrip(".")
    plain = name.split(".")[0].replace(":", "-").replace(",", "-")
    return Path("runs") / (plain or "data")
