"""The standard assumption: its loss, its convex step and the certificate of that step."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from attsvm.sklearn.minimise import TOLERANCE, certified, descend
from attsvm.sklearn.witness import Witnesses, alternate, best_paths, guessed_start, prototypes


def problem(columns=1, null=True, n=12, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 5, size=n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.hstack([generator.normal(size=(offsets[-1], 3)), np.full((offsets[-1], 1), 4.0)])
    labels = np.arange(n) % (2 if null else columns)
    return Witnesses(rows, offsets, labels, columns, null), np.full(n, 1 / n)


CASES = [(1, True), (3, True), (3, False)]


@pytest.mark.parametrize(("columns", "null"), CASES)
def test_gradients_are_those_of_the_losses(columns, null):
    given, shares = problem(columns, null)
    theta = np.random.default_rng(1).normal(size=(columns, 4))
    targets = given.targets(0.5 * theta, hard=False)
    for loss in (given.loss, lambda at, c: given.surrogate(at, c, targets)):
        numeric = approx_fprime(
            theta.ravel(), lambda at, f=loss: f(at.reshape(theta.shape), shares)[0], 1e-7
        )
        np.testing.assert_allclose(loss(theta, shares)[1].ravel(), numeric, atol=1e-5)


@pytest.mark.parametrize(("columns", "null"), CASES)
def test_the_loss_is_the_probability_written_out(columns, null):
    given, shares = problem(columns, null)
    theta = np.random.default_rng(1).normal(size=(columns, 4))
    total = 0.0
    for i, label in enumerate(given.labels):
        powers = np.exp(given.rows[given.offsets[i] : given.offsets[i + 1]] @ theta.T).sum(axis=0)
        positive = np.prod(powers / (1.0 + powers))
        chance = (positive if label else 1 - positive) if null else powers[label] / powers.sum()
        total -= shares[i] * np.log(chance)
    assert given.loss(theta, shares)[0] == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize(("columns", "null"), CASES)
@pytest.mark.parametrize("hard", [False, True])
def test_alternating_lowers_the_loss_and_every_step_is_certified(columns, null, hard):
    given, shares = problem(columns, null, n=24)
    theta = np.random.default_rng(2).normal(size=(columns, 4))
    theta = descend(lambda at: given.loss(at, shares), theta, 1e-2, 5)
    end, steps = alternate(given, shares, 1e-2, theta, hard)
    assert steps
    assert {step.status for step in steps} == {"optimal"}
    assert max(step.gap for step in steps) <= TOLERANCE
    if not hard:
        size = [given.loss(at, shares)[0] + 0.5e-2 * float(np.sum(at**2)) for at in (theta, end)]
        assert size[1] <= size[0] + 1e-9


def test_bags_of_one_instance_are_logistic_regression():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 3))
    y = (X[:, 0] + generator.normal(size=50) > 0).astype(int)
    rows = np.hstack([X, np.full((50, 1), 4.0)])
    given = Witnesses(rows, np.arange(51), y, 1, True)
    shares, penalty = np.full(50, 0.02), 1e-2
    theta = next(best_paths(given, shares, np.array([penalty]), [given.start(0)], 500))
    known = LogisticRegression(C=1 / (50 * penalty), fit_intercept=False, tol=1e-10).fit(rows, y)
    np.testing.assert_allclose(theta, known.coef_, atol=1e-3)


def test_the_gap_bounds_how_far_the_objective_is_from_its_minimum():
    given, shares = problem(n=20)
    penalty, theta = 1e-2, given.start(0)
    targets = given.targets(theta, hard=True)

    def loss(at):
        return given.surrogate(at, shares, targets)

    def objective(at):
        return loss(at)[0] + 0.5 * penalty * float(np.sum(at**2))

    best, step = certified(loss, theta, penalty)
    for iterations in (1, 3, 6):
        rough = descend(loss, theta, penalty, iterations)
        gradient = loss(rough)[1] + penalty * rough
        gap = np.sum(gradient**2) / (2 * penalty)
        assert objective(rough) - objective(best) <= gap + 1e-12
    assert step.objective == pytest.approx(objective(best), rel=1e-12)


def test_an_inaccurate_step_cannot_be_called_optimal(monkeypatch):
    from attsvm.sklearn import minimise

    monkeypatch.setattr(minimise, "_lbfgs", lambda loss, start, *_: (start, 0))
    given, shares = problem()
    targets = given.targets(given.start(0), hard=True)
    _, step = certified(
        lambda at: given.surrogate(at, shares, targets), np.ones((1, 4)), penalty=1e-2
    )
    assert step.status == "inaccurate"
    assert step.gap > TOLERANCE


def test_guesses_find_what_positive_bags_share():
    generator = np.random.default_rng(0)
    rows, place = generator.normal(size=(60, 6, 4)), generator.integers(6, size=60)
    labels = np.arange(60) % 2
    rows[np.arange(60), place] += 6.0 * labels[:, None]
    flat = np.hstack([rows.reshape(-1, 4), np.full((360, 1), 4.0)])
    given = Witnesses(flat, np.arange(61) * 6, labels, 1, True)
    shares = np.full(60, 1 / 60)
    guess = prototypes(given, shares, 1, 0)[0]
    assert np.mean(guess[labels > 0] == place[labels > 0]) >= 0.95
    theta = guessed_start(given, shares, guess, 1e-3, 50)
    assert given.loss(theta, shares)[0] < 0.1
