"""Tasks in which somebody knows the deciding instances: training bags, test bags, and what each
method makes of them.
"""

from __future__ import annotations

import itertools
import json
import lzma
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from known import image_bags, mixed_reviews, sentences
from shared import Array, FitFolds, Model, reduced, selected
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from slides import SIZES, slides

from attsvm import datasets
from attsvm.datasets.bag_generators import TESTS, WITNESSES
from attsvm.datasets.bags import Bags, as_bags
from attsvm_papers.networks.published_data import published

SEEDS = (10_000, 10_001, 10_002)
TASKS = ("assumption", "witnesses", "slides", "images", "texts")
VECTORS = 128  # of a sentence


@dataclass(frozen=True)
class Task:
    """Bags to fit and bags to judge by.

    Attributes:
        name: what the table prints.
        train, test: bags with labels and instance labels.
        text: accuracy of TF-IDF with logistic regression on the whole texts, None without texts.
        agree: ``(N,)`` of the test: whether an instance is of its own bag's class; None where the
            instance labels say it.
    """

    name: str
    train: Bags
    test: Bags
    text: float | None = None
    agree: Array | None = None


def run(
    folder: Path,
    data: Path,
    what: str,
    tasks: list[str],
    fits: dict[str, FitFolds],
    say: Callable[[str], None],
    until: float,
) -> None:
    """One file ``folder/what/task-seed/method.json`` for each."""
    for seed in SEEDS:
        for name in tasks:
            home = folder / what / f"{name.replace('/', '-')}-{seed}"
            paths = {method: home / f"{method.replace('/', '-')}.json" for method in fits}
            if all(path.exists() for path in paths.values()) or time.monotonic() > until:
                continue
            task = make(what, name, seed, data)
            home.mkdir(parents=True, exist_ok=True)
            for method, path in paths.items():
                if path.exists() or time.monotonic() > until:
                    continue
                start = time.process_time()
                y, everything = task.train.labels, np.arange(task.train.n)
                model = next(fits[method](task.train, y, [everything], seed))
                seconds = time.process_time() - start
                grades = grade(model, task) | {"cpu_seconds": seconds, "choice": model.choice}
                path.write_text(json.dumps(grades), encoding="utf-8")
                say(f"{what} {name} {seed} {method}: {grades}")


def names(what: str) -> list[str]:
    """The tasks of one kind."""
    if what == "assumption":
        return list(TESTS)
    if what == "witnesses":
        return [f"{kind}/{k}" for kind, k in itertools.product(WITNESSES, (10, 50))]
    if what == "slides":
        return list(SIZES)
    return ["10", "50", "200"] if what == "images" else ["mixed", "imdb"]


def make(what: str, name: str, seed: int, data: Path) -> Task:
    """The bags of a task."""
    if what == "assumption":
        return Task(
            name,
            datasets.assumption_test(name, 400, "train", seed),
            datasets.assumption_test(name, 1000, "test", seed),
        )
    if what == "witnesses":
        kind, instances = name.split("/")
        bags = datasets.planted_witnesses(kind, 400, int(instances), seed)
        return Task(name, bags.take(np.arange(200)), bags.take(np.arange(200, 400)))
    if what == "slides":
        n, patches, d = SIZES[name]
        test = slides(100, patches, d, seed + 1000)
        return Task(name, slides(n, patches, d, seed), test)
    if what == "images":
        images = published("mnist")
        train, test = (
            image_bags(images, 500, int(name), seed, part=part) for part in ("train", "test")
        )
        train, test = (
            replace(bags, rows=gradients(np.asarray(bags.rows))) for bags in (train, test)
        )
        return Task(f"{name} digits", train, test)
    return _mixed(seed, data) if name == "mixed" else _imdb(seed, data)


def gradients(pixels: Array, side: int = 28, cell: int = 7, orientations: int = 6) -> Array:
    """``(N, orientations * (side / cell)^2)``: how much each cell of an image changes in each
    orientation. Nothing in it is learned, and no label is used.

    Source: the histograms of Dalal and Triggs (2005), without their normalisation of blocks.
    """
    parts = []
    for some in np.array_split(pixels.reshape(-1, side, side), 1 + len(pixels) // 2000):
        down, across = np.gradient(some, axis=(1, 2))
        squared = np.maximum(down * down + across * across, 1e-12)
        cells = []
        for turn in 2 * np.pi * np.arange(orientations) / orientations:
            along = np.maximum(np.cos(turn) * across + np.sin(turn) * down, 0.0)
            change = along * along * along / squared
            shape = len(some), side // cell, cell, side // cell, cell
            cells.append(change.reshape(shape).sum(axis=(2, 4)))
        parts.append(np.sqrt(np.stack(cells, axis=-1)).reshape(len(some), -1))
    return np.concatenate(parts)


def _read(path: Path) -> tuple[list[str], Array]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row["text"] for row in rows], np.array([row["label"] for row in rows])


def _vectors(train: list[str], test: list[str], seed: int) -> tuple[Array, Array]:
    """Latent semantic vectors of sentences, learned from the training part."""
    tfidf = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    svd = TruncatedSVD(VECTORS, random_state=seed)
    first = svd.fit_transform(tfidf.fit_transform(train))
    return first, svd.transform(tfidf.transform(test))


