"""Sufficient conditions of the theorems: tables of an independent program, identities, and
agreement with the solver.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.data import AttentionData
from attsvm.datasets import toy, unit_sphere
from attsvm.errors import InputError
from attsvm.geometry import Lp, Nuclear, PowerPotential
from attsvm.margins import decoder_margins, selection_margins
from attsvm.models import Attention, Exponential, Linear, Logistic
from attsvm.selection import (
    all_support,
    dominance,
    feasible,
    gradient_alignment,
    in_angular_cone,
    in_bregman_cone,
    in_margin_cone,
    margin_drop,
    margin_drop_bound,
    optimal_tokens,
)
from attsvm.solvers import max_margin


def test_fast_test_of_all_support_agrees_with_the_solver() -> None:
    rng = np.random.default_rng(0)
    for d in (2, 5, 12):
        data, v = unit_sphere(2, 3, d, seed=list(range(30)))
        mask = rng.random(data.mask.shape) < 0.8
        mask[..., 0] = True
        data = AttentionData(data.tokens, data.labels, data.queries, mask)
        tokens = optimal_tokens(data, v)
        found, possible = all_support(data, tokens), feasible(data, tokens)
        for r in range(30):
            solution = max_margin(selection_margins(data.instance(r), tokens[r]))
            margins = solution.margins(solution.W)
            assert possible[r] == (solution.status != "infeasible")
            assert found[r] == (
                solution.status != "infeasible" and bool((np.abs(margins - 1) < 1e-5).all())
            )


@pytest.mark.parametrize(
    ("loss", "objective"),
    [("logistic", Logistic()), ("exponential", Exponential()), ("linear", Linear())],
)
def test_dominance_identity(loss: str, objective: object) -> None:
    rng = np.random.default_rng(1)
    for n, T, d, tight in ((4, 5, 6, False), (2, 3, 128, True)):
        data, v = unit_sphere(n, T, d, seed=0)
        solution = max_margin(selection_margins(data, optimal_tokens(data, v)))
        assert all_support(data, optimal_tokens(data, v)) == tight
        for size in (0.0, 1.0, 5.0):
            W = size * rng.standard_normal((d, d))
            sides = dominance(data, v, W, solution, loss)
            model = Attention.cross(data, v, init=W, loss=objective)
            model.loss(data).backward()
            assert sides.descent == pytest.approx(
                -np.sum(model.W.grad.numpy() * solution.W), rel=1e-9
            )
            assert sides.terms == pytest.approx(sides.descent, rel=1e-9)
            assert sides.bound <= sides.descent * (1 + 1e-9)
            if tight:
                assert sides.bound == pytest.approx(sides.descent, rel=1e-9)
                assert sides.bound > 0
    with pytest.raises(InputError, match="needs a solution for the optimal tokens"):
        dominance(
            data, v, W, max_margin(selection_margins(data, (optimal_tokens(data, v) + 1) % 3))
        )


def test_alignment_is_that_of_the_first_gradient() -> None:
    data, v = unit_sphere(4, 5, 8, seed=list(range(6)))
    model = Attention.cross(data, v)
    model.loss(data).sum().backward()
    for r, iota in enumerate(gradient_alignment(data, v)):
        margins = selection_margins(data.instance(r), optimal_tokens(data, v)[r])
        assert iota == pytest.approx(margins(-model.W.grad[r].numpy()).min(), rel=1e-10)


def test_cones() -> None:
    data, v = unit_sphere(3, 4, 5, seed=1)
    solution = max_margin(selection_margins(data, optimal_tokens(data, v)))
    across = np.random.default_rng(0).standard_normal(solution.W.shape)
    across -= np.sum(across * solution.W) / np.sum(solution.W**2) * solution.W
    across *= np.linalg.norm(solution.W) / np.linalg.norm(across)
    turned = np.array([np.cos(a) * solution.W + np.sin(a) * across for a in (0.0, 0.1, 0.2)])
    assert in_angular_cone(turned, solution, 1 - np.cos(0.15)).tolist() == [True, True, False]
    assert not in_angular_cone(turned, solution, 0.5, radius=2 * solution.norm).any()
    assert in_margin_cone(3 * solution.W, solution, 1 - 1e-12, radius=2 * solution.norm)
    shares = np.array(
        [solution.margins(W).min() * solution.norm / np.linalg.norm(W) for W in turned]
    )
    middle = 0.5 * (shares[1] + shares[0])
    assert in_margin_cone(turned, solution, middle).tolist() == (shares >= middle).tolist()
    assert not in_angular_cone(0 * solution.W, solution, 0.5)
    with pytest.raises(InputError, match="W has shape"):
        in_margin_cone(np.ones((2, 2)), solution, 0.5)


def test_bregman_cones_are_angular_at_two_and_follow_the_norm_of_their_solution() -> None:
    data, v = unit_sphere(3, 4, 5, seed=1)
    margins = selection_margins(data, optimal_tokens(data, v))
    W = max_margin(margins).W + 0.2 * np.random.default_rng(0).standard_normal((30, 5, 5))
    for mu in (0.01, 0.05, 0.2):
        assert np.array_equal(
            in_bregman_cone(W, max_margin(margins), mu), in_angular_cone(W, max_margin(margins), mu)
        )
    solution = max_margin(margins, Lp(3))
    divergence = PowerPotential(3).direction_divergence(np.broadcast_to(solution.W, W.shape), W)
    middle = float(np.median(divergence))
    assert np.array_equal(in_bregman_cone(W, solution, middle), divergence <= middle)
    assert in_bregman_cone(2.0 * solution.W, solution, 1e-12, radius=1.99 * solution.norm)
    assert not in_bregman_cone(2.0 * solution.W, solution, 1e-12, radius=2.01 * solution.norm)
    assert not in_bregman_cone(0.0 * solution.W, solution, 2.0)
    with pytest.raises(InputError, match="needs a solution of an entrywise norm"):
        in_bregman_cone(W, max_margin(margins, Nuclear()), 0.1)


def test_margin_drop_of_the_joint_toy_is_positive_and_grows_no_smaller_with_fewer_samples() -> None:
    data = toy("joint").data
    prompts = (
        np.random.default_rng(0).standard_normal((60, 2)) * np.repeat([0.1, 1.0, 10.0], 20)[:, None]
    )
    drop = margin_drop(data, [1, 1, 1], prompts)
    assert drop.margin == pytest.approx(1.0)  # v = (0, 1) has margin 1
    assert 0 < drop.nu <= margin_drop(data, [1, 1, 1], prompts[:20]).nu
    with pytest.raises(InputError, match="no head separates"):
        margin_drop(data, [0, 0, 0], prompts)


@pytest.mark.parametrize("p", [1.75, 2.0, 3.0])
def test_no_attention_drops_less_than_the_proven_margin_drop(p: float) -> None:
    """Over attention of every kind, label margins computed anew; at p = 2 the bound needs
    multipliers along the way.
    """
    tokens = np.array(
        [[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]]
    )
    data = AttentionData(tokens, np.array([1.0, -1.0]), tokens[:, 0])
    best = [1, 0] if p < 2 else [0, 0]
    bound = margin_drop_bound(data, best, Lp(p))
    assert bound > 0
    rng = np.random.default_rng(0)
    s = rng.dirichlet([0.3] * 3, size=(400, 2))
    corners = np.eye(3)[rng.integers(3, size=(200, 2))]
    away = rng.uniform(size=(200, 1, 1)) ** 3
    s = np.concatenate([s, (1 - away) * np.eye(3)[best] + away * corners])
    far = 1.0 - s[:, np.arange(2), best].min(axis=1)
    s, far = s[far > 1e-3], far[far > 1e-3]
    # a head on mixtures of tokens is one on sequences of a single token
    mixed = np.einsum("sit,itd->sid", s, tokens)[:, :, None]
    margins = [
        decoder_margins(AttentionData(each, data.labels, each[:, 0]), [0, 0]) for each in mixed
    ]
    reached = np.array(
        [
            0.0 if each.status == "infeasible" else 1.0 / each.norm
            for each in max_margin(margins, Lp(p))
        ]
    )
    top = 1.0 / max_margin(decoder_margins(data, best), Lp(p)).norm
    ratios = (top - reached) / far
    # solutions are certified to 1e-9 and ways are longer than 1e-3
    assert ratios.min() >= bound * (1 - 1e-6)
    assert ratios.min() < 10 * bound  # not a void bound


def test_nothing_is_proven_where_the_assumption_fails() -> None:
    # the third sequence has margin to spare
    assert margin_drop_bound(toy("joint_nonsupport").data, [1, 1, 1]) <= 0
    tokens = np.array(
        [[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]]
    )
    second = AttentionData(tokens, np.array([1.0, -1.0]), tokens[:, 0])
    # tokens 0 and 0 have a larger label margin at p = 2
    assert margin_drop_bound(second, [1, 0]) <= 0
    with pytest.raises(InputError, match="no head separates"):
        margin_drop_bound(toy("joint").data, [0, 0, 0])
    many = np.zeros((21, 2, 1))
    many[:, 0] = 1.0
    with pytest.raises(InputError, match="more than 1000000 selections"):
        margin_drop_bound(
            AttentionData(many, np.ones(21), np.ones((21, 1))), np.zeros(21, dtype=int)
        )
