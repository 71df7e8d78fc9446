"""``attsvm fit``: the main job, from data to a run folder with a report."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.base.errors import InputError
from attsvm.base.printable import escaped, name_of
from attsvm.cli.arguments import (
    add_data,
    add_output,
    data_options,
    default_folder,
    penalty,
    positive_float,
    positive_int,
    seed,
    share,
    step_length,
)
from attsvm.cli.output import show, show_json, tell
from attsvm.pipeline.settings import FitSettings

if TYPE_CHECKING:
    from attsvm.base.progress import ProgressBars
    from attsvm.datasets import Dataset

_NUMBERS = {
    # option: (type, help); defaults are those of FitSettings
    "seed": (seed, "seed of the split and of every random draw"),
    "test_size": (share, "share of the sequences to hold out"),
    "selection_steps": (
        positive_int,
        "steps of the selection stage, which trains W alone (default: 100 to 8000, within 10 s)",
    ),
    "lr": (
        step_length,
        (
            "step length of the selection stage, in the norm (default: 16; less for spec, l1 and"
            " linf)"
        ),
    ),
    "records": (positive_int, "log-spaced records per stage"),
    "tol": (
        positive_float,
        (
            "largest relative duality gap of the max-margin solution (default: 1e-9; 1e-6 for nuc"
            " and spec)"
        ),
    ),
    "slack": (
        penalty,
        "penalty C of the soft margin, if the hard margin is infeasible",
    ),
    "solve_seconds": (
        positive_float,
        "seconds after which the solver stops without a certificate",
    ),
    "saturation": (share, "attention from which a token counts as selected"),
}

_COUNTED = 100
"""Held-out texts below which their number stands beside the share that is right: 100% may be of
three."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "fit",
        help="fit attention to labelled data: which word, patch or instance decides?",
        description=(
            "Fit a softmax-attention classifier, test it on held-out data, and write a report: how"
            " often the selected token alone is right, which tokens decide, and how close the"
            " trained weights are to the certified max-margin solution of that selection."
        ),
    )
    add_data(parser)
    group = parser.add_argument_group("training")
    defaults = FitSettings()
    group.add_argument(
        "--assumption",
        choices=("collective", "standard"),
        default=defaults.assumption,
        help=(
            "what makes a sequence positive: all its tokens together (collective, the default), or"
            " one token, a witness, which negative sequences lack (standard)"
        ),
    )
    for name, (kind, text) in _NUMBERS.items():
        default = getattr(defaults, name)
        group.add_argument(
            _option(name),
            dest=name,
            type=kind,
            default=default,
            metavar="X",
            help=text if default is None else f"{text} (default {default})",
        )
    group.add_argument(
        "--norm",
        default=defaults.norm,
        help=(
            "norm of the selection stage and of its max-margin programme (see `attsvm list`;"
            " default fro)"
        ),
    )
    group.add_argument(
        "--class-weight",
        choices=("balanced",),
        help="give every class the same weight, whatever its size",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="DIR", help="run folder (default runs/NAME)")
    output.add_argument(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="pictures of the slides, with the same names, to show beside the heatmaps",
    )
    output.add_argument(
        "--predictions-format",
        choices=("csv", "parquet"),
        default=defaults.predictions_format,
        help="format of the predictions file in the run folder (default csv)",
    )
    output.add_argument("--overwrite", action="store_true", help="replace another run in DIR")
    output.add_argument(
        "--checkpoint-seconds",
        type=positive_float,
        default=5.0,
        metavar="S",
        help="seconds between checkpoints (default 5)",
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fit, then print the verdict or the JSON."""
    from attsvm.base.progress import ProgressBars
    from attsvm.datasets import load
    from attsvm.datasets.catalogue import kind_of_data
    from attsvm.norms import parse_norm
    from attsvm.pipeline.fit import fit_dataset

    norm = parse_norm(options.norm).name  # one name for one norm: lp:2 is fro
    if options.assumption == "standard" or kind_of_data(options.data) == "slide":
        _refuse_training(options)
    folder: Path = options.out or default_folder(options.data)
    settings = FitSettings(
        assumption=options.assumption,
        norm=norm,
        class_weight=options.class_weight,
        predictions_format=options.predictions_format,
        **{name: getattr(options, name) for name in _NUMBERS},
    )
    bars: contextlib.AbstractContextManager[_Announced | None] = (
        contextlib.nullcontext()
        if options.quiet
        else contextlib.closing(_Announced(ProgressBars()))
    )
    with bars as progress:
        load_options: dict[str, Any] = data_options(options)
        if options.encoder is not None:
            load_options |= {"cache": folder.parent / ".encoded", "progress": progress}
        dataset = load(options.data, **load_options)
        if progress is not None:
            progress.dataset = dataset
        if dataset.kind == "slide":
            return _fit_slides(options, dataset, settings, folder, progress)
        result = fit_dataset(
            dataset,
            settings,
            folder,
            overwrite=options.overwrite,
            checkpoint_seconds=options.checkpoint_seconds,
            progress=progress,
            command_line=_command_line(options, folder),
            tell_accuracy=None if options.quiet else _print_first_accuracy,
        )
        if progress is not None:
            progress.announce()  # a run that was finished before
    if options.json:
        show_json(result)
    else:
        _print(result, folder)
    return 0 if result["results"]["margin"]["status"] == "optimal" else 3


def _fit_slides(
    options: argparse.Namespace,
    dataset: Dataset,
    settings: FitSettings,
    folder: Path,
    progress: _Announced | None,
) -> int:
    """Fit to bags in files, then print the verdict or the JSON."""
    from attsvm.pipeline.slides import fit_slides

    result = fit_slides(
        dataset,
        settings,
        folder,
        overwrite=options.overwrite,
        progress=progress,
        command_line=_command_line(options, folder),
        images=options.images,
    )
    if progress is not None:
        progress.announce()
    if options.json:
        show_json(result)
        return 0
    show(result["verdict"]["headline"])
    for sentence in result["verdict"]["sentences"]:
        show(f"  {sentence}")
    show(f"report: {folder / 'report.html'}")
    return 0


class _Announced:
    """Progress, before the first of which it is said what was read: what is refused before is one
    sentence.

    Args:
        bars: show it.
    """

    def __init__(self, bars: ProgressBars) -> None:
        self._bars = bars
        self.dataset: Dataset | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` steps of ``stage`` are behind us."""
        self.announce()
        self._bars(stage, done, total)

    def announce(self) -> None:
        """Say what was read, once."""
        if self.dataset is not None:
            _tell_data(self.dataset)
            self.dataset = None

    def close(self) -> None:
        """End the line of the bar."""
        self._bars.close()


def _tell_data(dataset: Dataset, most: int = 20) -> None:
    """Say, before anything long begins, what was read: classes, how, and what was left out."""
    from attsvm.base.files import brief

    counts = Counter(dataset.labels.tolist())
    names = list(map(brief, dataset.class_names))
    parts = [f"{name} ({counts[k]})" for k, name in enumerate(names[:most])]
    rest = f" and {len(names) - most} more classes" if len(names) > most else ""
    held = "" if dataset.held is None else f", {len(dataset.held)} of them held out"
    tell(f"{dataset.title}: {len(dataset)} rows{held}; {', '.join(parts)}{rest}")
    for note in dataset.notes:
        tell(note)


def _command_line(options: argparse.Namespace, folder: Path) -> str:
    """The command with the folder that it writes to."""
    line = str(options.command_line)
    return line if options.out else f"{line} --out {shlex.quote(name_of(folder))}"


def _refuse_training(options: argparse.Namespace) -> None:
    """Refuse options of stages that the standard assumption does not have."""
    for name in ("selection_steps", "lr", "records"):
        if getattr(options, name) != getattr(FitSettings(), name):
            raise InputError(
                f"{_option(name)} belongs to the descent of --assumption collective, which slides"
                " do not have; leave it out"
            )


def _option(name: str) -> str:
    """The option of a setting."""
    return "--steps" if name == "selection_steps" else f"--{name.replace('_', '-')}"


def _print_first_accuracy(accuracy: float) -> None:
    """Print the accuracy of the predictor while its explanation is under way."""
    tell(
        f"the model is right on {accuracy:.1%} of what is held out; the token that decides follows"
    )


def _print(result: dict[str, Any], folder: Path) -> None:
    show(result["verdict"]["headline"])
    show(f"  {result['verdict']['beside']}")
    classes = result["results"].get("words", [])
    for line in _words_table(classes):
        show(line)
    if not all(entry["words"] for entry in classes):
        show(f"  {result['verdict']['words']}")
    if "vectors" in result["verdict"]:
        show(result["verdict"]["vectors"])
    show("The theory in this run:")
    for sentence in [result["verdict"]["sentences"][0], *result["verdict"]["advice"]]:
        show(f"  {sentence}")
    show(f"  {_claims_sentence(result['claims'])}")
    answers = f"predictions.{result['parameters']['predictions_format']}"
    show(f"predictions: {folder / answers}")
    show(f"report: {folder / 'report.html'}")


def _claims_sentence(claims: list[dict[str, Any]]) -> str:
    """How many claims hold, and the names of those that do not."""
    missed = [
        f"{claim['id']} {claim['verdict']}" for claim in claims if claim["verdict"] != "holds"
    ]
    if not missed:
        return f"All {len(claims)} claims of the report hold."
    held = len(claims) - len(missed)
    return f"{held} of {len(claims)} claims hold ({', '.join(missed)}); see the report."


def _words_table(classes: list[dict[str, Any]], most: int = 10) -> list[str]:
    """The lines of a table of the words that say most, a column for each class, as many beside each
    other as the terminal has room for.
    """
    columns = []
    for entry in filter(lambda entry: entry["words"], classes):
        column = [f"{'says most for ' + entry['class']:<24.24} times  right"]
        for row in entry["words"][:most]:
            right = "-" if row["right"] is None else f"{row['right']:.0%}"
            of = f" of {row['held_out']}" if 0 < row["held_out"] < _COUNTED else ""
            column.append(f"{escaped(row['word']):<24.24} {row['times']:>5}  {right:>5}{of}")
        columns.append(column)
    if not columns:
        return []
    width = max(len(cell) for column in columns for cell in column)
    screen = shutil.get_terminal_size(fallback=(100, 24)).columns
    side_by_side = max((screen + 1) // (width + 3), 1)
    lines = [""]
    for start in range(0, len(columns), side_by_side):
        block = itertools.zip_longest(*columns[start : start + side_by_side], fillvalue="")
        lines += ["  " + "   ".join(f"{cell:<{width}}" for cell in row).rstrip() for row in block]
        lines.append("")
    return lines
