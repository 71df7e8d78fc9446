r"""Newton's method for the nuclear and the spectral norm: the proximal map and its derivative on
rows, the quadratic model, and outer steps that finish what splitting began.
"""

from __future__ import annotations

import numpy as np
import pytest
from instances import sphere
from scipy.optimize import nnls

from attsvm.margins import Margins
from attsvm.norms import Schatten
from attsvm.solvers import max_margin, newton
from attsvm.solvers.energy import Energy
from attsvm.solvers.iterate import Stop
from attsvm.solvers.newton import AugmentedLagrangian
from attsvm.solvers.programme import equilibrate, reduce
from attsvm.solvers.quadratic_model import QuadraticModel
from attsvm.solvers.singular_values import curvature, derivative, proximal
from attsvm.solvers.splitting import Splitting

SPECTRAL = [False, True]


def moved(X: np.ndarray, t: float, spectral: bool) -> np.ndarray:
    left, s, right = np.linalg.svd(X, full_matrices=False)
    return (left * proximal(s, t, spectral).values) @ right


@pytest.mark.parametrize("spectral", SPECTRAL)
@pytest.mark.parametrize("t", [0.01, 0.4, 30.0])
def test_proximal_map_minimises(t: float, spectral: bool) -> None:
    rng = np.random.default_rng(0)
    s = np.sort(rng.random(6) * 2)[::-1]

    def objective(values: np.ndarray) -> float:
        return t * float(values.max() if spectral else values.sum()) + 0.5 * float(
            np.sum((values - s) ** 2)
        )

    values = proximal(s, t, spectral).values
    assert (np.diff(values) <= 1e-15).all()
    for size in (1e-3, 1e-1):
        for _ in range(50):
            other = np.maximum(values + size * rng.standard_normal(6), 0.0)
            assert objective(other) >= objective(values) - 1e-14


@pytest.mark.parametrize("spectral", SPECTRAL)
@pytest.mark.parametrize("shape", [(6, 8, 10), (12, 4, 5)])
def test_curvature_is_the_derivative(shape: tuple[int, int, int], spectral: bool) -> None:
    programme = reduce(equilibrate(sphere(*shape, 0), None)).programme
    rng = np.random.default_rng(0)
    X, t = rng.standard_normal((programme.D.shape[1], programme.Z.shape[1])), 0.8
    left, s, right = np.linalg.svd(X, full_matrices=False)
    rows = np.arange(10)
    form = curvature(programme, rows, left, s, right, proximal(s, t, spectral))
    assert form is not None
    whole = np.triu(form) + np.triu(form, 1).T
    for c in rows:
        step = 1e-6 * programme.adjoint(np.eye(programme.m)[c])
        change = moved(X + step, t, spectral) - moved(X - step, t, spectral)
        np.testing.assert_allclose(programme.values(change)[rows] / 2e-6, whole[c], atol=1e-8)


@pytest.mark.parametrize("spectral", SPECTRAL)
@pytest.mark.parametrize("shape", [(7, 4), (4, 7)])
def test_derivative_along_a_direction(shape: tuple[int, int], spectral: bool) -> None:
    X, H = np.random.default_rng(0).standard_normal((2, *shape))
    left, s, right = np.linalg.svd(X, full_matrices=False)
    along = derivative(left, s, right, proximal(s, 0.8, spectral), H)
    change = moved(X + 1e-6 * H, 0.8, spectral) - moved(X - 1e-6 * H, 0.8, spectral)
    np.testing.assert_allclose(along, change / 2e-6, atol=1e-8)


def texts() -> Margins:
    """Texts of 24 tokens, four queries each: 556 positive multipliers."""
    rng, fall = np.random.default_rng(0), (1.0 + np.arange(64)) ** -0.7
    rows, queries = [], []
    for _ in range(24):
        X = rng.standard_normal((24, 64)) * fall
        for q in rng.permutation(24)[:4]:
            chosen = rng.integers(24)
            rows.append(np.delete(X[chosen] - X, chosen, axis=0))
            queries.append(X[q])
    D, m = np.concatenate(rows), 24 * 4 * 23
    offsets, token = np.arange(0, m + 1, 23), np.zeros(m, int)
    return Margins(D, np.array(queries), offsets, np.ones(m), token, np.zeros(96, int))


def test_correlated_rows_are_finished_by_newton_steps(monkeypatch) -> None:
    """The factor of one system serves several steps, and the next outer step begins ahead."""
    systems = []

    def counted(*arguments):
        systems.append(len(arguments[1]))
        return curvature(*arguments)

    monkeypatch.setattr(newton, "curvature", counted)
    found = max_margin(texts(), "spec")
    assert found.status == "optimal"
    assert found.norm == pytest.approx(2.018472, rel=2e-6)
    assert len(systems) <= 9


