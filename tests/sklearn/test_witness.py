"""The standard assumption: its losses, the passes that find their optimum, and the certificate."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from attsvm.datasets.bags import as_bags
from attsvm.sklearn.compressed import Objective, PolishOptions, polish
from attsvm.sklearn.lockstep import DescentOptions, descend_columns
from attsvm.sklearn.minimise import TOLERANCE
from attsvm.sklearn.witness import Witnesses

OPTIONS = PolishOptions()


def problem(columns=1, null=True, n=12, seed=0, longest=5, d=3):
    """Bags of one to four instances, in units."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, size=n)
    bags = as_bags([generator.normal(size=(length, d)) for length in lengths])
    labels = np.arange(n) % (2 if null else columns)
    return Witnesses(bags, labels, 1.0, columns, null), np.full((n, 1), 1 / n)


CASES = [(1, True), (3, True), (3, False)]


def log_sums(given, theta):
    """``(n, 1, G)``, bag by bag."""
    return np.array(
        [[np.log(np.exp(bag @ theta[:-1] + 4.0 * theta[-1]).sum(axis=0))] for bag in given.bags]
    )


@pytest.mark.parametrize(("columns", "null"), CASES)
def test_slopes_are_those_of_the_losses(columns, null):
    given, _ = problem(columns, null)
    sums = np.random.default_rng(1).normal(size=(12, 2, columns))
    for loss in (given.losses, given.convex_losses):
        _, slopes = loss(sums, given.labels)
        numeric = approx_fprime(
            sums.ravel(), lambda at, f=loss: f(at.reshape(sums.shape), given.labels)[0].sum(), 1e-7
        )
        np.testing.assert_allclose(slopes.ravel(), numeric, atol=1e-6)


@pytest.mark.parametrize(("columns", "null"), CASES)
def test_the_loss_is_the_probability_written_out(columns, null):
    given, _ = problem(columns, null)
    theta = np.random.default_rng(1).normal(size=(4, columns))
    sums = given.log_sums(theta)
    np.testing.assert_allclose(sums, log_sums(given, theta), rtol=1e-5)  # single precision
    losses = given.losses(log_sums(given, theta), given.labels)[0][:, 0]
    for bag, label, loss in zip(given.bags, given.labels, losses, strict=True):
        powers = np.exp(bag @ theta[:-1] + 4.0 * theta[-1]).sum(axis=0)
        positive = np.prod(powers / (1.0 + powers))
        chance = (positive if label else 1 - positive) if null else powers[label] / powers.sum()
        assert loss == pytest.approx(-np.log(chance), rel=1e-9)


def value(given, shares, penalty, theta, gain=None):
    """The objective, written out."""
    loss = given.losses if gain is None else given.convex_losses
    total = shares[:, 0] @ loss(log_sums(given, theta), given.labels)[0][:, 0]
    linear = 0.0 if gain is None else np.sum(gain * theta)
    return total - linear + penalty / 2 * np.sum(theta**2)


@pytest.mark.parametrize(("columns", "null"), CASES)
@pytest.mark.parametrize("short", [64, 2])
def test_the_end_is_a_stationary_point_whatever_passes_keep(columns, null, short):
    given, shares = problem(columns, null, n=24, longest=9)
    theta = np.random.default_rng(2).normal(size=(4, columns))
    options = replace(OPTIONS, short=short, heavy=2)  # of which long bags keep two rows
    objective = Objective(given, given.losses, shares, np.array([1e-2]))
    end = polish(objective, theta, np.float64, options)
    assert end.gap[0] <= TOLERANCE
    numeric = approx_fprime(
        end.weights.ravel(),
        lambda at: value(given, shares, 1e-2, at.reshape(theta.shape)),
        1e-6,
    )
    # the gap is the square of the gradient; differences are exact to 1e-5
    bound = np.sqrt(2 * 1e-2 * TOLERANCE * end.objective[0])
    assert np.linalg.norm(numeric) <= bound + 1e-5
    assert value(given, shares, 1e-2, end.weights) <= value(given, shares, 1e-2, theta)


