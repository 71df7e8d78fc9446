"""A step under a ``GradScaler`` that hands over its scale and what it found, instead of unscaling
gradients and waiting for a look at them.

``torch.amp.GradScaler.step`` does so for optimisers whose ``_step_supports_amp_scaling`` is true:
it sets ``grad_scale`` (None where the user has unscaled) and ``found_inf`` on the optimiser, calls
``step`` whether there was an overflow or not, and takes both away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attsvm.optim.reductions import local


def unscale_(gradients: Sequence[Tensor], scale: Tensor) -> None:
    """Divide gradients by the scale in place, to the bits of ``GradScaler.unscale_``."""
    inverse = scale.double().reciprocal().float()
    for gradient in gradients:
        gradient.mul_(inverse.to(gradient.device))


def unless_overflowed(
    overflow: Tensor,
    tensors: Sequence[Tensor],
    update: Callable[[], None],
    born: Callable[[], Sequence[Tensor]],
) -> None:
    """Run ``update``, and take it back where ``overflow`` is not zero, without reading ``overflow``
    on the host.

    Nothing but a copy undoes a step that has seen an infinity, so for its duration the step keeps
    one of everything that it moves.

    Args:
        overflow: ``found_inf`` of the scaler, one number.
        tensors: what ``update`` writes.
        update: the step.
        born: what ``update`` has made; it becomes zero.
    """
    mine = [local(tensor) for tensor in tensors]
    before = [tensor.clone() for tensor in mine]
    update()
    for tensor, kept in zip(mine, before, strict=True):
        tensor.copy_(torch.where(overflow.to(tensor.device) == 0, tensor, kept))
    for tensor in map(local, born()):
        tensor.copy_(torch.where(overflow.to(tensor.device) == 0, tensor, torch.zeros_like(tensor)))
