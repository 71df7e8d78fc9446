"""Numerics of the first paper's toys: from starts near and far no run stalls, and all is finite."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import Trajectory, max_margin, prompt_margins, relaxed_margins
from attsvm.datasets import toy
from attsvm.dynamics import direction_gap
from attsvm_papers.mmts.joint import TOKENS, train_pair
from attsvm_papers.mmts.prompts import descend, marks

PROMPTS = {"single_global": 0, "single_local": None, "multiple_global": 0, "losses": 1}
"""Toys with a fixed head, and the token that every start ends at."""
PAIRS = ("joint", "joint_nonsupport")
LR, STEPS = 0.1, 100_000
FAR, FAR_LR = 1e6, 1e4
COUNT = 8
ANGLES = np.linspace(0.0, 2.0 * np.pi, COUNT, endpoint=False) + 0.1
POINTS = FAR * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def problem(name):
    return toy(name, C=10.0)


def steps_of(weights, steps):
    """Lengths of the single steps among the records of one parameter ``(records, runs, ...)``."""
    length = np.linalg.norm(np.diff(weights, axis=0), axis=-1)
    return length[np.diff(steps) == 1]


def assert_sound(course: Trajectory, lr: float) -> None:
    """Every number is finite and every single step has its length."""
    trained = [course.head] if len(course.head) == len(course.steps) else []
    parts = [course.W[..., 0], *trained]
    for numbers in (*parts, course.loss, course.log_gradient_norm, course.softmax_probability):
        assert np.isfinite(numbers).all()
    for weights in parts:
        # rounding of prompts of norm 1e4 is 2e-11 of a step of 0.1, as that of 1e7 of one of 1e4
        np.testing.assert_allclose(steps_of(weights, course.steps), lr, rtol=1e-9)


def solution(name):
    of, token = problem(name).data, PROMPTS.get(name, 1)
    if name == "joint_nonsupport":
        return max_margin(relaxed_margins(of, TOKENS, [0, 1]))
    return max_margin(prompt_margins(of, [token] * of.n))


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_goes_on_for_a_hundred_thousand_steps(name):
    course = descend(problem(name), problem(name).starts["p"], STEPS, LR)
    assert_sound(course, LR)
    late, early = (course.steps.tolist().index(k) for k in (STEPS, STEPS // 10))
    gaps = np.stack(
        [
            course.direction_gap(max_margin(prompt_margins(problem(name).data, tokens)).W)
            for tokens in np.unique(course.selected[-1], axis=0)
        ]
    ).min(axis=0)
    # the angle falls as 1/k, so the gap to a hundredth; twice that for a logarithm
    assert (gaps[late] <= 0.02 * gaps[early]).all()


@pytest.mark.parametrize("name", PAIRS)
def test_head_and_prompt_go_on_for_a_hundred_thousand_steps(name):
    of = problem(name)
    course = train_pair(of, of.starts["p"][0], of.starts["v"][0], LR, STEPS, marks(STEPS))
    assert_sound(course, LR)
    late, early = (course.steps.tolist().index(k) for k in (STEPS, STEPS // 10))
    for gaps in (
        course.direction_gap(solution(name)),
        direction_gap(course.head[..., None], np.array([[0.0], [1.0]])),
    ):
        assert (gaps[late] <= 0.02 * gaps[early]).all()


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_of_norm_a_million_are_harmless(name):
    course = descend(problem(name), POINTS, 2000, FAR_LR)
    assert_sound(course, FAR_LR)
    if PROMPTS[name] is not None:  # the steps are as long as 20 times the start
        assert (course.direction_gap(solution(name))[-1] <= 0.01).all()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("point", POINTS[::2], ids=str)
def test_heads_and_prompts_of_norm_a_million_are_harmless(name, point):
    course = train_pair(problem(name), point, point[::-1], FAR_LR, 1000, (1, 999))
    assert_sound(course, FAR_LR)
