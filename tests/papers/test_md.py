"""Mirror descent as published and exact, and the measures of its experiments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm.datasets import unit_sphere
from attsvm.margins import token_scores
from attsvm.norms import Lp, PowerPotential
from attsvm.optim import MirrorDescent
from attsvm_papers.md import e1d_rates as md_1d
from attsvm_papers.md import e3_joint_training as md_3
from attsvm_papers.md import e3b_joint_path as md_3b
from attsvm_papers.md import mirror_runs, narrow_cones
from attsvm_papers.md.published import EPSILON, published_descent


@pytest.mark.parametrize("p", [1.75, 2.0, 3.0])
@pytest.mark.parametrize("joint", [False, True])
def test_the_published_descent_is_torch_on_a_plain_softmax(p: float, joint: bool) -> None:
    data, heads = unit_sphere(6, 8, 10, [1, 2])
    start = np.random.default_rng(0).standard_normal((2, 10, 10))
    W, v = (torch.nn.Parameter(torch.tensor(value)) for value in (start, heads[..., None]))
    optimizer = MirrorDescent([W, v] if joint else [W], lr=0.1, p=p, normalize=True, eps=EPSILON)
    x, z, y = (torch.tensor(value) for value in (data.tokens, data.queries, data.labels))
    for _ in range(60):
        optimizer.zero_grad()
        logits = (x @ (z @ W.mT)[..., None])[..., 0]
        values = ((torch.softmax(logits, dim=-1)[..., None, :] @ x)[..., 0, :] @ v)[..., 0]
        torch.nn.functional.softplus(-y * values).mean(dim=-1).sum().backward()
        optimizer.step()
    weights, found = published_descent(data, heads, start, p, 0.1, [0, 60], joint=joint)
    np.testing.assert_array_equal(weights[0], start)
    # Margins are of order ten, so nothing cancels yet; sixty steps multiply roundings by a few
    # hundred.
    np.testing.assert_allclose(weights[1], W.detach(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found[1], v.detach()[..., 0], rtol=1e-9, atol=1e-11)


def test_solutions_are_solved_once_and_in_order() -> None:
    data, _ = mirror_runs.mirror_instances(range(1, 4))
    solve = mirror_runs.Solutions(data)
    first = solve(np.full((3, 6), 2), 3.0)
    mixed = np.full((3, 6), 2)
    mixed[1] = 5
    second = solve(mixed, 3.0)
    assert second[0] is first[0]
    assert second[2] is first[2]
    assert second[1] is not first[1]
    assert (second[1].margins.selected == 5).all()


def test_starts_lie_at_the_edge_of_the_cone() -> None:
    data, heads = mirror_runs.mirror_instances(range(1, 9))
    for p in (1.75, 3.0):
        solutions = narrow_cones.local_solutions(data, heads, p)
        scores = token_scores(data, heads)
        for run, solution in enumerate(solutions):
            W, size = narrow_cones.edge_of_cone(
                solution, scores[run], p, np.random.default_rng(run)
            )
            opening = float(PowerPotential(p).direction_divergence(solution.W, W))
            assert 0 < opening <= narrow_cones.OPENING * (1 + 1e-9)
            assert size**2 * opening >= narrow_cones.CLOSE**2 * (1 - 1e-9)
            assert Lp(p).value(W) == pytest.approx(solution.norm)
            assert narrow_cones.margin_beyond(solution, scores[run]) >= narrow_cones.APART
        far = 6.0 * np.stack([solution.W for solution in solutions])[None]
        assert (narrow_cones.least_ascent(scores, solutions, far) > 0).all()


def test_rates_at_e_to_the_e() -> None:
    step = np.exp([np.e, np.e**2])  # log log k is 1 and 2
    np.testing.assert_allclose(md_1d.theorem_rate(step, 1.5), np.exp([-0.5, -1.0]))
    np.testing.assert_allclose(md_1d.theorem_rate(step, 2.0), [1 / np.e, 4 / np.e**2])
    np.testing.assert_allclose(md_1d.theorem_rate(step, 3.0), [1 / np.e, 2 / np.e**2])


def test_the_joint_path_needs_the_assumption() -> None:
    """Three sequences in the plane leave no head that they all support: nothing is proven, and no
    path is held against a claim.
    """
    data, _ = unit_sphere(3, 3, 2, range(1, 4))
    found = md_3b.joint_path_of(data.instance(0), 2.0, 0)
    assert found["drop"] <= md_3b.PROVEN
    assert np.isnan(found["path_W"]).all()
    found = md_3b.joint_path_of(md_3.two_sequences(), 2.0, 0)
    assert found["drop"] > md_3b.PROVEN
    assert (np.diff(found["path_W"]) < 0).all()
