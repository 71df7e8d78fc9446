"""Passes that threads share: what comes out does not depend on them, and errors come back."""

import threading

import h5py
import numpy as np
import pytest
import zarr

from attsvm.base.errors import InputError
from attsvm.datasets.bag_files import read_bags
from attsvm.datasets.bags import as_bags
from attsvm.sklearn import WitnessSVC
from attsvm.sklearn.compressed import Objective, PolishOptions, polish
from attsvm.sklearn.moments import moments
from attsvm.sklearn.stochastic import AdamOptions, Candidates, stochastic_descent
from attsvm.sklearn.witness import Witnesses

BAGS, LENGTH = 40, 25


@pytest.fixture
def small_shares(monkeypatch):
    """Every pass has ten shares, and every batch four."""
    monkeypatch.setattr("attsvm.sklearn.passes._ROWS", BAGS * LENGTH // 10)
    monkeypatch.setattr("attsvm.sklearn.stochastic._PRODUCTS", 1.0)


def rows_and_labels():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(BAGS, LENGTH, 3)).astype(np.float32)
    rows[1::2, 7, 0] += 4.0
    return rows.reshape(-1, 3), np.arange(BAGS) % 2


def fitted(rows, labels):
    model = WitnessSVC(penalty=1e-2, cv=2)
    return model.fit(rows, labels, bag_ids=np.repeat(np.arange(BAGS), LENGTH))


def objective(model):
    return model.convex_steps_[0].objective


@pytest.mark.usefixtures("small_shares")
def test_a_fit_is_the_same_on_any_number_of_threads(monkeypatch):
    found = []
    for count in ("1", "3"):
        monkeypatch.setenv("ATTSVM_THREADS", count)
        found.append(objective(fitted(*rows_and_labels())))
    assert found == pytest.approx([found[0]] * 2, rel=1e-9)


def passes(bags):
    """What passes over bags find at some weights, and where a few batches lead."""
    _, labels = rows_and_labels()
    given, shares = Witnesses(bags, labels, 1.0, 1, True), np.full((BAGS, 1), 1 / BAGS)
    theta = np.random.default_rng(2).normal(size=(4, 1))
    selected, gain = given.selection_gain(theta, shares)
    objective = Objective(given, given.losses, shares, np.array([1e-2]))
    end = polish(objective, theta, np.float64, PolishOptions(passes=2, short=5, heavy=4))
    spread = moments(bags, np.arange(BAGS) % 3.0)
    candidates = Candidates(shares, np.array([1e-2]), np.array([0.1]), np.array([False]))
    descended = stochastic_descent(
        given, candidates, spread, 0, AdamOptions(steps=10), lambda step: None
    )
    polished = end.weights, end.objective, end.gap, end.sums
    found = spread.mean, spread.deviation, spread.unit, spread.largest
    return [selected, gain, given.log_sums(theta), *polished, *found, descended]


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        # ten steps of batches are in single precision, whose sums depend on their order
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_shares_add_up_to_the_whole(request):
    bags = as_bags(rows_and_labels()[0].reshape(BAGS, LENGTH, 3))
    whole = passes(bags)
    request.getfixturevalue("small_shares")
    assert_same(passes(bags), whole)


def of_h5py(folder, rows):
    with h5py.File(folder / "rows.h5", "w") as file:
        file["rows"] = rows
    return h5py.File(folder / "rows.h5", "r")["rows"]


def of_zarr(folder, rows):
    return zarr.create_array(folder / "rows.zarr", data=rows)


def of_files(folder, rows):
    for i, bag in enumerate(rows.reshape(BAGS, LENGTH, 3)):
        with h5py.File(folder / f"{i:02}.h5", "w") as file:
            file["features"] = bag
    return read_bags(folder, labels=None)


@pytest.mark.parametrize("stored", [of_h5py, of_zarr, of_files])
@pytest.mark.usefixtures("small_shares")
def test_threads_read_what_is_on_disk_as_they_read_memory(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTSVM_THREADS", "3")
    rows, _ = rows_and_labels()
    ids = np.repeat(np.arange(BAGS), LENGTH)
    table = stored(tmp_path, rows)
    bags = as_bags(table) if stored is of_files else as_bags(table, bag_ids=ids)
    assert_same(passes(bags), passes(as_bags(rows, bag_ids=ids)))


class Foreign:
    """A table on disk of a package that nobody knows."""

    def __init__(self, rows):
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.readers = set()

    def __getitem__(self, chosen):
        self.readers.add(threading.get_ident())
        return self.rows[chosen]


@pytest.mark.usefixtures("small_shares")
def test_a_table_of_an_unknown_package_is_read_by_the_caller_alone(monkeypatch):
    monkeypatch.setenv("ATTSVM_THREADS", "3")
    rows, labels = rows_and_labels()
    table = Foreign(rows)
    fitted(table, labels)
    assert table.readers == {threading.get_ident()}


@pytest.mark.usefixtures("small_shares")
def test_the_first_number_that_is_not_finite_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTSVM_THREADS", "3")
    rows, labels = rows_and_labels()
    rows[[LENGTH * 17 + 3, LENGTH * 30]] = np.nan
    with pytest.raises(InputError, match="bag 17 holds nan in instance 3"):
        fitted(of_h5py(tmp_path, rows), labels)
