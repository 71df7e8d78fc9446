"""Trainings of the experiments on real data: what they need and what they share."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from attsvm.claims import Evidence
from attsvm.cli import main
from attsvm.errors import InputError, UnavailableError
from attsvm.optim import MirrorDescent, lr_from_sgd
from attsvm_papers.kit import experiment
from attsvm_papers.md import e5_from_scratch as md_5
from attsvm_papers.md import e7_vision_transformer as md_7
from attsvm_papers.networks import trained_networks, training
from attsvm_papers.networks.examples import examples, network
from attsvm_papers.networks.published_data import VARIABLE
from attsvm_papers.networks.trained_networks import (
    DATA,
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
    widened,
)

STUDIES = md_5.QUICK.studies + md_7.QUICK.studies
TEXTS, IMAGES = (study.task for study in STUDIES)


@pytest.fixture
def nothing(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("name", ["md-5", "md-7"])
def test_without_files_an_experiment_says_so_in_one_sentence(name, nothing) -> None:
    chosen = experiment(name)
    for parameters in (chosen.parameters, chosen.published):
        with pytest.raises(UnavailableError, match="ATTSVM_DATA") as caught:
            list(chosen.cells(parameters))
        assert "\n" not in str(caught.value)
    assert list(chosen.cells(chosen.quick)), "the smallest scale makes its own data"


def test_the_command_line_leaves_it_out_and_says_why(nothing, tmp_path, capsys) -> None:
    assert main(["reproduce", "md-7", "--out", str(tmp_path / "o"), "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out) == {"experiments": []}
    assert "md-7 is left out" in told.err
    assert not (tmp_path / "o").exists()


def test_sizes_do_not_apply_to_experiments_without_networks(tmp_path, capsys) -> None:
    assert (
        main(
            [
                "reproduce",
                "md-2",
                "--quick",
                "--out",
                str(tmp_path / "o"),
                "--json",
                "--sizes",
                "3",
                "6",
            ]
        )
        == 2
    )
    assert "sizes do not apply to it" in capsys.readouterr().err


def test_texts_without_their_package_are_left_out(monkeypatch) -> None:
    found = importlib.util.find_spec

    def without(name, *others):
        return None if name == "tokenizers" else found(name, *others)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert {cell["task"]["data"] for cell in md_5.cells(Networks(STUDIES))} == {IMAGES.data}
    with pytest.raises(UnavailableError, match=r"need the package tokenizers; install it with"):
        list(md_5.cells(Networks((Study(TEXTS, (Method("l2", (0.01,)),)),))))


def test_published_networks_ask_for_an_accelerator(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    task = replace(IMAGES, accelerator=True)
    with pytest.raises(UnavailableError, match="need a GPU"):
        list(md_5.cells(Networks((Study(task, (Method("l2", (0.01,)),)),))))


@pytest.mark.parametrize(
    ("depth", "millions"), [(3, 17.23), (4, 19.00), pytest.param(6, 22.54, marks=pytest.mark.slow)]
)
def test_the_published_networks_have_the_published_sizes_and_take_a_step(depth, millions) -> None:
    task = md_5.published(depth).task
    assert (task.depth, task.heads) == (depth, depth)
    known = examples(replace(TEXTS, train=20))
    sized = type(known)(known.train, known.validation, known.test, task.vocabulary)
    torch.manual_seed(0)
    model = network(task, sized)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 2) == millions
    optimizer = MirrorDescent(model.parameters(), lr=md_5.PUBLISHED_LR[depth][0], p=1.1)
    model.eval()  # dropout would make one loss differ from the next
    ids, labels = torch.randint(5, task.vocabulary, (2, 12)), torch.tensor([0.0, 1.0])
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(ids), labels, reduction="sum"
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


def test_the_published_table_is_one_command_and_its_smallest_networks_come_first(
    monkeypatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trained_networks, "files_digest", lambda data: "some files")
    # of the released code
    rates = {3: (8e-4, 4e-4, 4e-6), 4: (6e-4, 4e-4, 6e-6), 6: (1e-3, 1e-3, 1e-5)}
    chosen = experiment("md-5")
    whole = list(chosen.cells(chosen.at(scale="paper", sizes=(3, 4, 6), seeds=2)))
    found = [
        (cell["task"]["depth"], cell["method"]["name"], cell["method"]["lr"], cell["seed"])
        for cell in whole
    ]
    expected = [
        (size, name, lr, seed)
        for size in rates
        for name, lr in zip(("l1.1", "l2", "l3"), rates[size], strict=True)
        for seed in (0, 1)
    ]
    assert [cell for cell in found if cell[1].startswith("l")] == expected
    assert len(found) == 3 * len(METHODS) * 2
    assert {cell["task"]["batch"] for cell in whole} == {100}
    alone = list(chosen.cells(chosen.at(scale="paper", seeds=2)))
    assert alone == whole[: len(alone)], (
        "size 3 alone is the beginning of the table, so a later run goes on from it"
    )
    assert {cell["task"]["depth"] for cell in alone} == {3}
    with pytest.raises(
        InputError, match="no network of 5 blocks at this scale; choose sizes from: 3, 4, 6"
    ):
        list(chosen.cells(chosen.at(scale="paper", sizes=(5,))))
    with pytest.raises(InputError, match="no networks of several sizes"):
        experiment("md-1").at(sizes=(3,))


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


def test_learning_rates_are_chosen_on_validation_at_the_end_and_used_by_every_seed() -> None:
    study = Study(IMAGES, (Method("l2", (0.01, 0.02, 0.04)), Method("adam", (0.1,))))
    first = list(cells(Networks((study,), seeds=2)))
    assert [(cell["method"]["name"], cell["method"]["lr"], cell["seed"]) for cell in first] == [
        *(("l2", lr, TUNING_SEED) for lr in (0.01, 0.02, 0.04)),
        *(("adam", 0.1, seed) for seed in (0, 1)),
    ]
    course = np.full((5, 4), np.nan)
    # the best epoch of the first rate comes before its end; the last two tie
    course[:3, :2] = [[0.9, 0.3], [0.2, 0.8], [0.5, 0.8]]
    course[3:, :1] = 0.99
    columns = {
        "tuning": [1, 1, 1, 0, 0],
        "method": [1, 1, 1, 3, 3],
        "data": [2] * 5,
        "epochs": [2, 2, 2, 1, 1],
        "lr": [0.01, 0.02, 0.04, 0.1, 0.1],
    }
    evidence = Evidence({**columns, "validation_accuracy": course})
    assert chosen_rate(evidence, "digits", "l2") == 0.02
    second = list(then[-1](Networks((study,), seeds=2), evidence))
    assert [(cell["method"]["name"], cell["method"]["lr"], cell["seed"]) for cell in second] == [
        ("l2", 0.02, seed) for seed in (0, 1)
    ]


def tuned(rates: dict[float, float]) -> Evidence:
    """Short trainings of gradient descent on digits: rates and what they end with."""
    course = np.full((len(rates), 2), np.nan)
    course[:, 0] = list(rates.values())
    known = {"tuning": 1, "method": METHODS.index("l2"), "data": DATA.index("digits"), "epochs": 1}
    columns = {name: [value] * len(rates) for name, value in known.items()}
    return Evidence({**columns, "lr": list(rates), "validation_accuracy": course})


def test_a_grid_goes_on_where_its_best_rate_is_at_its_end() -> None:
    grid = Study(IMAGES, (Method("l2", (0.01, 0.02, 0.04)),))
    networks = Networks((grid,), seeds=2, widen=True)

    def asked(**found: float) -> list[float]:
        evidence = tuned({float(name[1:]) / 1000: value for name, value in found.items()})
        more = list(widened(networks, evidence))
        assert {cell["seed"] for cell in more} <= {TUNING_SEED}
        return [cell["method"]["lr"] for cell in more]

    assert asked(r10=0.5, r20=0.6, r40=0.7) == [0.08]
    assert asked(r10=0.7, r20=0.6, r40=0.5) == [0.005]
    assert asked(r10=0.5, r20=0.6, r40=0.5) == []
    assert asked(r10=0.5, r20=0.6, r40=0.7, r80=0.8) == [0.16]
    ends = {0.01: 0.5, 0.02: 0.6, 0.04: 0.7, 0.08: 0.6}
    assert asked(r10=0.5, r20=0.6, r40=0.7, r80=0.6) == []
    final = [(cell["method"]["lr"], cell["seed"]) for cell in then[-1](networks, tuned(ends))]
    assert final == [(0.04, 0), (0.04, 1)]
    assert then[:-1] == (widened,) * 3
    narrow = replace(networks, widen=False)
    assert list(widened(narrow, tuned({0.01: 0.1, 0.02: 0.2, 0.04: 0.3}))) == []


def test_the_scale_medium_is_all_reviews() -> None:
    chosen = experiment("md-5")
    assert [chosen.scale(name) for name in (None, "small", "medium", "paper")] == [
        *("small", "small", "medium", "paper")
    ]
    (texts,) = chosen.at(scale="medium").studies
    assert (texts.task.train, texts.task.test) == (0, 0)
    assert (texts.task.depth, texts.task.length, texts.task.end) == (3, 128, 96)
    assert {method.name for method in texts.methods} == {"l1.1", "l2", "adam"}
    assert chosen.at(scale="medium").seeds == 5
    assert not texts.task.accelerator


def test_rows_with_times_are_made_on_a_gpu_where_there_is_one(monkeypatch) -> None:
    texts = experiment("md-5").at(scale="medium").studies[0].task
    for there, places in ((True, ("cuda", "cpu")), (False, ("cpu", "cpu"))):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert (device_of(texts), device_of(TEXTS)) == places


def test_training_and_held_out_texts_are_apart_and_labels_survive() -> None:
    known = examples(TEXTS)
    assert [len(part) for part in (known.train, known.validation, known.test)] == [
        TEXTS.train,
        TEXTS.validation,
        TEXTS.test,
    ]
    places = [place for place in known.places if place is not None]
    assert 2 * len(places) > len(known.places)
    for ids, place in zip(known.sentences, known.places, strict=True):
        assert ids[0] == known.train.inputs[0, 0], "[CLS] comes first"
        assert place is None or 0 < place < len(ids) - 1


def test_a_row_holds_what_the_experiments_read() -> None:
    method = {"name": "adam", "lr": 5e-3, "rest_lr": None}
    task = {**next(iter(md_5.cells(md_5.QUICK)))["task"], "epochs": 2, "tuning_epochs": 1}
    row = run(task, method, seed=0, digest="")
    assert all(len(column) == 1 for column in row.values())
    assert row["epochs"] == [2]
    assert np.isfinite(row["test_accuracy"][0, :2]).all()
    assert np.isnan(row["test_accuracy"][0, 2:]).all()
    # The last epoch's accuracy is the mean of what is kept for the intervals.
    assert row["right_sentences"].mean() == pytest.approx(row["test_accuracy"][0, 1], abs=1e-12)
    tuned = run(task, method, seed=TUNING_SEED, digest="")
    assert (tuned["tuning"], tuned["epochs"]) == ([True], [1])


METHOD = {"name": "adam", "lr": 5e-3, "rest_lr": None}


def short(**settings) -> dict:
    return {**next(iter(md_5.cells(md_5.QUICK)))["task"], "epochs": 2, **settings}


def test_a_training_that_chooses_a_rate_is_tested_on_few_examples(monkeypatch) -> None:
    seen = {}

    plain = training.train

    def watched(model, examples, held, plan):
        seen[plan.seed] = len(held["test"])
        return plain(model, examples, held, plan)

    monkeypatch.setattr(training, "train", watched)
    monkeypatch.setattr(trained_networks, "FEW", 7)
    for seed in (0, TUNING_SEED):
        row = run(short(tuning_epochs=1, timed=True), METHOD, seed=seed, digest="")
        assert len(row["right_sentences"][0]) == TEXTS.test
        assert 0 < row["elapsed"][0, int(row["epochs"][0]) - 1] < 100
    assert seen == {0: TEXTS.test, TUNING_SEED: 7}
