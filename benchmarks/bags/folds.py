"""The comparison: every method in the same folds, one small file for each answer, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sets
from shared import FitFolds
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

SEEDS = (10_000, 10_001, 10_002, 10_003, 10_004)
FOLDS = 10


def run(
    folder: Path,
    data: Path,
    name: str,
    method: str,
    fit: FitFolds,
    seed: int,
    say: Callable[[str], None],
    until: float,
) -> None:
    """The ten folds of one seed, as files ``folder/name/method/seed-fold.json``.

    Nothing new is started after the time ``until`` (of :func:`time.monotonic`).
    """
    bags, y = sets.load(name, data)
    splits = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(y, y))
    home = folder / name / method.replace("/", "-")
    paths = [home / f"{seed}-{fold}.json" for fold in range(FOLDS)]
    missing = [fold for fold in range(FOLDS) if not paths[fold].exists()]
    if not missing or time.monotonic() > until:
        return
    models = fit(bags, y, [splits[fold][0] for fold in missing], seed)
    for fold in missing:
        start = time.process_time()
        model = next(models)
        seconds = time.process_time() - start
        test = splits[fold][1]
        values = model.values(bags.take(test))
        answer = {"values": values.tolist(), "y": y[test].tolist(), "choice": model.choice}
        _write(paths[fold], json.dumps(answer | {"cpu_seconds": seconds}))
        say(f"{name} {method} {seed} fold {fold}: {_accuracy(answer):.3f}, {seconds:.1f} s")
        if time.monotonic() > until:
            return


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _accuracy(answer: dict[str, list[float]]) -> float:
    return float(np.mean((np.array(answer["values"]) > 0) == (np.array(answer["y"]) > 0)))


def repetitions(
    folder: Path, name: str, method: str
) -> tuple[dict[int, float], dict[int, float], float]:
    """Accuracy and AUC of each complete repetition by its seed, and the CPU seconds of a fold.

    The accuracy of a repetition is the mean over its folds; the AUC is the mean of the folds' too,
    because values of different fits have no common scale.
    """
    home = folder / name / method.replace("/", "-")
    accuracy: dict[int, float] = {}
    auc: dict[int, float] = {}
    seconds: list[float] = []
    for seed in SEEDS:
        paths = [home / f"{seed}-{fold}.json" for fold in range(FOLDS)]
        if not all(path.exists() for path in paths):
            continue
        answers = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        accuracy[seed] = float(np.mean([_accuracy(answer) for answer in answers]))
        auc[seed] = float(np.mean([roc_auc_score(a["y"], a["values"]) for a in answers]))
        seconds += [answer["cpu_seconds"] for answer in answers]
    return accuracy, auc, float(np.mean(seconds)) if seconds else np.nan
