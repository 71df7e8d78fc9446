r"""Steepest directions of every norm, for a batch of gradients:
:math:`D=\arg\max_{\|D\|\le1}\langle G,D\rangle`.

A norm is asked for its :meth:`~attsvm.norms.Norm.steepest` direction. Those of the entrywise
norms, and of singular values, are written again for torch: they write into their own intermediate
results and take the norm and the largest entry in one pass each, which the array API has no way to
say, and an optimiser takes them at every step. Tests hold them to the norms' own.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from attsvm.norms import Norm, Spectral
from attsvm.norms.lifts import Entrywise, SingularValues
from attsvm.optim.matrices import call_per_shape, join_matrices, split_matrices
from attsvm.optim.polar import Polar, polar_factor, scaled_svd, squares_are_safe
from attsvm.optim.reductions import (
    compute_in_turns,
    distribute_like,
    full_tensor,
    is_sharded,
    norms,
    replace_zeros_by_ones,
    shard_of,
)

TensorList = list[Tensor]
AdjustLr = Literal["original", "match_rms_adamw"] | None
"""How the length of a spectral step follows the shape of its matrix, by the names of
``torch.optim.Muon``.
"""

_SPECTRAL = Spectral()  # compared with at every step


def steepest_direction(G: Tensor, norm: Norm, polar: Polar = "exact", ns_steps: int = 5) -> Tensor:
    r"""Return a unit-norm :math:`D` with :math:`\langle G,D\rangle=\|G\|_*` per matrix; zero where
    ``G`` is zero, NaN where it is not finite.

    Nothing is added to a divisor: powers and squares are taken after division by the largest entry,
    so a gradient of size 1e-30 has the direction of one of size 1e30.

    Args:
        G: ``(k, m, n)``, float32 or float64.
        norm: the norm.
        polar: how the spectral norm finds its polar factor; other norms do not read it.
        ns_steps: how many polynomials that takes, where it is not exact.

    Returns:
        ``(k, m, n)``. An approximate polar factor has the spectral norm that
        :func:`attsvm.optim.polar.landing_range` states.
    """
    if norm == _SPECTRAL:
        return polar_factor(G, polar, ns_steps)
    if isinstance(norm, Entrywise):
        return _entrywise_direction(G, norm.p)
    if isinstance(norm, SingularValues):
        # the direction has the singular vectors of G, and the entrywise direction of its values
        U, sigma, Vh, finite = scaled_svd(G)
        direction = (U * _entrywise_direction(sigma[..., None], norm.p).mT) @ Vh
        return torch.where(finite, direction, torch.full_like(G, math.nan))
    return norm.steepest(G)


def aligned_length(G: Tensor, direction: Tensor) -> Tensor:
    r"""Return :math:`\langle G,D\rangle` per matrix, ``(k,)``: the dual norm of ``G`` when
    ``direction`` is its steepest one.

    For an approximate polar factor it is what the direction really attains.
    """
    return (G * direction).sum(dim=(-2, -1))


def takes_singular_values(norm: Norm) -> bool:
    """Return whether the direction needs singular values, and not only the entries."""
    return norm.acts_on == "singular values"


def _entrywise_direction(G: Tensor, p: float) -> Tensor:
    r"""Return the steepest direction of :math:`\|\cdot\|_p` over the entries of each matrix:
    :math:`\mathrm{sign}(g)\,|g|^{q-1}/\||g|^{q-1}\|_p` with :math:`q-1=\frac1{p-1}`.
    """
    if p == math.inf:
        return _signs_or_nan(G)
    entries = G.flatten(1)
    if p == 2.0 and G.device.type == "cpu" and not torch.compiler.is_compiling():
        # one pass instead of two, where no square overflows or underflows
        norm = torch.linalg.vector_norm(entries, dim=1, keepdim=True)
        if squares_are_safe(norm):
            return entries.div(norm).view_as(G)
    if p == 1.0:
        # one at the first largest entry, zero elsewhere
        first = _first_largest(entries.abs())
        return (
            torch.zeros_like(entries)
            .scatter_(1, first, _signs_or_nan(entries.gather(1, first)))
            .view_as(G)
        )
    # ratios to the largest entry have powers of any exponent
    size = entries.abs()
    largest = _as_divisor(size.amax(dim=1, keepdim=True))
    if p == 2.0:
        unit = entries / largest
        lengths = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
        return unit.div_(_as_divisor(lengths)).view_as(G)
    size = size.div_(largest)
    raised = size ** (1.0 / (p - 1.0))
    # |raised|^p = raised * size, since (q - 1) p = q
    total = (raised * size).sum(dim=1, keepdim=True) ** (1.0 / p)
    return torch.copysign(raised.div_(_as_divisor(total)), entries).view_as(G)


def _as_divisor(lengths: Tensor) -> Tensor:
    """Return the lengths with 1 for every 0; NaN stays."""
    return torch.where(lengths == 0, torch.ones_like(lengths), lengths)


def _first_largest(size: Tensor, block: int = 512, from_entries: int = 1 << 17) -> Tensor:
    """Return where each row of ``(k, n)`` is largest, ``(k, 1)``; the first position on ties.

    On a CPU ``amax`` is ten times as fast as ``argmax``, so the block with the largest entry is
    sought first (where there are ``from_entries`` entries, from which that is faster: measured).
    """
    n = size.shape[1]
    if size.device.type != "cpu" or n < 8 * block or size.numel() < from_entries:
        return size.argmax(dim=1, keepdim=True)
    # 1. the largest entry of each block, and of the rest that fills none
    filled = n - n % block
    maxima = size[:, :filled].view(len(size), -1, block).amax(dim=2)
    if filled < n:
        maxima = torch.cat([maxima, size[:, filled:].amax(dim=1, keepdim=True)], dim=1)
    # 2. the first entry of that size in the first such block; the last block is drawn back to n
    begin = (maxima.argmax(dim=1, keepdim=True) * block).clamp(max=n - block)
    # torch's default device may be another one
    positions = begin + torch.arange(block, device=size.device)
    return begin + size.gather(1, positions).argmax(dim=1, keepdim=True)


def _signs_or_nan(G: Tensor) -> Tensor:
    # torch.sign alone hides a NaN as a zero; what is not finite times zero is NaN
    return torch.sign(G).add_(G, alpha=0.0)


def unit_directions(group: dict[str, Any], batches: TensorList) -> TensorList:
    """Return the steepest directions of batches ``(k, m, n)``, equal shapes in one call.

    Args:
        group: ``norm``, ``polar``, ``ns_steps`` and ``foreach``.
        batches: gradients or averages of them.
    """
    norm, polar, ns_steps = group["norm"], group["polar"], group["ns_steps"]
    # a transposed matrix has the transposed polar factor: both shapes go into one batch
    shapes = {batch.shape[-2:] for batch in batches}
    transposed = [
        norm == _SPECTRAL and m > n and torch.Size((n, m)) in shapes
        for m, n in (batch.shape[-2:] for batch in batches)
    ]
    batches = [b.mT if turn else b for b, turn in zip(batches, transposed, strict=True)]
    if group["foreach"] is False:
        directions = [steepest_direction(batch, norm, polar, ns_steps) for batch in batches]
    else:
        directions = call_per_shape(
            batches, lambda batch: steepest_direction(batch, norm, polar, ns_steps)
        )
    return [d.mT if turn else d for d, turn in zip(directions, transposed, strict=True)]


def step_directions(
    group: dict[str, Any], vectors: TensorList, parameters: TensorList
) -> TensorList:
    """Return the directions along which parameters step, of norm one with ``normalize``, otherwise
    as long as the dual norm of the vector; of sharded parameters the shards of this process.

    Args:
        group: the parameter group.
        vectors: gradients or averages of them, as this process holds them.
        parameters: those that move.
    """
    if not any(is_sharded(parameter) for parameter in parameters):
        return _directions(group, vectors)
    distributed = [
        distribute_like(vector, parameter)
        for vector, parameter in zip(vectors, parameters, strict=True)
    ]
    norm: Norm = group["norm"]
    # an entrywise direction needs one number from the other processes, the norm
    if isinstance(norm, Entrywise) and norm.p != 1 and group["blocks"] is None:
        return _sharded_entrywise_directions(group, vectors, distributed)
    # singular values, a largest entry and blocks need the whole gradient: every process gathers it,
    # one computes the direction, and every one takes its shard
    directions = compute_in_turns(
        [full_tensor(vector) for vector in distributed],
        parameters,
        lambda share: _directions(group, share),
        can_fail=group["polar"] == "exact" or norm != _SPECTRAL,
    )
    return [shard_of(d, parameter) for d, parameter in zip(directions, parameters, strict=True)]


def length_factor(adjust_lr_fn: AdjustLr, m: int, n: int) -> float:
    r"""Return the length of a spectral step of an ``(m, n)`` matrix for ``lr = 1``.

    ``original`` is :math:`\sqrt{\max(1,m/n)}`. ``match_rms_adamw`` is :math:`0.2\sqrt{\max(m,n)}`:
    entries of :math:`UV^\top` have the root mean square :math:`1/\sqrt{\max(m,n)}`, so that those
    of a step have 0.2 times ``lr`` in every shape, as steps of AdamW do (Liu et al., *Muon is
    Scalable for LLM Training*, 2025). None is 1.
    """
    if adjust_lr_fn == "original":
        return math.sqrt(max(1.0, m / n))
    return 0.2 * math.sqrt(max(m, n)) if adjust_lr_fn == "match_rms_adamw" else 1.0


def _directions(group: dict[str, Any], vectors: TensorList) -> TensorList:
    """Return :func:`step_directions` of whole tensors.

    1. Cut every vector into batches of matrices.
    2. The steepest direction of every matrix.
    3. Its length, if not ``normalize`` or as ``adjust_lr_fn`` says.
    4. Join the matrices again.
    """
    axis, flatten = group["blocks_axis"], group["flatten"]
    # 1. matrices
    batches_of = [split_matrices(vector, group["blocks"], axis, flatten) for vector in vectors]
    batches = [batch for batches in batches_of for batch in batches]
    # 2. directions of norm one
    directions = unit_directions(group, batches)
    # 3. as long as the dual norm
    if not group["normalize"]:
        directions = [
            aligned_length(batch, direction)[:, None, None] * direction
            for batch, direction in zip(batches, directions, strict=True)
        ]
    elif group["adjust_lr_fn"] is not None:
        directions = [
            length_factor(group["adjust_lr_fn"], *direction.shape[-2:]) * direction
            for direction in directions
        ]
    # 4. the shapes of the parameters
    return join_directions(directions, batches_of, vectors, axis)


def join_directions(
    directions: TensorList, batches_of: list[TensorList], vectors: TensorList, axis: int
) -> TensorList:
    """Return directions in the shapes of ``vectors``, from those of their batches one after the
    other.
    """
    joined, first = [], 0
    for vector, batches in zip(vectors, batches_of, strict=True):
        last = first + len(batches)
        joined.append(join_matrices(directions[first:last], vector.shape, axis))
        first = last
    return joined


def _sharded_entrywise_directions(
    group: dict[str, Any], vectors: TensorList, distributed: TensorList
) -> TensorList:
    r"""Return the shards of :math:`\mathrm{sign}(u)|u|^{q-1}` with :math:`u=g/\|g\|_q`."""
    q = group["norm"].gauge.q
    directions: list[Tensor | None] = [None] * len(vectors)
    # one message per number of leading axes
    axes = [0 if group["flatten"] else max(vector.ndim - 2, 0) for vector in vectors]
    for run_axes in set(axes):
        members = [k for k, count in enumerate(axes) if count == run_axes]
        lengths = replace_zeros_by_ones(norms([distributed[k] for k in members], q, run_axes))
        for k, length in zip(members, lengths, strict=True):
            unit = vectors[k] / length
            direction = (
                torch.sign(unit) if q == 1.0 else torch.copysign(unit.abs() ** (q - 1.0), unit)
            )
            directions[k] = direction if group["normalize"] else direction * length
    return [direction for direction in directions if direction is not None]