@pytest.mark.parametrize(("columns", "null"), CASES)
def test_the_gap_is_that_of_the_convex_step_with_the_selection_of_the_weights(columns, null):
    given, shares = problem(columns, null, n=20)
    theta = np.random.default_rng(3).normal(size=(4, columns))
    objective = Objective(given, given.losses, shares, np.array([1e-2]))
    start = polish(objective, theta, np.float64, replace(OPTIONS, passes=1))
    # the selection of these weights, fixed
    sums = log_sums(given, theta)
    chances = given.chances(sums, given.labels)[:, 0]
    gain = np.zeros_like(theta)
    for bag, total, chance in zip(given.bags, sums[:, 0], chances, strict=True):
        attention = np.exp(bag @ theta[:-1] + 4.0 * theta[-1] - total)
        gain[:-1] += bag.T @ (attention * chance) / 20
        gain[-1] += 4.0 * (attention * chance).sum(axis=0) / 20
    assert start.objective[0] == pytest.approx(value(given, shares, 1e-2, theta, gain), rel=1e-9)
    step = replace(objective, loss=given.convex_losses, gain=gain)
    best = polish(step, theta, np.float64, replace(OPTIONS, gap=1e-10))
    least = value(given, shares, 1e-2, best.weights, gain)
    assert best.objective[0] == pytest.approx(least, rel=1e-9)
    absolute = start.gap[0] * start.objective[0]
    assert start.objective[0] - least <= absolute * (1 + 1e-9)


def test_bags_of_one_instance_are_logistic_regression():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 3))
    y = (X[:, 0] + generator.normal(size=50) > 0).astype(int)
    given = Witnesses(as_bags(X[:, None]), y, 1.0, 1, True)
    objective = Objective(given, given.losses, np.full((50, 1), 0.02), np.array([1e-2]))
    end = polish(objective, np.zeros((4, 1)), np.float64, OPTIONS)
    known = LogisticRegression(C=1 / (50 * 1e-2), fit_intercept=False, tol=1e-10)
    known.fit(np.hstack([X, np.full((50, 1), 4.0)]), y)
    np.testing.assert_allclose(end.weights.T, known.coef_, atol=1e-3)


def test_columns_are_polished_beside_each_other_as_alone():
    given, _ = problem(n=24, longest=9)
    shares = np.random.default_rng(1).dirichlet(np.ones(24), size=3).T
    penalties = np.array([1e-1, 1e-2, 1e-3])
    theta = np.random.default_rng(2).normal(size=(4, 3))
    together = polish(Objective(given, given.losses, shares, penalties), theta, np.float64, OPTIONS)
    for k in range(3):
        alone = polish(
            Objective(given, given.losses, shares[:, k : k + 1], penalties[k : k + 1]),
            theta[:, k : k + 1],
            np.float64,
            OPTIONS,
        )
        assert together.objective[k] == pytest.approx(alone.objective[0], rel=1e-5)


def test_a_polish_without_steps_promises_nothing():
    given, shares = problem()
    objective = Objective(given, given.losses, shares, np.array([1e-2]))
    end = polish(objective, np.ones((4, 1)), np.float64, replace(OPTIONS, passes=1))
    assert end.gap[0] > TOLERANCE


def test_descents_of_columns_end_at_their_minima():
    generator = np.random.default_rng(0)
    A = generator.normal(size=(6, 20, 5))
    b = generator.normal(size=(6, 20))

    def loss(points, columns):
        residuals = np.einsum("cij,jc->ci", A[columns], points) - b[columns]
        return (
            0.5 * (residuals**2).sum(axis=1),
            np.einsum("cij,ci->jc", A[columns], residuals),
        )

    options = DescentOptions(iterations=200, tolerance=1e-12, noise=1e-14)
    points, values, _ = descend_columns(loss, np.zeros((5, 6)), options)
    for k in range(6):
        known, *_ = np.linalg.lstsq(A[k], b[k], rcond=None)
        np.testing.assert_allclose(points[:, k], known, atol=1e-4)
        assert values[k] == pytest.approx(0.5 * np.sum((A[k] @ known - b[k]) ** 2), rel=1e-9)
