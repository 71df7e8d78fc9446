"""Schatten norms: rotations, ranks, agreement with the entrywise norms on diagonal matrices."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.errors import InputError
from attsvm.geometry import Lp, Nuclear, Schatten, Spectral

EXPONENTS = [1, 1.0001, 1.3, 2, 3, 200, inf]


def rotation(rng: np.random.Generator, d: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


@pytest.mark.parametrize("p", [1, 1.3, 2, 3, inf])
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_rotations_pass_through(p: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    W, U, V = rng.standard_normal((4, 3)), rotation(rng, 4), rotation(rng, 3)
    norm = Schatten(p)
    assert norm.value(U @ W @ V) == pytest.approx(float(norm.value(W)), rel=1e-13)
    gap = np.min(-np.diff(np.linalg.svd(W, compute_uv=False)))
    for function in (
        norm.steepest,
        norm.subgradient,
        lambda M: norm.project(M, 0.5),
        lambda M: norm.prox(M, 0.5),
    ):
        np.testing.assert_allclose(
            function(U @ W @ V), U @ function(W) @ V, atol=1e-13 / min(1.0, gap) * 1e3
        )


@pytest.mark.parametrize("p", EXPONENTS)
def test_diagonal_matrices_see_the_vector_norm(p: float) -> None:
    x = np.array([3.0, -1.0, 0.5, 2.0])
    matrix, vector, schatten, lp = np.diag(x), x[:, None], Schatten(p), Lp(p)
    assert schatten.value(matrix) == pytest.approx(float(lp.value(vector)), rel=1e-14)
    for function in ("steepest", "subgradient"):
        np.testing.assert_allclose(
            np.diag(getattr(schatten, function)(matrix)),
            getattr(lp, function)(vector)[:, 0],
            atol=1e-14,
        )
    for function in ("project", "prox"):
        np.testing.assert_allclose(
            np.diag(getattr(schatten, function)(matrix, 1.1)),
            getattr(lp, function)(vector, 1.1)[:, 0],
            atol=1e-14,
        )


def test_the_ends_are_numpys_norms() -> None:
    W = np.random.default_rng(0).standard_normal((5, 4))
    assert Nuclear().value(W) == pytest.approx(np.linalg.norm(W, "nuc"), rel=1e-14)
    assert Spectral().value(W) == pytest.approx(np.linalg.norm(W, 2), rel=1e-14)
    U, _, Vt = np.linalg.svd(W, full_matrices=False)
    np.testing.assert_allclose(Spectral().steepest(W), U @ Vt, atol=1e-14)
    np.testing.assert_allclose(Nuclear().steepest(W), np.outer(U[:, 0], Vt[0]), atol=1e-14)


@pytest.mark.parametrize("p", [3, 200, inf])
def test_directions_keep_the_rank_of_the_gradient(p: float) -> None:
    rng = np.random.default_rng(1)
    G = rng.standard_normal((8, 2)) @ rng.standard_normal((2, 6))
    assert np.linalg.matrix_rank(Schatten(p).steepest(G), tol=1e-6) == 2


def test_nuclear_prox_shrinks_the_rank() -> None:
    W = np.random.default_rng(2).standard_normal((6, 5))
    sigma = np.linalg.svd(W, compute_uv=False)
    V = Nuclear().prox(W, 0.5 * (sigma[1] + sigma[2]))
    np.testing.assert_allclose(
        np.linalg.svd(V, compute_uv=False),
        np.maximum(sigma - 0.5 * (sigma[1] + sigma[2]), 0),
        atol=1e-14,
    )


@pytest.mark.parametrize("p", [0.5, float("nan"), "x"])
def test_exponents_that_give_no_norm(p: object) -> None:
    with pytest.raises(InputError, match=r"^Schatten\(.*\) is not a norm"):
        Schatten(p)  # type: ignore[arg-type]
