r"""How far the label margin drops when attention leaves the selected tokens: the assumption of the
joint theorems.

With :math:`\Gamma` the best label margin :math:`\max_{\|v\|\le1}\min_iY_iv^\top x_{i\alpha_i}` and
:math:`\Gamma(s)` the same for the features :math:`X_i^\top s_i`, it asks for a :math:`\nu>0` with
:math:`\Gamma(s)\le\Gamma-\nu\max_i(1-s_{i\alpha_i})` for all attention s: the selected tokens are
the best ones, and every sequence counts.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.margins import Margins, decoder_margins
from attsvm.margins.checks import reals, selected_tokens
from attsvm.norms import Norm, as_norm
from attsvm.solvers import MarginSolution, max_margin, max_margin_batch

_ROUNDED = 1e-14  # relative rounding of a margin and of the dual norms that are compared with it


@dataclass(frozen=True)
class DropOptions:
    """Numbers of :func:`margin_drop_bound`."""

    most_selections: int = 1_000_000  # that are enumerated, at 8 n d bytes each
    pieces: int = 16  # of the segment to another selection; untuned


OPTIONS = DropOptions()


class MarginDrop(NamedTuple):
    r"""How the label margin falls when attention leaves the selected tokens.

    Attributes:
        nu: :math:`\min_p(\Gamma-\Gamma(p))/\max_i(1-s^p_{i\alpha_i})` over the samples; the
            assumption holds when it is positive.
        margin: :math:`\Gamma`, the label margin on the selected tokens.
        ratios: ``(samples,)``, the ratio of each sample.

    Example:
        >>> import attsvm
        >>> from attsvm.theory import margin_drop
        >>> data = attsvm.AttentionData([[[1, 1], [0, 0]], [[1, -1], [0, 0]]], labels=[1, -1])
        >>> drop = margin_drop(data, tokens=[0, 0], prompts=[[1.0, 0.0], [0.0, 2.0]])
        >>> round(drop.margin, 6), drop.ratios.round(3).tolist(), bool(drop.nu == drop.ratios.min())
        (1.0, [1.0, 0.946], True)
    """

    nu: float
    margin: float
    ratios: FloatArray


def margin_drop(
    data: AttentionData, tokens: ArrayLike, prompts: ArrayLike, keys: ArrayLike | None = None
) -> MarginDrop:
    r"""An estimate of :math:`\nu` in the margin-drop assumption of joint training, from above: a
    minimum over samples.

    The assumption: for every prompt p the best label margin with features
    :math:`X_i^\top\mathrm{softmax}(K_ip)` is at most
    :math:`\Gamma-\nu\max_i(1-s^p_{i\alpha_i})`.

    Args:
        data: one instance.
        tokens: ``(n,)``, the selected tokens.
        prompts: ``(samples, d_k)``, prompts to try, of many directions and sizes.
        keys: ``(d_k, d_x)``, the key map; the identity when left out.

    Raises:
        InputError: selected tokens that no head separates, shapes that do not match.

    Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023), joint
    training.

    Example:
        >>> import attsvm
        >>> from attsvm.theory import margin_drop
        >>> data = attsvm.AttentionData([[[1, 1], [0, 0]], [[1, -1], [0, 0]]], labels=[1, -1])
        >>> drop = margin_drop(data, tokens=[0, 0], prompts=[[1.0, 0.0], [5.0, 1.0], [0.0, 2.0]])
        >>> round(drop.margin, 6), round(drop.nu, 3)
        (1.0, 0.574)
    """
    selected = selected_tokens(data, tokens)
    mapped = data.tokens
    if keys is not None:
        mapped = mapped @ reals("keys", keys, (None, data.d_x), "a map of tokens to keys").T
    samples = reals("prompts", prompts, (None, mapped.shape[-1]), f"(samples, {mapped.shape[-1]})")
    best = _best_head(data, selected, None)
    margin = 1.0 / best.norm
    attention = softmax(
        np.where(data.mask, np.einsum("ntk,sk->snt", mapped, samples), -np.inf), axis=-1
    )
    features = data.labels[:, None] * (attention[:, :, None, :] @ data.tokens)[:, :, 0]
    away = 1.0 - attention[:, np.arange(data.n), selected]
    solutions = max_margin_batch([_label_margins(rows) for rows in features])
    reached = np.array(
        [1.0 / solution.norm if solution.has_weights else 0.0 for solution in solutions]
    )
    ratios = (margin - reached) / away.max(axis=1)
    return MarginDrop(float(ratios.min()), margin, ratios)


def margin_drop_bound(
    data: AttentionData,
    tokens: ArrayLike,
    norm: Norm | str | None = None,
    options: DropOptions = OPTIONS,
) -> float:
    r"""A proven lower bound of :math:`\nu` over *all* attention, in any norm of the head; the
    assumption holds where it is positive.

    For weights :math:`\lambda` of the sequences that sum to one,
    :math:`\Gamma(s)\le\|\sum_i\lambda_iY_iX_i^\top s_i\|_*`, which is convex in s: over the
    attention with :math:`\max_i(1-s_{i\alpha_i})=\delta` it is largest where every sequence is
    either left alone or moves
    :math:`\delta` to one other token. With the multipliers of the selected tokens all those bounds
    start at :math:`\Gamma`, so what they are at :math:`\delta=1`, at the other selections, decides.
    Other selections with a larger bound than :math:`\Gamma` get multipliers of their own on every
    piece of the segment to them.

    1. Solve for the head of the selected tokens: :math:`\Gamma` and its multipliers.
    2. Bound the margin of every other selection under these multipliers.
    3. Where that proves nothing, bound it piece by piece.

    Args:
        data: one instance, with at most a million selections.
        tokens: ``(n,)``, the selected tokens.
        norm: of the head, or its name; Frobenius (Euclidean) when left out.
        options: selections that are enumerated, and pieces of the way to each.

    Returns:
        The bound, up to the relative duality gap of the label margin (1e-9); negative or zero where
        nothing is proven: the assumption fails, or the multipliers of the selected tokens are not
        unique and the solver's have a zero.

    Raises:
        InputError: selected tokens that no head separates, too many selections.

    Source: Assumption B of Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with
    Mirror Descent* (wording recalled).

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[1, 1], [0, 0]], [[1, -1], [0, 0]]], labels=[1, -1])
        >>> round(attsvm.theory.margin_drop_bound(data, tokens=[0, 0]), 3)  # of all attention
        0.293
    """
    bound = as_norm(norm)
    selected = selected_tokens(data, tokens)
    if math.prod(int(count) for count in data.lengths) > options.most_selections:
        raise InputError(
            f"there are more than {options.most_selections} selections of one token of each"
            " sequence; use margin_drop, which samples"
        )
    # 1. Gamma and its multipliers
    best = _best_head(data, selected, bound)
    margin, weights = (1.0 - _ROUNDED) / best.norm, best.dual / best.dual.sum()
    signed = np.asarray(data.labels)[:, None, None] * data.tokens
    rivals = np.array(list(itertools.product(*(np.flatnonzero(row) for row in data.mask))))
    rivals = rivals[(rivals != selected).any(axis=1)]
    if not len(rivals):
        return math.inf
    selected_features = signed[np.arange(data.n), selected]
    other_features = signed[np.arange(data.n), rivals]
    # 2. the bound at delta = 1 under the multipliers of the selected tokens
    drops = margin - _dual_norms(weights, other_features, bound)
    stuck = drops <= 0.0
    if stuck.any():
        # 3. multipliers of their own on every piece of the segment
        drops[stuck] = _piecewise(
            selected_features, other_features[stuck], weights, margin, bound, options.pieces
        )
    return float(drops.min())


def _best_head(data: AttentionData, selected: IntArray, norm: Norm | None) -> MarginSolution:
    """The best head on the selected tokens."""
    best = max_margin(decoder_margins(data, selected), norm)
    if not best.has_weights:
        raise InputError(
            "no head separates the selected tokens by label, so there is no margin that could drop"
        )
    return best


def _dual_norms(weights: FloatArray, features: FloatArray, norm: Norm) -> FloatArray:
    """Dual norms of weighted sums of features ``(..., n, d)``."""
    return np.asarray(norm.dual.value((weights[..., None, :] @ features)[..., 0, :, None]))


def _piecewise(
    selected_features: FloatArray,
    other_features: FloatArray,
    weights: FloatArray,
    margin: float,
    norm: Norm,
    pieces: int,
) -> FloatArray:
    """The least drop per distance on the segments from one selection to others ``(others,)``, each
    piece under the multipliers of one of its ends.

    1. Solve for the head at the end of every piece.
    2. Take the drop per distance at both ends of every piece, under the multipliers of either end:
       the bound of the margin is convex, so under one choice the least is at an end.
    3. Of the two choices take the better on each piece, and the least over the pieces.
    """
    away = np.linspace(0.0, 1.0, pieces + 1)
    steps = away[:, None, None] * (other_features - selected_features)[:, None]
    features = selected_features + steps  # (others, points, n, d)
    # 1. heads
    solutions = max_margin_batch(
        [_label_margins(rows) for rows in features[:, 1:].reshape(-1, *selected_features.shape)],
        norm,
    )
    multipliers = np.stack([solution.dual / solution.dual.sum() for solution in solutions]).reshape(
        len(other_features), pieces, -1
    )
    multipliers = np.concatenate(
        [np.broadcast_to(weights, (len(other_features), 1, len(weights))), multipliers], axis=1
    )
    # 2. drops per distance
    with np.errstate(divide="ignore", invalid="ignore"):

        def drops(under: slice, at: slice) -> FloatArray:
            return (margin - _dual_norms(multipliers[:, under], features[:, at], norm)) / away[at]

        left, right = slice(0, -1), slice(1, None)
        start = np.minimum(drops(left, left), drops(left, right))
        end = np.minimum(drops(right, left), drops(right, right))
    # at the beginning only the first multipliers reach the margin
    start[:, 0], end[:, 0] = drops(slice(0, 1), slice(1, 2))[:, 0], -np.inf
    # 3. the better bound
    return np.maximum(start, end).min(axis=1)


def _label_margins(signed: FloatArray) -> Margins:
    """Margins of a head on given features that carry their labels."""
    n = len(signed)
    return Margins(
        signed,
        np.ones((n, 1)),
        np.arange(n + 1),
        np.ones(n),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
    )
