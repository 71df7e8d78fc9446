"""What steepest descent promises on top of the contract of a torch optimiser, which
``test_contract`` holds.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from parameters import give_gradient, parameter
from torch import nn

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Lp, MaxRow, Norm, Nuclear, Rows, Schatten, Spectral
from attsvm.optim import MirrorDescent, SteepestDescent

NORMS = [
    Frobenius(),
    Lp(1),
    Lp(1.05),
    Lp(1.5),
    Lp(3),
    Lp(100),
    Lp(math.inf),
    Nuclear(),
    Schatten(1.5),
    Schatten(4),
    Spectral(),
    Rows(),
    MaxRow(),
]


@pytest.mark.parametrize("norm", NORMS, ids=repr)
@pytest.mark.parametrize("normalize", [True, False])
def test_step_is_the_direction_of_the_geometry(norm: Norm, normalize: bool) -> None:
    p = parameter(2, 4, 6)
    start, G = p.detach().clone(), give_gradient(p)
    SteepestDescent([p], lr=0.25, norm=norm, normalize=normalize).step()
    expected = norm.steepest(G) * (1 if normalize else norm.dual_value(G)[:, None, None])
    torch.testing.assert_close((start - p.detach()) / 0.25, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_unit_length_and_attained_dual_norm(norm: Norm) -> None:
    # the two defining properties of a steepest direction, also for gradients of low rank and with
    # repeated singular values
    low_rank = torch.outer(torch.arange(1.0, 5.0), torch.ones(6)).double()
    repeated = torch.diag(torch.tensor([2.0, 2.0, 1.0, 1.0])).double()
    for G in (
        low_rank,
        repeated,
        torch.randn(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
    ):
        p = nn.Parameter(torch.zeros_like(G))
        p.grad = G.clone()
        SteepestDescent([p], lr=1.0, norm=norm).step()
        D = -p.detach()
        assert float(norm.value(D)) == pytest.approx(1.0, rel=1e-12)
        assert float((G * D).sum()) == pytest.approx(float(norm.dual_value(G)), rel=1e-12)


needs_muon = pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on"
)
MUON: dict[str, Any] = {
    "momentum": 0.95,
    "dampening": 0.95,
    "nesterov": True,
    "weight_decay": 0.1,
    "polar": "newton-schulz",
}


@needs_muon
@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (64, 64), (128, 160)])
def test_is_muon_on_equal_settings(shape: tuple[int, int]) -> None:
    a, b = parameter(*shape, dtype=torch.float32), parameter(*shape, dtype=torch.float32)
    ours, theirs = (
        SteepestDescent([a], lr=0.02, norm=Spectral(), **MUON),
        torch.optim.Muon([b], lr=0.02),
    )
    for seed in range(7):
        start, b.grad = b.detach().clone(), give_gradient(a, seed)
        ours.step()
        theirs.step()
        # Muon's products are bfloat16, ours of so small matrices float32; five quintics amplify the
        # rounding to a few percent of an entry
        torch.testing.assert_close(
            a, b, rtol=0, atol=0.05 * (seed + 1) * float((b.detach() - start).abs().max())
        )


def test_sign_with_momentum_is_signum() -> None:
    p = parameter(3, 4)
    W, M = p.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    optimizer = SteepestDescent([p], lr=0.1, norm=Lp(math.inf), momentum=0.9, dampening=0.9)
    for seed in range(5):
        M = 0.9 * M + 0.1 * give_gradient(p, seed)
        W = W - 0.1 * torch.sign(M)
        optimizer.step()
    torch.testing.assert_close(p.detach(), W, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str
)
def test_unnormalised_gradient_is_sgd_bit_for_bit(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    a, b = parameter(3, 4, dtype=dtype), parameter(3, 4, dtype=dtype)
    ours = SteepestDescent([a], lr=0.1, normalize=False, **options)
    theirs = torch.optim.SGD([b], lr=0.1, **options)
    for seed in range(5):
        b.grad = give_gradient(a, seed)
        ours.step()
        theirs.step()
        assert torch.equal(a, b)


def test_weight_decay_shrinks_and_stays_out_of_the_direction() -> None:
    p = parameter(3, 4)
    start, G = p.detach().clone(), give_gradient(p)
    SteepestDescent([p], lr=0.1, norm=Lp(math.inf), weight_decay=0.5).step()
    torch.testing.assert_close(p.detach(), 0.95 * start - 0.1 * torch.sign(G))


@pytest.mark.parametrize("blocks", [3, [2, 2, 2], [1, 5]])
@pytest.mark.parametrize("axis", [-2, -1])
def test_blocks_are_matrices_of_their_own(blocks: int | list[int], axis: int) -> None:
    p = parameter(2, 6, 6)
    start, G = p.detach().clone(), give_gradient(p)
    SteepestDescent([p], lr=0.1, norm=Spectral(), blocks=blocks, blocks_axis=axis).step()
    sizes = [2, 2, 2] if blocks == 3 else blocks
    expected = torch.cat(
        [Spectral().steepest(block) for block in torch.split(G, sizes, dim=axis)], dim=axis
    )
    torch.testing.assert_close((start - p.detach()) / 0.1, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [SteepestDescent, MirrorDescent])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dampening", [0.0, 0.25, 0.9, 1.0])
def test_momentum_and_nesterov_are_their_formulas(
    kind: Any, nesterov: bool, dampening: float
) -> None:
    r""":math:`M=\mu M+(1-\tau)G`, and the step goes along :math:`M`, or
    :math:`\mu M+(1-\tau)G`.
    """
    settings: dict[str, Any] = {"normalize": False} if kind is SteepestDescent else {"p": 2.0}
    p = parameter(3, 4)
    W, M = p.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    optimizer = kind([p], lr=0.1, momentum=0.9, dampening=dampening, nesterov=nesterov, **settings)
    for seed in range(4):
        G = (1 - dampening) * give_gradient(p, seed)
        M = 0.9 * M + G
        W = W - 0.1 * (0.9 * M + G if nesterov else M)
        optimizer.step()
        torch.testing.assert_close(p.detach(), W, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], M, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm": Spectral()}, r"norm is Spectral\(\) for a parameter of shape \(4,\)"),
        ({"norm": Schatten(3)}, r"norm is Schatten\(3\) for a parameter"),
        ({"polar": "svd"}, "polar is 'svd'"),
        ({"ns_steps": 0}, "ns_steps is 0"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"blocks": 2}, r"blocks is 2 for a parameter of shape \(4,\)"),
        ({"blocks": 0}, "blocks is 0"),
        ({"blocks_axis": 0}, "blocks_axis is 0"),
        ({"fused": True, "normalize": False}, "fused is True with normalize=False"),
        ({"fused": True, "norm": Lp(3)}, "fused is True with norm="),
        ({"norm": 2}, r"norm is 2; give an attsvm\.norms\.Norm"),
        ({"norm": "manhattan"}, "unknown norm 'manhattan'"),
    ],
)
def test_refusals_name_the_value(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SteepestDescent([parameter(4)], lr=0.1, **settings)


def test_refuses_blocks_that_do_not_divide() -> None:
    for blocks, axis in ((4, -2), ([3, 2], -2), (3, -1)):
        with pytest.raises(InputError, match="does not divide"):
            SteepestDescent([parameter(6, 4)], lr=0.1, blocks=blocks, blocks_axis=axis)


def test_a_nan_is_seen_and_stays_in_its_run() -> None:
    for norm in NORMS:
        p = parameter(2, 4, 4)
        give_gradient(p)
        p.grad[1, 0, 0] = math.nan
        SteepestDescent([p], lr=0.1, norm=norm).step()
        assert bool(p[0].isfinite().all())
        assert bool(p[1].isnan().any())


@needs_muon
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (32, 32)])
def test_lengths_follow_shapes_as_those_of_muon_do(adjust: Any, shape: tuple[int, int]) -> None:
    a, b = parameter(*shape, dtype=torch.float32), parameter(*shape, dtype=torch.float32)
    ours = SteepestDescent([a], lr=0.02, norm=Spectral(), adjust_lr_fn=adjust, **MUON)
    theirs = torch.optim.Muon([b], lr=0.02, adjust_lr_fn=adjust)
    start, b.grad = b.detach().clone(), give_gradient(a)
    ours.step()
    theirs.step()
    # their products are bfloat16
    torch.testing.assert_close(a, b, rtol=0, atol=0.05 * float((b.detach() - start).abs().max()))


@pytest.mark.parametrize("blocks", [None, 3])
def test_steps_of_every_shape_have_a_fifth_of_the_rate_as_root_mean_square(blocks: Any) -> None:
    matrices = [parameter(*shape) for shape in ((24, 8), (6, 40), (30, 30))]
    before = [p.detach().clone() for p in matrices]
    for p in matrices:
        give_gradient(p)
    SteepestDescent(
        matrices, lr=0.1, norm="spectral", adjust_lr_fn="match_rms_adamw", blocks=blocks
    ).step()
    for p, old in zip(matrices, before, strict=True):
        size = float((p.detach() - old).square().mean().sqrt())
        assert size == pytest.approx(0.02, rel=1e-12)


def test_lengths_by_shape_are_of_spectral_steps_alone() -> None:
    for settings in ({"norm": "fro"}, {"norm": "spectral", "normalize": False}):
        with pytest.raises(InputError, match="normalised steps in the spectral norm alone"):
            SteepestDescent([parameter(3, 4)], adjust_lr_fn="original", **settings)
    with pytest.raises(InputError, match="adjust_lr_fn is 'adam'; use 'original'"):
        SteepestDescent(
            [parameter(3, 4)],
            norm="spectral",
            adjust_lr_fn="adam",  # type: ignore[arg-type]
        )
    with pytest.raises(InputError, match="flatten is 1; give True"):
        SteepestDescent([parameter(3, 4)], flatten=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["spectral", "fro", "lp:3", "maxrow"])
@pytest.mark.parametrize("blocks", [None, 2])
def test_a_kernel_may_be_one_matrix(norm: str, blocks: Any) -> None:
    kernel = parameter(4, 3, 2, 5)
    matrix = torch.nn.Parameter(kernel.detach().clone().flatten(1))
    matrix.grad = give_gradient(kernel).flatten(1)
    for p, flatten in ((kernel, True), (matrix, False)):
        SteepestDescent([p], lr=0.1, norm=norm, blocks=blocks, flatten=flatten).step()
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach(), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("polar", ["newton-schulz", "polar-express"])
def test_a_step_by_products_reads_nothing_on_the_host(polar: Any) -> None:
    """As a CUDA graph asks for: a tensor on the meta device has no values to read."""
    p = torch.nn.Parameter(torch.empty(8, 4, device="meta"))
    optimizer = SteepestDescent(
        [p], norm="spectral", momentum=0.9, polar=polar, adjust_lr_fn="match_rms_adamw"
    )
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    p.grad = torch.empty_like(p)
    optimizer.step()
    with pytest.raises(RuntimeError):
        p.sum().item()


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("norm", ["fro", "spectral"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_momentum_follows_a_model_that_changes_its_type(dtypes, norm, loaded):
    """Between two steps, or from a checkpoint; the steps are those of double precision."""

    def weights_after(*dtypes):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
        optimizer = SteepestDescent([weight], lr=0.1, norm=norm, momentum=0.9)
        for dtype in dtypes:
            weight.data = weight.data.to(dtype)
            if loaded:
                state = optimizer.state_dict()
                optimizer = SteepestDescent([weight], lr=0.1, norm=norm, momentum=0.9)
                optimizer.load_state_dict(state)
            weight.grad = weight.detach().sin()
            optimizer.step()
        return weight.detach().double()

    expected = weights_after(torch.float64, torch.float64)
    # rounding of weights, gradients and decompositions in single precision
    torch.testing.assert_close(weights_after(*dtypes), expected, rtol=1e-5, atol=1e-5)
