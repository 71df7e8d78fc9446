"""The papers' toy points: the literals of the released code, and that their solutions solve."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets import toy
from attsvm.datasets.toys import TITLES
from attsvm.margins import selection_margins


@pytest.mark.parametrize("name", TITLES)
def test_every_toy_has_its_title_and_fits_together(name):
    problem = toy(name)
    data = problem.data
    assert problem.title == TITLES[name]
    assert data.batch_shape == ()
    assert problem.scores is None or problem.scores.shape == (data.n, data.T)
    for kind, start in problem.starts.items():
        assert start.shape[1:] == ((data.d_x, data.d_z) if kind == "W" else (data.d_x,))
    if problem.head is not None:
        assert np.array_equal(problem.scores, data.labels[:, None] * (data.tokens @ problem.head))


def test_the_literal_points():
    for name, third in (("single_global", 0.9), ("single_local", 0.0)):
        problem = toy(name)
        assert problem.data.tokens.tolist() == [[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]]
        assert problem.data.queries.tolist() == [[1.0]]
        assert problem.scores.tolist() == [[1.0, 0.9, third]]
        assert problem.starts["p"].tolist() == [[0.0, y] for y in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)]
    problem = toy("multiple_global")
    assert problem.scores.tolist() == [[1.0, *[0.5] * 6]] * 3
    problem = toy("losses", C=5.0)
    assert problem.data.tokens.tolist() == [[[0, 0], [1, 1]], [[0, 0], [1, -1]]]
    assert problem.scores.tolist() == [[0, 5.0], [0, 1]]
    for name, last, margins in (("joint", 1.0, [1, 1, 1]), ("joint_nonsupport", 1.5, [1, 1, 1.5])):
        problem = toy(name)
        assert problem.data.labels.tolist() == [1, -1, 1]
        keys = [[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, last]]]
        assert problem.data.tokens.tolist() == keys
        assert problem.starts["p"].tolist() == [[0, -1]]
        assert problem.starts["v"].tolist() == [[-1, 0]]
        values = problem.data.labels * (problem.data.tokens[:, 1] @ problem.reference["v"])
        assert values.tolist() == margins
    assert toy("joint_nonsupport").reference["p_relaxed"].tolist() == [1, 0]


def test_the_random_points_are_those_of_pytorch():
    import torch

    def unit(generator, *shape):
        vectors = torch.randn(*shape, generator=generator)
        return vectors / torch.linalg.norm(vectors, dim=-1, keepdim=True)

    g = torch.Generator().manual_seed(0)
    shifts = torch.tensor([[1.0, 0.0]] + [[-1.0, 1.0]] * 3 + [[-0.5, -0.5]] * 3)
    keys = (0.2 * torch.randn(3, 7, 3, generator=g))[..., :2] + shifts
    # to the last digit of float32: the logarithm and cosine behind randn are the processor's
    assert np.allclose(toy("multiple_global").data.tokens, keys.numpy(), rtol=2e-7, atol=2e-8)
    for name, seed, T, scale in (("plane", 1, 3, 0.3), ("plane_margins", 3, 5, 0.5)):
        g = torch.Generator().manual_seed(seed)
        head, X, Z = unit(g, 2), scale * torch.randn(2, T, 2, generator=g), unit(g, 2, 2)
        if name == "plane":
            X += torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])
        else:
            X[:, 1:] += torch.tensor([-1.0, 0.0])
            X[:, 0] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
        problem = toy(name)
        for ours, theirs in (
            (problem.head, head),
            (problem.data.tokens, X),
            (problem.data.queries, Z),
        ):
            assert np.allclose(ours, theirs.numpy(), rtol=2e-7, atol=2e-8)


@pytest.mark.parametrize(
    ("name", "selected", "solutions"),
    [
        ("single_global", [0], ["p"]),
        ("single_local", [0], ["p"]),
        ("multiple_global", [0, 0, 0], ["p"]),
        ("joint", [1, 1, 1], ["p"]),
        ("losses", [1, 1], ["p"]),
        ("plane", [0, 2], ["W", "W_nuclear"]),
        ("plane_margins", [0, 0], ["W", "W_nuclear"]),
    ],
)
def test_solutions_are_feasible_and_tight(name, selected, solutions):
    problem = toy(name)
    assert problem.scores is None or problem.scores.argmax(axis=1).tolist() == selected
    margins = selection_margins(problem.data, selected)
    for solution in solutions:
        W = problem.reference[solution].reshape(problem.data.d_x, problem.data.d_z)
        assert margins(W).min() == pytest.approx(1.0, abs=5e-4)


def test_an_unknown_toy():
    with pytest.raises(
        InputError, match="there is no toy 'triple'; choose one of single_global, single_local"
    ):
        toy("triple")


def test_toys_answer_to_their_experiments_and_lift_their_scores() -> None:
    assert toy("mmts-1").name == "single_global"
    assert toy("tfsvm-1").name == "plane"
    assert toy("tfsvm-1").lifted is None
    assert toy("joint").lifted is None
    problem = toy("mmts-3")
    assert (problem.lifted.tokens @ problem.keys.T == problem.data.tokens).all()
    assert (
        problem.lifted.labels[:, None] * (problem.lifted.tokens @ problem.value_head)
        == problem.scores
    ).all()
