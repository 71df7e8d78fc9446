"""Arguments that several commands share, and the numbers they accept."""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attsvm.base.errors import UnavailableError
from attsvm.base.pretrained import DTYPES
from attsvm.base.ranges import LONGEST_STEP


def _number(kind: type, holds: Callable[[Any], bool], wrong: str) -> Callable[[str], Any]:
    """A type of argparse: the number in a text, which must be of this kind and hold something."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"{text or 'nothing'} {wrong}")
        return value

    return read


count = _number(int, lambda n: n >= 0, "is not a whole number of at least 0")
positive_int = _number(int, lambda n: n >= 1, "is not a whole number of at least 1")
positive_float = _number(float, lambda x: 0 < x < math.inf, "is not a finite number above 0")
exponent = _number(float, lambda x: 0 <= x < math.inf, "is not a finite number of at least 0")
share = _number(float, lambda x: 0 < x < 1, "does not lie between 0 and 1")
seed = _number(int, lambda n: 0 <= n < 2**32, f"is not a whole number from 0 to {2**32 - 1}")
"""A seed of random numbers: at most 32 bits, which every library takes."""
step_length = _number(
    float,
    lambda x: 0 < x <= LONGEST_STEP,
    f"is not a finite number above 0 and at most {LONGEST_STEP:g}",
)
"""The length of a step: thousands of steps of it, squared, must be a number."""
penalty = _number(
    float,
    lambda x: 1 / LONGEST_STEP <= x <= LONGEST_STEP,
    f"does not lie between {1 / LONGEST_STEP:g} and {LONGEST_STEP:g}",
)
"""A price of shortfalls: multiplied with margins, it must stay a number."""


def add_data(parser: argparse.ArgumentParser) -> None:
    """DATA and everything that says how to read it."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help=(
            "a table of texts and labels (.csv, .tsv, .jsonl or .parquet, also .gz and .xz); arrays"
            " X and y, optionally Z and mask (.npz or .safetensors); a folder with a folder of"
            " texts for each class, or of slides; or a name from `attsvm list`"
        ),
    )
    group = parser.add_argument_group("text data")
    group.add_argument("--text", metavar="COLUMN", help="column with the text")
    group.add_argument("--label", metavar="COLUMN", help="column with the label")
    group.add_argument(
        "--id", metavar="COLUMN", help="column that names the rows in predictions.csv"
    )
    group.add_argument(
        "--test",
        metavar="FILE",
        help="held-out texts in the same format, instead of a part of DATA",
    )
    group.add_argument(
        "--positive",
        metavar="LABEL",
        help=(
            "label of the positive class (default: the last of two in sorted order); with three or"
            " more, the class compared with all others in the theory part (default: the largest)"
        ),
    )
    group.add_argument(
        "--delimiter",
        metavar="CHAR",
        help="character between the fields of a .csv file (default: taken from its header)",
    )
    group.add_argument(
        "--encoding",
        metavar="NAME",
        help="character encoding of a file (default: UTF-8, or UTF-16 if it has that mark)",
    )
    group.add_argument(
        "--skip-empty",
        action="store_true",
        default=None,
        help="skip rows without a text or a label instead of refusing the file",
    )
    group.add_argument(
        "--encoder",
        metavar="MODEL",
        help=(
            "folder or hub name of a Hugging Face encoder, which reads each word in its context;"
            " recommended for natural texts (needs attsvm[hub])"
        ),
    )
    group.add_argument(
        "--layer",
        type=count,
        metavar="N",
        help="layer of the encoder (default: the best of three on validation data)",
    )
    group.add_argument(
        "--instances",
        choices=("words", "sentences"),
        help=(
            "what --encoder splits a text into: words (default), or sentences, each the mean of its"
            " words (needs attsvm[sentences])"
        ),
    )
    add_device(group)
    group.add_argument(
        "--vectors",
        dest="model",
        metavar="MODEL",
        help="folder or hub name of a Hugging Face model; use its input embeddings as word vectors",
    )
    group.add_argument(
        "--dimension",
        dest="dim",
        type=positive_int,
        metavar="D",
        help="features per word (default: 64 learned; up to 96 of --encoder, 128 of --vectors)",
    )
    group.add_argument(
        "--max-tokens",
        type=positive_int,
        metavar="T",
        help=(
            "words or sentences to keep per text (default: all that --encoder reads; without it"
            " 128 distinct words)"
        ),
    )

    slides = parser.add_argument_group("slides (a folder with one file of patches per slide)")
    slides.add_argument(
        "--labels", metavar="FILE", help="table with one row per slide (default: labels.csv)"
    )
    slides.add_argument(
        "--group",
        metavar="COLUMN",
        help="column with the patient; a patient's slides are never split between fit and test",
    )
    slides.add_argument(
        "--features",
        metavar="NAME",
        help="feature array in the files (default: features)",
    )
    slides.add_argument(
        "--coords",
        metavar="NAME",
        help="coordinate array in the files (default: coords)",
    )


