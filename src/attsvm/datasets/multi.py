"""Random instances for nonlinear heads, which select several tokens at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attsvm.data import AttentionData, FloatArray
from attsvm.datasets.sphere import Draws
from attsvm.errors import InputError


def mlp_instance(
    n: int, T: int, d: int, seed: int | Sequence[int]
) -> tuple[AttentionData, FloatArray]:
    r"""Tokens and queries on the unit sphere, random labels, and the first layer V of a two-layer
    head.

    One PyTorch generator per seed, float32, in the order V (Frobenius norm one), tokens, labels,
    queries: the multi-token experiment of *Transformers as Support Vector Machines*, with n=3, T=4
    and d=4 to 10, head :math:`\mathbf 1^\top\mathrm{ReLU}(V^\top o)`, and only seeds of which some
    label is -1.

    Args:
        n: sequences.
        T: tokens per sequence.
        d: dimension.
        seed: one integer, or several for as many instances along a leading axis.

    Returns:
        data of tokens ``([seeds,] n, T, d)`` and V ``([seeds,] d, d)``, see
        :class:`attsvm.models.MLPHead`.

    Raises:
        InputError: a size below one, no seed, or a seed that PyTorch does not take.
    """

    def draw(draws: Draws) -> tuple[FloatArray, ...]:
        V = draws.matrix(d, d)
        tokens = draws.unit(n, T, d)
        labels = draws.signs(n)
        return tokens, labels, draws.unit(n, d), V

    tokens, labels, queries, V = _instances((n, T, d), seed, draw)
    return AttentionData(tokens, labels, queries), V


def orthonormal(n: int, d: int, seed: int | Sequence[int]) -> tuple[AttentionData, FloatArray]:
    r"""Sequences of ``d`` orthonormal tokens with label +1, unit queries and a unit head.

    The instances of the head :math:`v^\top o-\lambda\|o\|^2` (:class:`attsvm.models.LambdaHead`),
    for which
    :func:`attsvm.selection.sparsemax_selection` predicts the selected sets. Tokens are the left
    singular vectors of a Gaussian matrix, as in the code of *Transformers as Support Vector
    Machines*; the order of the draws (head, tokens, queries) is ours.

    Args:
        n: sequences.
        d: dimension and tokens per sequence.
        seed: one integer, or several for as many instances along a leading axis.

    Returns:
        data of tokens ``([seeds,] n, d, d)`` and head ``([seeds,] d)``.

    Raises:
        InputError: a size below one, no seed, or a seed that PyTorch does not take.
    """

    def draw(draws: Draws) -> tuple[FloatArray, ...]:
        head = draws.unit(d)
        tokens = np.linalg.svd(draws.gaussian(n, d, d))[0]
        return tokens, np.ones(n), draws.unit(n, d), head

    tokens, labels, queries, head = _instances((n, d, d), seed, draw)
    return AttentionData(tokens, labels, queries), head


def _instances(
    sizes: tuple[int, ...],
    seed: int | Sequence[int],
    draw: Callable[[Draws], tuple[FloatArray, ...]],
) -> list[Any]:
    if min(sizes) < 1:
        raise InputError(f"an instance of sizes {sizes} is empty; every size must be at least 1")
    if isinstance(seed, (int, np.integer)):
        return list(draw(Draws(seed)))
    if not len(seed):
        raise InputError("seed is an empty list; give at least one integer")
    return [np.stack(parts) for parts in zip(*(draw(Draws(one)) for one in seed), strict=True)]
