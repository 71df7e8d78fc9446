"""What each family of norms is: entries, singular values, rows; the ball at hard exponents and
scales.
"""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.norms import Lp, MaxRow, PowerPotential, Rows, Schatten

EXPONENTS = [1, 1.0001, 1.01, 1.1, 1.5, 1.75, 2, 2.2, 3, 10, 200, 10001.0, inf]
RNG = np.random.default_rng


@pytest.mark.parametrize("p", EXPONENTS)
def test_value_is_the_definition(p: float) -> None:
    W = RNG(0).standard_normal((5, 4, 3))
    expected = (
        [np.linalg.norm(matrix.ravel(), p) for matrix in W] if p < 1000 else np.abs(W).max((-2, -1))
    )
    np.testing.assert_allclose(Lp(p).value(W), expected, rtol=1e-14 if p < 1000 else 1e-3)


def test_values_of_rows() -> None:
    W = np.array([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]])
    assert (Rows().value(W), MaxRow().value(W)) == (18.0, 13.0)
    np.testing.assert_allclose(Rows().steepest(W), [[0, 0], [0, 0], W[2] / 13])
    np.testing.assert_allclose(MaxRow().steepest(W), [W[0] / 5, [0, 0], W[2] / 13])


@pytest.mark.parametrize("p", [1, 1.0001, 1.3, 2, 3, 200, inf])
@settings(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_singular_values_see_the_vector_norm_and_no_rotation(p: float, seed: int) -> None:
    x, schatten, lp = np.array([3.0, -1.0, 0.5, 2.0]), Schatten(p), Lp(p)
    U, V = (np.linalg.qr(RNG([seed, k]).standard_normal((5, 5)))[0] for k in (0, 1))
    matrix = U[:, :4] * x @ V[:4]
    assert schatten.value(matrix) == pytest.approx(float(lp.value(x[:, None])), rel=1e-13)
    for name, arguments in (
        ("steepest", ()),
        ("subgradient", ()),
        ("project", (1.1,)),
        ("prox", (1.1,)),
    ):
        expected = getattr(lp, name)(x[:, None], *arguments)[:, 0]
        found = getattr(schatten, name)(matrix, *arguments)
        np.testing.assert_allclose(found, U[:, :4] * expected @ V[:4], atol=1e-12)


@pytest.mark.parametrize("p", [3, 200, inf])
def test_directions_keep_the_rank_of_the_gradient(p: float) -> None:
    G = RNG(1).standard_normal((8, 2)) @ RNG(2).standard_normal((2, 6))
    assert np.linalg.matrix_rank(Schatten(p).steepest(G), tol=1e-6) == 2


def test_choices_where_the_direction_is_not_unique() -> None:
    G = np.array([[2.0, -5.0, 0.0], [5.0, -5.0, 1.0]])
    np.testing.assert_array_equal(Lp(1).steepest(G), [[0, -1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(Lp(inf).steepest(G), [[1, -1, 0], [1, -1, 1]])


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
@pytest.mark.parametrize("kind", ["gaussian", "equal", "spread", "sparse"])
def test_projection_at_every_depth(p: float, scale: float, kind: str) -> None:
    x = RNG(7).standard_normal((1, 300))
    x = {
        "gaussian": x,
        "equal": np.ones_like(x),
        "spread": np.exp(10 * x),
        "sparse": x * (RNG(8).random(x.shape) < 0.1),
    }[kind]
    norm = Lp(p)
    length = norm.value(x)
    for depth in (1e-12, 1e-3, 0.5, 1 - 1e-3):
        radius = depth * length
        P = norm.project(x * scale, radius * scale) / scale
        assert norm.value(P) == pytest.approx(radius, rel=2e-15, abs=0)
        R = x - P
        # P maximises <R, .> over the ball: the optimality condition of the nearest point
        best = float(radius * norm.dual_value(R))
        assert np.sum(R * P) == pytest.approx(best, rel=1e-10, abs=0)


@pytest.mark.parametrize(("p", "end"), [(1 + 1e-9, 1), (1 + 2**-52, 1), (1e8, inf), (1e300, inf)])
def test_projection_is_continuous_at_the_ends(p: float, end: float) -> None:
    W = RNG(8).standard_normal((20, 10))
    P = Lp(p).project(W, 1.5)
    np.testing.assert_allclose(P, Lp(end).project(W, 1.5), atol=1e-6)
    best = 1.5 * float(Lp(p).dual_value(W - P))
    assert np.sum((W - P) * P) == pytest.approx(best, rel=1e-14, abs=0)


@pytest.mark.parametrize("p", [0.5, 0.999, -1, float("nan"), -inf, "two", None])
def test_exponents_that_give_no_norm(p) -> None:
    for family in (Lp, Schatten, PowerPotential):
        with pytest.raises(InputError, match=rf"^{family.__name__}\(.*: the exponent p must be a "):
            family(p)
    for end in (1, inf):
        with pytest.raises(InputError, match=r"has no mirror map: .* number with 1 < p < inf$"):
            PowerPotential(end)
