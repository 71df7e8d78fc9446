"""Fits of the standard assumption: the penalty is chosen by bags left out, then selection and
convex steps alternate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.sklearn.choosing import CONSTANT, PENALTIES, Predictor, TrainingBags, calibration
from attsvm.sklearn.layers import WitnessLayer
from attsvm.sklearn.penalised import losses
from attsvm.sklearn.witness import FROM, Witnesses, alternate, best_paths, guessed_start, prototypes

GUESSES = 3
"""Guesses of the witnesses that a path starts from, besides small weights."""


def fit_witnesses(table: TrainingBags, heads: int, hard: bool, asked: float | None) -> Predictor:
    """The standard assumption; see :mod:`attsvm.sklearn.witness`.

    A path leads down to a penalty that was asked for, which is then the only candidate.
    """
    rows, unit = table.scaled()
    null = table.classes == 2
    columns = heads if null else table.classes
    problem = Witnesses(rows, table.bags.offsets, table.labels, columns, null)
    first, parts, penalties = problem.start(table.seed, table.shares), table.folds, table.penalties
    if asked is not None:
        penalties = np.append(PENALTIES[asked < PENALTIES], asked)
    tried = range(len(penalties))[0 if asked is None else -1 :]

    def layer(theta: FloatArray) -> WitnessLayer:
        return WitnessLayer(theta[:, :-1] / unit, CONSTANT * theta[:, -1], null, hard)

    def paths(shares: FloatArray, penalties: FloatArray) -> list[FloatArray]:
        starts = [first]
        if columns == 1:
            starts += [
                guessed_start(problem, shares, guess, FROM, table.iterations)
                for guess in prototypes(problem, shares, GUESSES, table.seed)
            ]
        return list(best_paths(problem, shares, penalties, starts, table.iterations))

    values = np.full((len(tried), len(table.labels), 1 if null else columns), np.nan)
    for done, part in enumerate(parts):
        table.progress(done, len(parts) + 1)
        for k, theta in enumerate(paths(table.fold_shares(part), penalties)[tried.start :]):
            read = layer(theta).read(table.bags.rows, table.bags.offsets, table.queries)
            values[k, part.test] = read.values[part.test]
    seen = np.unique(np.concatenate([fold.test for fold in parts]))
    told = [
        np.average(losses(found[seen], table.labels[seen])[0], weights=table.shares[seen])
        for found in values
    ]
    best = int(np.argmin(told))
    penalty = float(penalties[tried[best]])
    start = paths(table.shares, penalties[: tried[best] + 1])[-1]
    theta, steps = alternate(problem, table.shares, penalty, start, hard)
    table.progress(len(parts) + 1, len(parts) + 1)
    fitted = layer(theta)
    if hard and null:  # the largest score is less than the sum that the loss knows
        moved = calibration(values[best, seen], table.labels[seen], True, table.weights[seen])
        fitted = replace(fitted, threshold=-moved.offset / moved.slope)
    left_out = values[best] - fitted.threshold
    return Predictor(fitted, penalty, None, np.array(told), left_out, steps, False)
