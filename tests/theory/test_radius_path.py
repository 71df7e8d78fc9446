"""Regularisation paths against values of an independent program, and their gradients against
differences.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from attsvm.attention import Exponential, Linear, Logistic, Loss
from attsvm.base.errors import InputError
from attsvm.datasets import toy, unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import decoder_margins, optimal_tokens, selection_margins, token_scores
from attsvm.norms import Frobenius, Lp, Norm, Nuclear, PowerPotential, parse_norm
from attsvm.solvers import locally_optimal, max_margin
from attsvm.theory import Cone, regularization_path
from attsvm.theory.excess import Excess, Factors, Pair, Sphere
from attsvm.theory.radius_path import _search


def angles(path: object) -> np.ndarray:
    return np.degrees(np.arctan2(path.W[:, 1, 0], path.W[:, 0, 0]))


RADII = [10, 30, 100, 300, 1000]


def test_paths_of_factors_reach_the_nuclear_solution() -> None:
    data, v = toy("plane").data, toy("plane").head
    margins = selection_margins(data, optimal_tokens(data, v))
    path = regularization_path(data, v, radii=RADII, parameterization="KQ", starts=4)
    assert path.norm == Nuclear()
    np.testing.assert_allclose(Nuclear().value(path.W), RADII, rtol=1e-3)
    expected = [0.599, 0.126, 0.0348, 0.0113, 0.0032]
    np.testing.assert_allclose(path.distance(max_margin(margins, Nuclear())), expected, rtol=0.2)
    assert 1 - path.direction_gap(max_margin(margins))[-1] == pytest.approx(0.89, abs=3e-3)


def test_paths_in_another_norm_reach_its_solution() -> None:
    data, v = toy("plane").data, toy("plane").head
    solution = max_margin(selection_margins(data, optimal_tokens(data, v)), Lp(3))
    path = regularization_path(data, v, norm=Lp(3), radii=[30, 300], starts=3)
    np.testing.assert_allclose(Lp(3).value(path.W), [30, 300])
    distance = path.distance(solution)
    assert distance[1] < 0.02
    assert distance[0] / distance[1] == pytest.approx(10, rel=0.3)  # falls like 1 / R


@pytest.mark.parametrize("norm", ["maxrow", "spec", "rows"])
def test_paths_in_norms_with_kinks_reach_the_largest_margin(norm: str) -> None:
    data, v = unit_sphere(3, 4, 5, seed=6)
    margins = selection_margins(data, optimal_tokens(data, v))
    solution = max_margin(margins, norm)
    radii = [100 * solution.norm, 1000 * solution.norm]
    W = regularization_path(data, v, norm, radii, starts=3).W[-1]
    share = margins(W).min() * solution.norm / parse_norm(norm).value(W)
    assert 0.995 <= share <= 1 + 1e-9  # a thousand margins allow an offset of five


def test_local_paths_stay_with_the_local_token_while_the_cone_is_narrow() -> None:
    problem = toy("single_local")

    def local(degrees: float) -> tuple[np.ndarray, np.ndarray]:
        cone = Cone([1.0, 0.0], degrees)
        path = regularization_path(
            problem.lifted,
            problem.value_head,
            radii=[30, 100, 1000],
            parameterization="prompt",
            keys=problem.keys,
            cone=cone,
        )
        return angles(path), path.log_excess

    inside, excess = local(5.0)
    np.testing.assert_allclose(inside, [0.393, 0.0, 0.0], atol=1.5e-3)
    assert np.isfinite(excess).all()
    # wider than arctan 0.1: the loss at the boundary lies below that of the local token
    outside, excess = local(6.0)
    assert outside[-1] == pytest.approx(6.0, abs=1e-3)
    assert excess[-1] == -np.inf


@pytest.mark.parametrize("norm", [Lp(1.5), Lp(3), Nuclear()])
def test_local_paths_turn_to_the_local_solution_of_their_norm(norm: Norm) -> None:
    # Off the edge the weights are the solution and a finite offset, so the gap falls to 1/100 as
    # the size grows tenfold.
    data, v = unit_sphere(2, 3, 3, seed=0)
    solution = max_margin(selection_margins(data, [1, 2]), norm, tol=1e-10)
    assert locally_optimal(solution, token_scores(data, v)).all()
    assert (optimal_tokens(data, v) != [1, 2]).any()
    radii = [30 * solution.norm, 300 * solution.norm]
    path = regularization_path(
        data, v, norm, radii, "KQ" if norm == Nuclear() else "W", starts=2, cone=Cone(solution, 3.0)
    )
    # factors that balance bound the nuclear norm exactly
    np.testing.assert_allclose(norm.value(path.W), radii, rtol=1e-6)
    gaps = path.direction_gap(solution)
    assert gaps[0] < 0.02 * (1 - np.cos(np.radians(3.0)))  # far from the edge of the cone
    assert gaps[1] / gaps[0] == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("norm", [Frobenius(), Lp(3), Nuclear()])
def test_a_path_that_leaves_its_cone_lies_on_the_edge(norm: Norm) -> None:
    # Around no solution at all: the best direction of the cone is the one closest to the global
    # path.
    data, v = unit_sphere(2, 3, 4, seed=0)
    best = max_margin(selection_margins(data, optimal_tokens(data, v)), norm)
    axis = (
        best.W
        + 0.5 * np.linalg.norm(best.W) * np.random.default_rng(3).standard_normal(best.W.shape) / 4
    )
    path = regularization_path(
        data, v, norm, [100.0], "KQ" if norm == Nuclear() else "W", starts=2, cone=Cone(axis, 4.0)
    )
    angle = np.degrees(np.arccos(1.0 - path.direction_gap(axis)))
    np.testing.assert_allclose(angle, 4.0, atol=1e-4)
    inside = axis / np.linalg.norm(axis)
    assert path.direction_gap(best)[0] < float(
        1.0 - np.sum(inside * best.W) / np.linalg.norm(best.W)
    )


def test_joint_paths() -> None:
    support = toy("joint").data
    path = regularization_path(
        support,
        [0.0, 1.0],
        radii=[30, 30],
        head_radii=[30, 300],
        parameterization="joint",
        starts=4,
    )
    # At r = 300 what the prompt changes is e^-30 of the margins: only in log space does it have a
    # direction.
    np.testing.assert_allclose(angles(path), [13.43, 13.42], atol=0.01)
    np.testing.assert_allclose(
        np.degrees(np.arctan2(path.head[:, 1], path.head[:, 0])), [89.59, 89.96], atol=0.01
    )


@pytest.mark.parametrize("loss", [Logistic(), Exponential(), Linear()], ids=repr)
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0, 50_000.0])
@pytest.mark.parametrize("sharp", [0.3, 3.0, 30.0])
def test_excess_is_the_loss_above_its_infimum(loss: Loss, size: float, sharp: float) -> None:
    """Against sixty digits and differences of the value itself, from attention that is spread out
    to saturated, and where losses underflow.
    """
    data, v = unit_sphere(3, 4, 5, seed=1)
    tokens, m = optimal_tokens(data, v), mpmath.mpf
    W = sharp * np.random.default_rng(0).standard_normal((5, 5))
    excess = Excess(data, size * v, loss, None, False)
    value, sign, gradient = excess(W)
    assert sign == 1.0
    of: Any = {
        "Logistic()": lambda u: mpmath.log1p(mpmath.exp(-u)),
        "Exponential()": lambda u: mpmath.exp(-u),
        "Linear()": lambda u: -u,
    }[repr(loss)]
    with mpmath.workdps(60):
        total = m(0)
        for X, y, z, best in zip(data.tokens, data.labels, data.queries, tokens, strict=True):
            rows = [[mpmath.fdot(map(m, x), map(m, w)) for w in (W @ z, v)] for x in X]
            weights = [mpmath.exp(logit) for logit, _ in rows]
            scores = [m(size) * m(y) * score for _, score in rows]
            mean = mpmath.fdot(weights, scores) / mpmath.fsum(weights)
            total += of(mean) - of(scores[best])
        exact = float(mpmath.log(total / 3))
    # logits of up to a hundred, scores of up to 5e4, each to 1e-16
    assert value == pytest.approx(exact, rel=1e-9)
    step, direction = 1e-6, np.random.default_rng(1).standard_normal((5, 5))
    slope = (excess(W + step * direction)[0] - excess(W - step * direction)[0]) / (2 * step)
    assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-4)


def test_charts_pull_gradients_back() -> None:
    rng = np.random.default_rng(0)
    data = toy("joint").data
    charts = [
        Sphere((3, 2), Frobenius()),
        Sphere((3, 2), Lp(1.5)),
        Factors((3, 2), 2),
        Factors((3, 2), 2, Cone(np.ones((3, 2)), 20.0)),
        Sphere((3, 2), Frobenius(), Cone(np.ones((3, 2)), 20.0)),
    ]
    C = rng.standard_normal((3, 2))
    for chart in charts:
        x = chart.random(rng)
        d = rng.standard_normal(x.shape)
        _, back = chart.weights(x, 7.0)
        slope = (
            sum(sign * np.sum(C * chart.weights(x + sign * 1e-6 * d, 7.0)[0]) for sign in (1, -1))
            / 2e-6
        )
        assert back(C) @ d == pytest.approx(slope, rel=1e-6)
        if chart.slack is not None:
            values, gradients = chart.slack(x)
            assert (values > 0).all()  # a random point of a cone is inside, and of full size
            x = x + 0.1 * d  # off the largest size, where its slope is zero
            values, gradients = chart.slack(x)
            slope = (chart.slack(x + 1e-6 * d)[0] - chart.slack(x - 1e-6 * d)[0]) / 2e-6
            np.testing.assert_allclose(gradients @ d, slope, rtol=1e-6)
    other = unit_sphere(3, 4, 2, 1)[0]
    mask = np.arange(4) < np.array([[4], [2], [3]])
    other = AttentionData(other.tokens, other.labels, other.queries, mask)
    for pair in (Pair(data, None), Pair(other, None, Lp(1.75), prompt=False)):
        objective = pair.objective(3.0, 2.0)
        x, d = rng.standard_normal((2, pair.size))
        slope = (objective(x + 1e-6 * d)[0] - objective(x - 1e-6 * d)[0]) / 2e-6
        assert objective(x)[1] @ d == pytest.approx(slope, rel=1e-6)


def test_a_small_radius_is_searched_from_the_best_point_of_a_larger_one() -> None:
    """A double well whose deeper side no start leads to, beside one with that side only."""

    def well(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float((x[0] ** 2 - 1) ** 2 + 0.3 * x[0]), np.array(
            [4 * x[0] * (x[0] ** 2 - 1) + 0.3]
        )

    def bowl(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float((x[0] + 1) ** 2), np.array([2 * (x[0] + 1)])

    (first, second), values = _search([well, bowl], [np.array([0.9])])
    assert first[0] == pytest.approx(-1.036, abs=1e-3)
    assert second[0] == pytest.approx(-1.0, abs=1e-6)
    assert values[0, 0] == pytest.approx(well(first)[0])
    assert (np.diff(values, axis=1)[np.isfinite(values[:, 1:])] >= 0).all()


def test_a_head_and_W_grow_towards_the_pair_of_solutions_in_their_norm() -> None:
    """T5 of the third paper on its own toy: for p = 3 the label margin is largest at tokens 0 and
    0.
    """
    tokens = np.array(
        [[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]]
    )
    data = AttentionData(tokens, np.array([1.0, -1.0]), tokens[:, 0])
    W, v = (
        max_margin(selection_margins(data, [0, 0]), Lp(3)),
        max_margin(decoder_margins(data, [0, 0]), Lp(3)),
    )
    sizes, heads = [4.0 * W.norm, 24.0 * W.norm], [20.0 * v.norm, 5120.0 * v.norm]
    path = regularization_path(data, v.W[:, 0], Lp(3), sizes, "joint W", starts=2, head_radii=heads)
    assert path.head is not None
    np.testing.assert_allclose(Lp(3).value(path.W), sizes, rtol=1e-12)
    np.testing.assert_allclose(Lp(3).value(path.head[..., None]), heads, rtol=1e-12)
    gaps = PowerPotential(3).direction_divergence(np.stack([W.W, W.W]), path.W)
    assert gaps[1] < 0.5 * gaps[0]
    assert gaps[1] < 0.01  # asked of md-3b, too
    assert PowerPotential(3).direction_divergence(v.W, path.head[1][:, None]) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radii": [1.0, -2.0]}, "give positive finite numbers"),
        ({"parameterization": "Q"}, "parameterization is 'Q'"),
        ({"starts": -1}, "starts is -1"),
        (
            {"parameterization": "KQ", "norm": Lp(3)},
            "factors of bounded size bound the nuclear norm",
        ),
        ({"parameterization": "prompt", "norm": Lp(3)}, "those of the Frobenius norm"),
        (
            {"parameterization": "joint", "cone": Cone(np.ones((2, 2)), 5.0)},
            "a cone keeps weights under a fixed head",
        ),
        (
            {
                "parameterization": "KQ",
                "cone": Cone(np.eye(2), 5.0),
                "inner": 1,
                "starts": 0,
                "radii": [9],
            },
            "no product of so few columns",
        ),
        ({"keys": np.eye(2)}, "a key map belongs to a prompt"),
        ({"cone": Cone([1.0], 5.0)}, "a direction of 1 numbers"),
        ({"parameterization": "joint", "head_radii": [1.0]}, "head_radii has shape"),
        ({"loss": "hinge"}, "Logistic, Exponential or Linear"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    data, v = toy("plane").data, toy("plane").head
    with pytest.raises(InputError, match=message):
        regularization_path(data, v, **options)
    with pytest.raises(InputError, match="an opening of 90 degrees"):
        Cone([1.0], 90)
