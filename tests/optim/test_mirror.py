"""Mirror descent: the step, its state, and what must not change it."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from parameters import give_gradient, parameter
from torch import nn

from attsvm.base.errors import InputError
from attsvm.norms import PowerPotential
from attsvm.optim import MirrorDescent, SteepestDescent, lr_from_sgd

pytestmark = pytest.mark.filterwarnings("ignore:p = 100.0 makes")
small = partial(parameter, scale=0.1)
PATHS: list[dict[str, Any]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]


def trained(w: nn.Parameter, steps: int = 5, **settings: Any) -> MirrorDescent:
    optimizer = MirrorDescent([w], **settings)
    for k in range(steps):
        give_gradient(w, k)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("settings", PATHS)
@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 1.75, 3.0, 10.0])
def test_a_step_is_mirror_descent_in_the_potential_of_the_geometry(
    p: float, settings: dict[str, Any]
) -> None:
    w = parameter(6, 5, scale=1.0)
    w.data[0, :2] = torch.tensor([0.0, -0.0])
    start, gradient, potential = w.detach().clone(), give_gradient(w, 0), PowerPotential(p)
    MirrorDescent([w], lr=0.02, p=p, **settings).step()
    expected = potential.inverse_mirror(potential.mirror(start) - 0.02 * gradient)
    torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("settings", PATHS)
def test_nan_stays_where_it_is(settings: dict[str, Any]) -> None:
    w = small(4, 4)
    give_gradient(w, 0)[0]
    w.grad[1, 2] = math.nan
    MirrorDescent([w], lr=0.01, p=1.5, **settings).step()
    assert w.isnan().sum() == 1
    assert w[1, 2].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", PATHS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"maximize": True},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
    ],
)
def test_p_2_is_sgd_bit_for_bit_without_a_dual(
    options: dict[str, Any], settings: dict[str, Any], dtype: torch.dtype
) -> None:
    if settings == {"fused": True} and dtype == torch.bfloat16:
        settings = {}  # the kernel takes none
    a, b = small(7, 5, dtype=dtype), small(7, 5, dtype=dtype)
    ours = MirrorDescent([a], lr=0.03, p=2, decay_mode="l2", **options, **settings)
    # multi-tensor calls round 0.9 to bfloat16 before they multiply
    theirs = torch.optim.SGD([b], lr=0.03, foreach=dtype == torch.bfloat16, **options)
    for k in range(6):
        give_gradient(a, k)
        give_gradient(b, k)
        ours.step()
        theirs.step()
        assert torch.equal(a, b)
    names = {"momentum_buffer"} if "momentum" in options else set()
    assert {name for state in ours.state.values() for name in state} == names


@pytest.mark.filterwarnings("ignore:every parameter of a group")  # zeros are the point
def test_tiny_gradients_add_up_from_zero() -> None:
    """The primal iterate would stay at zero: the tenth power of 1.6e-6 underflows in float32."""
    w = nn.Parameter(torch.zeros(3))
    optimizer = MirrorDescent([w], lr=1.0, p=1.1)
    w.grad = torch.full((3,), 1.6e-6)
    for _ in range(1000):
        optimizer.step()
    np.testing.assert_allclose(optimizer.state[w]["dual"], -1.6e-3, rtol=1e-4)  # float32 sums
    np.testing.assert_allclose(w.detach(), -((1.6e-3) ** 10), rtol=2e-3)


def test_every_matrix_of_the_last_two_axes_moves_by_lr() -> None:
    w, other = small(5, 4, 3), small(6, seed=1)
    optimizer = MirrorDescent([w, other], lr=0.1, p=1.5, normalize=True)
    starts = [PowerPotential(1.5).mirror(x.detach()[None])[0] for x in (w, other)]
    give_gradient(w, 0, scale=7.0)
    give_gradient(other, 1)
    optimizer.step()
    moved = [optimizer.state[x]["dual"] - s for x, s in zip((w, other), starts, strict=True)]
    for difference, axes in zip(moved, ((-2, -1), (-1,)), strict=True):
        lengths = (difference.abs() ** 3).sum(axes) ** (1 / 3)  # q = 3
        torch.testing.assert_close(lengths, torch.full_like(lengths, 0.1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [1.3, 3.0])
def test_dual_decay_is_descent_on_the_loss_plus_the_potential(p: float) -> None:
    a, b = small(4, 4), small(4, 4)
    ours, theirs = (
        MirrorDescent([a], lr=0.05, p=p, weight_decay=0.2),
        MirrorDescent([b], lr=0.05, p=p),
    )
    for k in range(5):
        give_gradient(a, k)
        b.grad = give_gradient(a, k) + 0.2 * PowerPotential(p).mirror(b.detach())
        ours.step()
        theirs.step()
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0])
def test_primal_decay_shrinks_the_weights_and_all_decays_are_one_at_p_2(p: float) -> None:
    w = small(4, 4)
    start = w.detach().clone()
    w.grad = torch.zeros_like(w)
    MirrorDescent([w], lr=0.05, p=p, weight_decay=0.2, decay_mode="primal").step()
    torch.testing.assert_close(w.detach(), 0.99 * start, rtol=1e-13, atol=0)
    if p == 2.0:
        others = [small(4, 4) for _ in range(3)]
        for other, mode in zip(others, ("dual", "primal", "l2"), strict=True):
            trained(other, lr=0.05, p=2, weight_decay=0.2, decay_mode=mode)
            torch.testing.assert_close(other, others[0], rtol=1e-12, atol=1e-15)


def test_the_dual_is_the_master_copy_of_low_precision_weights() -> None:
    """Steps far below the rounding of bfloat16 add up as they do in float32."""
    low, high = (
        small(50, dtype=torch.bfloat16),
        nn.Parameter(small(50, dtype=torch.bfloat16).detach().float()),
    )
    optimizers = [MirrorDescent([w], lr=1e-5, p=1.5) for w in (low, high)]
    for _ in range(300):
        for w, optimizer in zip((low, high), optimizers, strict=True):
            w.grad = torch.ones_like(w)
            optimizer.step()
    assert torch.equal(low, high.bfloat16())


@pytest.mark.parametrize("settings", PATHS)
def test_written_weights_give_a_new_dual(settings: dict[str, Any]) -> None:
    """A mask, an average, another model."""
    w = small(6, 5)
    optimizer = trained(w, lr=0.01, p=1.3, **settings)
    with torch.no_grad():
        w[0] = 0.5
    start, g = w.detach().clone(), give_gradient(w, 50)
    optimizer.step()
    expected = PowerPotential(1.3).mirror(start) - 0.01 * g
    torch.testing.assert_close(optimizer.state[w]["dual"], expected, rtol=1e-12, atol=1e-15)


def test_a_loaded_dual_is_believed_whatever_the_order() -> None:
    """Of model and optimiser; and after a first step, writes are noticed again."""
    w = small(4, 3)
    saved = copy.deepcopy(trained(w, lr=0.01, p=1.3).state_dict())
    for order in ("model first", "optimizer first"):
        v = small(4, 3)
        optimizer = trained(v, steps=2, lr=0.01, p=1.3)
        if order == "optimizer first":
            optimizer.load_state_dict(saved)
        with torch.no_grad():
            v.copy_(w)
        if order == "model first":
            optimizer.load_state_dict(saved)
        v.grad = torch.zeros_like(v)
        optimizer.step()
        assert torch.equal(optimizer.state[v]["dual"], saved["state"][0]["dual"])
        assert torch.equal(v, w)
        with torch.no_grad():
            v.fill_(0.5)
        optimizer.step()
        torch.testing.assert_close(
            optimizer.state[v]["dual"],
            PowerPotential(1.3).mirror(v.detach()),
            rtol=1e-13,
            atol=0,
        )


def test_resync_starts_from_what_data_wrote() -> None:
    w = small(4, 3)
    optimizer = trained(w, lr=0.01, p=1.3)
    w.data = torch.full_like(w, 0.25)
    optimizer.resync_()
    w.grad = torch.zeros_like(w)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full_like(w.detach(), 0.25), rtol=1e-13, atol=0)


def test_weights_that_are_moved_to_a_dual_go_on_from_it() -> None:
    w = small(4, 3)
    optimizer = trained(w, lr=0.01, p=1.3)
    dual = parameter(4, 3, seed=5)
    optimizer.move_to(optimizer.param_groups[0], w, dual.detach())
    potential = PowerPotential(1.3)
    torch.testing.assert_close(w.detach(), potential.inverse_mirror(dual.detach()))
    g = give_gradient(w, 60)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[w]["dual"], dual.detach() - 0.01 * g)


def test_changing_p_takes_the_dual_from_the_weights() -> None:
    w = small(4, 3)
    optimizer = trained(w, lr=0.01, p=1.3)
    here = w.detach().clone()
    for p in (3.0, 2.0, 1.5):
        optimizer.param_groups[0]["p"] = p
        g = give_gradient(w, 60)
        optimizer.step()
        potential = PowerPotential(p)
        expected = potential.inverse_mirror(potential.mirror(here) - 0.01 * g)
        torch.testing.assert_close(w.detach(), expected, rtol=1e-11, atol=0)
        assert ("dual" in optimizer.state.get(w, {})) == (p != 2)
        here = w.detach().clone()


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_the_schatten_potential_moves_singular_values(p: float) -> None:
    w = small(2, 5, 4)
    start, g = w.detach().clone(), give_gradient(w, 0)
    MirrorDescent([w], lr=0.1, p=p, potential="schatten", normalize=True).step()
    for k in range(2):
        U, s, Vh = torch.linalg.svd(start[k], full_matrices=False)
        sigma = torch.linalg.svdvals(g[k])
        q = p / (p - 1)
        dual = U @ torch.diag(s ** (p - 1)) @ Vh - 0.1 * g[k] / (sigma**q).sum() ** (1 / q)
        U, s, Vh = torch.linalg.svd(dual, full_matrices=False)
        torch.testing.assert_close(
            w[k].detach(), U @ torch.diag(s ** (1 / (p - 1))) @ Vh, rtol=1e-9, atol=1e-12
        )


def test_lr_from_sgd_moves_typical_weights_alike() -> None:
    for p in (1.1, 1.5, 3.0):
        w = nn.Parameter(torch.full((4,), 0.02, dtype=torch.float64))
        w.grad = torch.full((4,), 0.01, dtype=torch.float64)
        MirrorDescent([w], lr=lr_from_sgd(1e-3, p, 0.02), p=p).step()
        # first order in a step of 1/2000 of the weight
        np.testing.assert_allclose(0.02 - w.detach().numpy(), 1e-5, rtol=5e-3)
    with pytest.raises(InputError, match=r"p=1\.0"):
        lr_from_sgd(1e-3, 1.0, 0.02)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"p": 1.0}, r"p is 1.0; give a number with 1 < p < inf"),
        ({"p": math.inf}, "p is inf"),
        ({"p": math.nan}, "p is nan"),
        ({"p": "2"}, "p is '2'"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"decay_mode": "L2"}, "decay_mode is 'L2'; use one of 'dual', 'primal', 'l2'"),
        ({"normalize": "layer"}, "normalize is 'layer'; give True"),
        ({"potential": "spectral"}, "potential is 'spectral'"),
        ({"state_dtype": torch.bfloat16}, "state_dtype is torch.bfloat16"),
        ({"fused": True, "state_dtype": torch.float32}, r"with a state of torch\.float32"),
        (
            {"potential": "schatten"},
            r"shape \(3,\) has no singular values; give it a group with potential='power'",
        ),
    ],
)
def test_refuses(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        MirrorDescent([small(3)], **settings)


def test_refuses_fused_what_the_kernel_cannot_walk_through() -> None:
    for weight, sentence in (
        (nn.Parameter(small(6, 8).detach()[:, ::2]), "is not contiguous"),
        (small(3, dtype=torch.bfloat16), r"is torch.bfloat16, and neither"),
        (nn.Parameter(torch.ones(2, device="meta")), "is on meta, and not on the CPU"),
    ):
        for kind in (MirrorDescent, SteepestDescent):
            with pytest.raises(InputError, match=sentence):
                kind([weight], lr=0.1, fused=True)


def test_warns_of_zeros_that_hardly_move_and_of_unusual_p() -> None:
    zeros = nn.Parameter(torch.zeros(3, 2))
    with pytest.warns(UserWarning, match=r"a group is zero, where steps at p = 1\.1 hardly"):
        MirrorDescent([{"params": [small(3)]}, {"params": [zeros]}], p=1.1)
    MirrorDescent([small(3), zeros], p=1.1)  # no warning, which would be an error here
    MirrorDescent([zeros], p=1.5)
    MirrorDescent([zeros], p=1.1, normalize=True)
    with pytest.warns(UserWarning, match=r"1.01 <= p <= 10 is usual"):
        MirrorDescent([small(3)], p=1.001)
