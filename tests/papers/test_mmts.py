"""Reference numbers of the first paper's toys, and the closed forms that its experiments hold them
against.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.datasets import toy
from attsvm_papers.kit import experiment
from attsvm_papers.mmts import e4_head_and_prompt as mmts_4
from attsvm_papers.mmts import e6_losses as mmts_6
from attsvm_papers.mmts import joint, plain_descent, single_precision
from attsvm_papers.tfsvm import nonlinear_paths


def evidence(identifier, *kinds):
    chosen = experiment(identifier)
    cells = [cell for cell in chosen.cells(chosen.quick) if cell["part"] in kinds]
    return chosen.evidence(cells, [chosen.run(**cell) for cell in cells])


def verdicts(identifier, found, names):
    return {
        claim.id: claim.check(found) for claim in experiment(identifier).claims if claim.id in names
    }


def test_every_start_reaches_the_optimal_token():
    found = evidence("mmts-1", "descent").where(toy="single_global")
    assert (found["selected"] == 0).all()
    assert found.at("gap_best", 100_000).max() <= 1e-7
    assert found.at("prompt", 1000)[:, 0] == pytest.approx([-12.17] * 6, abs=0.005)


def test_two_limits():
    found = evidence("mmts-1", "descent").where(toy="single_local")
    assert found["selected"][:, 0].tolist() == [0, 0, 0, 0, 1, 1]
    assert found.at("prompt", 1000)[5] == pytest.approx([99.97, -0.81], abs=0.006)


def test_single_precision_kinks_and_log_space_does_not():
    found = evidence("mmts-3", "descent", "published")
    published = found.where(part="published")["published_norm"][0]
    exact = found.where(part="descent")["norm"][2]
    assert published[100] == pytest.approx(exact[100], abs=1e-3)
    assert exact[199] == pytest.approx(19.79, abs=0.005)
    assert published[199] < exact[199] - 0.2
    assert single_precision.kink(exact[:200])[0] == 0


def test_joint_training():
    names = {"E1.4b", "E1.4f", "N3"}
    found = verdicts("mmts-4", evidence("mmts-4", "descent", "prompt_alone"), names)
    assert {
        name: str(verdict) for name, verdict in found.items() if verdict.verdict != "holds"
    } == {}


def test_single_precision_loses_the_local_limit():
    problem = toy("single_local")
    prompts = single_precision.published_prompts(problem, problem.starts["p"][4:], 400, 0.1)
    selected = (prompts @ problem.data.tokens[0].T).argmax(axis=-1)
    assert (selected[:, 100] == 1).all()
    assert (selected[:, -1] == 0).all()


def test_the_interpolating_programme_has_both_ends():
    problem = toy("joint_nonsupport")
    tokens, labels = problem.data.tokens[:, 1], problem.data.labels
    full = np.array([1.25, 0.25]) / np.linalg.norm([1.25, 0.25])
    assert mmts_4.interpolated(tokens, labels, 1e-9) == pytest.approx(full, abs=1e-8)
    for kappa in (1.0, 50.0):
        assert mmts_4.interpolated(tokens, labels, kappa) == pytest.approx([1.0, 0.0], abs=1e-8)


def test_offsets_are_stationary_points_of_the_two_exponents():
    # Along (R, o) the gradient of the mean loss vanishes to first order: C |l'(C)| e^-o = |l'(1)|
    # e^o.
    C = np.array([2.0, 7.0])
    slopes = {
        "linear": np.ones_like,
        "exponential": lambda u: np.exp(-u),
        "logistic": lambda u: 1.0 / (1.0 + np.exp(u)),
    }
    for loss, slope in slopes.items():
        o = mmts_6.offset(loss, C)
        assert C * slope(C) * np.exp(-o) == pytest.approx(slope(np.ones(2)) * np.exp(o), rel=1e-12)


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

    value = nonlinear_paths.log_excess(data, excess)
    W, h = np.random.default_rng(0).standard_normal((2, 2)), 1e-6
    numeric = [
        [(value(W + h * E)[0] - value(W - h * E)[0]) / (2 * h) for E in row]
        for row in np.eye(4).reshape(2, 2, 2, 2)
    ]
    assert value(W)[1] == pytest.approx(np.array(numeric), abs=1e-8)
