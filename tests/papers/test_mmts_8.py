"""The vision transformer's experiment at a size of seconds."""

import gzip
import struct

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.kit import experiment
from attsvm_papers.mmts import e8_vision_transformer as mmts_8
from attsvm_papers.networks.published_data import VARIABLE

TINY = experiment("mmts-8").quick.changed(
    {"epochs": (4, 4), "records": 4, "seeds": 1, "observed": 100}
)


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


@pytest.fixture(scope="module")
def evidence():
    (cell,) = mmts_8.run.cells(TINY)
    return Evidence(mmts_8.run(**cell) | {"images": np.array(["digits"])})


def test_sets_of_images_are_those_whose_files_are_there(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    full = experiment("mmts-8").parameters
    assert {cell["images"] for cell in mmts_8.run.cells(full)} == {"digits"}


def test_a_set_of_files_is_a_panel_of_its_own(folder, evidence):
    cell, *others = mmts_8.run.cells(TINY.changed({"images": ("mnist",), "seeds": 5}))
    assert (cell["images"], len(cell["digest"]), len(others)) == ("mnist", 64, 1)
    mnist = mmts_8.run(**cell) | {"images": np.array(["mnist"])}
    both = Evidence.concatenate([evidence, mnist])
    assert both["tokens"].tolist() == [17, 50]
    assert [picture.name for picture in experiment("mmts-8").plot(both)] == ["sparsity"]


def test_attention_is_even_at_first_and_the_signs_hold_after_a_few_epochs(evidence):
    assert (evidence["inverse_square"][:, 0] > 0.8 * 17).all()
    # max s >= sum s^2, row by row and so on average
    assert (evidence["inverse_max"] <= evidence["inverse_square"] + 1e-4).all()
    verdicts = {claim.id: claim.check(evidence).verdict for claim in experiment("mmts-8").claims}
    assert [verdicts[f"E1.8{letter}"] for letter in "bc"] == ["holds"] * 2


def test_training_is_a_function_of_the_seed(evidence):
    (cell,) = mmts_8.run.cells(TINY)
    again, other = (
        mmts_8.run(**{**cell, "seed": seed, "epochs": (1, 1), "records": 1})["norm"]
        for seed in (cell["seed"], 1)
    )
    assert np.array_equal(again[:, 0], evidence["norm"][:, 0])
    assert not np.array_equal(other, again)
