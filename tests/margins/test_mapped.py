"""Selections on disk: the same blocks wherever the arrays are cut, and one sentence for what cannot
be read in parts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attsvm import (
    AttentionData,
    InputError,
    Margins,
    max_margin,
    max_margin_blocks,
    selection_margins,
)
from attsvm.margins import MappedSelections


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((30, 6, 4)), rng.standard_normal((30, 4))
    mask = rng.random((30, 6)) < 0.8
    mask[:, 0] = True
    logits = np.einsum("ntd,de,ne->nt", X, rng.standard_normal((4, 4)), Z)
    selected = np.where(mask, logits, -np.inf).argmax(axis=1)
    return {"X": X, "Z": Z, "mask": mask, "selected": selected}


def saved(arrays: dict[str, np.ndarray], folder: Path) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize("form", ["folder", "shards", "fortran"])
def test_the_solution_of_what_is_on_disk(form: str, arrays, tmp_path) -> None:
    path = tmp_path
    for name, array in arrays.items():
        if form == "shards" and name != "Z":
            # as many as need two digits, in the order of numbers and not of names
            for k, part in enumerate(np.array_split(array, 11)):
                np.save(path / f"{name}-{k}.npy", part)
        else:
            np.save(path / f"{name}.npy", np.asfortranarray(array) if form == "fortran" else array)
    blocks = MappedSelections(path, block_bytes=8 * 6 * 4 * 4)  # of four sequences
    assert blocks.count == (11 if form == "shards" else 8)
    read = [blocks(k) for k in range(blocks.count)]  # every sequence once, in its order
    assert max(len(tokens) for tokens, *_ in read) <= 4
    for k, name in enumerate(("X", "Z", "selected", "mask")):
        np.testing.assert_array_equal(np.concatenate([block[k] for block in read]), arrays[name])
    data = AttentionData(arrays["X"], np.ones(30), arrays["Z"], arrays["mask"])
    expected = max_margin(selection_margins(data, arrays["selected"])).norm
    for given in (path, str(path), blocks):
        found = max_margin_blocks(Margins.from_blocks(given))
        assert found.status == "optimal"
        assert found.norm == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("masked", [False, True])
def test_without_queries_the_first_visible_token_asks(masked: bool, arrays, tmp_path) -> None:
    X, mask = arrays["X"], arrays["mask"]
    mask[::2, :2] = [False, True]
    seen = mask if masked else np.ones_like(mask)
    queries = X[np.arange(30), seen.argmax(axis=1)]
    logits = np.einsum("ntd,de,ne->nt", X, np.random.default_rng(1).normal(size=(4, 4)), queries)
    arrays = {"X": X, "selected": np.where(seen, logits, -np.inf).argmax(axis=1)}
    saved({**arrays, "mask": mask} if masked else arrays, tmp_path)
    found = max_margin_blocks(Margins.from_blocks(tmp_path))
    data = AttentionData(X, np.ones(30), queries, seen)
    whole = max_margin(selection_margins(data, arrays["selected"]))
    assert found.status == whole.status == "optimal"
    assert found.norm == pytest.approx(whole.norm, rel=1e-9)


def test_data_that_change_on_disk_are_refused(arrays, tmp_path) -> None:
    saved(arrays, tmp_path)
    calls = []

    def select(block):
        calls.append(len(block["X"]))
        if len(calls) == 2:
            on_disk = np.load(tmp_path / "X.npy", mmap_mode="r+")
            on_disk[3, 2, 1] = np.nextafter(on_disk[3, 2, 1], 9.0)
            on_disk.flush()
        return arrays["selected"]

    with pytest.raises(InputError, match="block 0 has changed"):
        max_margin_blocks(Margins.from_blocks(MappedSelections(tmp_path, select)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("X"), "no array X"),
        (lambda a: a.pop("selected"), "no array selected"),
        (lambda a: a.update(Z=a["Z"][:29]), "29 of Z"),
        (lambda a: a.update(X=a["X"][0]), "it must be"),
        (lambda a: a.update(X=a["X"][:0]), "30|no sequences|0 sequences"),
    ],
)
def test_arrays_that_do_not_fit(change, words: str, arrays, tmp_path) -> None:
    change(arrays)
    saved(arrays, tmp_path)
    with pytest.raises(InputError, match=words):
        MappedSelections(tmp_path)


def test_files_that_hold_no_arrays_of_their_own(arrays, tmp_path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InputError, match=r"data\.npz is not a folder; save each array"):
        MappedSelections(tmp_path / "data.npz")
    saved(arrays, tmp_path)
    np.save(tmp_path / "X-0.npy", arrays["X"])
    with pytest.raises(InputError, match="holds X twice"):
        MappedSelections(tmp_path)
