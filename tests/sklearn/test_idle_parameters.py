"""What a fit does not read, it says: measured, parameter by parameter, in every way to fit."""

from __future__ import annotations

import pickle
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from attsvm.data import AttentionData
from attsvm.dynamics import Trajectory
from attsvm.sklearn import AttentionSVC

RNG = np.random.default_rng(0)
LABELS = np.array([0, 1] * 12)
BAGS = [RNG.standard_normal((3, 3)) for _ in LABELS]
for _bag, _label in zip(BAGS, LABELS, strict=True):
    _bag[0] += 2.0 * _label

WAYS: dict[str, dict[str, Any]] = {
    "joint": {},
    "penalty": {"penalty": 0.01},
    "no heads": {"penalty": 0.01, "heads": 0},
    "two heads": {"penalty": 0.01, "heads": 2},
    "standard": {"assumption": "standard", "penalty": 0.01},
    "joint, explained": {"explain": True},
    "penalty, explained": {"penalty": 0.01, "explain": True},
    "standard, explained": {"assumption": "standard", "penalty": 0.01, "explain": True},
}
OTHERS: dict[str, Any] = {
    "norm": "lp:3",
    "query": "first",
    "reject": 0.4,
    "joint_steps": 4,
    "joint_lr": 5.0,
    "head_lr": 0.02,
    "selection_steps": 150,
    "lr": 0.02,
    "validation_size": 0.4,
    "slack": 0.1,
    "tol": 1e-2,
    "solve_seconds": 500.0,
    "records": 5,
    "random_state": 3,
    "checkpoint": "kept",
    "checkpoint_seconds": 1.0,
}
# read only where bags are hard to separate, or time is short
BY_CHANCE = {"slack", "tol", "solve_seconds", "checkpoint_seconds"}


# what repeats parameters, or is judged by its values
ECHOES = ("norm_", "query_", "unit_", "predictor_")


def result(model: AttentionSVC) -> dict[str, bytes]:
    """Everything fitted, without what only repeats a parameter or holds the time."""
    found = {}
    for name, value in vars(model).items():
        if not name.endswith("_") or name.startswith("_") or name in ECHOES:
            continue
        if isinstance(value, Trajectory):
            value = {key: each for key, each in value.to_arrays().items() if key != "seconds"}
        if name == "solution_":
            value = value.W, value.status
        if name == "weights_":  # zeros of another width are no other weights
            value = value.W[value.W != 0.0], value.head, value.intercept
        found[name] = pickle.dumps(value)
    found["values"] = model.decision_function(BAGS).tobytes()
    found["selected"] = model.select(BAGS).tobytes()
    return found


def fitted(options: dict[str, Any]) -> tuple[dict[str, bytes], str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = AttentionSVC(**options).fit(BAGS, LABELS)
    return result(model), " ".join(str(each.message) for each in told)


@cache
def plain(way: str) -> tuple[dict[str, bytes], str]:
    short = {"selection_steps": 100} if way in ("joint, explained", "penalty, explained") else {}
    return fitted(WAYS[way] | short)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_is_read_or_said_to_have_no_effect(
    way: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, told = plain(way)
    assert told == ""
    short = {"selection_steps": 100} if way in ("joint, explained", "penalty, explained") else {}
    after, told = fitted(WAYS[way] | short | {name: OTHERS[name]})
    changed = {key for key in before if before[key] != after[key]} | set(tmp_path.glob("kept/*"))
    idle = f"{name} without effect" in told
    assert (told == "") != idle
    assert not (idle and changed)
    if name not in BY_CHANCE:
        assert idle != bool(changed)


def test_all_parameters_of_the_estimator_are_here() -> None:
    always = {"assumption", "pooling", "heads", "penalty", "class_weight", "explain"}
    always |= {"merge_duplicates", "progress"}
    assert set(AttentionSVC().get_params()) == always | set(OTHERS)


def test_one_sentence_names_all_of_them() -> None:
    model = AttentionSVC(penalty=0.01, joint_lr=5.0, head_lr=0.5, tol=1e-3, lr=0.1)
    with pytest.warns(UserWarning, match=r"joint_lr, head_lr without.*tol without.*lr without"):
        model.fit(BAGS, LABELS)


def test_what_the_data_decide() -> None:
    three = np.arange(24) % 3
    with pytest.warns(UserWarning, match="joint_lr without effect"):
        AttentionSVC(joint_lr=0.2, penalty=None).fit(BAGS, three)
    with pytest.warns(UserWarning, match="joint_lr without effect"):
        AttentionSVC(joint_lr=0.2).fit(BAGS, LABELS, sample_weight=1.0 + LABELS)
    data = AttentionData(np.stack(BAGS), 2.0 * LABELS - 1.0, np.ones((24, 1)))
    with pytest.warns(UserWarning, match="query without effect"):
        AttentionSVC(query="mean", penalty=0.01).fit(data)


def test_searches_over_parameters_that_are_read_are_quiet() -> None:
    search = GridSearchCV(AttentionSVC(penalty=0.01, norm="fro"), {"penalty": [0.01, 0.1]}, cv=2)
    search.fit(BAGS, LABELS)
    assert search.best_params_["penalty"] in (0.01, 0.1)
