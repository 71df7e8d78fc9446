"""Rows stay where they are, and blocks of them are the rows."""

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets.bags import Bags, as_bags
from attsvm.datasets.rows import ListedRows, RowReader, copy_rows, tables_of

GENERATOR = np.random.default_rng(0)
TABLES = [GENERATOR.normal(size=(count, 3)).astype(np.float32) for count in (4, 1, 7, 3)]
TABLE = np.concatenate(TABLES)
OFFSETS = np.array([0, 4, 5, 12, 15])


def on_disk(tmp_path, kind):
    if kind == "memmap":
        TABLE.tofile(tmp_path / "rows")
        return np.memmap(tmp_path / "rows", np.float32, "r").reshape(-1, 3)
    if kind == "h5py":
        h5py = pytest.importorskip("h5py", reason="h5py is not installed")
        file = h5py.File(tmp_path / "rows.h5", "w")
        return file.create_dataset("rows", data=TABLE)
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    return zarr.array(TABLE, store=tmp_path / "rows.zarr")


FORMS = ["array", "list", "half", "memmap", "h5py", "zarr"]


def form(tmp_path, kind):
    if kind == "array":
        return TABLE
    if kind == "list":
        return ListedRows(TABLES)
    return TABLE.astype(np.float16) if kind == "half" else on_disk(tmp_path, kind)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_are_the_rows_of_whole_bags(tmp_path, kind, size, dtype):
    rows = form(tmp_path, kind)
    expected = np.asarray(rows[:]).astype(dtype)
    blocks, at = RowReader(rows, OFFSETS, dtype, size), 0
    for block in blocks.blocks():
        assert block.rows.dtype == dtype
        assert block.cuts[-1] == len(block.rows)
        assert len(block.bags) == 1 or len(block.rows) <= size
        np.testing.assert_array_equal(block.rows, expected[at : at + len(block.rows)])
        np.testing.assert_array_equal(block.cuts + at, OFFSETS[[*block.bags, block.bags[-1] + 1]])
        at += len(block.rows)
    assert at == 15
    some, cuts = blocks.take(np.array([0, 2]))
    np.testing.assert_array_equal(some, expected[np.r_[0:4, 5:12]])
    assert cuts.tolist() == [0, 4, 11]


@pytest.mark.parametrize("kind", FORMS)
def test_bags_are_taken_without_a_copy(tmp_path, kind):
    rows = form(tmp_path, kind)
    bags = Bags(rows, OFFSETS, None, np.arange(15))
    part = bags[[2, 0]]
    expected = np.asarray(rows[:])
    np.testing.assert_array_equal(np.asarray(part.rows), expected[np.r_[5:12, 0:4]])
    np.testing.assert_array_equal(part[1], expected[0:4])
    if kind == "list":
        for table, k in zip(part.rows.tables, (2, 0), strict=True):
            assert np.shares_memory(table, TABLES[k])


def test_listed_rows_are_indexed_as_their_concatenation():
    rows = ListedRows(TABLES)
    assert rows.shape == (15, 3)
    assert len(rows) == 15
    for chosen in (slice(2, 9), slice(None, None, 2), 7, -1, [3, 11, 4], TABLE[:, 0] > 0):
        np.testing.assert_array_equal(rows[chosen], TABLE[chosen])
    np.testing.assert_array_equal(np.concatenate(tables_of(rows, 3, 13)), TABLE[3:13])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_array_and_a_list_of_arrays_stay_what_and_where_they_are(dtype):
    X = np.ones((3, 400, 1000), dtype)
    cube, table = as_bags(X), as_bags(X.reshape(1200, 1000), bag_ids=np.repeat([5, 1, 3], 400))
    listed = as_bags(list(X))
    for bags in (cube, table, listed, listed[1:]):
        assert bags.rows.dtype == dtype
        assert np.shares_memory(bags[0], X)
    with pytest.raises(ValueError, match="read-only"):
        cube.rows[0] = 2.0
    X[0, 0, 0] = 1.0  # the caller may still write


def test_data_sets_on_disk_are_bags(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "bags.h5", "w") as file:
        sets = [file.create_dataset(str(k), data=table) for k, table in enumerate(TABLES)]
        sets.append(file.create_dataset("bad", data=[[1.0, np.nan, 2.0]]))
        bags = as_bags(sets[:4])
        assert isinstance(bags.rows, ListedRows)
        np.testing.assert_array_equal(np.asarray(bags.rows), TABLE)
        np.testing.assert_array_equal(bags[-1], TABLES[-1])
        whole = file.create_dataset("all", data=TABLE)
        ids = np.repeat(np.arange(4), np.diff(OFFSETS))
        assert as_bags(whole, bag_ids=ids).rows is whole
        with pytest.raises(InputError, match="the rows of a bag are scattered over it"):
            as_bags(whole, bag_ids=ids[::2].tolist() + ids[1::2].tolist())
        with pytest.raises(InputError, match="bag 4 holds nan in instance 0, feature 1"):
            list(as_bags(sets).blocks())


def test_half_precision_is_read_exactly():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    finite = np.where(np.isfinite(every), every, 0.0).astype(np.float16)
    for table in (finite, every, finite.T, finite[::2, 1::3], finite[:0]):
        single, double = np.empty(table.shape, np.float32), np.empty(table.shape)
        copy_rows(single, table)
        copy_rows(double, table)
        np.testing.assert_array_equal(single, table.astype(np.float32))
        np.testing.assert_array_equal(double, table.astype(np.float64))
    reader = RowReader(ListedRows(np.split(finite, 4)), np.array([0, 100, 256]))
    np.testing.assert_array_equal(reader.take(np.array([0, 1]))[0], finite.astype(np.float32))
