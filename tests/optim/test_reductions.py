"""Norms of parameters in one process; what two processes share is in test_distributed.py."""

from __future__ import annotations

import math

import pytest
import torch

from attsvm.base.errors import InputError
from attsvm.optim import MirrorDescent, SteepestDescent, reductions
from attsvm.optim.reductions import norms, positive

EXPONENTS = (1.0, 1.5, 2.0, 3.0, 11.0, math.inf)


@pytest.fixture(autouse=True, params=["one by one", "many at once"])
def way(request, monkeypatch):
    """As on a CPU, and in the calls for many vectors that a GPU takes."""
    if request.param == "many at once":
        monkeypatch.setattr(
            reductions,
            "_launches_count",
            lambda parts: all(part.ndim == 1 and part.numel() for part in parts),
        )
    return request.param


def exact(tensor, q):
    wide = tensor.double().abs().flatten()
    largest = wide.max()
    return float(largest if q == math.inf else largest * (wide / largest).pow(q).sum() ** (1 / q))


@pytest.mark.parametrize("q", EXPONENTS)
def test_float32_norms_at_every_scale_and_length(q, way):
    # Sums of blocks: the error does not grow with the length, as it does (to 1e-3) in
    # torch.linalg.vector_norm and, on a CPU, in calls for many vectors.
    length = 300_001 if way == "one by one" else 301
    tensors = [
        torch.randn(size, generator=torch.Generator().manual_seed(size)) * scale
        for size, scale in ((7, 1e-30), (length, 1e30))
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


@pytest.mark.parametrize("q", EXPONENTS)
def test_what_is_not_finite_stays_so(q):
    nan, good = norms([torch.tensor([1.0, math.nan]), torch.tensor([3.0, -4.0])], q)
    assert nan.isnan()
    assert float(good) == pytest.approx(exact(torch.tensor([3.0, -4.0]), q))


def test_positive_numbers_are_themselves_and_zeros_one():
    found = positive([torch.tensor(0.0), torch.tensor(1e-45), torch.tensor([[0.0], [7.0]])])
    assert [each.tolist() for each in found] == [1.0, torch.tensor(1e-45).item(), [[1.0], [7.0]]]


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
