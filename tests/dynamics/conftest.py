"""Shared by the training tests: three ways to do the same, and the plainest possible reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attsvm.data import AttentionData


def plain_descent(
    data: AttentionData, v: np.ndarray, steps: list[int], lr: float = 0.1
) -> dict[int, np.ndarray]:
    """Normalised descent on W written down sequence by sequence, in NumPy, one run; returns W at
    these steps.
    """
    W = np.zeros((data.d_x, data.d_z))
    kept = {}
    for step in range(max(steps) + 1):
        if step in steps:
            kept[step] = W.copy()
        G = np.zeros_like(W)
        logs, terms = [], []
        for X, z, y, mask in zip(data.tokens, data.queries, data.labels, data.mask, strict=True):
            x = X[mask]
            a = x @ (W @ z)
            win = int(a.argmax())
            e = a - a[win]
            g = y * ((x[win] - x) @ v)
            rivals = np.arange(len(a)) != win
            if not (g[rivals] != 0).any():
                continue
            top = e[rivals & (g != 0)].max()
            s = np.exp(e) / (1.0 + np.exp(e[rivals]).sum())
            q = (
                np.where(g != 0, np.exp(np.minimum(e - top, 0.0)), 0.0)
                * g
                / (1.0 + np.exp(e[rivals]).sum())
            )
            u = y * (x[win] @ v) - np.exp(top) * q.sum()
            w = q - s * q.sum()
            logs.append(top - np.logaddexp(0.0, u))
            terms.append(np.outer((w[rivals, None] * (x[win] - x[rivals])).sum(axis=0), z))
        if not logs:
            return {k: kept.get(k, W) for k in steps}
        for log, term in zip(logs, terms, strict=True):
            G += np.exp(log - max(logs)) * term
        W += lr * G / np.linalg.norm(G)
    return kept


@pytest.fixture
def reference() -> Callable[..., dict[int, np.ndarray]]:
    return plain_descent


@pytest.fixture
def ragged_data() -> tuple[AttentionData, np.ndarray]:
    """Twelve sequences of one to seven tokens; tokens and queries of different dimensions."""
    rng = np.random.default_rng(11)
    lengths = [1, 7, 3, 4, 2, 6, 7, 5, 3, 2, 4, 6]
    bags = [rng.standard_normal((length, 5)) for length in lengths]
    return AttentionData.from_bags(
        bags, np.sign(rng.standard_normal(12)), rng.standard_normal((12, 4))
    ), rng.standard_normal(5)
