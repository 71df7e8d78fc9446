"""Power potentials against extended precision: mirror maps, divergence, and the root of their
proximal maps.
"""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
import torch

from attsvm.norms import PowerPotential
from attsvm.norms.gauge import shrink

EXPONENTS = [1.0001, 1.1, 4 / 3, 1.5, 1.75, 2, 2.5, 3, 4, 200]
ULP = 2.0**-52


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def exact(p: float) -> mpmath.mpf:
    return mpmath.mpf(4) / 3 if p == 4 / 3 else mpmath.mpf(p)


def exact_prox(v: float, t: float, p: mpmath.mpf) -> mpmath.mpf:
    """The root of x + t x^(p-1) = v by safeguarded Newton in log x."""
    high = min(mpmath.log(v), mpmath.log(mpmath.mpf(v) / t) / (p - 1))
    low = min(mpmath.log(mpmath.mpf(v) / 2), mpmath.log(mpmath.mpf(v) / 2 / t) / (p - 1))
    x = high
    for _ in range(500):
        linear, pull = mpmath.exp(x), t * mpmath.exp(x * (p - 1))
        low, high = (low, x) if linear + pull > v else (x, high)
        new = x - (linear + pull - v) / (linear + (p - 1) * pull)
        new = new if low <= new <= high else (low + high) / 2
        if abs(new - x) < mpmath.mpf(10) ** -45 * (1 + abs(x)):
            break
        x = new
    return mpmath.exp(new)


@pytest.mark.parametrize("p", [1 + 1e-9, *EXPONENTS, 1e4 + 1])
@pytest.mark.parametrize("decades", [1, 4, 150])
def test_shrinking_is_right_to_the_last_places(p: float, decades: int) -> None:
    rng = np.random.default_rng(decades)
    v, t = 10 ** rng.uniform(-decades, decades, (2, 20))
    for a, b, c in zip(v, t, shrink(v, t, p), strict=True):
        root = exact_prox(a, b, exact(p))
        if root < 1e-305:
            assert c < 1e-304
            continue
        condition = max(mpmath.mpf(1), a / (root + (exact(p) - 1) * (a - root)))
        assert abs(c - root) <= 3 * ULP * condition * root


@pytest.mark.parametrize("p", EXPONENTS)
def test_mirror_map_is_the_gradient_and_the_inverse_undoes_it(p: float) -> None:
    potential = PowerPotential(p)
    W = np.random.default_rng(0).standard_normal((3, 4))
    Y = potential.mirror(W)
    np.testing.assert_allclose(potential.inverse_mirror(Y), W, rtol=1e-14 * max(1, 1 / (p - 1)))
    np.testing.assert_allclose(Y, np.sign(W) * np.abs(W) ** (p - 1), rtol=1e-14)
    tensor = torch.from_numpy(W).requires_grad_()
    (gradient,) = torch.autograd.grad(potential.value(tensor), tensor)
    np.testing.assert_allclose(gradient.numpy(), Y, rtol=1e-12, atol=1e-300)


def exact_divergence(v: float, w: float, p: float) -> mpmath.mpf:
    v, w, p = mpmath.mpf(v), mpmath.mpf(w), mpmath.mpf(p)
    return abs(v) ** p / p + (p - 1) / p * abs(w) ** p - mpmath.sign(w) * abs(w) ** (p - 1) * v


@pytest.mark.parametrize("p", EXPONENTS)
def test_divergence_does_not_cancel(p: float) -> None:
    rng = np.random.default_rng(4)
    w = rng.standard_normal(200)
    near = w * (1 + rng.choice([-1, 1], 200) * 10 ** rng.uniform(-15, 0, 200))
    far = w * rng.choice([-1, 1], 200) * 10 ** rng.uniform(-6, 6, 200)
    v = np.where(rng.random(200) < 0.6, near, far)
    v[:5], w[3:8], v[8] = 0.0, 0.0, w[8]
    measured = PowerPotential(p).bregman(v[:, None, None], w[:, None, None])
    assert (measured >= 0).all()
    for a, b, c in zip(v, w, measured, strict=True):
        expected = exact_divergence(a, b, p)
        if expected < 1e-50 * abs(b) ** p:  # equal: what is left is the rounding of the reference
            assert c <= 1e-50 * abs(b) ** p
        elif 1e-290 < expected < 1e290:
            assert abs(c - expected) <= 64 * ULP * expected
    assert (PowerPotential(p).bregman(w[:, None, None], w[:, None, None]) == 0).all()


def test_divergence_adds_up_over_a_matrix_at_any_scale() -> None:
    V, W = np.random.default_rng(5).standard_normal((2, 3, 4, 5))
    potential = PowerPotential(1.75)
    pairing = np.sum(potential.mirror(W) * V, axis=(-2, -1))
    expected = potential.value(V) + 0.75 * potential.value(W) - pairing
    for scale in (1e-150, 1.0, 1e150):
        found = potential.bregman(scale * V, scale * W), potential.value(scale * V)
        np.testing.assert_allclose(found[0], expected * scale**1.75, rtol=1e-12)
        np.testing.assert_allclose(found[1], potential.value(V) * scale**1.75, rtol=1e-12)


def test_equality_and_text() -> None:
    assert PowerPotential(1.75) == PowerPotential(1.75) != PowerPotential(2)
    assert hash(PowerPotential(3)) == hash(PowerPotential(3.0))
    assert repr(PowerPotential(1.75)) == "PowerPotential(1.75)"
