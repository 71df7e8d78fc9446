"""The compiled normalised step equals the multi-tensor one, at any size of the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attsvm.optim import SteepestDescent

SHAPES = ((3, 5, 4), (2, 3, 7, 1), (6, 8), (9,), (), (0, 4))
ULPS = 2  # norm, division and update round once each; the weights are larger than the step


def stepped(
    fused: bool, dtype: torch.dtype, size: float, steps: int = 1, **settings: Any
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator, dtype=dtype) + 3.0 for shape in SHAPES]
    optimizer = SteepestDescent(
        parameters, lr=0.1, fused=fused, foreach=None if fused else True, **settings
    )
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = size * torch.randn(parameter.shape, generator=generator, dtype=dtype)
        optimizer.step()
    return parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30, 1e-42])
@pytest.mark.parametrize(
    "settings", [{}, {"weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}, {"maximize": True}]
)
@pytest.mark.parametrize("norm", ["fro", "linf"])
def test_equals_the_multi_tensor_step_to_two_ulp(
    dtype: torch.dtype, size: float, settings: dict[str, Any], norm: str
) -> None:
    for ours, theirs in zip(
        stepped(True, dtype, size, norm=norm, **settings),
        stepped(False, dtype, size, norm=norm, **settings),
        strict=True,
    ):
        torch.testing.assert_close(
            ours, theirs, rtol=ULPS * torch.finfo(dtype).eps, atol=ULPS * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize("size", [1e-200, 1e-310, 1e200])
def test_squares_of_float64_neither_underflow_nor_overflow(size: float) -> None:
    """A step has length ``lr`` whatever the size of the gradient."""
    weight = torch.zeros(2, 3, 4, dtype=torch.float64)
    weight.grad = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).reshape(2, 3, 4) * size
    SteepestDescent([weight], lr=0.5, fused=True).step()
    torch.testing.assert_close(
        torch.linalg.matrix_norm(weight),
        torch.full((2,), 0.5, dtype=torch.float64),
        rtol=1e-14,
        atol=0,
    )


def test_zero_stays_and_not_finite_shows_as_in_the_multi_tensor_step() -> None:
    found = []
    for fused in (True, False):
        weight = torch.zeros(4, 2, 2)
        weight.grad = torch.stack([torch.zeros(2, 2), torch.eye(2), torch.eye(2), torch.eye(2)])
        weight.grad[2, 0, 0], weight.grad[3, 0, 1] = torch.nan, torch.inf
        SteepestDescent([weight], lr=1.0, fused=fused, foreach=None if fused else True).step()
        found.append(weight)
    torch.testing.assert_close(found[0], found[1], equal_nan=True, rtol=1e-6, atol=0)
    assert (found[0][0] == 0).all()
    assert found[0][2, 0, 0].isnan()
    assert found[0][3, 0, 1].isnan()


def test_it_is_the_default_and_autograd_learns_of_the_write() -> None:
    """Bits of the default are those of the kernel; a saved tensor that it overwrote is noticed."""
    weight = torch.randn(3, 4, 5, requires_grad=True)
    product = (weight * weight).sum()
    product.backward(retain_graph=True)
    twin = weight.detach().clone()
    assert weight.grad is not None
    twin.grad = weight.grad.clone()
    SteepestDescent([weight], lr=0.1).step()
    SteepestDescent([twin], lr=0.1, fused=True).step()
    assert torch.equal(weight, twin)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