def test_curvature_of_many_rows_on_large_weights() -> None:
    """Rows as long as the features of a sentence encoder, in numbers of 64 and of 32 bits."""
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 1201, 15)
    D, Z = rng.standard_normal((1200, 384)), rng.standard_normal((80, 384))
    margins = Margins(D, Z, offsets, np.ones(1200), np.zeros(1200, int), np.zeros(80, int))
    programme = reduce(equilibrate(margins, None)).programme
    left, s, right = np.linalg.svd(rng.standard_normal((384, 80)), full_matrices=False)
    prox = proximal(s, 5.0, True)
    form = curvature(programme, np.arange(1200), left, s, right, prox)
    assert form is not None
    c, e = 3, 1100  # two rows once more, from the derivative itself
    along = derivative(left, s, right, prox, programme.adjoint(np.eye(1200)[c]))
    assert form[c, e] == pytest.approx(float(programme.values(along)[e]), abs=1e-10)
    known = (programme.D @ programme.D.T).astype(np.float32)
    some = np.arange(0, 1200, 2)
    short = curvature(programme, some, left, s, right, prox, np.float32, known)
    assert short is not None
    part = form[np.ix_(some, some)]
    np.testing.assert_allclose(np.triu(short), np.triu(part), atol=1e-5 * np.abs(part).max())


@pytest.mark.parametrize("p", [1.0, np.inf])
def test_outer_steps_finish_what_splitting_began(p: float) -> None:
    from dataclasses import replace

    margins, norm = sphere(6, 8, 10, 1), Schatten(p)
    q = equilibrate(margins, None)
    start = max_margin(Margins(q.D, q.Z, q.offsets, q.b, margins.token, margins.selected))
    scale = float(norm.value(start.W))
    scaled = replace(q, b=q.b / scale)
    pull = float(norm.dual_value(scaled.adjoint(start.dual)))
    state = Splitting(scaled, Energy(norm, False), start.W / scale, start.dual / pull, 0)
    state.run(20)

    def error(W: np.ndarray, dual: np.ndarray) -> float:
        ratio = (scaled.values(W) / scaled.b).min()
        lower = scaled.b @ dual / norm.dual_value(scaled.adjoint(dual))
        return float(1.0 - lower * ratio / norm.value(W))

    best = []

    def consider(W: np.ndarray, dual: np.ndarray) -> float:
        best.append(error(W, dual))
        return min(best)

    lagrangian = AugmentedLagrangian(scaled, p != 1.0, state.V, state.dual, state.t)
    newton.finish_by_newton(lagrangian, error, consider, Stop(1e-12, np.inf, 1e-6))
    assert min(best) <= 1e-9 < 1e-7 < error(state.V, state.dual)


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
    new = QuadraticModel(upper).minimise(gradient, dual)
    assert new is not None
    slope = gradient + form @ (new - dual)
    assert (new >= 0.0).all()
    scale = np.abs(gradient).max() + np.abs(form @ dual).max()
    assert slope.min() > -1e-10 * scale
    assert np.abs(slope[new > 0.0]).max() < 1e-10 * scale


def test_an_indefinite_form_is_refused() -> None:
    assert QuadraticModel(-np.eye(3)).minimise(np.ones(3), np.ones(3)) is None


@pytest.mark.parametrize("shift", [1e-3, 0.1])
def test_a_form_of_few_digits_gives_a_step_of_few_digits(shift: float) -> None:
    """Near the least multipliers a relative error of the step is a tiny one of the multipliers."""
    form, dual, gradient = model(0, 90, shift)
    exact = QuadraticModel(form).minimise(gradient, dual)
    few = QuadraticModel(form.astype(np.float32)).minimise(gradient, dual)
    assert exact is not None
    assert few is not None
    assert np.linalg.norm(few - exact) <= 1e-5 * np.linalg.norm(exact - dual)


def test_one_factor_serves_other_multipliers() -> None:
    form, dual, gradient = model(1, 90, 0.05)
    kept = QuadraticModel(form)
    first = kept.minimise(gradient, dual)
    assert first is not None
    moved = np.maximum(dual + 0.02 * np.random.default_rng(2).standard_normal(90), 0.0)
    again = kept.minimise(gradient + form @ (moved - dual), moved)
    assert again is not None
    assert np.abs(again - first).max() < 1e-10 * np.abs(first).max()
