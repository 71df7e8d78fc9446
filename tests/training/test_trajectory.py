"""Directions, saturation, and arrays in and out."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.margins import selection_batch, selection_margins
from attsvm.norms import Lp
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.theory import regularization_path
from attsvm.training import Trajectory, direction_gap, train


@pytest.mark.parametrize("angle", [1.0, 1e-4, 1e-9, 1e-12])
def test_small_angles_keep_their_digits(angle: float) -> None:
    target = np.array([[3.0, 0.0]])
    W = 1e5 * np.array([[np.cos(angle), np.sin(angle)]])
    assert direction_gap(W, target) == pytest.approx(
        2 * np.sin(angle / 2) ** 2, rel=1e-3 if angle < 1e-11 else 1e-6, abs=0
    )


def test_gap_of_opposite_orthogonal_and_missing_directions() -> None:
    e, f = np.array([[1.0, 0.0]]), np.array([[0.0, 5.0]])
    assert direction_gap(e, -7 * e) == pytest.approx(2.0)
    assert direction_gap(e, f) == pytest.approx(1.0)
    assert direction_gap(0 * e, f) == 1.0
    assert direction_gap(e, 0 * f) == 1.0
    assert direction_gap(1e-200 * e, 1e200 * e) == 0.0


def test_one_target_or_one_per_run() -> None:
    data, v = unit_sphere(3, 4, 5, seed=[0, 1])
    model = Attention.cross(data, v)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=0.1), 300)
    solutions = [
        max_margin(selection_margins(data.instance(r), trajectory.selected[-1, r]))
        for r in range(2)
    ]
    gaps = trajectory.direction_gap(solutions)
    assert gaps.shape == trajectory.loss.shape
    batch = max_margin_batch(selection_batch(data, trajectory.selected[-1]))
    for target in (np.stack([s.W for s in solutions]), batch):  # sums in another order
        np.testing.assert_allclose(trajectory.direction_gap(target), gaps, rtol=1e-12)
    one = trajectory.direction_gap(solutions[1])[:, 1]
    np.testing.assert_allclose(one, gaps[:, 1], rtol=1e-12)
    assert (
        trajectory.saturated(0.6) == (trajectory.softmax_probability >= 0.6).mean(axis=-1)
    ).all()
    assert (gaps[0] == 1.0).all()
    assert (gaps[-1] < 0.1).all()
    with pytest.raises(InputError, match="the target has shape"):
        trajectory.direction_gap(np.ones((3, 5, 5)))
    with pytest.raises(InputError, match="give a solution or an array"):
        trajectory.direction_gap(np.ones(5))


def test_divergences_of_directions_are_those_of_the_potential() -> None:
    data, v = unit_sphere(3, 4, 5, seed=[0, 1])
    model = Attention.cross(data, v)
    trajectory = train(
        model, data, MirrorDescent(model.parameters(), lr=0.1, p=1.75, normalize=True), 400
    )
    programmes = [selection_margins(data.instance(r), trajectory.selected[-1, r]) for r in range(2)]
    own, other = (
        trajectory.direction_divergence(max_margin_batch(programmes, Lp(q)), 1.75)
        for q in (1.75, 3.0)
    )
    assert np.isnan(own[0]).all()  # zero weights have no direction
    assert (own[-1] < other[-1]).all()
    gap, one = (
        trajectory.direction_gap(max_margin_batch(programmes)),
        trajectory.direction_divergence(max_margin_batch(programmes), 2.0),
    )
    np.testing.assert_allclose(one[1:], gap[1:], rtol=1e-9, atol=1e-15)
    with pytest.raises(InputError, match="give one target"):
        trajectory.direction_divergence(np.ones((3, 3)), 2.0)


def test_arrays_round_trip() -> None:
    data, v = unit_sphere(3, 4, 5, seed=0)
    model = Attention.cross(data, v)
    trajectory = train(
        model,
        data,
        SteepestDescent(model.parameters(), lr=0.1),
        30,
        observe=lambda *_: {"one": 1.0},
    )
    again = Trajectory.from_arrays(trajectory.to_arrays())
    assert again.backend == trajectory.backend
    assert again.runs is None
    for name, value in trajectory.to_arrays().items():
        assert np.array_equal(value, again.to_arrays()[name])
    with pytest.raises(InputError, match="the trajectory has no loss"):
        Trajectory.from_arrays(
            {name: value for name, value in trajectory.to_arrays().items() if name != "loss"}
        )


def test_complex_numbers_are_refused_not_cut() -> None:
    data, head = unit_sphere(n=3, T=3, d=4, seed=0)
    wrong = 1j * np.ones((4, 4))
    for call, name in (
        (lambda: direction_gap(wrong, np.eye(4)), "W"),
        (lambda: direction_gap(np.eye(4), wrong), "target"),
        (lambda: regularization_path(data, 1j * head, radii=[1.0]), "head"),
        (lambda: regularization_path(data, head, radii=[1j]), "radii"),
        (lambda: Attention.prompt(data, head, keys=wrong), "keys"),
        (lambda: Attention.cross(data, head, penalty=1j), "penalty"),
    ):
        with pytest.raises(InputError, match=f"{name} has dtype complex128; give real numbers"):
            call()
