"""Norms of parameters in one process; what two processes share is in test_distributed.py."""

from __future__ import annotations

import math

import pytest
import torch

from attsvm.errors import InputError
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.reductions import norms

EXPONENTS = (1.0, 1.5, 2.0, 3.0, 11.0, math.inf)


def exact(tensor, q):
    wide = tensor.double().abs().flatten()
    largest = wide.max()
    return float(largest if q == math.inf else largest * (wide / largest).pow(q).sum() ** (1 / q))


@pytest.mark.parametrize("q", EXPONENTS)
def test_float32_norms_at_every_scale_and_length(q):
    # Sums of blocks: the error does not grow with the length, as it does (to 1e-3) in
    # torch.linalg.vector_norm.
    tensors = [
        torch.randn(size, generator=torch.Generator().manual_seed(size)) * scale
        for size, scale in ((7, 1e-30), (300_001, 1e30))
    ]
    for tensor, found in zip(tensors, norms(tensors, q), strict=True):
        assert found.shape == ()
        assert float(found) == pytest.approx(exact(tensor, q), rel=1e-6)


@pytest.mark.parametrize("q", EXPONENTS)
def test_zero_empty_scalar_and_low_precision(q):
    zero, empty, scalar, half = norms(
        [
            torch.zeros(3, 2),
            torch.zeros(0, 4),
            torch.tensor(-3.0),
            torch.full((4,), 2.0).bfloat16(),
        ],
        q,
    )
    assert zero == 0
    assert empty == 0
    assert float(scalar) == pytest.approx(3.0)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(2.0 * 4 ** (1 / q), rel=1e-6)


def test_leading_axes_are_runs_of_their_own():
    tensor = torch.randn(
        2, 5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    (found,) = norms([tensor], 3.0, keep=2)
    assert found.shape == (2, 5, 1, 1)
    torch.testing.assert_close(
        found, torch.linalg.vector_norm(tensor, 3.0, dim=(2, 3), keepdim=True), rtol=1e-14, atol=0
    )


def test_optimisers_refuse_flattened_parameters_where_they_need_whole_ones():
    flat = torch.nn.Parameter(torch.ones(3))
    flat._fsdp_flattened = True
    MirrorDescent([flat], lr=0.1)
    SteepestDescent([flat], lr=0.1, normalize=False)
    for build in (
        lambda: MirrorDescent([flat], lr=0.1, normalize=True),
        lambda: SteepestDescent([flat], lr=0.1),
    ):
        with pytest.raises(InputError, match="fully_shard"):
            build()
