"""tfsvm-11: stationary points of the programme of few columns."""

import numpy as np
from scipy.optimize import minimize

from attsvm import AttentionData, Nuclear, max_margin, optimal_tokens, selection_margins
from attsvm.datasets import unit_sphere
from attsvm_papers.tfsvm import rank_bound


def programmes(seeds):
    data, heads = unit_sphere(4, 5, 6, seeds)
    tokens = optimal_tokens(data, heads)
    return [selection_margins(data.instance(k), tokens[k]) for k in range(len(seeds))]


def start(margins, width):
    return rank_bound.factors(margins, max_margin(margins).W, width)


def test_a_programme_solver_of_scipy_ends_at_the_same_values() -> None:
    some = programmes([0, 3])
    starts = [start(one, 2) for one in some]
    assert not all(np.isfinite(one.value) for one in starts)  # from where margins are missed, too
    found = rank_bound.stationary(some, starts)
    for margins, begun, own in zip(some, starts, found, strict=True):
        size = begun.K.size

        def least(x, margins=margins, begun=begun, size=size):
            K, Q = x[:size].reshape(begun.K.shape), x[size:].reshape(begun.Q.shape)
            return margins(K @ Q.T) - margins.rhs

        result = minimize(
            lambda x: (0.5 * x @ x, x),
            np.concatenate([own.K.ravel(), own.Q.ravel()]),
            jac=True,
            constraints={"type": "ineq", "fun": least},
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        # nothing within its reach is below: SLSQP differences its constraints to 1e-8
        assert abs(result.fun - own.value) < 1e-6 * own.value
        assert own.value <= begun.value
        assert own.slope < 1e-3


def test_factors_meet_their_margins_and_are_balanced() -> None:
    some = programmes(range(4))
    for margins, own in zip(
        some, rank_bound.stationary(some, [start(one, 2) for one in some]), strict=True
    ):
        assert np.isclose(np.min(margins(own.W) / margins.rhs), 1.0, atol=1e-9)
        assert np.allclose(own.K.T @ own.K, own.Q.T @ own.Q, atol=1e-9)
        assert np.isclose(np.linalg.svd(own.W, compute_uv=False).sum(), own.value)


def test_every_width_is_bounded_by_the_nuclear_norm_and_the_whole_one_attains_it() -> None:
    some = programmes(range(6))
    nuclear = max_margin(some, Nuclear())
    assert max(one.rank for one in nuclear) > 1
    values = {}
    for width in (1, 2, 6):
        starts = [
            rank_bound.factors(one, best.W, width) for one, best in zip(some, nuclear, strict=True)
        ]
        found = rank_bound.stationary(some, starts)
        values[width] = np.array([one.value for one in found]) / nuclear.norm
    assert np.allclose(values[6], 1.0, atol=1e-6)
    assert (values[2] > 1.0 - 1e-6).all()
    assert (values[1] > values[2] - 1e-6).all()


def test_a_search_that_finds_no_weights_says_so() -> None:
    """One query that is to select either of two tokens."""
    tokens = np.stack([np.eye(2), np.eye(2)])
    margins = selection_margins(AttentionData(tokens, [1, 1], np.ones((2, 2))), [0, 1])
    begun = rank_bound.factors(margins, np.array([[1.0, 2.0], [3.0, 4.0]]), 1)
    (found,) = rank_bound.stationary([margins], [begun])
    assert np.isinf(found.value)
