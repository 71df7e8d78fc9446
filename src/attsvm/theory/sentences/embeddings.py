"""Embeddings of a vocabulary: one row per token."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray

Embedding = Literal["identity", "ortho", "random", "equi-corr"]


def embed(
    kind: Embedding, K: int, d: int, rng: np.random.Generator, correlation: float = 0.5
) -> FloatArray:
    r"""Embeddings ``(K, d)``, drawn from ``rng``.

    * ``identity``: one-hot rows, d = K (no draw);
    * ``ortho``: orthonormal rows, uniformly distributed, d >= K;
    * ``random``: independent rows, uniform on the unit sphere;
    * ``equi-corr``: unit rows :math:`\sqrt\rho\,c_0+\sqrt{1-\rho}\,c_{v+1}` with orthonormal
      :math:`c`, so that every two rows have the inner product :math:`\rho`, d >= K + 1.

    The last three are the embeddings of the code of Li et al. (2024).

    Raises:
        InputError: an unknown kind, a size below one, a dimension that is too small, or a
            correlation outside [0, 1).

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import embed
        >>> E = embed("equi-corr", K=3, d=4, rng=np.random.default_rng(0), correlation=0.5)
        >>> (E @ E.T).round(6).tolist()
        [[1.0, 0.5, 0.5], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0]]
    """
    if K < 1 or d < 1:
        raise InputError(
            f"embeddings of {K} tokens in dimension {d} are empty; both must be at least 1"
        )
    if kind == "identity":
        if d != K:
            raise InputError(
                f"identity embeddings of {K} tokens have d = {K}, not {d}; leave d out or choose"
                " 'ortho'"
            )
        return identity(K)
    if kind == "random":
        rows = rng.standard_normal((K, d))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "ortho":
        return _orthonormal(K, d, rng, kind)
    if kind == "equi-corr":
        if not 0 <= correlation < 1:
            raise InputError(f"correlation is {correlation:g}; it must be at least 0 and below 1")
        c = _orthonormal(K + 1, d, rng, kind)
        return np.sqrt(correlation) * c[0] + np.sqrt(1 - correlation) * c[1:]
    raise InputError(f"embeddings is {kind!r}; choose 'identity', 'ortho', 'random' or 'equi-corr'")


def identity(K: int) -> FloatArray:
    """The ``(K, K)`` identity as a read-only view of 2K - 1 numbers, so that a large vocabulary
    costs nothing until it is multiplied.

    Raises:
        InputError: K below one.
    """
    if K < 1:
        raise InputError(f"a vocabulary of {K} tokens is empty; give at least 1")
    line = np.zeros(2 * K - 1)
    line[K - 1] = 1.0
    return np.lib.stride_tricks.sliding_window_view(line, K)[::-1]


def _orthonormal(rows: int, d: int, rng: np.random.Generator, kind: str) -> FloatArray:
    if d < rows:
        raise InputError(
            f"{kind!r} embeddings need {rows} orthonormal vectors in dimension {d}; choose d >="
            f" {rows}"
        )
    q, r = np.linalg.qr(rng.standard_normal((d, rows)))
    return (
        q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    ).T.copy()  # signs make the factor unique, and it uniform
