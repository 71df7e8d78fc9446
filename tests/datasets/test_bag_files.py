"""Bags in files: every format, lazily, and one sentence for what is wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import zarr
from safetensors.numpy import save_file

from attsvm.base.errors import InputError
from attsvm.datasets import load, read_bags
from attsvm.datasets.bags import as_bags

ROWS = np.arange(24, dtype=np.float16).reshape(6, 4)
PLACES = np.arange(12).reshape(6, 2)


def _h5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["features"], file["coords"] = ROWS, PLACES


def _h5_with_a_leading_axis(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["features"], file["coords"] = ROWS[None], PLACES


def _zarr(path: Path) -> None:
    group = zarr.open_group(str(path), mode="w")
    group["features"], group["coords"] = ROWS, PLACES


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.h5": _h5,
    "a.hdf5": _h5_with_a_leading_axis,
    "a.npz": lambda path: np.savez(path, features=ROWS, coords=PLACES),
    "a.npy": lambda path: np.save(path, ROWS),
    "a.pt": lambda path: torch.save(torch.tensor(ROWS), path),
    "a.safetensors": lambda path: save_file({"features": ROWS, "coords": PLACES}, path),
    "a.zarr": _zarr,
}


def table(folder: Path, *rows: str, header: str = "slide_id,label,case_id") -> None:
    (folder / "labels.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_keeps_type_rows_and_coordinates(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    table(tmp_path, "a,yes,p1")
    folder = read_bags(tmp_path, group="case_id")
    (bag,) = folder
    assert (bag.shape, bag.dtype, len(bag)) == ((6, 4), np.float16, 6)
    np.testing.assert_array_equal(bag[1:3], ROWS[1:3])
    np.testing.assert_array_equal(np.asarray(bag), ROWS)
    assert np.asarray(bag, dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(bag))[:], ROWS)
    coordinates = folder.coordinates_of(0)
    if name in ("a.npy", "a.pt"):
        assert coordinates is None
    else:
        np.testing.assert_array_equal(coordinates, PLACES)


def test_a_dictionary_of_tensors_in_bfloat16(tmp_path: Path) -> None:
    rows = torch.ones(3, 2, dtype=torch.bfloat16)
    torch.save({"features": rows, "coords": torch.zeros(3, 2)}, tmp_path / "a.pt")
    table(tmp_path, "a,1,p")
    folder = read_bags(tmp_path)
    assert folder[0].dtype == np.float32
    np.testing.assert_array_equal(folder[0][:], np.ones((3, 2)))
    np.testing.assert_array_equal(folder.coordinates_of(0), np.zeros((3, 2)))


def test_order_labels_groups_and_subsets_are_those_of_the_table(tmp_path: Path) -> None:
    for k, name in enumerate("cab"):
        np.save(tmp_path / f"{name}.npy", np.full((2, 3), float(k)))
    np.save(tmp_path / "unlabelled.npy", np.zeros((2, 3)))
    table(tmp_path, "b.svs,1,p2", "c.npy,0,p1", "a,1,p1")
    folder = read_bags(tmp_path, group="case_id")
    assert folder.names == ("b.svs", "c.npy", "a")
    assert [float(bag[0, 0]) for bag in folder] == [2.0, 0.0, 1.0]
    assert folder.labels.tolist() == [1, 0, 1]
    assert folder.groups.tolist() == ["p2", "p1", "p1"]
    subset = folder[[2, 0]]
    assert (subset.names, subset.labels.tolist()) == (("a", "b.svs"), [1, 1])
    assert folder[:2].names == ("b.svs", "c.npy")
    assert folder.without_row == subset.without_row == ("unlabelled.npy",)
    everything = read_bags(tmp_path, labels=None)
    assert everything.without_row == ()
    assert everything.names == ("a", "b", "c", "unlabelled")
    assert everything.labels is None


def test_files_without_a_row_are_counted_and_named(tmp_path: Path) -> None:
    for k in range(9):
        np.save(tmp_path / f"s{k}.npy", np.ones((2, 3)))
    table(tmp_path, "s0,1,p", "s1,0,p")
    left_out = "s2.npy, s3.npy, s4.npy, s5.npy, s6.npy and 2 more"
    note = f"7 of 9 files have no row in labels.csv and are left out: {left_out}."
    assert note in load(tmp_path).notes
    table(tmp_path, *(f"s{k},{k % 2},p" for k in range(8)))
    note = "1 of 9 files has no row in labels.csv and is left out: s8.npy."
    assert note in load(tmp_path).notes
    table(tmp_path, *(f"s{k},{k % 2},p" for k in range(9)))
    assert not any("no row" in note for note in load(tmp_path).notes)


def test_tables_of_spreadsheets_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    (tmp_path / "labels.csv").write_text("\ufeffslide_id;label\r\na;mitotic\r\n", encoding="utf-8")
    assert read_bags(tmp_path).labels.tolist() == ["mitotic"]
    table = "sep=;\nslide_id;label;;\na;benign;;\n"
    (tmp_path / "labels.csv").write_text(table, encoding="utf-16")
    assert read_bags(tmp_path).labels.tolist() == ["benign"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["a,1,p", "x,0,p", "y,0,p"], {}, "no file for x, y of 3 rows"),
        (["a,1,p", "a,0,p"], {}, "names a more than once"),
        (["a,1,p", "b,,p", ",1,p"], {}, "rows 2, 3 lack an identifier, a label or a group"),
        (["a,1,p", "b,NA,p"], {}, "rows 2 lack an identifier, a label or a group"),
        (["a,1,"], {"group": "case_id"}, "rows 1 lack"),
        (["a,1,p"], {"label": "lable"}, "no column lable .* did you mean label"),
        (["a,1,p"], {"group": "patient"}, "no column patient"),
        (["a,1,p", "wide,0,p"], {}, "a has 4, wide has 5"),
        (["a,1,p", "flat,0,p"], {}, r"shape \(4,\)"),
        (["a,1,p", "empty,0,p"], {}, "holds no instances"),
        (["a,1,p", "words,0,p"], {}, "features are real numbers"),
        (["a,1,p", "torn,0,p"], {}, "torn.npy cannot be read"),
        (["a,1,p", "twice,0,p"], {}, "several files, twice.npy and twice.npz"),
        (["a,1,p", "bag,0,p"], {"features": "feats"}, "no array 'feats'"),
        (["a,1,p", "crooked,0,p"], {}, r"6 instances and coordinates of shape \(5, 2\)"),
        ([], {}, "holds no rows"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    rows: list[str], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.save(tmp_path / "wide.npy", np.ones((6, 5)))
    np.save(tmp_path / "flat.npy", np.ones(4))
    np.save(tmp_path / "empty.npy", np.ones((0, 4)))
    np.save(tmp_path / "words.npy", np.array([["a", "b", "c", "d"]]))
    (tmp_path / "torn.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:20])
    np.save(tmp_path / "twice.npy", ROWS)
    np.savez(tmp_path / "twice.npz", features=ROWS)
    np.savez(tmp_path / "bag.npz", features=ROWS)
    np.savez(tmp_path / "crooked.npz", features=ROWS, coords=PLACES[:5])
    table(tmp_path, *rows)
    with pytest.raises(InputError, match=message) as error:
        read_bags(tmp_path, **options)
    assert "\n" not in str(error.value)


def test_a_folder_or_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        read_bags(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"labels\.csv does not exist"):
        read_bags(tmp_path)
    with pytest.raises(InputError, match=r"holds no \.h5"):
        read_bags(tmp_path, labels=None)


def test_only_the_rows_asked_for_are_read_from_a_memory_map(tmp_path: Path) -> None:
    big = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (1 << 20, 64))
    big[7] = 3.0
    big.flush()
    table(tmp_path, "a,1,p")
    (bag,) = read_bags(tmp_path)
    np.testing.assert_array_equal(bag[6:8, 0], [0.0, 3.0])


def test_an_estimator_takes_labels_and_groups_along(tmp_path: Path) -> None:
    for k in range(4):
        np.save(tmp_path / f"s{k}.npy", ROWS + k)
    table = "slide_id,label,case_id\n" + "".join(f"s{k},{k % 2},p{k // 2}\n" for k in range(4))
    (tmp_path / "labels.csv").write_text(table)
    bags = as_bags(read_bags(tmp_path, group="case_id")[1:])
    assert bags.names is not None
    assert bags.groups is not None
    assert bags.labels is not None
    assert bags.names.tolist() == ["s1", "s2", "s3"]
    assert bags.groups.tolist() == ["p0", "p1", "p1"]
    assert bags.labels.tolist() == [1, 0, 1]
