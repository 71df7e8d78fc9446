"""Arrays on disk: bitwise round trips, atomic writes, and files made to mislead."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attsvm import AttentionData, InputError
from attsvm.base.files import (
    atomic_write,
    check_destination,
    digest,
    is_unfinished_write,
    load_arrays,
    mapped_array,
    read_object,
    save_arrays,
)

SUFFIXES = (".npz", ".safetensors")
SMALL = 4 << 20
LIES = "truncated or corrupt|announces more than the memory takes"


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    mask = np.ones((3, 4), bool)
    mask[0, 2:] = False
    return AttentionData(
        rng.standard_normal((3, 4, 5)), [1, -1, 1], rng.standard_normal((3, 2)), mask
    )


def refused(path, sentence, *, read=load_arrays):
    with pytest.raises(InputError, match=sentence) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


# round trips


def test_data_comes_back_bit_for_bit_to_us_and_to_other_libraries(data, tmp_path):
    from safetensors.numpy import load_file

    for suffix in SUFFIXES:
        path, again = tmp_path / f"a{suffix}", tmp_path / f"again{suffix}"
        data.save(path)
        loaded = AttentionData.load(path)
        theirs = load_file(path) if suffix == ".safetensors" else dict(np.load(path))
        for name, key in {"tokens": "X", "labels": "y", "queries": "Z", "mask": "mask"}.items():
            for found in (getattr(loaded, name), theirs[key]):
                assert found.tobytes() == getattr(data, name).tobytes()
                assert found.dtype == getattr(data, name).dtype
        loaded.save(again)
        assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(
    array=hnp.arrays(
        st.sampled_from(["f2", "f4", "f8", "i1", "u2", "i4", "i8", "u8", "?"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_arrays_come_back_bit_for_bit(array, suffix, tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / f"a{suffix}"
    swapped = array.astype(array.dtype.newbyteorder(">"))
    save_arrays({"a": array, "turned": array.T, "swapped": swapped}, path)
    again = load_arrays(path)
    assert set(again) == {"a", "turned", "swapped"}
    assert (again["a"].dtype, again["a"].shape) == (array.dtype, array.shape)
    assert again["a"].tobytes() == array.tobytes()
    assert again["turned"].tobytes() == array.T.tobytes()
    assert np.array_equal(again["swapped"], array, equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_files_of_numpy_are_read(tmp_path, write):
    X = np.random.default_rng(0).standard_normal((2, 3, 4))
    half = np.asfortranarray(X.astype(np.float16))
    write(tmp_path / "a.npz", X=half, y=np.array([1, -1]), v=np.zeros(4), name=np.array("kept"))
    found, extras = AttentionData.read(tmp_path / "a.npz")
    assert np.array_equal(found.tokens, half)
    assert set(extras) == {"v", "name"}


def test_bfloat16_is_read_exactly(tmp_path):
    import torch
    from safetensors.torch import save_file

    X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"X": X, "y": torch.tensor([1, -1])}, tmp_path / "a.safetensors")
    assert np.array_equal(AttentionData.load(tmp_path / "a.safetensors").tokens, X.double().numpy())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_objects_and_strings_are_not_saved(tmp_path, suffix):
    for value in ([None], ["a"], np.ones(1, complex), np.ones(1, np.longdouble)):
        with pytest.raises(InputError, match=r"array a has dtype .* convert it to real numbers"):
            save_arrays({"a": value}, tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


# atomic writes


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as partial:
        assert partial.parent == tmp_path
        assert partial.suffix == ".txt"
        partial.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(RuntimeError, match="stop"), atomic_write(path) as partial:  # noqa: PT012
        partial.write_text("half of tw")
        raise RuntimeError("stop")
    assert path.read_text() == "one"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    for suffix in SUFFIXES:
        save_arrays({"a": np.ones(1)}, tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_killed_writer_leaves_the_old_file(tmp_path, suffix):
    """And of its own one at most, which a later run knows by its name."""
    path = tmp_path / f"a{suffix}"
    save_arrays({"a": np.zeros(3)}, path)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        save_arrays({"a": np.ones(100_000)}, path)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    assert np.array_equal(load_arrays(path)["a"], np.zeros(3))
    left = {file.name for file in tmp_path.iterdir()} - {path.name}
    assert len(left) == 1
    assert all(is_unfinished_write(name, path.name) for name in left)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_cannot_be_written_whole_is_one_sentence(tmp_path, suffix):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # Python ignores the signal
    try:
        with pytest.raises(InputError, match=r"cannot be written .*; check the free space$"):
            save_arrays({"a": np.ones(100_000)}, tmp_path / f"a{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("missing/a.npz", "does not exist; create it before writing a", "does not exist; check"),
        ("folder.npz", "is a folder; give the name of a file", "is a folder; give the file in"),
        ("a.npy", r"ends in \.npy; arrays are kept in \.npz or", r"ends in \.npy; arrays are"),
        ("bare", "ends in no suffix", "ends in no suffix"),
    ],
)
def test_places_where_no_arrays_are_kept(tmp_path, name, write, read):
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / name, read)
    for writes in (check_destination, lambda path: save_arrays({"a": np.ones(1)}, path)):
        refused(tmp_path / name, write, read=writes)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_that_are_missing_or_do_not_fit_are_named(tmp_path, suffix):
    path, X = tmp_path / f"a{suffix}", np.ones((2, 1, 1))
    for arrays, sentence in (
        ({"tokens": X, "y": [1]}, r"has no array X \(it holds tokens, y\); store tokens as X"),
        ({"X": X}, r"has no array y \(it holds X\)"),
        ({"X": X, "y": [1, 0]}, r": y holds 0 at \[1\]; labels must be -1 or \+1"),
        ({"X": X, "y": [1, 1], "Z": X[0]}, r": Z has shape \(1, 1\)"),
    ):
        save_arrays(arrays, path)
        refused(path, sentence, read=AttentionData.load)


def test_objects_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    np.savez(tmp_path / "a.npz", X=np.array([Bomb()], dtype=object), y=np.ones(1))
    refused(tmp_path / "a.npz", "holds Python objects, which are never loaded")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_truncation_is_a_sentence(data, tmp_path, suffix):
    whole = tmp_path / f"whole{suffix}"
    data.save(whole)
    content = whole.read_bytes()
    path = tmp_path / f"cut{suffix}"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        refused(path, LIES, read=AttentionData.load)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(draw=st.data())
def test_a_changed_byte_never_crashes(draw, suffix, tmp_path_factory):
    path = tmp_path_factory.mktemp("flip") / f"a{suffix}"
    save_arrays({"X": np.ones((2, 2, 2)), "y": np.array([1, -1])}, path)
    content = bytearray(path.read_bytes())
    for _ in range(3):
        content[draw.draw(st.integers(0, len(content) - 1))] = draw.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        AttentionData.read(path)
    except InputError as error:
        assert path.name in str(error)  # noqa: PT017


# headers that promise too much


def npy(shape, body=b""):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def npz(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "shape", ["(1250000000,)", "(100000, 100000, 100000)", "(-1, 5)", "(5,)", "(" * 3000, "None"]
)
def test_an_npy_header_larger_than_its_entry(tmp_path, shape, compression):
    entries = {"X": npy(shape, body=bytes(16)), "y": npy("(1,)", body=bytes(8))}
    refused(npz(tmp_path / "a.npz", entries, compression), LIES)


def test_names_inside_a_file_do_not_break_the_sentence(tmp_path):
    refused(npz(tmp_path / "a.npz", {"X\n" * 1000: b"no array"}), r"its member X X X .*\.\.\.")
    header = {"X\n" * 1000: {"dtype": "F8_E5M2", "shape": [0], "data_offsets": [0, 0]}}
    refused(safetensors(tmp_path / "a.safetensors", header), r"array X X X .*\.\.\.")
    header["X"] = header.popitem()[1]
    refused(safetensors(tmp_path / "b.safetensors", header), "X has type F8_E5M2, which NumPy lack")


def test_an_array_that_is_there_twice(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("X.npy", npy("(1,)", body=bytes(8)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("X.npy", npy("(1,)", body=bytes(8)))
    refused(tmp_path / "a.npz", "two arrays of one name")


def safetensors(path, header, body=b""):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + body)
    return path


TENSOR = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "header",
    [
        {"X": {**TENSOR, "shape": [1250000000], "data_offsets": [0, 10**10]}},
        {"X": {**TENSOR, "data_offsets": [16, 32]}},
        {"X": TENSOR, "Y": TENSOR},
        {"X": {**TENSOR, "shape": None}},
        {"X": {**TENSOR, "shape": [0, 2**64], "data_offsets": [0, 0]}},
        [1],
        b"[" * 100000,
        b"\xff\xfe",
    ],
)
def test_a_safetensors_header_that_lies(tmp_path, header):
    refused(safetensors(tmp_path / "a.safetensors", header, bytes(16)), LIES)


def test_a_mapped_array_is_the_array(tmp_path):
    path = tmp_path / "X.npy"
    refused(path, "does not exist", read=mapped_array)
    array = np.asfortranarray(np.random.default_rng(0).standard_normal((3, 4, 5)))
    np.save(path, array)
    found = mapped_array(path)
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, array)
    for content in (path.read_bytes()[:-1], b"noise" * 30):
        path.write_bytes(content)
        refused(path, "Python objects|truncated or corrupt", read=mapped_array)


def test_an_honest_large_file_is_read_without_a_second_copy(tmp_path):
    for suffix in SUFFIXES:
        path = tmp_path / f"a{suffix}"
        save_arrays({"a": np.zeros(1 << 21)}, path)
        tracemalloc.start()
        load_arrays(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.5 * (1 << 24) + SMALL


def test_a_digest_is_that_of_the_bytes_of_all_files(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"abc" * 700_000)
    other.write_bytes(b"def")
    assert digest(one) == hashlib.sha256(one.read_bytes()).hexdigest()
    both = one.read_bytes() + other.read_bytes()
    assert digest(one, other) == hashlib.sha256(both).hexdigest()


def test_a_digest_sees_values_shapes_and_not_the_order_of_keys(tmp_path):
    (tmp_path / "text").write_text("née", encoding="utf-8")
    assert digest("née") == digest("née".encode()) == digest(tmp_path / "text")
    assert digest({"a": 1, "b": [1.5]}) == digest({"b": [1.5], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest(np.zeros((2, 3))) != digest(np.zeros((3, 2)))
    assert digest(np.arange(6.0).reshape(2, 3).T) == digest(np.arange(6.0).reshape(2, 3).T.copy())
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"gap": float("nan")})  # which is not equal to itself


def test_an_object_with_a_key_twice_is_no_object():
    assert read_object('{"a": {"b": 1}}') == {"a": {"b": 1}}
    with pytest.raises(ValueError, match="it has b twice"):
        read_object('{"a": {"b": 1, "c": 2, "b": 3}}')
