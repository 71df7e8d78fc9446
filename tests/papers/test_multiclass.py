"""Multinomial logistic regression against extended precision."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest

from attsvm.solvers import max_margin
from attsvm.theory import output_margins
from attsvm_papers.spectral.multiclass import Multiclass, log_log1p


def problem(seed: int, n: int = 5, d: int = 4, classes: int = 3, runs: int = 2) -> Multiclass:
    rng = np.random.default_rng(seed)
    return Multiclass(
        rng.standard_normal((runs, n, d)), rng.integers(classes, size=(runs, n)), classes
    )


def exact(one: Multiclass, run: int, W: Any) -> tuple[Any, Any]:
    """Gradient and proxy of one run, in extended precision."""
    h, y = one.inputs[run], one.labels[run]
    n, d = h.shape
    G = mp.matrix(one.classes, d)
    proxy = mp.mpf(0)
    for i in range(n):
        o = [
            mp.fsum(mp.mpf(W[c, j]) * mp.mpf(h[i, j]) for j in range(d)) for c in range(one.classes)
        ]
        e = [mp.e ** (value - o[y[i]]) for value in o]
        odds = mp.fsum(e[c] for c in range(one.classes) if c != y[i])
        for c in range(one.classes):
            r = e[c] / (1 + odds) if c != y[i] else -odds / (1 + odds)
            for j in range(d):
                G[c, j] += r * mp.mpf(h[i, j]) / n
        proxy += odds / (1 + odds) / n
    return G, proxy


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 3000.0])
def test_the_gradient_keeps_its_digits_at_any_margin(size: float) -> None:
    one = problem(3, n=3)
    separating = [
        max_margin(output_margins(one.inputs[r], one.labels[r], one.classes)) for r in range(2)
    ]
    W = size * np.stack([solution.W for solution in separating]) + 0.1 * np.random.default_rng(
        0
    ).standard_normal((2, 3, 4))
    G, log_scale = one.gradient(W)
    with mp.workdps(3000 if size > 100 else 60):
        for r in range(2):
            expected, proxy = exact(one, r, W[r])
            factor = mp.e ** mp.mpf(log_scale[r])
            found = np.array([[float(expected[c, j] / factor) for j in range(4)] for c in range(3)])
            # logits of size 3000 round to 1e-13 of themselves, and their exponentials to as much
            np.testing.assert_allclose(
                G[r], found, rtol=1e-11 * max(size, 1.0), atol=1e-12 * max(size, 1.0)
            )
            assert np.abs(G[r]).max() > 1e-3
            assert one.log_proxy(W)[r] == pytest.approx(
                float(mp.log(proxy)), rel=1e-12, abs=1e-12 * max(size, 1.0)
            )


def test_log_log1p_at_all_sizes() -> None:
    logs = np.array([-1000.0, -40.0, -37.0, -1.0, 0.0, 3.0, 800.0])
    with mp.workdps(500):
        expected = [float(mp.log(mp.log1p(mp.e ** mp.mpf(value)))) for value in logs]
    np.testing.assert_allclose(log_log1p(logs), expected, rtol=1e-15, atol=1e-15)
