"""What the Schatten solver is made of: proximal maps, their generalised derivative on rows,
augmented steps, the rank inequality.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from instances import sphere

from attsvm.datasets import unit_sphere
from attsvm.geometry import Schatten
from attsvm.margins import Margins, selection_margins
from attsvm.selection import optimal_tokens
from attsvm.solvers import max_margin
from attsvm.solvers.facts import singular_values
from attsvm.solvers.methods.energies import energy_of
from attsvm.solvers.norms import augmented
from attsvm.solvers.norms.augmented import AugmentedLagrangian
from attsvm.solvers.norms.curvature import curvature, derivative
from attsvm.solvers.norms.splitting import Splitting
from attsvm.solvers.programme.programme import equilibrate
from attsvm.solvers.programme.reduction import reduce

EXPONENTS = [1.0, 1.3, 3.0, math.inf]


def objective(p: float, s: np.ndarray) -> float:
    return float(s.max()) if math.isinf(p) else float((s**p).sum() / p)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("t", [0.01, 0.4, 30.0])
def test_proximal_map_minimises(p: float, t: float) -> None:
    rng = np.random.default_rng(0)
    s = np.sort(rng.random(6) * 2)[::-1]
    values = energy_of(p).proximal(s[None], t).W[0]
    best = t * objective(p, values) + 0.5 * np.sum((values - s) ** 2)
    assert energy_of(p).value(values[None]) == pytest.approx(objective(p, values), abs=1e-15)
    assert (np.diff(values) <= 1e-15).all()
    for size in (1e-3, 1e-1):
        for _ in range(50):
            other = np.maximum(values + size * rng.standard_normal(6), 0.0)
            assert t * objective(p, other) + 0.5 * np.sum((other - s) ** 2) >= best - 1e-14


@pytest.mark.parametrize("p", EXPONENTS)
def test_norms_are_dual(p: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        A, B = rng.standard_normal((2, 5, 4))
        g = Schatten(p).gauge
        assert np.sum(A * B) <= g.length(singular_values(A)) * g.dual.length(singular_values(B)) * (
            1 + 1e-12
        )


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", [(6, 8, 10), (12, 4, 5)])
def test_curvature_is_the_derivative(p: float, shape: tuple[int, int, int]) -> None:
    programme = reduce(equilibrate(sphere(*shape, 0), None)).programme
    rng = np.random.default_rng(0)
    X, g, t = rng.standard_normal((programme.D.shape[1], programme.Z.shape[1])), energy_of(p), 0.8
    left, s, right = np.linalg.svd(X, full_matrices=False)
    rows = np.arange(10)
    form = curvature(programme, rows, left, s, right, g.proximal(s[None], t))
    assert form is not None
    whole = np.triu(form) + np.triu(form, 1).T

    def mapped(X: np.ndarray) -> np.ndarray:
        left, s, right = np.linalg.svd(X, full_matrices=False)
        return programme.values((left * g.proximal(s[None], t).W[0]) @ right)[rows]

    for c in rows:
        step = 1e-6 * programme.adjoint(np.eye(programme.m)[c])
        np.testing.assert_allclose(
            (mapped(X + step) - mapped(X - step)) / 2e-6, whole[c], atol=1e-8
        )


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", [(7, 4), (4, 7)])
def test_derivative_along_a_direction(p: float, shape: tuple[int, int]) -> None:
    X, H = np.random.default_rng(0).standard_normal((2, *shape))
    g, t = energy_of(p), 0.8

    def mapped(X: np.ndarray) -> np.ndarray:
        left, s, right = np.linalg.svd(X, full_matrices=False)
        return (left * g.proximal(s[None], t).W[0]) @ right

    left, s, right = np.linalg.svd(X, full_matrices=False)
    along = derivative(left, s, right, g.proximal(s[None], t), H)
    difference = (mapped(X + 1e-6 * H) - mapped(X - 1e-6 * H)) / 2e-6
    np.testing.assert_allclose(along, difference, atol=1e-8)


def test_many_active_rows_take_few_systems(monkeypatch) -> None:
    """Texts of 24 tokens, four queries each: 556 positive multipliers. 12 systems were solved when
    every outer step began anew and every step made a system of its own; 7 are now.
    """
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
    margins = Margins(D, np.array(queries), offsets, np.ones(m), token, np.zeros(96, int))
    systems = []

    def counted(*arguments):
        systems.append(len(arguments[1]))
        return curvature(*arguments)

    monkeypatch.setattr(augmented, "curvature", counted)
    found = max_margin(margins, "spec")
    assert found.status == "optimal"
    assert found.norm == pytest.approx(2.018472, rel=2e-6)
    assert 3 <= len(systems) <= 9


def test_curvature_of_many_rows_on_large_weights() -> None:
    """A head of a sentence encoder: written out, its features were too many to be formed."""
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 1201, 15)
    D, Z = rng.standard_normal((1200, 384)), rng.standard_normal((80, 384))
    margins = Margins(D, Z, offsets, np.ones(1200), np.zeros(1200, int), np.zeros(80, int))
    programme = reduce(equilibrate(margins, None)).programme
    left, s, right = np.linalg.svd(rng.standard_normal((384, 80)), full_matrices=False)
    prox = energy_of(math.inf).proximal(s[None], 5.0)
    form = curvature(programme, np.arange(1200), left, s, right, prox)
    assert form is not None
    c, e = 3, 1100  # two rows once more, from the derivative itself
    step = 1e-6 * programme.adjoint(np.eye(1200)[c])

    def mapped(X: np.ndarray) -> float:
        left, s, right = np.linalg.svd(X, full_matrices=False)
        point = (left * energy_of(math.inf).proximal(s[None], 5.0).W[0]) @ right
        return float(programme.values(point)[e])

    X = (left * s) @ right
    assert form[c, e] == pytest.approx((mapped(X + step) - mapped(X - step)) / 2e-6, abs=1e-8)
    known = (programme.D @ programme.D.T).astype(np.float32)
    some = np.arange(0, 1200, 2)
    short = curvature(programme, some, left, s, right, prox, np.float32, known)
    assert short is not None
    part = form[np.ix_(some, some)]
    np.testing.assert_allclose(np.triu(short), np.triu(part), atol=1e-5 * np.abs(part).max())


@pytest.mark.parametrize("p", EXPONENTS)
def test_augmented_steps_finish_what_alternating_directions_began(p: float) -> None:
    margins = sphere(6, 8, 10, 1)
    q = equilibrate(margins, None)
    start = max_margin(Margins(q.D, q.Z, q.offsets, q.b, margins.token, margins.selected))
    norm = Schatten(p)
    scale = float(norm.value(start.W))
    from dataclasses import replace

    scaled = replace(q, b=q.b / scale)
    energy = energy_of(p)

    def nearest(x: np.ndarray, t: float) -> np.ndarray:
        left, s, right = np.linalg.svd(x, full_matrices=False)
        return (left * energy.proximal(s[None], t).W[0]) @ right

    pull = float(norm.dual_value(scaled.adjoint(start.dual)))
    state = Splitting(scaled, nearest, start.W / scale, start.dual / pull, 1.0)
    state.run(40, math.inf)
    began = 1.0 - scaled.b @ state.dual * (scaled.values(state.V) / scaled.b).min() / (
        norm.dual_value(scaled.adjoint(state.dual)) * norm.value(state.V)
    )
    newton = AugmentedLagrangian(scaled, energy, state.V, state.dual, state.t)
    for _ in range(5):
        assert newton.advance(1e-13, 60, math.inf)
        newton.sigma *= 10.0
    values = scaled.values(newton.W)
    ratio = (values / scaled.b).min()
    lower = scaled.b @ newton.dual / norm.dual_value(scaled.adjoint(newton.dual))
    assert 1.0 - lower * ratio / norm.value(newton.W) <= 1e-9 < max(began, 1e-8)


@pytest.mark.parametrize("norm", ["nuc", "spec", "schatten:1.5"])
def test_a_decomposition_that_does_not_converge_is_done_by_the_slow_method(norm, monkeypatch):
    data, head = unit_sphere(12, 8, 20, 0)
    margins = selection_margins(data, optimal_tokens(data, head))
    expected = max_margin(margins, norm)
    fast, calls = np.linalg.svd, itertools.count()

    def failing(W, *args, **named):
        caller = sys._getframe(1).f_globals["__name__"]
        if caller == "attsvm.solvers.facts" and next(calls) % 3 == 0:
            raise np.linalg.LinAlgError("SVD did not converge")
        return fast(W, *args, **named)

    monkeypatch.setattr(np.linalg, "svd", failing)
    found = max_margin(margins, norm)
    assert found.status == "optimal"
    assert next(calls) > 3
    assert found.norm == pytest.approx(expected.norm, rel=1e-6)
