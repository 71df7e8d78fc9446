"""Small programmes that a teacher meets, of random numbers or of small integers, with equalities at
his margins: the same seed gives the same programme everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.margins import Margins

LARGEST = 8, 6
"""Rows and columns of the weights."""


def taught(
    rng: np.random.Generator, m: int, shape: tuple[int, int], equal: int, lattice: bool
) -> Margins:
    """``m`` constraints, ``equal`` of which are equalities, with sides of both signs."""
    (d, e), n = shape, int(rng.integers(1, m + 1))

    def draw(top: int, *size: int) -> Any:
        if lattice:
            return rng.integers(-top, top + 1, size).astype(float)
        return rng.standard_normal(size)

    W, Z = draw(2, d, e), draw(1, n, e)
    W[0, 0], Z[~(Z @ W.T).any(axis=1)] = 1.0, np.eye(e)[0]
    sequence = np.sort(rng.integers(n, size=m))
    equality = np.zeros(m, bool)
    equality[rng.choice(m, equal, replace=False)] = True
    D, values = np.zeros((m, d)), np.full(m, -np.inf)
    # at least so much, and in random numbers no more than rows of length one reach at times
    reached = 1.0 if lattice else np.minimum(0.05, 0.5 * np.linalg.norm(Z @ W.T, axis=1)[sequence])
    least = np.where(equality & (rng.random(m) < 0.5), -np.inf, reached)
    while (open_ := np.flatnonzero((values < least) | ~D.any(axis=1))).size:
        D[open_] = draw(2, len(open_), d)
        values[open_] = np.einsum("ca,ca->c", D[open_], (Z @ W.T)[sequence[open_]])
    sides = np.where(rng.random(m) < 0.3, 2.0, 1.0)
    rhs = np.where(equality, values, np.minimum(sides, values))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(sequence, minlength=n))])
    return Margins(D, Z, offsets, rhs, np.arange(m), np.zeros(n, int), equality=equality)


def well_posed(seed: int) -> Margins:
    """Up to 60 constraints, with up to two thirds of the entries fixed by equalities."""
    rng = np.random.default_rng([49, seed])
    shape = int(rng.integers(1, LARGEST[0] + 1)), int(rng.integers(1, LARGEST[1] + 1))
    m = int(rng.integers(2, 61))
    most = min(m - 1, 2 * shape[0] * shape[1] // 3)
    equal = int(rng.integers(0, most + 1)) if rng.random() < 0.7 else 0
    return taught(rng, m, shape, equal, bool(rng.random() < 0.7))
