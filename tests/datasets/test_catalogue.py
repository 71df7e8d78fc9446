"""One door: paths, names, options, and what a data set promises."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.base.files import save_arrays
from attsvm.datasets import instance, load, names, toy, unit_sphere


@pytest.mark.parametrize("name", names())
def test_every_name_loads_and_encodes(name):
    dataset = load(name)
    encoded = dataset.encode([0])
    assert len(names()[name]) > 20
    assert encoded.bags.n == len(dataset) == len(encoded.views) == dataset.provenance["rows"]
    assert set(dataset.labels) <= set(range(len(dataset.class_names)))
    json.dumps([dataset.provenance, dataset.notes, encoded.notes, encoded.views[0]])
    view = encoded.views[0]
    assert len(view["boxes" if view["kind"] == "image" else "labels"]) == encoded.bags.lengths[0]


def test_names_take_arguments():
    assert load("digits:4-9", patch=4).class_names == ("4", "9")
    data, dataset = unit_sphere(3, 4, 5, 6)[0], load("unit_sphere:3,4,5,6")
    assert np.array_equal(dataset.encode([0]).data(data.labels).tokens, data.tokens)
    assert np.array_equal(dataset.labels, data.labels > 0)


def test_instances_bring_their_head():
    data, known = instance("unit_sphere:3,4,5,6")
    head = known["v"]
    expected, v = unit_sphere(3, 4, 5, 6)
    assert np.array_equal(data.tokens, expected.tokens)
    assert np.array_equal(head, v)
    assert np.array_equal(instance("plane")[1]["v"], toy("plane").head)
    assert np.array_equal(instance("mmts-1")[1]["scores"], toy("single_global").scores)
    assert instance("joint")[1] == {}
    for spec in ("digits:4-9", "data.npz", "nowhere"):
        assert instance(spec) is None
    with pytest.raises(InputError, match="write it like unit_sphere"):
        instance("unit_sphere:1")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_of_arrays(tmp_path, suffix):
    data, _ = unit_sphere(3, 4, 5, seed=0)
    path = tmp_path / f"a{suffix}"
    data.save(path)
    dataset = load(str(path))
    assert dataset.provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    encoded = dataset.encode([True, False, True])
    assert np.array_equal(encoded.bags.queries, data.queries)
    assert encoded.views[0] == {
        "kind": "array",
        "labels": ["token 0", "token 1", "token 2", "token 3"],
    }
    unit_sphere(3, 4, 5, seed=[0, 1])[0].save(path)
    with pytest.raises(
        InputError, match=r"holds instances with leading axes \(2,\); save one of them"
    ):
        load(path)
    save_arrays({"X": np.ones((1, 1, 1)), "y": [1], "v": [1.0]}, path)
    assert load(path).provenance["further_arrays"] == ["v"]


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        (
            "nowhere",
            {},
            (
                "nowhere is neither a file nor a named data set; the names are digits, unit_sphere,"
                " single_global"
            ),
        ),
        ("digits:3", {}, "'3' cannot be read in a data set's name; write it like digits:4-9"),
        ("digits:3-x", {}, "'3-x' cannot be read"),
        ("digits:3-33", {}, "positive is 33; choose a digit"),
        ("unit_sphere:1,2", {}, "write it like unit_sphere:6,8,10,0"),
        ("joint:1", {}, "joint:1 has arguments, and joint takes none"),
        ("joint", {"patch": 2}, "option patch does not go with joint; it is for digits"),
        ("digits", {"text": "body"}, "option text does not go with digits; it is for text"),
        ("catalogue.doc", {}, r"is not a format that attsvm reads; give a \.npz, \.safetensors"),
        ("a.npz", {}, r"a\.npz does not exist"),
        ("a.npz", {"label": "y"}, "option label does not go with a file of arrays"),
        ("a.csv", {}, r"a\.csv does not exist"),
    ],
)
def test_what_is_refused(spec, options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "catalogue.doc").touch()
    with pytest.raises(InputError, match=sentence):
        load(spec, **options)


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("digit", "digits"),
        ("Unit-Sphere:3,4,5,6", "unit_sphere"),
        ("plane_margin", "plane_margins"),
        ("mmts1", "mmts-1"),
    ],
)
def test_a_misspelt_name_is_told_the_one_that_is_like_it(spec, meant):
    with pytest.raises(InputError, match=rf"named data set; .*; did you mean {meant}\?$"):
        load(spec)


def test_options_left_at_none_are_defaults():
    assert load("digits", text=None, label=None, patch=None).provenance["patch"] == 2


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ([], "give a list of at least one row position"),
        ([[0]], r"train has shape \(1, 1\)"),
        ([0.5], "dtype float64"),
        ([0, 3], "train holds row 3; unit_sphere:3,4,5,0 has rows 0 to 2"),
        ([-1], "train holds row -1"),
        ([True], "dtype bool"),
    ],
)
def test_training_rows_that_are_refused(train, sentence):
    with pytest.raises(InputError, match=sentence):
        load("unit_sphere:3,4,5,0").encode(train)


def test_labels_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        load("joint").labels[0] = 0


def test_importing_costs_no_heavy_library():
    code = (
        "import sys, attsvm.datasets.attention_data, attsvm.base.files, attsvm.datasets,"
        " attsvm.datasets.catalogue\nattsvm.datasets.names();"
        " attsvm.datasets.toy('joint')\nprint(sorted({name.split('.')[0] for name in sys.modules} &"
        " {'torch', 'sklearn', 'scipy', 'pyarrow', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
