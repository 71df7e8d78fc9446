"""Polar factors: what each method promises about singular values, and what none may do to scale,
rank and NaN.
"""

from __future__ import annotations

import math

import pytest
import torch

from attsvm.optim import polar
from attsvm.optim.polar import landing_range, polar_factor, singular_value_range

METHODS = ("exact", "newton-schulz", "polar-express")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def with_singular_values(
    sigma: torch.Tensor, n: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix with these singular values and its polar factor, both from float64."""
    m = len(sigma)
    U, V = (
        torch.linalg.qr(normal(m, m, seed=seed, dtype=torch.float64)).Q,
        torch.linalg.qr(normal(n, m, seed=seed + 1, dtype=torch.float64)).Q,
    )
    return ((U * sigma) @ V.T).to(dtype), U @ V.T


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 7), (7, 1), (16, 16), (33, 64), (64, 33), (130, 140)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_is_a_backward_stable_polar_factor(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    # G = Q H with Q orthonormal and H symmetric positive semidefinite, each to rounding: the
    # definition
    G = normal(6, *shape, dtype=dtype)
    G = G.mT if shape[0] > shape[1] else G
    Q = polar_factor(G).double()
    H = G.double() @ Q.mT
    eps = torch.finfo(dtype).eps
    rounding = 8 * shape[0] ** 0.5 * eps  # a product of that many terms rounds by about its root
    size = torch.linalg.matrix_norm(G.double(), 2)
    assert float((Q @ Q.mT - torch.eye(G.shape[-2], dtype=torch.float64)).abs().max()) < rounding
    assert bool(((H - H.mT).abs().amax(dim=(-2, -1)) < rounding * size).all())
    assert bool((torch.linalg.eigvalsh((H + H.mT) / 2).amin(dim=-1) > -rounding * size).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_matrices_keep_their_rank(dtype: torch.dtype) -> None:
    # Singular values that are rounding give no direction: the factor of a matrix of rank 3 has rank
    # 3
    for seed, rank in enumerate([1, 3, 15]):
        sigma = torch.cat([torch.ones(rank), torch.zeros(16 - rank)]).double()
        G, _ = with_singular_values(sigma, 20, seed, dtype)
        batch = torch.stack([G, normal(16, 20, seed=9, dtype=dtype), torch.zeros_like(G)])
        values = torch.linalg.svdvals(polar_factor(batch).double())
        expected = torch.stack([sigma, torch.ones(16).double(), torch.zeros(16).double()])
        torch.testing.assert_close(values, expected, rtol=0, atol=100 * torch.finfo(dtype).eps)


def test_a_batch_is_its_matrices_one_by_one() -> None:
    batch = torch.stack(
        [
            with_singular_values(torch.logspace(-k, 0, 12).double(), 12, k, torch.float32)[0]
            for k in range(7)
        ]
    )
    for index, alone in enumerate(batch):
        # the sixth power of ten of condition leaves one digit of the last singular direction; the
        # rest share a bound by their own condition
        torch.testing.assert_close(
            polar_factor(batch)[index],
            polar_factor(alone),
            rtol=0,
            atol=max(1e-5, 2e-6 * 10**index),
        )


@pytest.mark.parametrize("method", ["newton-schulz", "polar-express"])
@pytest.mark.parametrize("steps", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("columns", [40, 128])
def test_singular_values_end_where_the_docstring_says(
    method: str, steps: int, columns: int
) -> None:
    sigma = torch.logspace(-2.5, 0, 32, dtype=torch.float64)
    G, _ = with_singular_values(sigma, columns, dtype=torch.float32)
    lower = float(sigma[0] / torch.linalg.vector_norm(sigma))
    low, high = landing_range(method, steps, lower)
    smallest, largest = singular_value_range(polar_factor(G, method, steps))
    # bfloat16 has three digits, and steps amplify; so has the gram matrix of long rows
    rounding = 0.02 * steps if method == "newton-schulz" else 1e-3 if columns > 96 else 1e-4
    assert low - rounding < float(smallest) <= float(largest) < high + rounding


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_long_rows_take_the_same_polynomials(batch: tuple[int, ...]) -> None:
    G = normal(*batch, 8, 40, dtype=torch.float64)
    quintics = polar.express_quintics(5)
    U, sigma, Vh = torch.linalg.svd(G, full_matrices=False)
    sigma = sigma / torch.linalg.vector_norm(sigma, dim=-1, keepdim=True)
    for a, b, c in quintics:
        sigma = sigma * (a + sigma.square() * (b + c * sigma.square()))
    expected = U @ (sigma[..., None] * Vh)
    torch.testing.assert_close(polar_factor(G, "polar-express"), expected, rtol=0, atol=1e-10)


def test_stated_ranges() -> None:
    assert landing_range("newton-schulz", 5) == pytest.approx((0.47, 1.21), abs=0.01)
    assert landing_range("newton-schulz", 5, 1e-2) == pytest.approx((0.68, 1.14), abs=0.01)
    assert landing_range("polar-express", 5) == pytest.approx((0.887, 1.113), abs=1e-3)
    assert landing_range("polar-express", 7) == pytest.approx((1.0, 1.0), abs=1e-9)


def test_each_polynomial_equioscillates_where_the_one_before_ends() -> None:
    # Chebyshev: an odd quintic is the best exactly when its error alternates at four points
    low, high = 1e-3, 1.0
    for a, b, c in polar.EXPRESS[:6]:
        x = torch.linspace(low, high, 200001, dtype=torch.float64)
        deviation = 1 - x * (a + x**2 * (b + c * x**2))
        error = float(deviation.abs().max())
        extreme = deviation[deviation.abs() > error * (1 - 1e-5)]
        assert int((torch.diff(torch.sign(extreme)) != 0).sum()) == 3
        low, high = 1.0 - error, 1.0 + error


@pytest.mark.parametrize("method", METHODS)
def test_degenerate_input(method: str) -> None:
    assert torch.equal(polar_factor(torch.zeros(2, 3, 4), method), torch.zeros(2, 3, 4))
    assert polar_factor(torch.zeros(0, 3, 4), method).shape == (0, 3, 4)
    assert polar_factor(torch.zeros(2, 0, 4), method).shape == (2, 0, 4)
    G = normal(3, 4, 4)
    G[1, 2, 2] = math.nan
    factor = polar_factor(G, method)
    assert bool(factor[1].isnan().all())
    assert bool(factor[[0, 2]].isfinite().all())
    half = polar_factor(normal(4, 4).bfloat16(), method)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("method", METHODS)
def test_transposing_commutes(method: str) -> None:
    G = normal(2, 6, 10)
    torch.testing.assert_close(
        polar_factor(G.mT, method), polar_factor(G, method).mT, rtol=0, atol=1e-6
    )
