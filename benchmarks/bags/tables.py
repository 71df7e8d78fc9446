"""Results as tables, with what is asked of each beside it."""

from __future__ import annotations

from pathlib import Path

import graded
import numpy as np
import speed
from folds import SEEDS, repetitions
from sets import NAMES, RECALLED


def show(head: list[str], rows: list[list[str]]) -> None:
    """A table of Markdown."""
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")
    print()


COLUMNS = {
    "assumption": {"train_auc": "training AUC", "auc": "test AUC"},
    "witnesses": {"accuracy": "accuracy", "precision": "precision at 1"},
    "slides": {
        "accuracy": "accuracy",
        "auc": "AUC",
        "precision": "precision at 1",
        "instance_auc": "AUC of patches",
        "cpu_seconds": "CPU s",
    },
    "images": {
        "accuracy": "accuracy",
        "instance_auc": "AUC of instances",
        "precision": "precision at 1",
    },
    "texts": {"accuracy": "accuracy", "text": "TF-IDF", "precision": "selected agree"},
}
EVIDENCE = {"sufficiency": "sufficiency", "necessity": "necessity", "chance": "chance"}
ASKED = {
    "assumption": "test AUC at least .95 with `standard`",
    "witnesses": "precision at 1 at least .98, shell/10 at least .90",
    "slides": "accuracy at least .95, AUC of patches .99",
    "images": "AUC of instances at least .98 at 50",
    "texts": "shown beside TF-IDF with logistic regression",
    "benchmarks": "best mean on two of three, within one standard error on the third",
}


def show_all(folder: Path, what: str) -> None:
    """The tables of one kind, or of every kind that ``folder`` holds."""
    methods = sorted({path.name for path in folder.glob("*/*") if path.parent.name in NAMES})
    if what in ("benchmarks", "tables"):
        benchmarks(folder, methods)
    for kind in graded.TASKS:
        if what in (kind, "tables"):
            methods = sorted({path.stem for path in (folder / kind).glob("*/*.json")})
            grades(folder, kind, methods)
    if what in ("speed", "tables"):
        speed.table(folder, show)


def grades(folder: Path, what: str, methods: list[str]) -> None:
    """Means over the seeds, one table for each task."""
    columns = COLUMNS[what] | ({} if what == "assumption" else EVIDENCE)
    print(f"{what}: {ASKED[what]}\n")
    for name in graded.names(what):
        rows = []
        for method in methods:
            found = list(graded.answers(folder, what, name, method))
            if found:
                cells = [[answer.get(key) for answer in found] for key in columns]
                means = ["" if None in cell else f"{np.mean(cell):.3f}" for cell in cells]
                rows.append([method, *means, str(len(found))])
        if rows:
            print(f"{name}\n")
            show([*["method"], *columns.values(), "seeds"], rows)


OURS = "attsvm collective, context"


def benchmarks(folder: Path, methods: list[str]) -> None:
    """Accuracy (mean and standard error over repetitions of the folds), how far ``OURS`` is ahead
    in the repetitions that both have, AUC, seconds per fold.
    """
    for name in NAMES:
        print(f"{name}: {len(SEEDS)} x 10 folds; {ASKED['benchmarks']}\n")
        found = {method: repetitions(folder, name, method) for method in methods}
        found = {method: answer for method, answer in found.items() if answer[0]}
        lines = []
        for method in sorted(found, key=lambda one: -np.mean(list(found[one][0].values()))):
            accuracy, auc, seconds = found[method]
            ours = found.get(OURS, ({},))[0]
            ahead = [ours[seed] - accuracy[seed] for seed in accuracy if seed in ours]
            recalled = RECALLED.get(method, {}).get(name)
            lines.append(
                [
                    method,
                    _mean(list(accuracy.values())),
                    _mean(ahead) if method != OURS else "",
                    f"{np.mean(list(auc.values())):.3f}",
                    str(len(accuracy)),
                    f"{seconds:.2f}",
                    "" if recalled is None else f"{recalled:.3f}",
                ]
            )
        head = ["method", "accuracy", "ours ahead by", "AUC", "repetitions", "CPU s per fold"]
        show([*head, "recalled (Ilse 2018)"], lines)


def _mean(values: list[float]) -> str:
    """The mean, with its standard error where there are several values."""
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}" if values else ""
