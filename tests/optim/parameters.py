"""Parameters and gradients of the tests of optimisers: everything follows from a seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normal_values(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> Tensor:
    """Normal numbers, the same in every precision."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def parameter(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> nn.Parameter:
    return nn.Parameter(normal_values(*shape, seed=seed, dtype=dtype, scale=scale))


def give_gradient(weight: Tensor, seed: int = 0, scale: float = 1.0) -> Tensor:
    """A gradient for the weight, and a copy of it."""
    weight.grad = normal_values(*weight.shape, seed=1000 + seed, dtype=weight.dtype, scale=scale)
    return weight.grad.clone()
