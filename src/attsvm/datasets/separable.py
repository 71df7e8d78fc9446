"""Random classification instances on which every descent selects the optimal tokens, whatever its
start.

Instances for *Implicit Bias and Fast Convergence Rates for Self-attention* (Vasudeva, Deora and
Thrampoulidis 2024): its data conditions ask that the tokens of a sequence which are not optimal
look alike to the head. :func:`attsvm.datasets.unit_sphere` is the control that meets no such
condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.errors import InputError

Drawn = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def orth(
    n: int = 6, T: int = 5, d: int = 48, seed: int | Sequence[int] = 0
) -> tuple[AttentionData, FloatArray]:
    r"""Orthonormal tokens, of which one per sequence, at random, is optimal:
    :math:`u=\sum_iY_ix_{io_i}`.

    All other tokens have score 0. The query of a sequence is its token :math:`(o_i+1)\bmod T`. One
    NumPy generator per seed, drawn in the order labels, optimal positions, tokens.

    Args:
        n: sequences.
        T: tokens per sequence.
        d: dimension, at least n T.
        seed: one integer, or several for as many instances along a leading axis.

    Returns:
        data of tokens ``([seeds,] n, T, d)`` and head u ``([seeds,] d)``.

    Raises:
        InputError: a size below one, T below 2, a dimension below n T, or no seed.
    """
    if d < n * T:
        raise InputError(f"d is {d}; {n} sequences of {T} orthonormal tokens need at least {n * T}")

    def draw(rng: np.random.Generator) -> Drawn:
        labels = rng.choice([-1.0, 1.0], size=n)
        optimal = rng.integers(T, size=n)
        tokens = np.linalg.qr(rng.standard_normal((d, n * T)))[0].T.reshape(n, T, d)
        return (
            tokens,
            labels,
            *_seen(tokens, optimal, lambda best: np.einsum("i,id->d", labels, best)),
        )

    return _instances((n, T, d), seed, draw)


def gauss(
    n: int = 6, T: int = 5, d: int = 48, seed: int | Sequence[int] = 0
) -> tuple[AttentionData, FloatArray]:
    r"""Gaussian tokens, of which one per sequence, at random, lies near the centre of its class.

    .. math:: x_{io_i}=\mu_{Y_i}+0.3\,\xi/\sqrt d,\qquad x_{it}=\xi/\sqrt d\ (t\ne o_i),\qquad
        \xi\sim\mathcal N(0,I),\qquad u=\mu_+-\mu_-

    with orthonormal centres. The query of a sequence is its token :math:`(o_i+1)\bmod T`. One NumPy
    generator per seed, drawn in the order labels, optimal positions, centres (:math:`\mu_+` first),
    tokens.

    Args:
        n: sequences.
        T: tokens per sequence.
        d: dimension, at least 2.
        seed: one integer, or several for as many instances along a leading axis.

    Returns:
        data of tokens ``([seeds,] n, T, d)`` and head u ``([seeds,] d)``.

    Raises:
        InputError: a size below one, T or d below 2, or no seed.
    """
    if d < 2:
        raise InputError(f"d is {d}; two orthonormal centres need at least 2")

    def draw(rng: np.random.Generator) -> Drawn:
        labels = rng.choice([-1.0, 1.0], size=n)
        optimal = rng.integers(T, size=n)
        centres = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
        tokens = rng.standard_normal((n, T, d)) / np.sqrt(d)
        tokens[np.arange(n), optimal] = (
            centres[np.where(labels > 0, 0, 1)] + 0.3 * tokens[np.arange(n), optimal]
        )
        return tokens, labels, *_seen(tokens, optimal, lambda _: centres[0] - centres[1])

    return _instances((n, T, d), seed, draw)


def _seen(
    tokens: FloatArray, optimal: IntArray, head: Callable[[FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Queries, one place after the optimal token, and the head."""
    rows = np.arange(len(tokens))
    return tokens[rows, (optimal + 1) % tokens.shape[1]], head(tokens[rows, optimal])


def _instances(
    sizes: tuple[int, int, int],
    seed: int | Sequence[int],
    draw: Callable[[np.random.Generator], Drawn],
) -> tuple[AttentionData, FloatArray]:
    if min(sizes) < 1 or sizes[1] < 2:
        raise InputError(
            f"n, T and d are {sizes[0]}, {sizes[1]} and {sizes[2]}; they must be at least 1, 2"
            " and 1"
        )
    if isinstance(seed, (int, np.integer)):
        tokens, labels, queries, head = draw(np.random.default_rng(seed))
    else:
        if not len(seed):
            raise InputError("seed is an empty list; give at least one integer")
        tokens, labels, queries, head = (
            np.stack(parts)
            for parts in zip(*(draw(np.random.default_rng(k)) for k in seed), strict=True)
        )
    return AttentionData(tokens, labels, queries), head
