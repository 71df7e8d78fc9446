"""Results as tables, with the bar of each beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from folds import SEEDS, repetitions
from sets import NAMES, RECALLED


def show(head: list[str], rows: list[list[str]]) -> None:
    """A table of Markdown."""
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")
    print()


def benchmarks(folder: Path, methods: list[str]) -> None:
    """Accuracy (mean and standard error over repetitions of the folds), AUC, seconds per fold."""
    for name in NAMES:
        print(f"{name}: {len(SEEDS)} x 10 folds\n")
        rows = []
        for method in methods:
            accuracy, auc, seconds = repetitions(folder, name, method)
            if len(accuracy):
                rows.append((accuracy.mean(), method, accuracy, auc, seconds))
        lines = []
        for mean, method, accuracy, auc, seconds in sorted(rows, key=lambda row: -row[0]):
            error = accuracy.std(ddof=1) / np.sqrt(len(accuracy)) if len(accuracy) > 1 else np.nan
            recalled = RECALLED.get(method, {}).get(name)
            lines.append(
                [
                    method,
                    f"{mean:.3f} ± {error:.3f}",
                    f"{auc.mean():.3f}",
                    str(len(accuracy)),
                    f"{seconds:.2f}",
                    "" if recalled is None else f"{recalled:.3f}",
                ]
            )
        show(
            ["method", "accuracy", "AUC", "repetitions", "CPU s per fold", "recalled (Ilse 2018)"],
            lines,
        )