def add_new_rows(parser: argparse.ArgumentParser) -> None:
    """Columns and encoding of new rows, where they differ from those of a fit."""
    group = parser.add_argument_group("text data, if it differs from the fit")
    for name in ("text", "label", "id"):
        group.add_argument(f"--{name}", metavar="COLUMN", help=f"column with the {_HELD[name]}")
    group.add_argument(
        "--delimiter", metavar="CHAR", help="character between the fields of a .csv file"
    )
    group.add_argument("--encoding", metavar="NAME", help="character encoding of a file")
    group.add_argument(
        "--skip-empty", action="store_true", default=None, help="skip rows without a text"
    )
    group.add_argument(
        "--labels", metavar="FILE", help="table with labels of the new slides, if known"
    )


_HELD = {"text": "text", "label": "label, if known", "id": "name of the row"}


def new_rows_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of :func:`add_new_rows` that the user gave."""
    names = ("text", "label", "id", "delimiter", "encoding", "skip_empty", "labels")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def data_options(options: argparse.Namespace) -> dict[str, str | int]:
    """The reading options that the user gave."""
    names = (
        *("text", "label", "id", "test", "positive", "delimiter", "encoding", "skip_empty"),
        *("encoder", "layer", "instances", "device", "dtype", "model", "dim", "max_tokens"),
        *("labels", "group", "features", "coords"),
    )
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def add_device(parser: Any, dtype: str = "float32") -> None:
    """``--device`` and ``--dtype`` of a pretrained model, None where the user leaves them out; what
    they name is checked by :func:`attsvm.datasets.devices.check_device`. ``dtype`` says what the
    default is.
    """
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="device of the pretrained model: cpu, cuda, cuda:1, mps (default cpu)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help=f"floating-point type of the pretrained model (default {dtype})",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--json``, ``--quiet`` and ``--verbose``."""
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quiet", action="store_true", help="show no progress")
    amount.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="log what is read, trained and solved to standard error",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the results as JSON, and nothing else, to standard output",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """``--format``."""
    parser.add_argument(
        "--format",
        choices=("svg", "png", "pdf", "pgf"),
        action="append",
        default=[],
        help=(
            "also save the figures in this format, for a paper: pdf, or pgf (needs LaTeX); may be"
            " repeated; svg and png are always saved"
        ),
    )


def further_formats(options: argparse.Namespace) -> tuple[str, ...]:
    """The formats of ``--format`` in which figures are not saved anyway.

    Raises:
        UnavailableError: pgf, and no LaTeX is here to measure its texts.
    """
    formats = {*options.format} - {"svg", "png"}
    if "pgf" in formats and shutil.which("xelatex") is None:
        raise UnavailableError(
            "--format pgf needs the command xelatex; install LaTeX, or ask for pdf"
        )
    return tuple(sorted(formats))


def assignment(text: str) -> tuple[str, str]:
    """Name and value of ``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not (name.isidentifier() and separator and value):
        raise argparse.ArgumentTypeError(
            f"{text or 'nothing'} is not of the form NAME=VALUE, such as d=12"
        )
    if another := re.search(r",\s*([A-Za-z_]\w*)=", value):
        raise argparse.ArgumentTypeError(
            f"a comma joins {name} and {another[1]}; separate options by spaces, such as d=12 n=40"
        )
    return name, value


def default_folder(data: str) -> Path:
    """``runs/NAME`` for a file, folder or named data set."""
    name = Path(data).name.lstrip(".") or Path(data).resolve().name.lstrip(".")
    plain = name.split(".")[0].replace(":", "-").replace(",", "-")
    return Path("runs") / (plain or "data")
