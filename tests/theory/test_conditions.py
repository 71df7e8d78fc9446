"""Sufficient conditions of the theorems: the solver, the gradient and attention itself agree with
them.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.attention import Attention, Exponential, Linear, Logistic
from attsvm.base.errors import InputError
from attsvm.datasets import toy, unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import decoder_margins, optimal_tokens, selection_margins
from attsvm.norms import Lp, Nuclear
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.theory import (
    all_support,
    feasible,
    gradient_alignment,
    in_bregman_cone,
    margin_drop,
    margin_drop_bound,
)

TOKENS = np.array([[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]])
TWO = AttentionData(TOKENS, np.array([1.0, -1.0]), TOKENS[:, 0])


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
            tight = np.abs(solution.margins(solution.W) - 1) < 1e-5
            assert possible[r] == (solution.status != "infeasible")
            assert found[r] == (possible[r] and tight.all())
    for twin, expected in ((0.0, True), (-1.0, False)):  # equal rivals decide nothing by their Gram
        rivals = [[2.0, 0.0], [0.0, 0.0], [0.0, 0.0], [twin, 0.0]]
        assert all_support(AttentionData([rivals], [1], [[1.0]]), [0]) == expected
    with pytest.raises(InputError, match="tokens has shape"):
        all_support(data, tokens[:2])


@pytest.mark.parametrize(
    ("name", "loss"),
    [("logistic", Logistic()), ("exponential", Exponential()), ("linear", Linear())],
)
def test_alignment_is_that_of_the_first_gradient(name: str, loss: object) -> None:
    drawn, v = unit_sphere(4, 5, 8, seed=list(range(6)))
    mask = np.ones(drawn.mask.shape, dtype=bool)
    mask[:, 1, 3:] = False
    data = AttentionData(drawn.tokens, drawn.labels, drawn.queries, mask)
    model = Attention.cross(data, v, loss=loss)
    model.loss(data).sum().backward()
    for r, iota in enumerate(gradient_alignment(data, v, name)):
        margins = selection_margins(data.instance(r), optimal_tokens(data, v)[r])
        assert iota == pytest.approx(margins(-model.W.grad[r].numpy()).min(), rel=1e-10)
    with pytest.raises(InputError, match="loss is 'hinge'; use 'logistic'"):
        gradient_alignment(data, v, "hinge")


@pytest.mark.parametrize("norm", [Lp(2), Lp(3)])
def test_cones_are_narrow_around_the_solution_of_their_norm(norm: Lp) -> None:
    data, v = unit_sphere(3, 4, 5, seed=1)
    margins = selection_margins(data, optimal_tokens(data, v))
    solution = max_margin(margins, norm)
    W = solution.W + 0.2 * np.random.default_rng(0).standard_normal((30, 5, 5))
    pairing = np.sum(norm.subgradient(W) * solution.W / solution.norm, axis=(-2, -1))
    middle = float(np.median(1 - pairing))
    assert np.array_equal(in_bregman_cone(W, solution, middle), 1 - pairing <= middle)
    assert in_bregman_cone(2.0 * solution.W, solution, 1e-12, radius=1.99 * solution.norm)
    assert not in_bregman_cone(2.0 * solution.W, solution, 1e-12, radius=2.01 * solution.norm)
    assert not in_bregman_cone(0.0 * solution.W, solution, 2.0)
    hopeless = max_margin(selection_margins(AttentionData([[[1.0], [1.0]]], [1], [[1.0]]), [0]))
    for weights, of, words in (
        (W, max_margin(margins, Nuclear()), "needs a solution of an entrywise norm"),
        (np.ones((2, 2)), solution, "W has shape"),
        (W, hopeless, "no cone around an infeasible solution"),
    ):
        with pytest.raises(InputError, match=words):
            in_bregman_cone(weights, of, 0.1)


def test_margin_drop_of_the_joint_toy_is_positive_and_grows_no_smaller_with_fewer_samples() -> None:
    data, sizes = toy("joint").data, np.repeat([0.1, 1.0, 10.0], 20)[:, None]
    prompts = np.random.default_rng(0).standard_normal((60, 2)) * sizes
    drop = margin_drop(data, [1, 1, 1], prompts)
    assert drop.margin == pytest.approx(1.0)  # v = (0, 1) has margin 1
    assert 0 < drop.nu <= margin_drop(data, [1, 1, 1], prompts[:20]).nu
    mapped = margin_drop(data, [1, 1, 1], prompts, keys=2.0 * np.eye(2))
    np.testing.assert_allclose(mapped.ratios, margin_drop(data, [1, 1, 1], 2.0 * prompts).ratios)
    other = margin_drop(TWO, [0, 0], prompts)
    best = max_margin(decoder_margins(TWO, [0, 0]))
    assert other.margin == pytest.approx(1 / best.norm)
    assert other.nu >= margin_drop_bound(TWO, [0, 0])
    with pytest.raises(InputError, match="no head separates"):
        margin_drop(data, [0, 0, 0], prompts)


@pytest.mark.parametrize("p", [1.75, 2.0, 3.0])
def test_no_attention_drops_less_than_the_proven_margin_drop(p: float) -> None:
    """Over attention of every kind, label margins computed anew; at p = 2 the bound needs
    multipliers along the way.
    """
    best = [1, 0] if p < 2 else [0, 0]
    bound = margin_drop_bound(TWO, best, Lp(p))
    assert bound > 0
    rng = np.random.default_rng(0)
    s = rng.dirichlet([0.3] * 3, size=(400, 2))
    corners, away = np.eye(3)[rng.integers(3, size=(200, 2))], rng.uniform(size=(200, 1, 1)) ** 3
    s = np.concatenate([s, (1 - away) * np.eye(3)[best] + away * corners])
    far = 1.0 - s[:, np.arange(2), best].min(axis=1)
    s, far = s[far > 1e-3], far[far > 1e-3]
    # a head on mixtures of tokens is one on sequences of a single token
    mixed = np.einsum("sit,itd->sid", s, TOKENS)[:, :, None]
    data = [AttentionData(each, TWO.labels, each[:, 0]) for each in mixed]
    solutions = max_margin_batch([decoder_margins(each, [0, 0]) for each in data], Lp(p))
    reached = np.array([0.0 if e.status == "infeasible" else 1.0 / e.norm for e in solutions])
    top = 1.0 / max_margin(decoder_margins(TWO, best), Lp(p)).norm
    ratios = (top - reached) / far
    # solutions are certified to 1e-9 and ways are longer than 1e-3
    assert ratios.min() >= bound * (1 - 1e-6)
    assert ratios.min() < 10 * bound  # not a void bound


def test_nothing_is_proven_where_the_assumption_fails() -> None:
    # the third sequence has margin to spare
    assert margin_drop_bound(toy("joint_nonsupport").data, [1, 1, 1]) <= 0
    # tokens 0 and 0 have a larger label margin at p = 2
    assert margin_drop_bound(TWO, [1, 0]) <= 0
    with pytest.raises(InputError, match="no head separates"):
        margin_drop_bound(toy("joint").data, [0, 0, 0])
    many = AttentionData(np.tile([[1.0], [0.0]], (21, 1, 1)), np.ones(21), np.ones((21, 1)))
    with pytest.raises(InputError, match="more than 1000000 selections"):
        margin_drop_bound(many, np.zeros(21, dtype=int))
