"""The hybrid norm of a matrix and a vector, homogeneous networks, and the programme around them."""

import numpy as np
import pytest
import torch

from attsvm import Lp, Nuclear, Spectral, max_margin
from attsvm.theory.scale_free_descent import Steepest
from attsvm_papers.spectral import e3_homogeneous
from attsvm_papers.spectral.homogeneous import SquaredUnits
from attsvm_papers.spectral.hybrid import Hybrid, MatrixAndVector


@pytest.fixture(scope="module")
def network():
    return e3_homogeneous.labelled_networks(6, 3, 4, [0, 1])


def draws(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_the_norm_and_its_dual_are_those_of_the_parts():
    W = draws(5, 4, 3)
    matrix, vector = W[..., :-1], W[..., -1:]
    parts = Spectral().value(matrix), Lp(np.inf).value(vector)
    np.testing.assert_allclose(Hybrid().value(W), np.max(parts, axis=0))
    parts = Nuclear().value(matrix), Lp(1).value(vector)
    np.testing.assert_allclose(Hybrid().dual_value(W), np.sum(parts, axis=0))


def test_steepest_directions_and_subgradients_attain_their_norms():
    norm, W = Hybrid(), draws(5, 4, 3)
    D, g = norm.steepest(W), norm.subgradient(W)
    np.testing.assert_allclose(norm.value(D), 1.0)
    np.testing.assert_allclose((D * W).sum(axis=(-2, -1)), norm.dual_value(W))
    np.testing.assert_allclose(norm.dual_value(g), 1.0)
    np.testing.assert_allclose((g * W).sum(axis=(-2, -1)), norm.value(W))


@pytest.mark.parametrize("t", [0.1, 1.0, 100.0])
def test_the_proximal_map_is_optimal(t):
    norm, W = Hybrid(), draws(5, 4, 3)
    V = norm.prox(W, t)
    rest = W - V
    assert (norm.dual_value(rest) <= t * (1 + 1e-12)).all()
    np.testing.assert_allclose((rest * V).sum(axis=(-2, -1)), t * norm.value(V), atol=1e-10)


def test_margins_of_networks_are_homogeneous_and_their_rows_are_gradients(network):
    net, theta = network
    weights = torch.tensor(theta, requires_grad=True)
    inputs, labels, signs = map(torch.tensor, (net.inputs, net.labels, net.signs))
    margins = labels * ((inputs @ weights.mT) ** 2 @ signs)
    np.testing.assert_allclose(net.margins(theta), margins.detach(), rtol=1e-12)
    np.testing.assert_allclose(net.margins(3.0 * theta), 9.0 * net.margins(theta), rtol=1e-12)
    torch.nn.functional.softplus(-margins).mean(dim=-1).sum().backward()
    G, log_scale = net.gradient(theta)
    np.testing.assert_allclose(G * np.exp(log_scale)[:, None, None], weights.grad, rtol=1e-10)
    around = net.programme(theta[1], 1)
    np.testing.assert_allclose(around(theta[1]), 2.0 * net.margins(theta)[1], rtol=1e-12)


def test_the_programme_in_the_hybrid_norm_is_that_of_clarabel(network):
    cvxpy = pytest.importorskip("cvxpy")
    net, theta = network
    around = net.programme(theta[0], 0)
    found = max_margin(around, Hybrid(), tol=1e-6)
    W = cvxpy.Variable(around.shape)
    size = cvxpy.maximum(cvxpy.norm(W[:, :-1], 2), cvxpy.norm(W[:, -1], "inf"))
    rows = zip(around.differences, around.queries, strict=True)
    problem = cvxpy.Problem(cvxpy.Minimize(size), [row @ W @ x >= 1 for row, x in rows])
    assert found.status == "optimal"
    assert found.norm == pytest.approx(problem.solve(solver="CLARABEL"), rel=1e-5)


def test_nearness_is_at_most_one_and_one_for_what_solves_its_own_programme():
    x, theta = np.append(draws(3), 1.0), draws(1, 4)
    net = SquaredUnits(x[None, None], np.ones((1, 1)), np.ones(1))
    straight = x[None] / np.linalg.norm(x)  # one unit along the only input
    share, gap = e3_homogeneous.nearness(net, straight, 0, e3_homogeneous.NORMS[1])
    assert share == pytest.approx(1.0, abs=1e-6)
    assert gap < 1e-4
    share, _ = e3_homogeneous.nearness(net, theta, 0, e3_homogeneous.NORMS[1])
    assert share < 0.99
    wrong = SquaredUnits(net.inputs, -np.ones((1, 1)), net.signs)
    assert np.isnan(e3_homogeneous.nearness(wrong, straight, 0, e3_homogeneous.NORMS[1])[0])


def test_directions_beside_each_other_are_the_steepest_one_of_the_hybrid_norm():
    G = draws(3, 4, 3)
    both = MatrixAndVector(Steepest(Spectral()), Steepest(Lp(np.inf)))(G, np.zeros(3))
    np.testing.assert_allclose(both, Hybrid().steepest(G))
