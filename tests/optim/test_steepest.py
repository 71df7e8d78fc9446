"""The contract of a torch optimiser, and what steepest descent promises on top."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp
from attsvm.optim import SteepestDescent


def parameter(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype))


def set_gradient(p: nn.Parameter, seed: int = 1) -> torch.Tensor:
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed), dtype=p.dtype)
    return p.grad.clone()


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (5, 3, 4)])
def test_every_step_has_length_lr_per_run(shape: tuple[int, ...]) -> None:
    p = parameter(*shape)
    start, gradient = p.detach().clone(), set_gradient(p)
    SteepestDescent([p], lr=0.1).step()
    moved = (p.detach() - start).reshape(shape[0] if len(shape) == 3 else 1, -1)
    np.testing.assert_allclose(torch.linalg.norm(moved, dim=1), 0.1, rtol=1e-13)
    assert (moved * gradient.reshape(moved.shape)).sum() < 0


@pytest.mark.parametrize("scale", [1e-290, 1e-30, 1e30, 1e290])
def test_positive_factors_of_the_gradient_do_not_matter(scale: float) -> None:
    a, b = parameter(3, 4), parameter(3, 4)
    b.grad = scale * set_gradient(a)
    for p in (a, b):
        SteepestDescent([p], lr=0.1).step()
    torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_descent_is_sgd_bit_for_bit(dtype: torch.dtype) -> None:
    a, b = parameter(3, 4, dtype=dtype), parameter(3, 4, dtype=dtype)
    ours, theirs = SteepestDescent([a], lr=0.3, normalize=False), torch.optim.SGD([b], lr=0.3)
    for seed in range(7):
        b.grad = set_gradient(a, seed)
        ours.step()
        theirs.step()
        assert torch.equal(a, b)


def test_unnormalised_step_in_another_norm_is_the_dual_norm_long() -> None:
    p = parameter(2, 3, 4)
    start, gradient = p.detach().clone(), set_gradient(p)
    SteepestDescent([p], lr=0.1, norm=Lp(float("inf")), normalize=False).step()
    expected = start - 0.1 * gradient.abs().sum(dim=(1, 2))[:, None, None] * torch.sign(gradient)
    torch.testing.assert_close(p.detach(), expected, rtol=1e-14, atol=1e-14)


def test_zero_gradient_missing_gradient_and_empty_parameter_move_nothing() -> None:
    zero, missing, empty, runs = parameter(3, 4), parameter(3, 4), nn.Parameter(torch.zeros(0, 4)), parameter(2, 3, 4)
    zero.grad, empty.grad = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(0, 4)
    set_gradient(runs)
    runs.grad[1] = 0.0
    before = [p.detach().clone() for p in (zero, missing, runs)]
    SteepestDescent([zero, missing, empty, runs], lr=0.1).step()
    assert torch.equal(zero, before[0])
    assert torch.equal(missing, before[1])
    assert torch.equal(runs[1], before[2][1])
    assert not torch.equal(runs[0], before[2][0])


def test_groups_have_their_own_lr_and_schedulers_are_seen() -> None:
    a, b = parameter(3, 4), parameter(4)
    optimizer = SteepestDescent([{"params": [a], "lr": 0.5}, {"params": [b], "normalize": False}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    start, gradient = b.detach().clone(), set_gradient(b)
    set_gradient(a)
    optimizer.step()
    torch.testing.assert_close(b.detach(), start - 0.1 * gradient)
    scheduler.step()
    here = a.detach().clone()
    optimizer.step()
    assert float(torch.linalg.norm(a.detach() - here)) == pytest.approx(0.25)


def test_closure_is_called_with_gradients_enabled_and_its_loss_returned() -> None:
    p = parameter(3)
    optimizer = SteepestDescent([p], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    before = float((p.detach() ** 2).sum())
    assert float(optimizer.step(closure).detach()) == pytest.approx(before)
    assert float((p.detach() ** 2).sum()) < before
    assert SteepestDescent([parameter(3)], lr=0.1).step() is None


def test_state_dict_round_trip_and_deepcopy() -> None:
    p, q = parameter(3, 4), parameter(3, 4)
    first = SteepestDescent([p], lr=0.25, normalize=False)
    second = SteepestDescent([q], lr=0.1)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["lr"] == 0.25
    assert second.param_groups[0]["normalize"] is False
    assert copy.deepcopy(first).param_groups[0]["norm"] == Frobenius()
    old = first.state_dict()
    del old["param_groups"][0]["norm"]
    second.load_state_dict(old)
    assert second.param_groups[0]["norm"] == Frobenius()


def test_strided_gradients_give_the_same_step() -> None:
    a, b = parameter(3, 4), parameter(3, 4)
    b.grad = set_gradient(a).T.contiguous().T
    for p in (a, b):
        SteepestDescent([p], lr=0.1).step()
    torch.testing.assert_close(a, b, rtol=1e-15, atol=0)


@pytest.mark.parametrize("lr", [0.0, -0.1, float("nan"), float("inf"), "0.1"])
def test_refuses_lr(lr: object) -> None:
    with pytest.raises(InputError, match=r"lr is .*; give a positive finite"):
        SteepestDescent([parameter(2)], lr=lr)
    with pytest.raises(InputError, match="lr is"):
        SteepestDescent([{"params": [parameter(2)], "lr": lr}], lr=0.1)


def test_refuses_what_is_not_a_norm_and_sparse_or_complex_gradients() -> None:
    with pytest.raises(InputError, match="norm is 'fro'"):
        SteepestDescent([parameter(2)], lr=0.1, norm="fro")
    p = parameter(2, 2)
    p.grad = torch.ones(2, 2, dtype=torch.float64).to_sparse()
    with pytest.raises(InputError, match="sparse gradient"):
        SteepestDescent([p], lr=0.1).step()
    c = parameter(2, 2, dtype=torch.complex128)
    c.grad = torch.ones(2, 2, dtype=torch.complex128)
    with pytest.raises(InputError, match="complex gradient"):
        SteepestDescent([c], lr=0.1).step()
