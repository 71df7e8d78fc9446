"""Entrywise norms: symmetry, the documented choices, the ball at hard exponents and scales, an
independent solver.
"""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.errors import InputError
from attsvm.geometry import Lp

EXPONENTS = [1, 1.0001, 1.01, 1.1, 1.5, 1.75, 2, 2.2, 3, 10, 200, 10001.0, inf]


@pytest.mark.parametrize("p", EXPONENTS)
def test_value_is_the_definition(p: float) -> None:
    W = np.random.default_rng(0).standard_normal((5, 4, 3))
    expected = (
        [np.linalg.norm(matrix.ravel(), p) for matrix in W] if p < 1000 else np.abs(W).max((-2, -1))
    )
    np.testing.assert_allclose(Lp(p).value(W), expected, rtol=1e-14 if p < 1000 else 1e-3)


@pytest.mark.parametrize("p", [1, 1.1, 2, 3, inf])
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_signed_permutations_pass_through(p: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((3, 4))
    order, signs = rng.permutation(12), rng.choice([-1.0, 1.0], 12)

    def moved(matrix: np.ndarray) -> np.ndarray:
        return (signs * matrix.ravel()[order]).reshape(3, 4)

    norm = Lp(p)
    np.testing.assert_allclose(norm.value(moved(W)), norm.value(W), rtol=1e-14)
    for function in (
        norm.steepest,
        norm.subgradient,
        lambda V: norm.project(V, 0.3),
        lambda V: norm.prox(V, 0.3),
    ):
        np.testing.assert_allclose(function(moved(W)), moved(function(W)), rtol=1e-10, atol=1e-14)


def test_choices_where_the_direction_is_not_unique() -> None:
    G = np.array([[2.0, -5.0, 0.0], [5.0, -5.0, 1.0]])
    np.testing.assert_array_equal(Lp(1).steepest(G), [[0, -1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(Lp(inf).steepest(G), [[1, -1, 0], [1, -1, 1]])
    np.testing.assert_array_equal(Lp(1).subgradient(G), Lp(inf).steepest(G))


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
@pytest.mark.parametrize("kind", ["gaussian", "equal", "spread", "sparse"])
def test_projection_at_every_depth(p: float, scale: float, kind: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, 300))
    x = {
        "gaussian": x,
        "equal": np.ones_like(x),
        "spread": np.exp(10 * x),
        "sparse": x * (rng.random(x.shape) < 0.1),
    }[kind]
    norm = Lp(p)
    length = norm.value(x)
    for depth in (1e-12, 1e-3, 0.5, 1 - 1e-3):
        radius = depth * length
        P = norm.project(x * scale, radius * scale) / scale
        assert norm.value(P) == pytest.approx(radius, rel=2e-15)
        R = x - P
        # P maximises <R, .> over the ball: the optimality condition of the nearest point
        assert np.sum(R * P) == pytest.approx(float(radius * norm.dual_value(R)), rel=1e-10)


@pytest.mark.parametrize(("p", "end"), [(1 + 1e-9, 1), (1 + 2**-52, 1), (1e8, inf), (1e300, inf)])
def test_projection_is_continuous_at_the_ends(p: float, end: float) -> None:
    W = np.random.default_rng(8).standard_normal((20, 10))
    P = Lp(p).project(W, 1.5)
    np.testing.assert_allclose(P, Lp(end).project(W, 1.5), atol=1e-6)
    assert np.sum((W - P) * P) == pytest.approx(1.5 * float(Lp(p).dual_value(W - P)), rel=1e-14)


def test_soft_threshold_and_clip() -> None:
    x = np.array([[3.0, -0.5], [0.2, -2.0]])
    np.testing.assert_allclose(
        Lp(1).prox(x, 0.4), np.sign(x) * np.maximum(np.abs(x) - 0.4, 0), atol=1e-15
    )
    np.testing.assert_array_equal(Lp(inf).project(x, 1.0), np.clip(x, -1, 1))


@pytest.mark.parametrize("p", [0.5, 0.999, -1, float("nan"), -inf, "two", None])
def test_exponents_that_give_no_norm(p: object) -> None:
    with pytest.raises(
        InputError,
        match=r"^Lp\(.*\) is not a norm: the exponent p must be a number with 1 <= p <= inf$",
    ):
        Lp(p)  # type: ignore[arg-type]
