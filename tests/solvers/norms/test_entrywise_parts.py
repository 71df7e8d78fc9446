"""The parts of the entrywise solver, each against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import ragged, sphere

from attsvm.solvers.methods.energies import energy_of, signed_power
from attsvm.solvers.methods.weighted_gram import WeightedGram
from attsvm.solvers.programme.programme import equilibrate, explicit_rows

INF = float("inf")


@given(
    st.integers(0, 100_000),
    st.sampled_from([1.0, 1.0001, 1.1, 1.75, 2.5, 8.0, 200.0, INF]),
    st.floats(-6, 6),
)
@settings(deadline=None, max_examples=100)
def test_proximal_points_minimise(seed: int, p: float, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    x, tau, energy = (
        rng.standard_normal((3, 4)) * 10.0 ** rng.uniform(-3, 1),
        10.0**exponent,
        energy_of(p),
    )
    point = energy.proximal(x, tau).W
    assert (np.sign(point) * np.sign(x) >= 0).all()

    def objective(w: np.ndarray) -> float:
        # far from the minimum a large power is infinite, which is not below anything
        with np.errstate(over="ignore"):
            return energy.value(w) + float(((w - x) ** 2).sum()) / (2 * tau)

    least = objective(point)
    for _ in range(20):
        other = point + rng.standard_normal(x.shape) * 10.0 ** rng.uniform(-6, 0) * np.abs(x).max()
        assert least <= objective(other) * (1 + 1e-12)


@pytest.mark.parametrize("p", [1.1, 1.75, 2.5, 8.0])
def test_proximal_root(p: float) -> None:
    x = np.r_[np.logspace(-12, 6, 37), 0.0, -2.0][None]
    for tau in (1e-8, 1e-3, 1.0, 1e4):
        w, rate = energy_of(p).proximal(x, tau)[:2]
        np.testing.assert_allclose(w + tau * signed_power(w, p - 1), x, rtol=1e-11)
        assert ((rate >= 0) & (rate <= 1)).all()


@pytest.mark.parametrize("p", [1.0, 1.1, 1.75, 2.5, 8.0, INF])
def test_proximal_derivative(p: float) -> None:
    rng = np.random.default_rng(1)
    x, direction, tau, energy = (
        rng.standard_normal((4, 5)),
        rng.standard_normal((4, 5)),
        0.7,
        energy_of(p),
    )
    at, h = energy.proximal(x, tau), 1e-6
    moved = (
        energy.proximal(x + h * direction, tau).W - energy.proximal(x - h * direction, tau).W
    ) / (2 * h)
    expected = at.rate * direction
    if at.joint is not None:
        expected = expected + at.sign * at.joint * float((at.joint * direction).sum())
    np.testing.assert_allclose(moved, expected, atol=1e-5)


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0, INF])
def test_energies_are_homogeneous_and_their_slopes_support(p: float) -> None:
    rng = np.random.default_rng(2)
    W, energy = rng.standard_normal((3, 3)), energy_of(p)
    assert energy.value(2.5 * W) == pytest.approx(2.5**energy.degree * energy.value(W))
    assert float((energy.slope(W) * W).sum()) == pytest.approx(energy.degree * energy.value(W))


def test_weighted_gram() -> None:
    rng = np.random.default_rng(3)
    for margins in (sphere(6, 8, 10, 0), sphere(30, 12, 40, 0), ragged(rng, 40, 12, 30, 50, True)):
        programme = equilibrate(margins, None)
        rows = np.flatnonzero(rng.random(margins.m) < 0.6)
        weights = rng.random(margins.shape) * (rng.random(margins.shape) < 0.7)
        A = explicit_rows(programme, rows)
        np.testing.assert_allclose(
            np.tril(WeightedGram(programme, rows)(weights)),
            np.tril((A * weights.ravel()) @ A.T),
            atol=1e-12,
        )
