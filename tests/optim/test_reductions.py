"""Norms of parameters in one process; what two processes share is in test_distributed.py."""

from __future__ import annotations

import math

import pytest
import torch

from attsvm.base.errors import InputError
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.reductions import norms, replace_zeros_by_ones

EXPONENTS = (1.0, 1.5, 2.0, 3.0, 11.0, math.inf)


# as on a CPU, and in the calls for many vectors that a GPU takes
both_ways = pytest.mark.parametrize("multi_tensor", [False, True])


def exact(tensor, q):
    wide = tensor.double().abs().flatten()
    largest = wide.max()
    return float(largest if q == math.inf else largest * (wide / largest).pow(q).sum() ** (1 / q))


@both_ways
@pytest.mark.parametrize("q", EXPONENTS)
def test_float32_norms_at_every_scale_and_length(q, multi_tensor):
    # Sums of blocks: the error does not grow with the length, as it does (to 1e-3) in
    # torch.linalg.vector_norm and, on a CPU, in calls for many vectors.
    length = 301 if multi_tensor else 300_001
    tensors = [
        torch.randn(size, generator=torch.Generator().manual_seed(size)) * scale
        for size, scale in ((7, 1e-30), (length, 1e30))
    ]
    for tensor, norm in zip(tensors, norms(tensors, q, multi_tensor=multi_tensor), strict=True):
        assert norm.shape == ()
        assert float(norm) == pytest.approx(exact(tensor, q), rel=1e-6)


@both_ways
@pytest.mark.parametrize("q", EXPONENTS)
def test_zero_empty_scalar_and_low_precision(q, multi_tensor):
    zero, empty, scalar, half = norms(
        [
            torch.zeros(3, 2),
            torch.zeros(0, 4),
            torch.tensor(-3.0),
            torch.full((4,), 2.0).bfloat16(),
        ],
        q,
        multi_tensor=multi_tensor,
    )
    assert zero == 0
    assert empty == 0
    assert float(scalar) == pytest.approx(3.0)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(2.0 * 4 ** (1 / q), rel=1e-6)


@both_ways
@pytest.mark.parametrize("q", EXPONENTS)
def test_what_is_not_finite_stays_so(q, multi_tensor):
    vectors = [torch.tensor([1.0, math.nan]), torch.tensor([3.0, -4.0])]
    nan, good = norms(vectors, q, multi_tensor=multi_tensor)
    assert nan.isnan()
    assert float(good) == pytest.approx(exact(torch.tensor([3.0, -4.0]), q))


def test_positive_numbers_are_themselves_and_zeros_one():
    lengths = [torch.tensor(0.0), torch.tensor(1e-45), torch.tensor([[0.0], [7.0]])]
    divisors = replace_zeros_by_ones(lengths)
    assert [divisor.tolist() for divisor in divisors] == [
        1.0,
        torch.tensor(1e-45).item(),
        [[1.0], [7.0]],
    ]


def test_leading_axes_are_runs_of_their_own():
    tensor = torch.randn(
        2, 5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    (values,) = norms([tensor], 3.0, run_axes=2)
    assert values.shape == (2, 5, 1, 1)
    torch.testing.assert_close(
        values, torch.linalg.vector_norm(tensor, 3.0, dim=(2, 3), keepdim=True), rtol=1e-14, atol=0
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
