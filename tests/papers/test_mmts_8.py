"""The vision transformer's experiment at a size of seconds: its cells, its rows, its verdicts, its
figure.
"""

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.kit import experiment
from attsvm_papers.mmts import e8_vision_transformer as mmts_8
from attsvm_papers.networks.published_data import VARIABLE

TINY = replace(experiment("mmts-8").quick, epochs=(4, 4), records=4, seeds=1, observed=100)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an MNIST of forty random images."""
    rng = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir()
    for part, n in (("train", 30), ("t10k", 10)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)),
            ("labels-idx1", np.arange(n, dtype=np.uint8) % 10),
        ):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(
                gzip.compress(head + array.tobytes())
            )
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def rows(cell):
    """Those of a cell, with the name of its images as a run has it."""
    return mmts_8.run(**cell) | {"images": np.array([cell["images"]])}


@pytest.fixture(scope="module")
def evidence():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        (cell,) = mmts_8.run.cells(TINY)
    return Evidence(rows(cell))


def test_without_files_there_are_digits_only(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert {cell["images"] for cell in mmts_8.run.cells(experiment("mmts-8").parameters)} == {
        "digits"
    }


def test_files_make_cells_that_carry_their_digest(folder):
    found = {
        cell["images"]: cell["digest"] for cell in mmts_8.run.cells(experiment("mmts-8").parameters)
    }
    assert set(found) == {"digits", "mnist"}
    assert len(found["mnist"]) == 64
    assert found["digits"] == ""


def test_rows_of_all_sets_fit_below_each_other(folder, evidence):
    mnist = [
        cell
        for cell in mmts_8.run.cells(replace(TINY, images=("mnist",)))
        if cell["images"] == "mnist"
    ]
    both = Evidence.concatenate([evidence, rows(mnist[0])])
    assert both["tokens"].tolist() == [17, 50]
    assert [picture.name for picture in experiment("mmts-8").plot(both)] == ["sparsity"]


def test_the_signs_hold_after_a_few_epochs(evidence):
    verdicts = {claim.id: claim.check(evidence).verdict for claim in experiment("mmts-8").claims}
    assert [verdicts[f"E1.8{letter}"] for letter in "bc"] == ["holds"] * 2


def test_the_untrained_network_attends_to_nearly_everything(evidence):
    assert (evidence["inverse_square"][:, 0] > 0.8 * 17).all()
    assert (
        evidence["inverse_max"] <= evidence["inverse_square"] + 1e-4
    ).all()  # max s >= sum s^2, row by row and so on average


def test_training_is_a_function_of_the_seed(evidence):
    (cell,) = mmts_8.run.cells(TINY)
    again = mmts_8.run(**{**cell, "epochs": (1, 1), "records": 1})
    assert np.array_equal(again["norm"][:, 0], evidence["norm"][:, 0])
    other = mmts_8.run(**{**cell, "seed": 1, "epochs": (1, 1), "records": 1})
    assert not np.array_equal(other["norm"], again["norm"])
