"""Trainings of the experiments on real data: what they need and what they share."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from attsvm.base.errors import InputError, UnavailableError
from attsvm.claims import Evidence
from attsvm.cli import main
from attsvm.optim import MirrorDescent, lr_from_sgd
from attsvm_papers.kit import experiment
from attsvm_papers.md import e5_from_scratch as md_5
from attsvm_papers.md import e7_vision_transformer as md_7
from attsvm_papers.networks import trained_networks, training
from attsvm_papers.networks.examples import examples, network
from attsvm_papers.networks.published_data import VARIABLE, published
from attsvm_papers.networks.trained_networks import (
    DATA,
    FEW,
    METHODS,
    TUNING_SEED,
    Method,
    Networks,
    Study,
    cells,
    chosen_rate,
    device_of,
    run,
    then,
    widened_grids,
)
from attsvm_papers.networks.training import summed_loss

STUDIES = md_5.QUICK.studies + md_7.QUICK.studies
TEXTS, IMAGES = (study.task for study in STUDIES)


@pytest.fixture
def nothing(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def cells_of(task):
    return list(cells(Networks((Study(task, (Method("l2", (0.01,)),)),))))


@pytest.mark.parametrize("name", ["md-5", "md-7"])
def test_without_files_an_experiment_says_so_in_one_sentence(name, nothing) -> None:
    chosen = experiment(name)
    for parameters in (chosen.parameters, chosen.published):
        with pytest.raises(UnavailableError, match=r"^[^\n]*ATTSVM_DATA[^\n]*$"):
            list(chosen.cells(parameters))
    assert list(chosen.cells(chosen.quick)), "the smallest scale makes its own data"


def test_the_command_line_leaves_it_out_and_says_why(nothing, tmp_path, capsys) -> None:
    out = ["--out", str(tmp_path / "o"), "--json"]
    assert main(["reproduce", "md-7", *out]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out) == {"experiments": []}
    assert "md-7 is left out" in told.err
    assert not (tmp_path / "o").exists()
    assert main(["reproduce", "md-2", "--quick", *out, "--sizes", "3", "6"]) == 2
    assert "sizes do not apply to it" in capsys.readouterr().err


def test_what_a_machine_lacks_is_left_out_or_said(monkeypatch) -> None:
    found = importlib.util.find_spec

    def without(name, *others):
        return None if name == "tokenizers" else found(name, *others)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {cell["task"]["data"] for cell in cells(Networks(STUDIES))} == {IMAGES.data}
    with pytest.raises(UnavailableError, match="need the package tokenizers; install it with"):
        cells_of(TEXTS)
    with pytest.raises(UnavailableError, match="need a GPU"):
        cells_of(replace(IMAGES, accelerator=True))


def test_the_published_network_takes_a_step() -> None:
    task = md_5.published_study(3).task
    known = examples(replace(TEXTS, train=20))
    torch.manual_seed(0)
    model = network(task, replace(known, vocabulary=task.vocabulary))
    optimizer = MirrorDescent(model.parameters(), lr=md_5.PUBLISHED_LR[3][0], p=1.1)
    model.eval()  # dropout would make one loss differ from the next
    ids, labels, losses = torch.randint(5, task.vocabulary, (2, 12)), torch.tensor([0.0, 1.0]), []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(summed_loss(model(ids), labels))
        losses[-1].backward()
        optimizer.step()
    assert losses[1] < losses[0]


def test_the_published_table_is_one_command_and_its_smallest_networks_come_first(
    monkeypatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trained_networks, "digest_of_data", lambda data: "some files")
    # of the released code
    rates = {3: (8e-4, 4e-4, 4e-6), 4: (6e-4, 4e-4, 6e-6), 6: (1e-3, 1e-3, 1e-5)}
    chosen = experiment("md-5")
    whole = list(chosen.cells(chosen.at(scale="paper", sizes=(3, 4, 6), seeds=2)))
    found = [
        (cell["task"]["heads"], cell["method"]["name"], cell["method"]["lr"], cell["seed"])
        for cell in whole
    ]
    assert [cell for cell in found if cell[1].startswith("l")] == [
        (size, name, lr, seed)
        for size in rates
        for name, lr in zip(("l1.1", "l2", "l3"), rates[size], strict=True)
        for seed in (0, 1)
    ]
    assert len(found) == 3 * len(METHODS) * 2
    alone = list(chosen.cells(chosen.at(scale="paper", seeds=2)))
    assert alone == whole[: len(alone)], "so a later run goes on from it"
    assert {cell["task"]["depth"] for cell in alone} == {3}
    with pytest.raises(InputError, match=r"no network of 5 blocks .* choose sizes from: 3, 4, 6"):
        list(chosen.cells(chosen.at(scale="paper", sizes=(5,))))


@pytest.mark.parametrize(
    "study",
    [*md_5.SMALL.studies, *md_5.MEDIUM.studies, *md_7.SMALL.studies],
    ids=lambda study: f"{study.task.data}, {study.task.depth} blocks",
)
def test_every_optimiser_has_a_grid_of_the_same_size_and_mirror_descent_a_common_one(study) -> None:
    assert {len(method.lr) for method in study.methods} == {3}
    # mean modulus of weights that are uniform up to the root of the width
    typical = 0.5 * study.task.width**-0.5
    grids = {method.name: method.lr for method in study.methods}
    for name, p in (("l1.1", 1.1), ("l3", 3.0)):
        if {name, "l2"} <= set(grids):
            expected = [lr_from_sgd(lr, p, typical) for lr in grids["l2"]]
            assert grids[name] == pytest.approx(expected, rel=0.06)  # two digits


def tuned(rates: dict[float, list[float]], **columns) -> Evidence:
    """Short trainings of gradient descent on digits: rates and their validation accuracies."""
    course = np.full((len(rates), 4), np.nan)
    for row, values in zip(course, rates.values(), strict=True):
        row[: len(values)] = values
    known = {"tuning": 1, "method": METHODS.index("l2"), "data": DATA.index("digits")}
    known = {name: [value] * len(rates) for name, value in known.items()}
    known["epochs"] = [len(each) for each in rates.values()]
    return Evidence({**known, "lr": list(rates), "validation_accuracy": course, **columns})


def test_learning_rates_are_chosen_on_validation_at_the_end_and_used_by_every_seed() -> None:
    study = Study(IMAGES, (Method("l2", (0.01, 0.02, 0.04)), Method("adam", (0.1,))))
    networks = Networks((study,), seeds=2)
    assert asked(cells(networks)) == [
        *(("l2", lr, TUNING_SEED) for lr in (0.01, 0.02, 0.04)),
        *(("adam", 0.1, seed) for seed in (0, 1)),
    ]
    # the best epoch of the first rate comes before its end; the last two tie
    evidence = tuned({0.01: [0.9, 0.3], 0.02: [0.2, 0.8], 0.04: [0.5, 0.8], 0.1: [0.99]},
                     method=[1, 1, 1, 3], tuning=[1, 1, 1, 0])  # fmt: skip
    assert chosen_rate(evidence, "digits", "l2") == 0.02
    assert asked(then[-1](networks, evidence)) == [("l2", 0.02, seed) for seed in (0, 1)]


def asked(found):
    return [(cell["method"]["name"], cell["method"]["lr"], cell["seed"]) for cell in found]


@pytest.mark.parametrize(
    ("ends", "further"),
    [
        ([0.5, 0.6, 0.7], [0.08]),
        ([0.7, 0.6, 0.5], [0.005]),
        ([0.5, 0.6, 0.5], []),
        ([0.5, 0.6, 0.7, 0.8], [0.16]),
        ([0.5, 0.6, 0.7, 0.6], []),
    ],
)
def test_a_grid_goes_on_where_its_best_rate_is_at_its_end(ends, further) -> None:
    grid = (0.01, 0.02, 0.04)
    networks = Networks((Study(IMAGES, (Method("l2", grid),)),), seeds=2, widen=True)
    evidence = tuned({rate: [end] for rate, end in zip((*grid, 0.08), ends, strict=False)})
    found = asked(widened_grids(networks, evidence))
    assert found == [("l2", rate, TUNING_SEED) for rate in further]
    assert list(widened_grids(replace(networks, widen=False), evidence)) == []
    assert then[:-1] == (widened_grids,) * 3


def test_the_scale_medium_is_all_reviews() -> None:
    chosen = experiment("md-5")
    assert [chosen.scale(name) for name in (None, "small", "medium", "paper")] == [
        *("small", "small", "medium", "paper")
    ]
    (texts,) = chosen.at(scale="medium").studies
    assert (texts.task.train, texts.task.test, texts.task.accelerator) == (0, 0, False)


def test_rows_with_times_are_made_on_a_gpu_where_there_is_one(monkeypatch) -> None:
    texts = experiment("md-5").at(scale="medium").studies[0].task
    for there, places in ((True, ("cuda", "cpu")), (False, ("cpu", "cpu"))):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert (device_of(texts), device_of(TEXTS)) == places


def test_examples_are_the_asked_ones_and_keep_their_labels() -> None:
    for task in (TEXTS, IMAGES):
        known = examples(task)
        parts = (known.train, known.validation, known.test)
        assert [len(part) for part in parts] == [task.train, task.validation, task.test]
    digits = published("digits")
    for part, images, labels in (
        (known.train, digits.train, digits.train_labels),
        (known.test, digits.test, digits.test_labels),
    ):
        (found,) = np.nonzero((images[..., 0] == part.inputs[0, 0].numpy()).all(axis=(1, 2)))
        assert labels[found[0]] == part.labels[0]
    known = examples(TEXTS)
    places = [place for place in known.opinion_positions if place is not None]
    assert 2 * len(places) > len(known.opinion_positions)
    for ids, place in zip(known.sentences, known.opinion_positions, strict=True):
        assert ids[0] == known.train.inputs[0, 0], "[CLS] comes first"
        assert place is None or 0 < place < len(ids) - 1


def test_a_row_holds_what_the_experiments_read_and_tuning_is_tested_on_few_examples(
    monkeypatch,
) -> None:
    seen, plain = {}, training.train_network

    def watched(model, examples, held, plan):
        seen[plan.seed] = len(held["test"])
        return plain(model, examples, held, plan)

    monkeypatch.setattr(training, "train_network", watched)
    changes = {"test": FEW + 10, "epochs": 2, "tuning_epochs": 1}
    task = next(iter(cells(md_5.QUICK)))["task"] | changes
    method = {"name": "adam", "lr": 5e-3, "rest_lr": None}
    row = run({**task, "timed": True}, method, seed=0, digest="")
    tuning = run(task, method, seed=TUNING_SEED, digest="")
    assert "elapsed" not in tuning
    assert seen == {0: FEW + 10, TUNING_SEED: FEW}
    assert (tuning["tuning"], tuning["epochs"], row["epochs"]) == ([True], [1], [2])
    assert all(len(column) == 1 for column in row.values())
    for course in (row["test_accuracy"], row["elapsed"]):
        assert np.isfinite(course[0, :2]).all()
        assert np.isnan(course[0, 2:]).all()
    assert 0 < row["elapsed"][0, 0] < row["elapsed"][0, 1] < 100
    # the last epoch's accuracy is the mean of what is kept for the intervals
    assert row["right_sentences"].shape == (1, FEW + 10)
    assert row["right_sentences"].mean() == pytest.approx(row["test_accuracy"][0, 1], abs=1e-12)
