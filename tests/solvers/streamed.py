"""Blocks for the tests, at the top of a module so that processes can make them, and their rows
written out.
"""

from __future__ import annotations

import numpy as np


class Selections:
    """A teacher selects the best token, so that the programme is feasible, or chance does."""

    def __init__(self, n: int, T: int, d: int, seed: int, each: int = 7, chance: bool = False):
        rng = np.random.default_rng(seed)
        self.X, self.Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
        self.mask = rng.random((n, T)) < 0.8
        self.mask[:, 0] = True
        logits = np.einsum("ntd,de,ne->nt", self.X, rng.standard_normal((d, d)), self.Z)
        logits = rng.random((n, T)) if chance else logits
        self.selected = np.where(self.mask, logits, -np.inf).argmax(axis=1)
        self.each, self.count = each, -(-n // each)

    def __call__(self, k: int) -> tuple[np.ndarray, ...]:
        part = slice(k * self.each, (k + 1) * self.each)
        return self.X[part], self.Z[part], self.selected[part], self.mask[part]

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Every row as a matrix, one at a time, and its sequence and token."""
        A, names = [], []
        for i, (x, z, chosen, visible) in enumerate(
            zip(self.X, self.Z, self.selected, self.mask, strict=True)
        ):
            for t in np.flatnonzero(visible):
                if t != chosen:
                    A.append(np.outer(x[chosen] - x[t], z))
                    names.append((i, t))
        return np.array(A), np.array(names)


class Changing:
    """The same blocks, but for what ``change`` does to the tokens of one of them from the second
    time on.
    """

    def __init__(self, blocks: Selections, number: int, change) -> None:
        self.blocks, self.number, self.change, self.calls = blocks, number, change, 0

    def __call__(self, k: int) -> tuple[np.ndarray, ...]:
        X, *rest = self.blocks(k)
        if k == self.number:
            self.calls += 1
            if self.calls > 1:
                X = self.change(X.copy())
        return (X, *rest)
