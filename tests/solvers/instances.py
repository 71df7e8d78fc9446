"""Programmes for the tests: the random family of the papers, their literal toys, ragged
programmes, explicit tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins


def sphere(n: int, T: int, d: int, seed: int) -> Margins:
    """Random data as in the released code of Transformers as Support Vector Machines: drawn in
    float32 in the order v, Y, X, Z. The best token under v is selected.
    """
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> np.ndarray:
        a = rng.standard_normal(shape, dtype=np.float32)
        return (a / np.linalg.norm(a, axis=-1, keepdims=True)).astype(np.float64)

    v = unit(d)
    Y = np.where(rng.standard_normal(n, dtype=np.float32) > 0, 1.0, -1.0)
    X, Z = unit(n, T, d), unit(n, d)
    return selection_margins(AttentionData(X, Y, Z), (Y[:, None] * (X @ v)).argmax(axis=1))


def ragged(
    rng: np.random.Generator, n: int, longest: int, d_x: int, d_z: int, feasible: bool
) -> Margins:
    """Sequences of 1 to ``longest`` Gaussian tokens; a teacher selects when ``feasible``, chance
    otherwise.
    """
    bags = [rng.standard_normal((int(rng.integers(1, longest + 1)), d_x)) for _ in range(n)]
    Z = rng.standard_normal((n, d_z))
    W = rng.standard_normal((d_x, d_z))
    tokens = [
        int((bag @ W @ z).argmax()) if feasible else int(rng.integers(len(bag)))
        for bag, z in zip(bags, Z, strict=True)
    ]
    return selection_margins(AttentionData.from_bags(bags, np.ones(n), Z), np.array(tokens))


def prompt(keys: Any, selected: list[int]) -> Margins:
    """The prompt programme: queries are the number one."""
    X = np.array(keys)
    return selection_margins(
        AttentionData(X, np.ones(len(X)), np.ones((len(X), 1))), np.array(selected)
    )


def cross(X: Any, Z: Any, selected: list[int]) -> Margins:
    return selection_margins(
        AttentionData(np.array(X), np.ones(len(X)), np.array(Z)), np.array(selected)
    )


def written_out(margins: Margins) -> np.ndarray:
    """``(m, d_x d_z)``, every constraint as a vector."""
    Z = margins.queries[margins.sequence]
    return np.einsum("ca,ce->cae", margins.differences, Z).reshape(
        margins.m, margins.shape[0] * margins.shape[1]
    )


def with_rhs(margins: Margins, rhs: np.ndarray) -> Margins:
    return Margins(
        margins.differences, margins.queries, margins.offsets, rhs, margins.token, margins.selected
    )
