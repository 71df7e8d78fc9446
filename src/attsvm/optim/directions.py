r"""Steepest directions of every norm, for a batch of gradients:
:math:`D=\arg\max_{\|D\|\le1}\langle G,D\rangle`.

A norm is asked for its :meth:`~attsvm.norms.Norm.steepest` direction. Those of the entrywise
norms, and of singular values, are written again for torch: they write into their own intermediate
results and take the norm and the largest entry in one pass each, which the array API has no way to
say, and an optimiser takes them at every step. Tests hold them to the geometry's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.norms import Norm, Spectral
from attsvm.norms.lifts import Entrywise, SingularValues
from attsvm.optim.polar import Polar, decomposed, polar_factor, squares_are_safe
from attsvm.optim.reductions import like, norms, part, positive, whole

TensorList = list[Tensor]
Directions = tuple[TensorList, Tensor | None]

INFINITY = float("inf")
_SPECTRAL = Spectral()  # compared with at every step
_BLOCK = 512  # entries among which the largest is sought together
_BLOCKS_FROM = 1 << 17  # entries from which that is faster


def steepest_direction(G: Tensor, norm: Norm, polar: Polar = "exact", ns_steps: int = 5) -> Tensor:
    r"""A unit-norm :math:`D` with :math:`\langle G,D\rangle=\|G\|_*` per matrix; zero where ``G``
    is zero, NaN where it is not finite.

    Nothing is added to a divisor: powers and squares are taken after division by the largest entry,
    so a gradient of size 1e-30 has the direction of one of size 1e30.

    Args:
        G: ``(k, m, n)``, float32 or float64.
        norm: the geometry.
        polar: how the spectral norm finds its polar factor; other norms do not read it.
        ns_steps: how many polynomials that takes, where it is not exact.

    Returns:
        ``(k, m, n)``. An approximate polar factor has the spectral norm that
        :func:`attsvm.optim.polar.landing_range` states.
    """
    if norm == _SPECTRAL:
        return polar_factor(G, polar, ns_steps)
    if isinstance(norm, Entrywise):
        return _entrywise(G, norm.p)
    if isinstance(norm, SingularValues):
        U, sigma, Vh, finite = decomposed(G)
        direction = (U * _entrywise(sigma[..., None], norm.p).mT) @ Vh
        return torch.where(finite, direction, torch.full_like(G, float("nan")))
    return norm.steepest(G)


def aligned_length(G: Tensor, direction: Tensor) -> Tensor:
    r""":math:`\langle G,D\rangle` per matrix, ``(k,)``: the dual norm of ``G`` when ``direction``
    is its steepest one.

    For an approximate polar factor it is what the direction really attains.
    """
    return (G * direction).sum(dim=(-2, -1))


def takes_singular_values(norm: Norm) -> bool:
    """Whether the direction needs singular values, and not only the entries."""
    return norm.acts_on == "singular values"


def _entrywise(G: Tensor, p: float) -> Tensor:
    if p == INFINITY:
        return _sign(G)
    entries = G.flatten(1)
    if p == 2.0 and G.device.type == "cpu" and not torch.compiler.is_compiling():
        norm = torch.linalg.vector_norm(entries, dim=1, keepdim=True)
        if squares_are_safe(norm):
            return entries.div(norm).view_as(G)
    if p == 1.0:  # the first largest entry
        first = _first_largest(entries.abs())
        return (
            torch.zeros_like(entries).scatter_(1, first, _sign(entries.gather(1, first))).view_as(G)
        )
    size = entries.abs()
    largest = size.amax(dim=1, keepdim=True)
    largest = _divisor(largest)
    if p == 2.0:
        unit = entries / largest
        return unit.div_(_divisor(torch.linalg.vector_norm(unit, dim=1, keepdim=True))).view_as(G)
    size = size.div_(largest)
    raised = size ** (1.0 / (p - 1.0))
    total = (raised * size).sum(dim=1, keepdim=True) ** (1.0 / p)
    return torch.copysign(raised.div_(_divisor(total)), entries).view_as(G)


def _divisor(lengths: Tensor) -> Tensor:
    """1 for every 0; NaN stays."""
    return torch.where(lengths == 0, torch.ones_like(lengths), lengths)


def _first_largest(size: Tensor) -> Tensor:
    """``(k, 1)``: where each row of ``(k, n)`` is largest, the first place on ties.

    On a CPU ``amax`` is ten times as fast as ``argmax``, so blocks are asked first.
    """
    n = size.shape[1]
    if size.device.type != "cpu" or n < 8 * _BLOCK or size.numel() < _BLOCKS_FROM:
        return size.argmax(dim=1, keepdim=True)
    whole = n - n % _BLOCK
    tops = size[:, :whole].view(len(size), -1, _BLOCK).amax(dim=2)
    if whole < n:
        tops = torch.cat([tops, size[:, whole:].amax(dim=1, keepdim=True)], dim=1)
    begin = (tops.argmax(dim=1, keepdim=True) * _BLOCK).clamp(max=n - _BLOCK)
    places = begin + torch.arange(_BLOCK, device=size.device)  # whatever torch's default device is
    return begin + size.gather(1, places).argmax(dim=1, keepdim=True)


def _sign(G: Tensor) -> Tensor:
    # torch.sign alone hides a NaN as a zero; what is not finite times zero is NaN
    return torch.sign(G).add_(G, alpha=0.0)


def sharded_directions(
    group: dict[str, Any],
    vectors: TensorList,
    parameters: TensorList,
    directions: Callable[[dict[str, Any], TensorList], Directions],
) -> Directions:
    """This process's part of the directions, and Polyak's step for them.

    An entrywise direction needs one number from the other processes, the norm. Singular values, a
    largest entry, blocks and Polyak's step need the whole gradient: it is gathered, every process
    computes the same direction and keeps its part.

    Args:
        group: the parameter group.
        vectors: this process's part of what the directions are of.
        parameters: where they belong.
        directions: the directions of whole tensors.
    """
    placed = [
        like(vector, parameter) for vector, parameter in zip(vectors, parameters, strict=True)
    ]
    norm: Norm = group["norm"]
    if (
        not isinstance(norm, Entrywise)
        or norm.p == 1
        or group["blocks"] is not None
        or group["step_size"] == "polyak"
    ):
        found, steps = directions(group, [whole(vector) for vector in placed])
        return [
            part(direction, parameter)
            for direction, parameter in zip(found, parameters, strict=True)
        ], steps
    q = norm.gauge.q
    results: list[Tensor | None] = [None] * len(vectors)
    # one message per number of leading axes
    for runs in {max(vector.ndim - 2, 0) for vector in vectors}:
        members = [index for index, vector in enumerate(vectors) if max(vector.ndim - 2, 0) == runs]
        for index, length in zip(
            members,
            positive(norms([placed[index] for index in members], q, keep=runs)),
            strict=True,
        ):
            unit = vectors[index] / length
            direction = (
                torch.sign(unit) if q == 1.0 else torch.copysign(unit.abs() ** (q - 1.0), unit)
            )
            results[index] = direction if group["normalize"] else direction * length
    return [result for result in results if result is not None], None
