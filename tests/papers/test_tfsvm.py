"""Experiments of the second paper against the numbers of an independent program, the stationary
points of few columns against scipy, and the released optimiser against its formula.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from attsvm import (
    AttentionData,
    Nuclear,
    max_margin,
    max_margin_batch,
    optimal_tokens,
    selection_margins,
)
from attsvm.claims import Evidence
from attsvm.datasets import unit_sphere
from attsvm_papers.tfsvm import e1_plane as tfsvm_1
from attsvm_papers.tfsvm import e7_several_tokens as tfsvm_7
from attsvm_papers.tfsvm import e8_concave_head as tfsvm_8
from attsvm_papers.tfsvm import e10_paths as tfsvm_10
from attsvm_papers.tfsvm import rank_bound
from attsvm_papers.tfsvm.guarded import EPSILON, GuardedDescent


@pytest.mark.parametrize(
    ("toy", "size", "cosines"),
    [
        ("plane", 301.0, {500: 0.9941, 1000: 0.9987, 2000: 0.9997}),
        ("plane_margins", 65.0, {500: 0.9992, 1000: 0.9998, 2000: 0.9999}),
    ],
)
def test_trajectories_in_the_plane(toy, size, cosines) -> None:
    """Published factors freeze at the nuclear solution and have the reference norms; W has the
    reference cosines.
    """
    factors, W = (Evidence(tfsvm_1.run(toy, *each)) for each in (("published", 2, 1000),
                                                                 ("W", 1, 2000)))  # fmt: skip
    assert factors["nuclear"][:, -1].max() <= 2e-4  # cosine at least .9998
    sizes = np.linalg.svd(factors["W"][:, -1], compute_uv=False).sum(axis=-1)
    assert np.allclose(sizes, size, rtol=5e-3)  # three digits are given
    for step, cosine in cosines.items():
        assert 1.0 - W.at("frobenius", step)[0] >= cosine - 5e-5  # four digits are given


def test_separate_norms_bias_the_limit_and_one_norm_does_not() -> None:
    separate, together = (
        tfsvm_1.run("plane", method, 1, 40_000)["nuclear"] for method in ("separate", "together")
    )
    assert separate[0, -1] > 1e-4
    # falls like the step to the power -2 from 8e-6 at 10 000
    assert together[0, -1] < 2e-6


def test_accepted_runs_select_clearly_and_have_a_negative_label() -> None:
    found = tfsvm_7.descend_under_relu(4, range(1, 61), steps=600)
    assert (found["seed"] > 0).any()
    assert (found["label"].min(axis=1) < 0).all()
    assert (found["masked"] <= 1e-6).all()
    np.testing.assert_allclose(found["both"][:, -1], found["refitted"][:, -1], atol=1e-12)
    # Both parts contain the max-margin part; the multiple is fitted.
    both, margin, single = (found[name][:, -1].mean() for name in ("both", "margin", "single"))
    assert both < margin < single
    assert (
        tfsvm_7.descend_under_relu(4, range(1, 4), steps=0) == {}
    )  # no step, so no token is left out


def test_flows_have_both_parts_and_the_null_has_neither() -> None:
    found = tfsvm_7.flow_under_smooth_heads("tanh", 8, [100, 101, 102])
    assert (found["sizes"] > 1).any()
    assert (found["outside"][:, -1] < 0.01).all()
    assert (found["outside"][:, -1] < found["outside"][:, 0]).all()
    assert np.median(found["finite"]) < 1e-6
    assert (found["finite_other"] > 0.05).all()
    assert (found["outside_single"][:, -1] > 0.05).all()


def test_strong_heads_select_everything_at_the_predicted_probabilities() -> None:
    found = tfsvm_8.run(range(100, 104), steps=400, strengths=[0.1, 2.0])
    weak, strong = found["strength"] == 0.1, found["strength"] == 2.0
    assert (found["selected"][strong] == 4).all()
    assert found["selected"][weak].mean() < 2
    assert np.median(found["error_fixed"][strong]) < 0.02  # jitter of steps of 0.1
    assert (found["both_fixed"] >= found["margin_fixed"] - 1e-3)[weak].all()


@pytest.mark.parametrize("bound", [tfsvm_10.FROBENIUS, tfsvm_10.NUCLEAR])
def test_paths_have_the_reference_distances(bound) -> None:
    found = tfsvm_10.toys(tfsvm_10.SPHERE, bound, [10.0, 30.0, 100.0], 2)
    values = found["gap" if bound == tfsvm_10.FROBENIUS else "distance"]
    known = tfsvm_10.REFERENCE[tfsvm_10.SPHERE, bound][:3]
    assert np.allclose(values, known, rtol=0.05)  # two digits are given


def test_a_path_in_a_cone_stays_with_the_local_direction() -> None:
    for instance in tfsvm_10.INSTANCES:
        found = tfsvm_10.toys(instance, tfsvm_10.LOCAL, [300.0, 1000.0], 1)
        assert (found["gap"] < 0.01 * found["edge"]).all()
        assert (found["gap_other"] > 100 * found["edge"]).all()


def test_a_random_instance_has_the_limits_of_its_norms_and_too_few_columns_do_not() -> None:
    found = tfsvm_10.paths_of_random_instances(range(8), 2)
    known = np.isfinite(found["far_distance"])
    assert known.any()
    assert found["far_gap"].max() < 1e-4
    assert found["far_distance"][known].max() < 0.02 < found["far_fewer"][known].min()


def test_factors_of_few_columns_are_those_of_a_programme_solver_of_scipy() -> None:
    data, heads = unit_sphere(4, 5, 6, range(4))
    tokens = optimal_tokens(data, heads)
    some = [selection_margins(data.instance(k), tokens[k]) for k in range(4)]
    starts = [rank_bound.nearest_factors(one, max_margin(one).W, 2) for one in some]
    assert not all(np.isfinite(one.value) for one in starts)  # from where margins are missed, too
    found = rank_bound.stationary_points(some, starts)
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
        assert np.isclose(np.min(margins(own.W) / margins.rhs), 1.0, atol=1e-9)
        assert np.allclose(own.K.T @ own.K, own.Q.T @ own.Q, atol=1e-9)
        assert np.isclose(np.linalg.svd(own.W, compute_uv=False).sum(), own.value)


def test_every_width_is_bounded_by_the_nuclear_norm_and_the_whole_one_attains_it() -> None:
    data, heads = unit_sphere(4, 5, 6, range(6))
    tokens = optimal_tokens(data, heads)
    some = [selection_margins(data.instance(k), tokens[k]) for k in range(6)]
    nuclear = max_margin_batch(some, Nuclear())
    for width, most in ((1, np.inf), (2, 1.01), (6, 1.0 + 1e-6)):
        cut = [
            rank_bound.nearest_factors(*each, width)
            for each in zip(some, [s.W for s in nuclear], strict=True)
        ]
        for margins, one in zip(some, cut, strict=True):
            if np.isfinite(one.value):
                assert np.isclose(np.min(margins(one.W) / margins.rhs), 1.0)
        values = np.array([one.value for one in rank_bound.stationary_points(some, cut)])
        assert (values / nuclear.norm > 1.0 - 1e-6).all()
        assert (values / nuclear.norm < most).all()


def test_a_search_that_finds_no_weights_says_so() -> None:
    """One query that is to select either of two tokens."""
    tokens = np.stack([np.eye(2), np.eye(2)])
    margins = selection_margins(AttentionData(tokens, [1, 1], np.ones((2, 2))), [0, 1])
    begun = rank_bound.nearest_factors(margins, np.array([[1.0, 2.0], [3.0, 4.0]]), 1)
    (found,) = rank_bound.stationary_points([margins], [begun])
    assert np.isinf(found.value)


def test_large_gradients_give_steps_of_length_lr_and_tiny_ones_shrink() -> None:
    weights = torch.nn.Parameter(torch.zeros(2, 2, 3, dtype=torch.float64))
    direction = torch.tensor(np.random.default_rng(0).standard_normal((2, 3)))
    direction /= torch.linalg.matrix_norm(direction)
    weights.grad = torch.stack([5.0 * direction, EPSILON * direction])
    GuardedDescent([weights], 0.1).step()
    moved = torch.linalg.matrix_norm(weights.detach())
    # At the guard's own size the step is halved; 1e-12 is rounding.
    assert torch.allclose(moved, torch.tensor([0.1, 0.05], dtype=torch.float64), rtol=1e-12, atol=0)