def _whole(train: list[str], y: Array, test: list[str], labels: Array) -> float:
    """Accuracy of the baseline that reads whole texts."""
    tfidf = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    machine = LogisticRegression(C=10.0, max_iter=1000).fit(tfidf.fit_transform(train), y)
    return float(machine.score(tfidf.transform(test), labels))


def _mixed(seed: int, data: Path) -> Task:
    """Reviews of eight sentences of rt-polarity, six of which share the review's polarity; training
    and test reviews are of different sentences.
    """
    texts, polarity = _read(data / "rt-polarity" / "rt-polarity.jsonl.xz")
    order = np.random.default_rng(seed).permutation(len(texts))
    parts = order[: len(order) // 2], order[len(order) // 2 :]
    vectors = _vectors(*([texts[i] for i in part] for part in parts), seed)
    made = [
        mixed_reviews(rows, polarity[part], 1000, seed)
        for rows, part in zip(vectors, parts, strict=True)
    ]
    joined = [
        [
            " ".join(texts[part[row]] for row in bags.source[start:stop])
            for start, stop in itertools.pairwise(bags.offsets)
        ]
        for bags, part in zip(made, parts, strict=True)
    ]
    whole = _whole(joined[0], made[0].labels, joined[1], made[1].labels)
    agree = made[1].instance_labels == (made[1].labels > 0)[made[1].bag]
    return Task("mixed reviews (rt-polarity)", *made, text=whole, agree=agree)


def _imdb(seed: int, data: Path) -> Task:
    """Reviews of IMDb. The polarity of a sentence is what a classifier says that was trained on the
    sentences of rt-polarity, so no method has seen it.
    """
    rng, parts = np.random.default_rng(seed), []
    for part in ("train", "test"):
        texts, labels = _read(data / "imdb" / f"{part}.jsonl.xz")
        chosen = rng.choice(len(texts), size=1500, replace=False)
        parts.append(([texts[i] for i in chosen], np.where(labels[chosen] > 0, 1.0, -1.0)))
    pieces = [sentences(texts) for texts, _ in parts]
    vectors = _vectors(pieces[0][0], pieces[1][0], seed)
    made = [
        replace(as_bags(rows, groups), labels=labels)
        for rows, (_, groups), (_, labels) in zip(vectors, pieces, parts, strict=True)
    ]
    known, polarity = _read(data / "rt-polarity" / "rt-polarity.jsonl.xz")
    tfidf = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    judge = LogisticRegression(C=10.0, max_iter=1000).fit(tfidf.fit_transform(known), polarity)
    said = judge.predict(tfidf.transform(pieces[1][0])) > 0
    agree = said == (made[1].labels > 0)[made[1].bag]
    return Task("IMDb", *made, text=_whole(*parts[0], *parts[1]), agree=agree)


def grade(model: Model, task: Task) -> dict[str, Any]:
    """Everything that the tables print of one fit."""
    test = task.test
    values, positive = model.values(test), test.labels > 0
    answer = {
        "train_auc": roc_auc_score(task.train.labels, model.values(task.train)),
        "auc": roc_auc_score(test.labels, values),
        "accuracy": np.mean((values > 0) == positive),
        "text": task.text,
    }
    rows = selected(model, test)
    if rows is None:
        return {key: None if value is None else float(value) for key, value in answer.items()}
    if task.agree is None:
        witness = test.instance_labels == 1
        scores = model.instances(test)
        answer["precision"] = np.mean(witness[rows][positive])
        inside = positive[test.bag]
        answer["instance_auc"] = roc_auc_score(witness[inside], scores[inside])
        answer["chance"] = np.mean((reduced(np.add, witness, test) / test.lengths)[positive])
    else:
        answer["precision"] = np.mean(task.agree[rows])
        answer["chance"] = np.mean(reduced(np.add, task.agree, test) / test.lengths)
    answer |= evidence(model, test, rows, values)
    return {key: None if value is None else float(value) for key, value in answer.items()}


def evidence(model: Model, test: Bags, rows: Array, values: Array) -> dict[str, float]:
    """Sufficiency: the share of bags that are classified the same by the selected instance alone.
    Necessity: the share of bags called positive that are called negative without it.
    """
    alone = Bags(test.rows[rows], np.arange(test.n + 1), None, rows)
    same = (model.values(alone) > 0) == (values > 0)
    several = np.flatnonzero((test.lengths > 1) & (values > 0))
    kept = np.ones(len(test.rows), dtype=bool)
    kept[rows] = False
    lengths = reduced(np.add, kept, test)
    rest = np.flatnonzero(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[rest])])
    left = Bags(test.rows[kept], offsets, None, np.flatnonzero(kept))
    changed = np.zeros(test.n, dtype=bool)
    changed[rest] = model.values(left) <= 0
    necessity = float(changed[several].mean()) if len(several) else float("nan")
    return {"sufficiency": float(same.mean()), "necessity": necessity}


def answers(folder: Path, what: str, name: str, method: str) -> Iterator[dict[str, Any]]:
    """The files of one method, over the seeds."""
    for seed in SEEDS:
        path = (
            folder / what / f"{name.replace('/', '-')}-{seed}" / f"{method.replace('/', '-')}.json"
        )
        if path.exists():
            yield json.loads(path.read_text(encoding="utf-8"))
