"""Planted courses: the exponent, the step at which tau is reached, and which of two growths."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from attsvm.transformers.growth import (
    GrowthOptions,
    HeadGrowth,
    HeadMetrics,
    LogitRecord,
    steps_to_next_measurement,
)
from attsvm.transformers.guard import in_trouble

STEPS = range(0, 1000, 50)


def grown(
    size: Callable[[float], float],
    turned: Callable[[int], float] = lambda t: 0.0,
    steps: range = STEPS,
    norm: Callable[[float], float] | None = None,
) -> HeadGrowth:
    track = HeadGrowth("planted")
    for t in steps:
        track.records.append(LogitRecord(t, size(t), 1.0, 1.0, (norm or size)(t), turned(t)))
    return track


def told(tau: float, *course, **more) -> HeadMetrics:
    return grown(*course, **more).metrics(0, 0, tau)


@pytest.mark.parametrize("exponent", [0.2, 0.5, 1.0, 3.0])
def test_a_power_of_the_step_is_found_exactly_and_extrapolated(exponent: float) -> None:
    found = told(2.0 * 1500.0**exponent, lambda t: 2.0 * t**exponent + 1e-300)
    assert found.exponent == pytest.approx(exponent, rel=1e-9)
    assert found.steps_to_tau == pytest.approx(1500 - STEPS[-1], rel=1e-6)
    assert found.state == "saturating"


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_exponential_growth_is_announced_within_a_quarter_near_tau(rate: float) -> None:
    """A power through the window is slower than an exponential, so that steps are overestimated,
    by what the window's middle lies behind its end."""
    found = told(math.exp(rate * 1450), lambda t: math.exp(rate * t), steps=range(1000, 1400, 50))
    assert 100 <= found.steps_to_tau <= 125


