"""Run folders made by hand, with the numbers of a plausible run: digits with patches, reviews with
words, plain arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attsvm.report
from attsvm.report import figures, style

REVIEWS = [
    ('the acting is awful and the plot makes no sense , but the music is pleasant', 3, 15, -1),
    ('a warm , funny and deeply felt film that never once talks down to its audience', 3, 7, 1),
    ('i wanted to like it . i could not . the pacing is dreadful from the first scene', 13, 11, -1),
    ('wonderful performances all around', 0, 1, 1),
    ('an unforgettable portrait of a city and of two people who cannot leave it', 1, 2, 1),
    ('dull', 0, None, -1),
    ('הסרט הזה פשוט נפלא והמוזיקה מצוינת', 3, 5, 1),
    ('a mess , though a handsome one : 50 % style , 50 % "substance" & <b>no</b> heart', 1, 5, -1),
    ('its best joke comes before the titles and after that it is a long way to the exit', 1, 2, -1),
    ('charming', 0, None, 1),
    ('the script is clever , the leads are lovely , and the ending earns its tears', 4, 8, 1),
    ('tedious beyond belief', 0, 1, -1),
]  # fmt: skip
"""Text, selected token, rival, label."""
GROUPS = ("support", "confident", "wrong", "typical")


def record(kind: str, n_train: int, seed: int) -> dict[str, Any]:
    names = {"image": ["even", "odd"], "text": ["negative", "positive"], "array": ["−1", "+1"]}[
        kind
    ]
    title = {
        "image": "Handwritten digits: odd or even",
        "text": "Movie reviews: good or bad",
        "array": "A planted instance",
    }[kind]
    accuracy = [
        ("soft", "Soft attention", 0.9904, 0.972, 0.9667, None, "the lowest validation loss"),
        ("soft_final", "Soft attention, end of training", 0.9936, 0.968, 0.9639, None, "the end"),
        ("hard", "Hard selection", 0.9936, 0.968, 0.9639, None, "the selected token alone"),
        ("mean_pooling", "Mean pooling", 0.902, 0.892, 0.8861, None, "the mean of the tokens"),
        ("random_token", "Random token", 0.641, 0.63, 0.6278, 0.021, "a token drawn at random"),
        ("majority", "Majority class", 0.503, 0.5, 0.4972, None, "always the more frequent class"),
    ]  # fmt: skip
    claims = [
        ("F1", "Attention selects one token in 95 % of the sequences", 0.992, 0.95, "holds", ""),
        ("F2", "The weights converge in direction (gap below 0.05)", 2.96e-3, 0.05, "holds", ""),
        ("F3", "The direction gap is still falling", None, None, "holds", "0.0031 before"),
        ("F4", "The selected tokens are locally optimal", 0.97, 1.0, "fails", "not in 3 sequences"),
        ("F5", "No separation exists", None, None, "not applicable", "the tokens are separable"),
    ]  # fmt: skip
    columns = ("name", "title", "train", "validation", "test", "std", "what")
    fields = ("id", "statement", "measured", "threshold", "verdict", "reason")
    return {
        "format": "attsvm-run/1",
        "attsvm": "0.1.0",
        "command": "fit",
        "dataset": {
            "name": kind,
            "title": title,
            "kind": kind,
            "source": f"{kind}.npz",
            "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "class_names": names,
            "n_train": n_train,
            "n_validation": 180,
            "n_test": 360,
            "tokens": {"min": 1, "median": 9, "max": 16},
            "d_x": 16,
            "d_z": 16,
            "notes": (
                [
                    "Each image is cut into patches of 4 by 4 pixels, two pixels apart; the query"
                    " is their mean."
                ]
                if kind == "image"
                else []
            ),
        },
        "parameters": {
            "seed": seed,
            "test_size": 0.2,
            "validation_size": 0.1,
            "lr": 0.1,
            "steps": 100_000,
            "joint_steps": 2000,
            "records": 60,
            "tol": 1e-9,
            "slack": None,
            "saturation": 0.99,
        },
        "environment": {
            "python": "3.12.3",
            "numpy": "2.4.6",
            "torch": "2.13.0",
            "platform": "Linux x86_64",
            "cpu_count": 2,
            "threads": 2,
        },
        "results": {
            "selection": {
                "sequences": n_train - 3,
                "saturated": n_train - 4,
                "threshold": 0.99,
                "mean_probability": 0.9991,
                "min_probability": 0.8712,
                "optimal": n_train - 9,
                "optimal_ties": 0,
                "single_token": 3,
                "locally_optimal": True,
                "locally_optimal_sequences": n_train - 3,
            },
            "margin": {
                "status": "optimal",
                "hard": True,
                "slack": None,
                "norm": 75.9,
                "margin": 1 / 75.9,
                "gap": 3.2e-11,
                "violation": 4.1e-13,
                "tol": 1e-9,
                "constraints": 8 * n_train,
                "support_constraints": 94,
                "support_sequences": 71,
                "solver": "active-set",
                "iterations": 212,
                "message": "",
                "trained_norm": 412.7,
                "trained_min_margin": 5.06,
                "trained_margin": 5.06 / 412.7,
                "trained_margin_ratio": 5.06 / 412.7 * 75.9,
            },
            "direction": {
                "cosine": 1 - 2.96e-3,
                "gap": 2.96e-3,
                "angle_degrees": 4.41,
                "certified_angle_degrees": 4.6e-4,
                "first_gap": 0.71,
                "falling": True,
            },
            "accuracy": [dict(zip(columns, row, strict=True)) for row in accuracy],
            "training": {
                "joint_steps": 2000,
                "best_joint_step": 640,
                "steps": 100_000,
                "seconds_per_step": 0.00082,
            },
        },
        "claims": [dict(zip(fields, row, strict=True)) for row in claims],
        "verdict": {
            "headline": (
                "Attention selects one token in 99.8 % of the sequences, and its weights point 4.4°"
                " from the max-margin direction."
            ),
            "holds": True,
            "sentences": [
                "Hard selection keeps 96.4 % of the test sequences right, as many as soft attention"
                " and 7.8 points more than mean pooling."
            ],
        },
        "timing": {"load": 0.21, "joint": 3.9, "selection": 82.0, "margin": 7.4, "evaluate": 0.31},
    }


def arrays(run: dict[str, Any], records: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    n, m = run["dataset"]["n_train"], run["results"]["margin"]["constraints"]
    step = np.unique(np.round(np.geomspace(1, 100_000, records)).astype(np.int64))
    step = np.concatenate([[0], step]) if records > 1 else np.array([100_000])
    t = step + 1.0
    support = min(94, m)
    dual = np.zeros(m)
    dual[rng.choice(m, support, replace=False)] = rng.exponential(60, support)
    sequence = np.repeat(np.arange(n), m // n)
    selected = rng.integers(0, 9, n)
    token = np.tile(np.arange(m // n), n)
    token += token >= selected[sequence]
    best = (1 + rng.gamma(1.2, 0.9, n)) / 75.9
    best[:71] = 1 / 75.9
    trained = best * (0.93 + 0.1 * rng.random(n)) - 0.0003
    trained[5] = -0.001
    trained[-3:] = best[-3:] = np.inf
    pattern = np.outer(np.hanning(6)[1:-1], [1, 0.2, -0.4, -1]).ravel()
    W = np.outer(pattern, rng.normal(size=16)) + 0.15 * rng.normal(size=(16, 16))
    order = np.argsort(-dual)[:support]
    joint = np.arange(0, 2001, 20)
    validation = 0.12 + 0.57 * np.exp(-joint / 130) + 3e-5 * np.maximum(joint - 640, 0)
    return {
        "W": 60 * W,
        "head": rng.normal(size=16),
        "intercept": np.array(0.1),
        "W_soft": W,
        "head_soft": rng.normal(size=16),
        "intercept_soft": np.array(0.1),
        "W_margin": 60 * W + 3 * rng.normal(size=(16, 16)),
        "dual": dual,
        "margin_values": np.where(dual > 0, 1.0, 1 + rng.gamma(2, 2, m)),
        "constraint_sequence": sequence,
        "constraint_token": token,
        "selected": selected,
        "optimal": selected,
        "probability": np.clip(1 - rng.exponential(0.001, n), 0, 1),
        "trained_margins": trained,
        "best_margins": best,
        "support_tokens": np.stack([sequence[order], token[order]], axis=1),
        "train": 2 * np.arange(n),
        "validation": 2 * np.arange(180) + 1,
        "test": np.arange(2 * n, 2 * n + 360),
        "trajectory_step": step,
        "trajectory_loss": 0.021 + 0.35 / (1 + t / 40),
        "trajectory_norm": 1.2 * t**0.5 + 3,
        "trajectory_direction_gap": 0.71 / (1 + t / 60) ** 0.74,
        "trajectory_probability": 1 - 0.62 / (1 + t / 200),
        "trajectory_saturated": 0.992 / (1 + (900 / t) ** 2),
        "trajectory_optimal": 0.93 + 0.02 * (t / t.max()) ** 0.2,
        "joint_step": joint,
        "joint_loss": 0.04 + 0.65 * np.exp(-joint / 150),
        "joint_validation_loss": validation,
        "joint_validation_accuracy": 1 - validation / 2,
    }


def examples(
    run: dict[str, Any], data: dict[str, np.ndarray], count: int, seed: int
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    sequences = data["support_tokens"][:, 0]
    out = []
    for k in range(count):
        group = GROUPS[k * len(GROUPS) // count]
        part = "train" if group in ("support", "typical") else "test"
        sequence = int(sequences[k % len(sequences)]) if part == "train" else int(rng.integers(360))
        selected = int(data["selected"][sequence]) if part == "train" else int(rng.integers(9))
        label, rival = int(rng.choice([-1, 1])), (selected + 4) % 9
        if run["dataset"]["kind"] == "image":
            view, tokens = image_view(k), 9
        elif run["dataset"]["kind"] == "text":
            text, selected, rival, label = REVIEWS[k % len(REVIEWS)]
            if k == 13:
                text = " ".join([text] * 60)
            view, tokens = text_view(text)
            selected = min(selected, tokens - 1)
        else:
            view, tokens = (
                ({"kind": "array", "labels": [f"token {t}" for t in range(12)]} if k % 2 else None),
                12,
            )
        logits = rng.normal(0, 1, tokens)
        logits[selected] += 2 + 6 * rng.random()
        probability = np.exp(logits - logits.max())
        probability /= probability.sum()
        out.append(
            {
                "part": part,
                "sequence": (
                    int(data["train"][sequence]) if part == "train" else int(data["test"][sequence])
                ),
                "label": label,
                "predicted": -label if group == "wrong" else label,
                "value": float(rng.normal()),
                "group": group,
                "selected": selected,
                "probability": probability.tolist(),
                "score": rng.normal(size=tokens).tolist(),
                "margin": (
                    None
                    if rival is None or part == "test"
                    else float(data["best_margins"][sequence])
                ),
                "rival": rival,
                "view": view,
            }
        )
    return out


def image_view(k: int) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    boxes = [[row, column, 4, 4] for row in (0, 2, 4) for column in (0, 2, 4)]
    return {"kind": "image", "pixels": load_digits().images[k].tolist(), "boxes": boxes}


def text_view(text: str) -> tuple[dict[str, Any], int]:
    places: dict[str, list[list[int]]] = {}
    start = 0
    for word in text.split(" "):
        places.setdefault(word, []).append([start, start + len(word)])
        start += len(word) + 1
    return {"kind": "text", "text": text, "spans": list(places.values())}, len(places)


def build(
    folder: Path,
    kind: str,
    change: (
        Callable[[dict[str, Any], dict[str, np.ndarray], list[dict[str, Any]]], None] | None
    ) = None,
    count: int = 40,
    records: int = 60,
    seed: int = 0,
) -> Path:
    """Write a run folder; ``change`` may edit record, arrays and examples in place before they are
    written.
    """
    run = record(kind, 500, seed)
    data = arrays(run, records, seed)
    shown = examples(run, data, count, seed)
    if change is not None:
        change(run, data, shown)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(array) for name, array in data.items()},
        folder / "arrays.safetensors",
    )
    (folder / "examples.json").write_text(json.dumps(shown), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(kind: str = "text", above: Path = tmp_path, **options: Any) -> Path:
        return build(above / kind, kind, **options)

    return make


@pytest.fixture(scope="package", autouse=True)
def every_figure(quick_pictures: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FIGURES", quick_pictures.figures)
        yield


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, quick_pictures: Any) -> Callable[[str], Path]:
    """The plain run folder of a kind with its report, laid out as for readers; written once, not to
    be changed.
    """

    @cache
    def get(kind: str) -> Path:
        folder = build(tmp_path_factory.mktemp("written") / kind, kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(style, "_lay_out", quick_pictures.lay_out)
            attsvm.report.write(folder)
        return folder

    return get


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a page's words."""
    monkeypatch.setattr("attsvm.report.page.draw", lambda run: {})
