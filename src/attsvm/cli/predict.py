"""``attsvm predict``: the model of a run, asked about new rows."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.cli.arguments import add_new_rows, default_folder, new_rows_options
from attsvm.cli.output import show, tell


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "predict",
        help="predict new rows with the model of a run",
        description=(
            "Predict new rows with the model in a run folder of attsvm fit. For each row, write the"
            " prediction and its probability, the word, patch or instance that decides, and its"
            " rival. Rows are read and encoded as for the fit; they need no labels."
        ),
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="folder that attsvm fit wrote")
    parser.add_argument("data", metavar="DATA", help="new rows, in the format of the fit")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=(
            "where to write the predictions: a .csv or .parquet file (default"
            " predictions-NAME.csv here, NAME being that of the data)"
        ),
    )
    parser.add_argument(
        "--patches",
        type=Path,
        metavar="FILE",
        help="for slides: also write position and probability of every patch (.csv or .parquet)",
    )
    add_new_rows(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Predict, write, and print what was predicted."""
    from attsvm.pipeline.fitted_run import load_run
    from attsvm.pipeline.predictions import (
        PATCH_COLUMNS,
        check_predictions_path,
        patches,
        write_table,
    )

    out: Path = options.out or _default_file(options.data)
    check_predictions_path(out)
    fitted = load_run(options.run_folder)
    if options.patches is not None:
        check_predictions_path(options.patches)
        if fitted.kind != "slide":
            raise InputError(
                f"{options.run_folder} was not fitted to slides, so there are no patches; leave out"
                " --patches"
            )
    dataset, encoded = fitted.read(options.data, **new_rows_options(options))
    columns, rows = fitted.answers(dataset, encoded)
    counts: Counter[str] = Counter()
    labelled: Counter[str] = Counter()
    right: Counter[str] = Counter()

    def counted() -> Iterator[dict[str, Any]]:
        for row in rows:
            counts[row["prediction"]] += 1
            if row["label"]:
                labelled[row["label"]] += 1
                right[row["label"]] += row["label"] == row["prediction"]
            yield row

    between = dataset.provenance.get("delimiter")
    count = write_table(counted(), columns, out, between)
    calls = ", ".join(f"{name} {counts[name]}" for name in fitted.class_names)
    show(f"{count} rows; predicted: {calls}")
    if total := labelled.total():
        recall = ", ".join(
            f"{name} {right[name] / labelled[name]:.1%}"
            for name in fitted.class_names
            if labelled[name]
        )
        show(f"right on {right.total() / total:.1%} of the {total} rows with a label")
        show(f"recall: {recall}")
    for note in (*dataset.notes, *encoded.notes):
        tell(note)
    tell(f"answers: {out}")
    if options.patches is not None:
        rows = patches(fitted.model, dataset, encoded)
        write_table(rows, PATCH_COLUMNS, options.patches, between)
        tell(f"patches: {options.patches}")
    return 0


def _default_file(data: str) -> Path:
    """``predictions-NAME.csv`` in the current folder.

    Raises:
        InputError: it is there already; only a file that is named is replaced.
    """
    path = Path(f"predictions-{default_folder(data).name}.csv")
    if path.exists():
        raise InputError(f"{path} is there already; to replace it, name it: --out {path}")
    return path
