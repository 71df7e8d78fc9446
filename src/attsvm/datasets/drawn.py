"""Random instances: on the unit sphere; for nonlinear heads, which select several tokens at once;
and such on which every descent selects the optimal tokens, whatever its start.

The last are those of *Implicit Bias and Fast Convergence Rates for Self-attention* (Vasudeva, Deora
and Thrampoulidis 2024). Its data conditions ask that the tokens of a sequence which are not optimal
look alike to the head. :func:`attsvm.datasets.unit_sphere` is the control that meets no such
condition.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.files import require_memory
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray

Drawn = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def unit_sphere(
    n: int, T: int, d: int, seed: int | Sequence[int], *, self_attention: bool = False
) -> tuple[AttentionData, FloatArray]:
    r"""Tokens, queries and a head drawn uniformly from the unit sphere of :math:`\mathbb R^d`.

    The generator of *Transformers as Support Vector Machines*, to the bit. One PyTorch generator
    per seed draws in float32, in this order: head v, labels (the sign of n Gaussians, zero counts
    as -1), tokens, queries. Each vector is divided by its length in float32, then cast to float64.
    PyTorch's global generator is left as it is.

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

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(n=6, T=8, d=10, seed=0)
        >>> data.tokens.shape, attsvm.optimal_tokens(data, head).tolist()
        ((6, 8, 10), [7, 4, 6, 1, 3, 2])
        >>> attsvm.datasets.unit_sphere(n=6, T=8, d=10, seed=range(100))[0].batch_shape
        (100,)
    """
    runs = 1 if isinstance(seed, (int, np.integer)) else len(seed)
    bytes_per_number = 4 + 8 + 8  # as it is drawn, in double precision, and in the data
    require_memory(bytes_per_number * runs * n * (T + 1) * d, f"n={n}, T={T}, d={d}")

    def draw(draws: Draws) -> Drawn:
        head, labels, tokens, queries = (
            draws.unit(d),
            draws.signs(n),
            draws.unit(n, T, d),
            draws.unit(n, d),
        )
        return tokens, labels, tokens[:, 0] if self_attention else queries, head

    return _instances((n, T, d), seed, Draws, draw)


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
        gaussian = self._gaussian(rows, columns)
        return (gaussian / self._torch.linalg.norm(gaussian)).double().numpy()

    def signs(self, n: int) -> FloatArray:
        """Signs of Gaussians; zero counts as -1."""
        return np.where(self._gaussian(n).numpy() > 0, 1.0, -1.0)


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
        :class:`attsvm.attention.MLPHead`.

    Raises:
        InputError: a size below one, no seed, or a seed that PyTorch does not take.

    Example:
        >>> import attsvm
        >>> data, V = attsvm.datasets.mlp_instance(n=3, T=4, d=5, seed=0)
        >>> data.tokens.shape, V.shape, round(float((V**2).sum()), 5)
        ((3, 4, 5), (5, 5), 1.0)
    """

    def draw(draws: Draws) -> Drawn:
        V, tokens, labels = draws.matrix(d, d), draws.unit(n, T, d), draws.signs(n)
        return tokens, labels, draws.unit(n, d), V

    return _instances((n, T, d), seed, Draws, draw)


def orthonormal(n: int, d: int, seed: int | Sequence[int]) -> tuple[AttentionData, FloatArray]:
    r"""Sequences of ``d`` orthonormal tokens with label +1, unit queries and a unit head.

    The instances of the head :math:`v^\top o-\lambda\|o\|^2`
    (:class:`attsvm.attention.LambdaHead`), for which
    :func:`attsvm.theory.sparsemax_selection` predicts the selected sets. Tokens are the left
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

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> data, head = attsvm.datasets.orthonormal(n=2, d=4, seed=0)
        >>> data.tokens.shape, bool(np.allclose(data.tokens[0] @ data.tokens[0].T, np.eye(4)))
        ((2, 4, 4), True)
        >>> attsvm.theory.sparsemax_selection(data.tokens @ head, strength=0.3).sets.shape
        (2, 4)
    """

    def draw(draws: Draws) -> Drawn:
        head = draws.unit(d)
        tokens = np.linalg.svd(draws.gaussian(n, d, d))[0]
        return tokens, np.ones(n), draws.unit(n, d), head

    return _instances((n, d, d), seed, Draws, draw)


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

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.orth(n=2, T=3, d=6, seed=0)
        >>> abs(attsvm.token_scores(data, head)).round(6).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if d < n * T:
        raise InputError(f"d is {d}; {n} sequences of {T} orthonormal tokens need at least {n * T}")

    def draw(rng: np.random.Generator) -> Drawn:
        labels, optimal = rng.choice([-1.0, 1.0], size=n), rng.integers(T, size=n)
        tokens = np.linalg.qr(rng.standard_normal((d, n * T)))[0].T.reshape(n, T, d)
        return (
            tokens,
            labels,
            *_queries_and_head(tokens, optimal, lambda best: np.einsum("i,id->d", labels, best)),
        )

    return _instances((n, T, d), seed, np.random.default_rng, draw, 2)


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

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.gauss(n=6, T=5, d=48, seed=0)
        >>> attsvm.token_scores(data, head).max(axis=1).round().tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
        >>> bool(attsvm.theory.feasible(data, attsvm.optimal_tokens(data, head)))
        True
    """
    if d < 2:
        raise InputError(f"d is {d}; two orthonormal centres need at least 2")

    def draw(rng: np.random.Generator) -> Drawn:
        labels, optimal = rng.choice([-1.0, 1.0], size=n), rng.integers(T, size=n)
        centres = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
        tokens = rng.standard_normal((n, T, d)) / np.sqrt(d)
        tokens[np.arange(n), optimal] = (
            centres[np.where(labels > 0, 0, 1)] + 0.3 * tokens[np.arange(n), optimal]
        )
        return (
            tokens,
            labels,
            *_queries_and_head(tokens, optimal, lambda _: centres[0] - centres[1]),
        )

    return _instances((n, T, d), seed, np.random.default_rng, draw, 2)


def _queries_and_head(
    tokens: FloatArray, optimal: IntArray, head: Callable[[FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Queries, one place after the optimal token, and the head."""
    rows = np.arange(len(tokens))
    return tokens[rows, (optimal + 1) % tokens.shape[1]], head(tokens[rows, optimal])


def _instances(
    sizes: tuple[int, int, int],
    seed: int | Sequence[int],
    generator: Callable[[int], Any],
    draw: Callable[[Any], Drawn],
    least: int = 1,
) -> tuple[AttentionData, FloatArray]:
    """The data that ``draw`` makes of the generator of each seed, with a leading axis where there
    are several, and the head; sequences have at least ``least`` tokens.
    """
    for name, size in zip("nTd", sizes, strict=True):
        if size < (least if name == "T" else 1):
            raise InputError(
                f"{name} is {size}; every size must be at least 1, and T at least {least}"
            )
    if isinstance(seed, (int, np.integer)):
        tokens, labels, queries, head = draw(generator(int(seed)))
    elif not len(seed):
        raise InputError("seed is an empty list; give at least one integer")
    else:
        columns = zip(*(draw(generator(number)) for number in seed), strict=True)
        tokens, labels, queries, head = (np.stack(arrays) for arrays in columns)
    return AttentionData(tokens, labels, queries), head