def test_noise_about_a_level_is_quiet() -> None:
    """Late in training a window spans 7 % of the steps, so that noise of 3 % has slopes of one."""
    found = []
    for seed in range(40):
        noise = 30 + np.random.default_rng(seed).normal(size=8)
        course = lambda t, noise=noise: noise[(t - 5000) // 50]  # noqa: E731
        found.append(told(100.0, course, lambda t: 0.1, steps=range(5000, 5400, 50)))
    assert max(each.exponent for each in found) > 1
    assert sum(each.state != "quiet" for each in found) <= 6
    assert min(each.steps_to_tau for each in found if each.state == "quiet") == math.inf


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("fixed", "saturating"),
        ("converging", "saturating"),
        ("rotating", "turning"),
        ("random", "turning"),
    ],
)
def test_the_two_growths(kind: str, wanted: str) -> None:
    """Weights of known growth: ``t`` times a direction that is fixed, that converges like ``1/t``,
    that rotates at a constant rate, or that is new at every record; logits proportional to the
    norm."""
    rng = np.random.default_rng(1)
    one, two = np.linalg.qr(rng.normal(size=(36, 2)))[0].T
    ways = []
    for t in STEPS:
        angle = {"fixed": 0.3, "converging": 20.0 / (t + 50), "rotating": t / 200}.get(kind)
        way = rng.normal(size=36) if angle is None else np.cos(angle) * one + np.sin(angle) * two
        ways.append(way / np.linalg.norm(way))
    turned = [math.nan, *(1 - a @ b for a, b in itertools.pairwise(ways))]
    found = told(1e6, lambda t: t + 1.0, lambda t: turned[t // 50])
    assert found.state == wanted
    assert found.exponent == pytest.approx(1.0, abs=0.01)


def test_an_unstable_head_is_in_trouble_from_a_quarter_of_tau_on_within_the_horizon() -> None:
    tau, size = 4000.0, lambda t: 2.0 * t + 1e-300
    head = told(tau, size, lambda t: 0.5)
    assert (head.state, head.pace) == ("unstable", pytest.approx(2.0, rel=0.1))
    assert head.steps_to_tau == pytest.approx(2000 - 950)
    assert in_trouble(head, tau, 1051)
    assert not in_trouble(head, tau, 1049)
    assert not in_trouble(head, 4 * 1901.0, 1051)
    for harmless in ({"pace": 1.4}, {"state": "saturating"}, {"state": "turning"}):
        assert not in_trouble(dataclasses.replace(head, **harmless), tau, 1051)


@pytest.mark.parametrize("every", [10, 50])
def test_turning_does_not_depend_on_how_often_it_is_measured(every: int) -> None:
    """A spiral turns by a fixed angle while it grows e-fold; a record may lack its angle."""
    steps = range(1000, 1000 + GrowthOptions().window * every, every)
    turned = {t: 1 - math.cos(math.log(t / (t - every))) for t in steps}
    assert told(1e9, float, turned.get, steps=steps).turning == pytest.approx(1.0, rel=1e-2)
    turned[steps[3]] = math.nan
    assert told(1e9, float, turned.get, steps=steps).turning == pytest.approx(1.0, rel=0.05)


def test_the_pace_is_what_growth_of_the_weights_adds_to_a_logit_in_a_step() -> None:
    """Logits of 200 that jump up and down, over weights that grow by 1 % in every ten steps; and
    without weights, what the exponent says."""
    jumps = lambda t: 200.0 + 50.0 * (-1) ** (t // 10)  # noqa: E731
    found = told(100.0, jumps, steps=range(0, 100, 10), norm=lambda t: 1.01 ** (t / 10))
    assert found.pace == pytest.approx(150.0 * math.log(1.01) / 10)
    found = told(1e9, lambda t: 0.3 * t + 1e-300, norm=lambda t: math.nan)
    assert found.pace == pytest.approx(0.3)


def test_what_is_not_known_is_not_called_settled() -> None:
    rising = lambda t: t + 1.0  # noqa: E731
    unknown = told(1e9, rising, lambda t: math.nan)
    assert math.isnan(unknown.turning)
    assert unknown.state == "turning"
    unread = told(2000.0, lambda t: t + 1e-300, lambda t: math.nan, norm=lambda t: math.nan)
    assert unread.state == "unread"
    assert in_trouble(dataclasses.replace(unread, pace=2.0), 2000.0, 1051)
    young = told(1e9, rising, steps=range(0, 101, 50))
    assert math.isnan(young.exponent)
    assert told(1e9, float, steps=range(0, 151, 50)).exponent == pytest.approx(1.0)
    assert young.state == "quiet"
    assert math.isnan(told(1e9, rising, steps=range(1)).pace)
    lost = told(1e9, lambda t: math.nan if t == 950 else t + 1.0)
    assert lost.steps_to_tau == 0
    falling = told(100.0, lambda t: 1e3 / (t + 1), lambda t: 0.1)
    assert (falling.state, falling.steps_to_tau) == ("quiet", math.inf)
    assert falling.exponent < 0


@pytest.mark.parametrize(
    ("largest", "doubles", "steps"),
    [
        (40.0, 500.0, 50),  # slow
        (40.0, 30.0, 30),  # doubled before the usual time
        (40.0, 4.0, 10),  # a fifth is the least
        (12.5 / 2, 15.0, 30),  # two doublings to a quarter of tau
        (40.0, -30.0, 50),  # falls
    ],
)
def test_fast_growth_is_measured_sooner(largest: float, doubles: float, steps: int) -> None:
    size = lambda t: largest * 2.0 ** ((t - 100) / doubles)  # noqa: E731
    head = grown(size, steps=range(80, 120, 20))
    still = grown(lambda t: largest, steps=range(80, 120, 20))
    assert steps_to_next_measurement([still, head], 100.0, 50) == steps
    assert steps_to_next_measurement([grown(size, steps=range(1)), still], 100.0, 50) == 10
    assert steps_to_next_measurement([head, still], 100.0, 1) == 1


@pytest.mark.parametrize("broken", [math.nan, math.inf, -3.0, 0.0])
def test_logits_that_are_not_numbers_are_measured_as_usual(broken: float) -> None:
    for course in ((1.0, broken), (broken, 1.0)):
        head = grown(lambda t, course=course: course[t // 10], steps=range(0, 20, 10))
        assert steps_to_next_measurement([head], 100.0, 50) == 50
