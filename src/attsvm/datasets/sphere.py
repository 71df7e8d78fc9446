"""Random instances on the unit sphere."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm.data import AttentionData, FloatArray
from attsvm.errors import InputError
from attsvm.files import require_memory

_BYTES = 4 + 8 + 8  # of a number: as it is drawn, in double precision, and in the data


def unit_sphere(
    n: int, T: int, d: int, seed: int | Sequence[int], *, self_attention: bool = False
) -> tuple[AttentionData, FloatArray]:
    r"""Tokens, queries and a head drawn uniformly from the unit sphere of :math:`\mathbb R^d`.

    The generator of *Transformers as Support Vector Machines*, to the bit: one PyTorch generator
    per seed, drawn in float32 in the order head v, labels (the sign of n Gaussians, zero counts as
    -1), tokens, queries, each vector divided by its length in float32, then cast to float64.
    PyTorch's global generator is left as it is.

    Tokens count from 0 here: the optimal tokens :math:`\arg\max_t Y_i v^\top x_{it}` of
    ``unit_sphere(6, 8, 10, seed=0)`` are 7 4 6 1 3 2.

    Args:
        n: sequences.
        T: tokens per sequence.
        d: dimension.
        seed: one integer, or several for as many instances along a leading axis.
        self_attention: query each sequence by its first token instead of a fresh vector (drawn all
            the same).

    Returns:
        data of tokens ``(n, T, d)`` and head ``(d,)``; with several seeds ``(runs, n, T, d)`` and
        ``(runs, d)``.

    Raises:
        InputError: a size below one, no seed, or a seed that PyTorch does not take.
    """
    for name, value in (("n", n), ("T", T), ("d", d)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
    runs = 1 if isinstance(seed, (int, np.integer)) else len(seed)
    require_memory(_BYTES * runs * n * (T + 1) * d, f"n={n}, T={T}, d={d}")
    if not isinstance(seed, (int, np.integer)):
        seeds = list(seed)
        if not seeds:
            raise InputError("seed is an empty list; give at least one integer")
        heads, labels, tokens, queries = (
            np.stack(parts) for parts in zip(*(_draw(n, T, d, one) for one in seeds), strict=True)
        )
    else:
        heads, labels, tokens, queries = _draw(n, T, d, seed)
    return AttentionData(tokens, labels, tokens[..., 0, :] if self_attention else queries), heads


def _draw(
    n: int, T: int, d: int, seed: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    draws = Draws(seed)
    head = draws.unit(d)
    labels = draws.signs(n)
    return head, labels, draws.unit(n, T, d), draws.unit(n, d)


class Draws:
    """The papers' random numbers: a PyTorch generator of one seed, drawn in float32 and cast to
    float64.

    Raises:
        InputError: a seed that PyTorch does not take.
    """

    def __init__(self, seed: int) -> None:
        # Not an import statement: this room does without torch except for this one recipe, whose
        # bits are torch's.
        self._torch: Any = importlib.import_module("torch")
        try:
            self._generator = self._torch.Generator().manual_seed(int(seed))
        except (RuntimeError, ValueError, TypeError, OverflowError):
            raise InputError(
                f"seed {seed!r} is not one that PyTorch takes; give an integer of at most 64 bits"
            ) from None

    def _gaussian(self, *shape: int) -> Any:
        return self._torch.randn(*shape, generator=self._generator, dtype=self._torch.float32)

    def gaussian(self, *shape: int) -> FloatArray:
        """Standard normal numbers."""
        return self._gaussian(*shape).double().numpy()

    def unit(self, *shape: int) -> FloatArray:
        """Gaussian vectors along the last axis, divided by their length in float32."""
        vectors = self._gaussian(*shape)
        return (vectors / self._torch.linalg.norm(vectors, dim=-1, keepdim=True)).double().numpy()

    def matrix(self, rows: int, columns: int) -> FloatArray:
        """A Gaussian matrix divided by its Frobenius norm in float32."""
        drawn = self._gaussian(rows, columns)
        return (drawn / self._torch.linalg.norm(drawn)).double().numpy()

    def signs(self, n: int) -> FloatArray:
        """Signs of Gaussians; zero counts as -1."""
        return np.where(self._gaussian(n).numpy() > 0, 1.0, -1.0)
