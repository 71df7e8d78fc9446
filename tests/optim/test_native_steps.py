"""The compiled steps equal the multi-tensor ones, for tensors of many sizes and precisions, and
refuse what they cannot walk through.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attsvm.base.errors import InputError
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.native_steps import mirror_step, normalized_step
from attsvm.optim.powers import mirror_exponents

SHAPES = ((3, 5, 4), (2, 3, 7, 1), (128, 1100), (9,), (), (0, 4))
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mirror": (MirrorDescent, {"p": 1.5, "weight_decay": 0.1}),
    "fro": (SteepestDescent, {"weight_decay": 0.1}),
    "fro, momentum": (SteepestDescent, {"momentum": 0.9, "nesterov": True}),
    "fro, up": (SteepestDescent, {"maximize": True}),
    "linf": (SteepestDescent, {"norm": "linf", "weight_decay": 0.1}),
}


def stepped(kind: str, size: float, **path: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    make, settings = KINDS[kind]
    parameters = [
        torch.randn(shape, generator=generator, dtype=dtype) + 3.0
        for shape in SHAPES
        for dtype in (torch.float32, torch.float64)
    ]
    optimizer = make(parameters, lr=0.1, **settings, **path)
    for parameter in parameters:
        values = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = size * values
        if parameter.ndim == 3:
            parameter.grad[0], parameter.grad[1, 0, 0] = 0.0, torch.nan
    optimizer.step()
    return parameters


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30, 1e-42])
def test_equals_the_multi_tensor_step(size: float, kind: str) -> None:
    """Norm, division and update round once each, and the mirror map doubles what its dual is off
    by (decay and update, half an eps each on either path) before it rounds itself; zero stays, and
    what is not finite shows.
    """
    roundings = 5 if kind == "mirror" else 2
    ours, theirs = stepped(kind, size, fused=True), stepped(kind, size, foreach=True)
    for mine, other in zip(ours, theirs, strict=True):
        eps = roundings * torch.finfo(mine.dtype).eps
        torch.testing.assert_close(mine, other, rtol=eps, atol=eps, equal_nan=True)


@pytest.mark.parametrize("make", [SteepestDescent, MirrorDescent])
def test_it_is_the_default_and_autograd_learns_of_the_write(make: Any) -> None:
    """Bits of the default are those of the kernel; a saved tensor that it overwrote is noticed."""
    weight = torch.randn(3, 4, 5, requires_grad=True)
    product = (weight * weight).sum()
    product.backward(retain_graph=True)
    twin = weight.detach().clone()
    assert weight.grad is not None
    twin.grad = weight.grad.clone()
    make([weight], lr=0.1).step()
    make([twin], lr=0.1, fused=True).step()
    assert torch.equal(weight, twin)
    bits = []
    for path in ({}, {"fused": True}, {"foreach": True}):
        wide = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
        wide.grad = torch.randn(300, 200, generator=torch.Generator().manual_seed(1))
        make([wide], lr=0.1, **path).step()
        bits.append(wide)
    assert torch.equal(bits[0], bits[1])
    assert not torch.equal(bits[0], bits[2])  # of 60,000 numbers some round otherwise there
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_an_address_says_nothing_of_what_lies_there() -> None:
    w, inverse = torch.ones(4, 3), mirror_exponents(1.75)[1]
    for other in (w.double(), w.half(), torch.ones(8, 3)[::2].T.contiguous().T):
        before = other.clone()
        assert not mirror_step([w], [w.clone()], [other], 1.0, 0.1, inverse)
        assert torch.equal(other, before)
        if other.dtype != w.dtype:
            with pytest.raises(TypeError, match="a compiled step"):
                normalized_step("sign_step", [w], [other], 1.0, 0.1)
    assert not mirror_step([w], [w.clone()], [None], 1.0, 0.1, inverse)
    for short in (torch.ones(4, 2), torch.ones(5, 3)):
        with pytest.raises(InputError, match=r"for a parameter of shape \(4, 3\)"):
            mirror_step([w], [w.clone()], [short], 1.0, 0.1, inverse)
        with pytest.raises(InputError, match=r"for a parameter of shape \(4, 3\)"):
            normalized_step("normalized_step", [w], [short], 1.0, 0.1)
    gone = torch.ones(4, 3)
    gone.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="was given away"):
        normalized_step("normalized_step", [gone], [w], 1.0, 0.1)
    assert torch.equal(w, torch.ones(4, 3))
