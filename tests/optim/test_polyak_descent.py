"""Polyak's step of a norm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from parameters import give_gradient, parameter

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Lp, Spectral
from attsvm.optim.polyak import PolyakDescent


def test_polyak_takes_the_linear_model_of_the_loss_to_its_floor_in_any_norm() -> None:
    for norm, normalize in [(Lp(3), True), (Spectral(), True), (Frobenius(), False)]:
        # the linear model of the loss is at its floor after the step
        p = parameter(3, 4, 4)
        start, G = p.detach().clone(), give_gradient(p)
        PolyakDescent([p], 1.0, norm, normalize, polyak_factor=1.0).step(
            lambda: torch.tensor([1.0, 2.0, 3.0])
        )
        fall = (G * (start - p.detach())).sum(dim=(1, 2))
        torch.testing.assert_close(
            fall, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), rtol=1e-12, atol=0
        )


def test_polyak_counts_a_group_as_one_point() -> None:
    a, b = parameter(3, 4), parameter(5, seed=4)
    optimizer = PolyakDescent([a, b], normalize=False, loss_floor=1.0, foreach=False)
    start = [p.detach().clone() for p in (a, b)]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = 1.0 + (a**2).sum() + (b**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    # (L - L*) / (2 |g|^2) = 1/8 for a sum of squares, and the gradient is twice the point
    for p, was in zip((a, b), start, strict=True):
        torch.testing.assert_close(p.detach(), 0.75 * was)


@pytest.mark.parametrize("foreach", [None, False])
def test_polyak_shares_one_length_among_normalised_matrices(foreach: bool | None) -> None:
    """Unit directions of all matrices together lower the linear model by the *sum* of their dual
    norms, so that this sum is what takes the loss to its floor.
    """
    a, b = parameter(3, 4), parameter(2, 5, 3, seed=4)
    weights, gradients = [a, b], [give_gradient(a, 1), give_gradient(b, 2)]
    starts = [p.detach().clone() for p in weights]
    settings = {"polyak_factor": 1.0, "loss_floor": 0.5, "foreach": foreach}
    PolyakDescent(weights, norm=Spectral(), **settings).step(lambda: 2.0)
    moves = [start - p.detach() for start, p in zip(starts, weights, strict=True)]
    fall = sum((g * move).sum() for g, move in zip(gradients, moves, strict=True))
    assert float(fall) == pytest.approx(1.5, rel=1e-12)
    lengths = torch.cat([Spectral().value(moves[0])[None], Spectral().value(moves[1])])
    torch.testing.assert_close(lengths, lengths[:1].expand(3), rtol=1e-12, atol=0)


def test_polyak_is_not_finite_where_a_gradient_or_the_loss_is_none() -> None:
    """The matrices are one point: no length is known for any of them."""
    for spoil in ("gradient", "loss"):
        a, b = parameter(3, 4), parameter(5, seed=4)
        give_gradient(a)
        give_gradient(b)
        if spoil == "gradient":
            a.grad[0, 0] = math.nan
        loss = math.nan if spoil == "loss" else 1.0
        PolyakDescent([a, b], normalize=False).step(lambda loss=loss: loss)
        assert bool(a.isnan().all())
        assert bool(b.isnan().all())


def test_polyak_stands_still_at_zero_gradients_and_below_the_floor() -> None:
    p = parameter(2, 3, 3)
    start = p.detach().clone()
    give_gradient(p)
    p.grad[0] = 0.0
    optimizer = PolyakDescent([p], loss_floor=torch.tensor([0.0, 2.0]))
    optimizer.step(lambda: torch.tensor([1.0, 1.5]))
    assert torch.equal(p, start)
    empty = parameter(0, 4)
    empty.grad = torch.zeros_like(empty)
    PolyakDescent([empty]).step(lambda: 1.0)  # nothing to move
    with pytest.raises(InputError, match="needs the loss"):
        optimizer.step()
    with pytest.raises(InputError, match=r"loss has shape \(3,\)"):
        optimizer.step(lambda: torch.ones(3))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"polyak_factor": 0}, "polyak_factor is 0"),
        ({"loss_floor": math.nan}, "loss_floor is nan"),
    ],
)
def test_refuses(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        PolyakDescent([parameter(4)], **settings)


def test_lr_zero_moves_nothing_whatever_the_gradient() -> None:
    p = parameter(3, 4)
    start = p.detach().clone()
    give_gradient(p)
    p.grad[0, 0] = math.nan
    PolyakDescent([p], lr=0.0).step(lambda: 1.0)
    assert torch.equal(p, start)


@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_a_compiled_step_is_the_plain_one() -> None:
    weights = [parameter(3, 4), parameter(3, 4)]
    for p, compiled in zip(weights, (True, False), strict=True):
        give_gradient(p)
        step = PolyakDescent([p], norm=Lp(3)).step
        (torch.compile(step, backend="eager") if compiled else step)(lambda: torch.tensor(2.0))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-12, atol=0)


def test_refuses_momentum_a_kernel_and_a_second_group() -> None:
    groups = [{"params": [parameter(4)]}, {"params": [parameter(3)]}]
    with pytest.raises(InputError, match="has two groups"):
        PolyakDescent(groups)
    for name, value, sentence in (
        ("momentum", 0.5, r"momentum is 0\.5, and Polyak's step is that of a gradient"),
        ("fused", True, "fused is True"),
    ):
        with pytest.raises(InputError, match=sentence):
            PolyakDescent([{"params": [parameter(4)], name: value}])
