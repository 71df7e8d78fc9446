r"""Where the theorems start: cones of weights around a max-margin direction, and how far label margins drop off it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from attsvm.data import AttentionData, BoolArray, FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Lp
from attsvm.margins import Margins, decoder_margins
from attsvm.margins.checks import reals, selected_tokens
from attsvm.solvers import max_margin
from attsvm.solvers.solution import MarginSolution


def in_angular_cone(W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0) -> BoolArray:
    r"""Whether weights lie in :math:`C_{\mu,R}=\{\|W\|_F\ge R,\ \cos\angle(W,W^{mm})\ge1-\mu\}`, the cone of the local theorems.

    Args:
        W: ``(..., d_x, d_z)``.
        solution: the max-margin solution on the axis.
        mu: opening, between 0 and 1.
        radius: R.

    Raises:
        InputError: a solution that does not exist, weights of another shape.
    """
    weights, size = _sized(W, solution)
    axis = solution.W / np.linalg.norm(solution.W)
    inside: BoolArray = (size >= radius) & (size > 0) & (np.sum(weights * axis, axis=(-2, -1)) >= (1.0 - mu) * size)
    return inside


def in_bregman_cone(W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0) -> BoolArray:
    r"""Whether weights lie in :math:`C_{p,\mu,R}=\{\|W\|_p\ge R,\ D_\psi(W^{mm}/\|W^{mm}\|_p,\ W/\|W\|_p)\le\mu\}`.

    The cone of the local theorems of :math:`\ell_p` mirror descent, with the p of the solution's norm; at p = 2 that of
    :func:`in_angular_cone`.

    Args:
        W: ``(..., d_x, d_z)``.
        solution: the max-margin solution of an entrywise norm, 1 < p < inf, on the axis.
        mu: opening, between 0 and 2.
        radius: R, in the norm of the solution.

    Raises:
        InputError: a solution that does not exist or is of another norm, weights of another shape.

    Source: Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with Mirror Descent*.
    """
    weights, _ = _sized(W, solution)
    norm = Lp(2) if solution.geometry == Lp(2) else solution.geometry
    if not isinstance(norm, Lp):
        raise InputError(f"a Bregman cone needs a solution of an entrywise norm Lp(p), not of {norm.name}; solve with norm=Lp(p)")
    size = norm.value(weights)
    divergence = norm.direction_divergence(solution.W, weights)
    inside: BoolArray = (size >= radius) & (divergence <= mu)
    return inside


def in_margin_cone(W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0) -> BoolArray:
    r"""Whether weights lie in :math:`S_{\mu,R}=\{\|W\|_F\ge R,\ \min_c\langle A_c,W\rangle/\|W\|_F\ge\mu/\|W^{mm}\|_F\}`.

    The cone of the global theorems.

    Arguments as in :func:`in_angular_cone`; ``mu`` is the share of the largest possible margin.
    """
    weights, size = _sized(W, solution)
    margins = solution.margins
    flat = weights.reshape(-1, *margins.shape)
    least = np.array([margins(one).min(initial=np.inf) for one in flat]).reshape(size.shape)
    inside: BoolArray = (size >= radius) & (size > 0) & (least >= mu * size / np.linalg.norm(solution.W))
    return inside


def _sized(W: ArrayLike, solution: MarginSolution) -> tuple[FloatArray, FloatArray]:
    if solution.status == "infeasible":
        raise InputError("there is no cone around an infeasible solution; check its status first")
    weights = np.asarray(W, dtype=np.float64)
    if weights.shape[-2:] != solution.W.shape:
        raise InputError(f"W has shape {weights.shape}; its last two axes must be {solution.W.shape}, those of the solution")
    size: FloatArray = np.linalg.norm(weights, axis=(-2, -1))
    return weights, size


class MarginDrop(NamedTuple):
    r"""How the label margin falls when attention leaves the selected tokens.

    Attributes:
        nu: :math:`\min_p(\Gamma-\Gamma(p))/\max_i(1-s^p_{i\alpha_i})` over the samples; the assumption holds when it is positive.
        margin: :math:`\Gamma`, the label margin on the selected tokens.
        ratios: ``(samples,)``, the ratio of each sample.
    """

    nu: float
    margin: float
    ratios: FloatArray


def margin_drop(data: AttentionData, tokens: ArrayLike, prompts: ArrayLike, keys: ArrayLike | None = None) -> MarginDrop:
    r"""An estimate of :math:`\nu` in the margin-drop assumption of joint training, from above: a minimum over samples.

    The assumption: for every prompt p the best label margin with features :math:`X_i^\top\mathrm{softmax}(K_ip)` is at most
    :math:`\Gamma-\nu\max_i(1-s^p_{i\alpha_i})`.

    Args:
        data: one instance.
        tokens: ``(n,)``, the selected tokens.
        prompts: ``(samples, d_k)``, prompts to try, of many directions and sizes.
        keys: ``(d_k, d_x)``, the key map; the identity when left out.

    Raises:
        InputError: selected tokens that no head separates, shapes that do not match.

    Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023), joint training.
    """
    selected = selected_tokens(data, tokens)
    mapped = data.tokens if keys is None else data.tokens @ reals("keys", keys, (None, data.d_x), "a map of tokens to keys").T
    samples = reals("prompts", prompts, (None, mapped.shape[-1]), f"(samples, {mapped.shape[-1]})")
    best = max_margin(decoder_margins(data, selected))
    if best.status == "infeasible":
        raise InputError("no head separates the selected tokens by label, so there is no margin that could drop")
    top = 1.0 / best.norm
    s = softmax(np.where(data.mask, np.einsum("ntk,sk->snt", mapped, samples), -np.inf), axis=-1)
    features = data.labels[:, None] * (s[:, :, None, :] @ data.tokens)[:, :, 0]
    away = 1.0 - s[:, np.arange(data.n), selected]
    programmes = [_labels(rows) for rows in features]
    reached = np.array([0.0 if solution.status == "infeasible" else 1.0 / solution.norm for solution in max_margin(programmes)])
    ratios = (top - reached) / away.max(axis=1)
    return MarginDrop(float(ratios.min()), top, ratios)


def _labels(signed: FloatArray) -> Margins:
    """Margins of a head on given features that carry their labels."""
    n = len(signed)
    return Margins(signed, np.ones((n, 1)), np.arange(n + 1), np.ones(n), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
