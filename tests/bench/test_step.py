"""Parameter lists, lots, figures, and optimisers that are not there."""

import functools
import math

import pytest
import torch

from attsvm.bench import step
from attsvm.bench.record import Cells
from attsvm.bench.step import LISTS, Contender
from attsvm.errors import InputError


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(step.LISTS, "tiny", functools.partial(step.transformer, 16, 2, 128))
    monkeypatch.setattr(step, "_COPIED", 1 << 10)


def plan(**changes):
    usual = {
        "parameters": ("tiny",),
        "device": "cpu",
        "threads": 1,
        "rounds": 3,
        "seconds": 10.0,
        "contenders": ("AdamW foreach",),
    }
    return step.Plan(**{**usual, **changes})


def quiet(*_):
    pass


@pytest.mark.parametrize(("name", "size"), [("1M", 1e6), ("10M", 1e7), ("100M", 1e8), ("1G", 1e9)])
def test_the_lists_have_the_size_of_their_names(name, size):
    assert sum(map(math.prod, LISTS[name]())) == pytest.approx(size, rel=0.07)


def test_figures_of_torch_optimisers(tiny, monkeypatch):
    monkeypatch.setitem(
        step.CONTENDERS,
        "absent",
        Contender(lambda parameters: torch.optim.Nothing(parameters), 3, 0, "AdamW fused"),
    )
    wanted = plan(
        contenders=(
            "SGD foreach",
            "absent",
            "AdamW foreach",
            "SteepestDescent fro",
            "SteepestDescent spec, Newton-Schulz",
        )
    )
    cells = {cell["optimiser"]: cell for cell in step.run(wanted, Cells(None), quiet)}
    count = sum(map(math.prod, LISTS["tiny"]()))
    # A reference joins the lot of the contestant that is compared with it, asked for or not.
    assert set(cells) == {*wanted.contenders, "AdamW fused", "Muon"}
    assert cells["SGD foreach"]["state_bytes"] == 0
    assert cells["AdamW foreach"]["state_bytes"] == 8 * count
    assert cells["AdamW foreach"]["ratio"] == 1.0
    assert cells["AdamW foreach"]["bytes_per_second"] == pytest.approx(
        28 * count / cells["AdamW foreach"]["wall"]
    )
    assert cells["SGD foreach"]["rounds"] == 3
    assert (
        cells["SGD foreach"]["wall_quartiles"][0]
        <= cells["SGD foreach"]["wall"]
        <= cells["SGD foreach"]["wall_quartiles"][1]
    )
    assert cells["absent"]["outcome"] == "not available"
    assert "Nothing" in cells["absent"]["reason"]
    spectral = cells["SteepestDescent spec, Newton-Schulz"]
    assert spectral["count"] == sum(map(math.prod, step.hidden_matrices("tiny"))) < count
    # torch has it from 2.9 on
    assert cells["Muon"]["outcome"] == (
        "finished" if hasattr(torch.optim, "Muon") else "not available"
    )
    text = step.tables(list(cells.values()), by_cpu=True)
    assert "not available: absent" in text
    assert "(hidden matrices only)" in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    assert all(len({len(line) for line in table.strip().splitlines()}) == 1 for table in tables)


def test_contestants_that_do_not_fit_together_are_split_into_lots(tiny, monkeypatch):
    count = sum(map(math.prod, LISTS["tiny"]()))
    names = (
        "AdamW foreach",
        "SGD foreach",
        "SGD fused",
        "SteepestDescent fro",
        "SteepestDescent linf",
    )
    # Gradients, AdamW and two contestants without state: 1 + 3 + 2 numbers per parameter.
    monkeypatch.setattr(step, "_free_memory", lambda device: int((6 * 4 * count + 1) / step._SHARE))
    lots = list(step._lots(plan(contenders=names), "tiny"))
    assert lots == [
        ["AdamW foreach", "SGD foreach"],
        ["AdamW fused", "SGD fused"],
        ["AdamW foreach", "SteepestDescent fro", "SteepestDescent linf"],
    ]


@pytest.mark.slow
def test_a_reference_of_several_lots_has_one_row(tiny, monkeypatch):
    monkeypatch.setattr(
        step,
        "_lots",
        lambda plan, name: [
            ["AdamW foreach", "SGD foreach"],
            ["AdamW foreach", "SteepestDescent fro"],
        ],
    )
    cells = step.run(plan(), Cells(None), quiet)
    assert [cell["optimiser"] for cell in cells] == [
        "AdamW foreach",
        "SGD foreach",
        "AdamW foreach",
        "SteepestDescent fro",
    ]
    text = step.tables(cells, by_cpu=True)
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")] == [
        *("optimiser", "AdamW foreach", "SGD foreach", "SteepestDescent fro")
    ]


def test_a_slow_optimiser_takes_no_further_round(tiny):
    (cell,) = step.run(plan(seconds=1e-9, contenders=("AdamW foreach",)), Cells(None), quiet)
    assert cell["rounds"] == 1


def test_the_peak_of_a_block_is_seen():
    with step.peak_memory(torch.device("cpu")) as peak:
        torch.ones(1 << 24)  # 64 MiB
    if peak[0] is None:
        pytest.skip("this system keeps no peak of resident memory")
    assert 0.9 * 2**26 <= peak[0] <= 1.5 * 2**26


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parameters": ("7T",)}, "unknown parameter list '7T'; known lists: 1M, 10M"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
        ({"contenders": ("Adam",)}, "unknown optimiser 'Adam'"),
    ],
)
def test_bad_plans(tiny, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        plan(**changes)


def test_a_list_that_does_not_fit_is_one_sentence(monkeypatch):
    monkeypatch.setattr(step, "_free_memory", lambda device: 1 << 20)
    with pytest.raises(InputError, match="the list 1M needs"):
        plan(parameters=("1M",))
