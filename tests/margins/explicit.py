"""Programmes written out by loops, one d x d matrix per constraint."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins


def ragged_data(
    rng: np.random.Generator, n: int, longest: int, d_x: int, d_z: int | None
) -> AttentionData:
    """Gaussian tokens with holes in the mask, not only at the end."""
    X = rng.standard_normal((n, longest, d_x))
    mask = rng.random((n, longest)) < 0.7
    mask[np.arange(n), rng.integers(longest, size=n)] = True
    Y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    return AttentionData(X, Y, None if d_z is None else rng.standard_normal((n, d_z)), mask)


def visible_choice(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.array([rng.choice(np.flatnonzero(row)) for row in mask])


def matrices(margins: Margins) -> np.ndarray:
    """``(m, d_x, d_z)`` by the definition of a row, one at a time."""
    out = np.zeros((margins.m, *margins.shape))
    for i in range(margins.n):
        for c in range(margins.offsets[i], margins.offsets[i + 1]):
            out[c] = np.outer(margins.differences[c], margins.queries[i])
    return out


def same(one: Margins, other: Margins) -> None:
    """The same programme, to the last bit."""
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected", "equalities"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert (one.equality is None) == (other.equality is None)


def same_rows(
    margins: Margins, A: list[Any], b: list[float], equal: list[bool] | None = None
) -> None:
    """The programme holds exactly these rows, in this order."""
    expected = np.array(A).reshape(-1, *margins.shape)
    assert margins.m == len(expected)
    np.testing.assert_allclose(matrices(margins), expected, atol=1e-12)
    np.testing.assert_array_equal(margins.rhs, np.array(b))
    np.testing.assert_array_equal(
        margins.equalities, np.zeros(len(b), bool) if equal is None else np.array(equal)
    )
    assert margins.token.shape == (margins.m,)
    assert margins.selected.shape == (margins.n,)
