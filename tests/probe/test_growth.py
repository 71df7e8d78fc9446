"""Planted courses: the exponent, the step at which tau is reached, and which of two growths."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from attsvm.probe.growth import KEPT, Growth, Record, wait

STEPS = range(0, 1000, 50)


def grown(
    size: Callable[[float], float], turned: Callable[[int], float], steps: range = STEPS
) -> Growth:
    track = Growth("planted")
    for t in steps:
        track.records.append(Record(t, size(t), 1.0, 1.0, size(t), turned(t)))
    return track


@pytest.mark.parametrize("exponent", [0.2, 0.5, 1.0, 3.0])
def test_a_power_of_the_step_is_found_exactly_and_extrapolated(exponent: float) -> None:
    tau = 2.0 * 1500.0**exponent
    found = grown(lambda t: 2.0 * t**exponent + 1e-300, lambda t: 0.0).metrics(0, 0, tau)
    assert found.exponent == pytest.approx(exponent, rel=1e-9)
    assert found.steps_to_tau == pytest.approx(1500 - STEPS[-1], rel=1e-6)
    assert found.state == "saturating"


@pytest.mark.parametrize("rate", [1e-3, 3e-3, 1e-2])
def test_exponential_growth_is_announced_within_a_quarter_near_tau(rate: float) -> None:
    """A power through the window is slower than an exponential, so that steps are overestimated,
    by what the window's middle lies behind its end."""
    steps = range(1000, 1400, 50)
    size = lambda t: math.exp(rate * t)  # noqa: E731
    tau = size(steps[-1] + 100)
    found = grown(size, lambda t: 0.0, steps).metrics(0, 0, tau)
    assert 100 <= found.steps_to_tau <= 125


def test_noise_about_a_level_is_quiet() -> None:
    """Late in training a window spans 7 % of the steps, so that noise of 3 % has slopes of one."""
    found = []
    for seed in range(40):
        noise = iter(np.random.default_rng(seed).normal(size=16))
        track = grown(lambda t, noise=noise: 30 + next(noise), lambda t: 0.1, range(5000, 5400, 50))
        found.append(track.metrics(0, 0, 100.0))
    assert max(each.exponent for each in found) > 1
    assert sum(each.state != "quiet" for each in found) <= 6
    assert min(each.steps_to_tau for each in found if each.state == "quiet") == math.inf


def test_falling_logits_are_quiet() -> None:
    falling = grown(lambda t: 1e3 / (t + 1), lambda t: 0.1).metrics(0, 0, 100.0)
    assert falling.state == "quiet"
    assert falling.exponent < 0
    assert falling.steps_to_tau == math.inf


def planted(kind: str, d: int = 6) -> Growth:
    """Weights of known growth: ``t`` times a direction that is fixed, that converges like ``1/t``,
    that rotates at a constant rate, or that is new at every record; logits proportional to the
    norm."""
    rng = np.random.default_rng(1)
    one, two = np.linalg.qr(rng.normal(size=(d * d, 2)))[0].T
    track, last = Growth("planted"), None
    for t in STEPS:
        angle = {"fixed": 0.3, "converging": 20.0 / (t + 50), "rotating": t / 200}.get(kind)
        way = rng.normal(size=d * d) if angle is None else np.cos(angle) * one + np.sin(angle) * two
        W = (t + 1) * way / np.linalg.norm(way)
        turned = math.nan
        if last is not None:
            turned = 1 - W @ last / np.linalg.norm(W) / np.linalg.norm(last)
        last = W
        track.records.append(Record(t, float(np.linalg.norm(W)), 1, 1, 1, turned))
    return track


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("fixed", "saturating"),
        ("converging", "saturating"),
        ("rotating", "unstable"),
        ("random", "unstable"),
    ],
)
def test_the_two_growths(kind: str, wanted: str) -> None:
    found = planted(kind).metrics(0, 0, tau=1e6)
    assert found.state == wanted
    assert found.exponent == pytest.approx(1.0, abs=0.01)


def test_turning_does_not_depend_on_how_often_it_is_measured() -> None:
    """A spiral turns by a fixed angle while it grows e-fold."""
    found = []
    for every in (10, 50):
        track = Growth("planted")
        steps = range(1000, 1000 + KEPT * every, every)
        for t in steps:
            angle = math.log(t / (t - every))
            track.records.append(Record(t, float(t), 1, 1, 1, 1 - math.cos(angle)))
        found.append(track.metrics(0, 0, 1e9).turning)
    assert found == pytest.approx([1.0, 1.0], rel=1e-2)


def test_the_pace_is_what_growth_of_the_weights_adds_to_a_logit_in_a_step() -> None:
    """Logits of 200 that jump up and down, over weights that grow by 1 % in every ten steps."""
    track = Growth("planted")
    for t in range(0, 100, 10):
        track.records.append(Record(t, 200.0 + 50.0 * (-1) ** (t // 10), 1, 1, 1.01 ** (t / 10), 0))
    assert track.metrics(0, 0, 100.0).pace == pytest.approx(150.0 * math.log(1.01) / 10)


def test_without_weights_the_pace_is_that_of_the_exponent() -> None:
    track = Growth("planted")
    for t in STEPS:
        track.records.append(Record(t, 0.3 * t + 1e-300, 1, 1, math.nan, math.nan))
    assert track.metrics(0, 0, 1e9).pace == pytest.approx(0.3)
    young = grown(lambda t: t + 1.0, lambda t: 0.0, range(1)).metrics(0, 0, 1e9)
    assert math.isnan(young.pace)


def test_what_is_not_known_is_not_called_settled() -> None:
    unknown = grown(lambda t: t + 1.0, lambda t: math.nan).metrics(0, 0, 1e9)
    assert math.isnan(unknown.turning)
    assert unknown.state == "unstable"
    young = grown(lambda t: t + 1.0, lambda t: 0.0, range(0, 101, 50)).metrics(0, 0, 1e9)
    assert math.isnan(young.exponent)
    assert young.state == "quiet"
    lost = grown(lambda t: math.nan if t == 950 else t + 1.0, lambda t: 0.0).metrics(0, 0, 1e9)
    assert lost.steps_to_tau == 0


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
    head = grown(size, lambda t: 0.0, range(80, 120, 20))
    still = grown(lambda t: largest, lambda t: 0.0, range(80, 120, 20))
    assert wait([still, head], 100.0, 50) == steps
    assert wait([grown(size, lambda t: 0.0, range(1)), still], 100.0, 50) == 10
    assert wait([head, still], 100.0, 1) == 1


def test_logits_that_are_not_numbers_are_measured_as_usual() -> None:
    for broken in (math.nan, math.inf, -3.0, 0.0):
        for first, second in ((1.0, broken), (broken, 1.0)):
            head = grown(
                lambda t, a=first, b=second: b if t else a, lambda t: 0.0, range(0, 20, 10)
            )
            assert wait([head], 100.0, 50) == 50
