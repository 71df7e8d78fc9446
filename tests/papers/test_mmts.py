"""The first paper's programmes and paths: their ends in closed form, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import max_margin, max_margin_batch, prompt_margins, relaxed_margins
from attsvm.datasets import toy
from attsvm_papers.kit import experiment
from attsvm_papers.mmts import e4_head_and_prompt as mmts_4
from attsvm_papers.mmts import joint, plain_descent, prompts
from attsvm_papers.tfsvm import nonlinear_paths

FAR, LR = 1e6, 1e4
ANGLES = np.linspace(0.0, 2.0 * np.pi, 8, endpoint=False) + 0.1
POINTS = FAR * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def test_head_and_prompt_reach_their_limits():
    chosen = experiment("mmts-4")
    parts = ("descent", "prompt_alone")
    cells = [cell for cell in chosen.cells(chosen.quick) if cell["part"] in parts]
    found = chosen.evidence(cells, [chosen.run(**cell) for cell in cells])
    claims = [claim for claim in chosen.claims if claim.id in ("E1.4b", "E1.4f", "N3")]
    assert [claim.check(found).verdict for claim in claims] == ["holds"] * 3


@pytest.mark.parametrize(
    ("name", "token"),
    [("single_global", 0), ("single_local", None), ("multiple_global", 0), ("losses", 1)],
)
def test_prompts_of_norm_a_million_go_on(name, token):
    problem = toy(name, C=10.0)
    course = prompts.train_prompts(problem, POINTS, 2000, LR)
    goes_on(course.W[..., 0], course)
    if token is not None:  # the steps are as long as 20 times the start
        best = max_margin(prompt_margins(problem.data, [token] * problem.data.n))
        assert (course.direction_gap(best)[-1] <= 0.01).all()


@pytest.mark.parametrize("name", ["joint", "joint_nonsupport"])
@pytest.mark.parametrize("point", POINTS[::2], ids=str)
def test_heads_and_prompts_of_norm_a_million_go_on(name, point):
    course = joint.train_pair(toy(name), point, point[::-1], LR, 1000, (1, 999))
    goes_on(course.W[..., 0], course)
    goes_on(course.head, course)


def goes_on(weights, course):
    """Every number is finite, and every single step has its length."""
    for numbers in (weights, course.loss, course.log_gradient_norm, course.softmax_probability):
        assert np.isfinite(numbers).all()
    length = np.linalg.norm(np.diff(weights, axis=0), axis=-1)[np.diff(course.steps) == 1]
    # rounding of weights of 1e7 is 2e-13 of a step of 1e4
    np.testing.assert_allclose(length, LR, rtol=1e-9)


def test_the_interpolating_programme_has_both_ends():
    data = toy("joint_nonsupport").data
    full, relaxed = max_margin_batch([prompt_margins(data, joint.TOKENS),
                                relaxed_margins(data, joint.TOKENS, [0, 1])])  # fmt: skip
    for kappa, best in ((1e-9, full), (1.0, relaxed), (50.0, relaxed)):
        limit = mmts_4.interpolated_prompt(data.tokens[:, 1], data.labels, kappa)
        assert limit == pytest.approx(best.W[:, 0] / best.norm, abs=1e-8)


def test_descent_on_the_key_map_is_descent_on_the_prompt():
    found = plain_descent.equivalence([0, 1], 100)
    assert found["equivalence_error"].max() < 1e-13
    assert found["equivalence_undivided"].min() > 0.01


def test_joint_paths_of_random_instances():
    found = joint.pairs(1.0, [0, 2])
    relaxes, supports = found["pair_supporting"] == 0, found["pair_supporting"] == 1
    assert relaxes.sum() == supports.sum() == 1
    assert found["pair_relaxed"].max() < 0.01
    assert found["pair_head"].max() < 0.01
    assert found["pair_full"][relaxes] > 0.1
    assert found["pair_nu"][supports] > 0


def test_under_hidden_units_the_path_takes_the_tokens_of_largest_output():
    found = nonlinear_paths.hidden_units(list(range(4)))
    told = np.isfinite(found["hidden_gap"])
    assert told.any()
    assert found["hidden_gap"][told].max() < 0.02


def test_the_gradient_of_the_log_excess():
    data = toy("plane").data
    scores = np.array([[1.0, 0.5, 0.2], [0.1, 0.4, 1.0]])

    def excess(s):
        return np.sum(s * (1.0 - scores) + s**2, axis=1), 1.0 - scores + 2.0 * s

    value = nonlinear_paths.log_mean_excess(data, excess)
    W, h = np.random.default_rng(0).standard_normal((2, 2)), 1e-6
    numeric = [
        [(value(W + h * E)[0] - value(W - h * E)[0]) / (2 * h) for E in row]
        for row in np.eye(4).reshape(2, 2, 2, 2)
    ]
    assert value(W)[1] == pytest.approx(np.array(numeric), abs=1e-8)


def test_growth_of_the_norm_is_in_units_of_the_step_that_was_chosen():
    figure = experiment("mmts-3")
    cells = figure.work(figure.at(values={"steps": "300", "lr": "0.05"}))
    evidence = figure.evidence(cells, [figure.run(**cell) for cell in cells])
    (growth,) = (claim.measure(evidence) for claim in figure.claims if claim.id == "E1.3l")
    assert growth[-1] == pytest.approx(1.0, abs=0.01)  # its direction has settled


@pytest.mark.parametrize("steps", [30, 100])
def test_a_run_shorter_than_the_published_one_is_judged_and_drawn(steps):
    figure = experiment("mmts-3")
    cells = figure.work(figure.at(values={"steps": str(steps)}))
    evidence = figure.evidence(cells, [figure.run(**cell) for cell in cells])
    verdicts = {claim.id: claim.check(evidence).verdict for claim in figure.claims}
    assert (verdicts["E1.3a"], verdicts["E1.3f"]) == ("holds", "not applicable")
    names = [picture.name for picture in figure.plot(evidence.with_nearest_steps())]
    assert names == ["trajectories", "without-kink"]
