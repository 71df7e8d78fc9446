"""The least value of a quadratic model over non-negative multipliers, against scipy's."""

import numpy as np
import pytest
from scipy.optimize import nnls

from attsvm.solvers.methods.exchanges import QuadraticModel


def model(seed: int, k: int, shift: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A definite form, multipliers near its least ones, and the gradient at them."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((2 * k, k))
    moments = A.T @ (A @ np.maximum(rng.standard_normal(k) + 1.0, 0.0)) - rng.random(k)
    least = nnls(A, np.linalg.lstsq(A.T, moments, rcond=None)[0])[0]
    dual = np.maximum(least + shift * rng.standard_normal(k), 0.0)
    return A.T @ A, dual, A.T @ (A @ dual) - moments


@pytest.mark.parametrize("shift", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("seed", range(4))
def test_the_least_value_is_found(seed: int, shift: float) -> None:
    form, dual, gradient = model(seed, 90, shift)
    upper = np.triu(form) + np.tril(np.full(form.shape, np.nan), -1)
    upper[np.tril_indices(len(form), -1)] = 1e9  # never read
    new = QuadraticModel(upper).nearest(gradient, dual)
    assert new is not None
    slope = gradient + form @ (new - dual)
    assert (new >= 0.0).all()
    scale = np.abs(gradient).max() + np.abs(form @ dual).max()
    assert slope.min() > -1e-10 * scale
    assert np.abs(slope[new > 0.0]).max() < 1e-10 * scale


def test_an_indefinite_form_is_refused() -> None:
    assert QuadraticModel(-np.eye(3)).nearest(np.ones(3), np.ones(3)) is None


@pytest.mark.parametrize("shift", [1e-3, 0.1])
def test_a_form_of_few_digits_gives_a_step_of_few_digits(shift: float) -> None:
    """Near the least multipliers a relative error of the step is a tiny one of the multipliers."""
    form, dual, gradient = model(0, 90, shift)
    exact = QuadraticModel(form).nearest(gradient, dual)
    few = QuadraticModel(form.astype(np.float32)).nearest(gradient, dual)
    assert exact is not None
    assert few is not None
    assert np.linalg.norm(few - exact) <= 1e-5 * np.linalg.norm(exact - dual)


def test_one_factor_serves_other_multipliers() -> None:
    form, dual, gradient = model(1, 90, 0.05)
    kept = QuadraticModel(form)
    first = kept.nearest(gradient, dual)
    assert first is not None
    moved = np.maximum(dual + 0.02 * np.random.default_rng(2).standard_normal(90), 0.0)
    again = kept.nearest(gradient + form @ (moved - dual), moved)
    assert again is not None
    assert np.abs(again - first).max() < 1e-10 * np.abs(first).max()
