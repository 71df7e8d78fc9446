"""Image files of the user: every layout is read, every damage is one sentence, and no code of a
file runs.
"""

import gzip
import io
import lzma
import pickle
import struct

import numpy as np
import pytest

from attsvm.datasets import image_set, image_sets
from attsvm.datasets.image_sets import VARIABLE, image_digest, image_files
from attsvm.errors import InputError

RNG = np.random.default_rng(0)
GREY, COLOUR = (
    RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8),
    RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8),
)
LABELS = np.arange(12, dtype=np.uint8) % 10
IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


@pytest.fixture
def mnist(tmp_path):
    home = tmp_path / "mnist"
    home.mkdir()
    for name, array in zip(IDX, (GREY[:9], LABELS[:9], GREY[9:], LABELS[9:]), strict=True):
        (home / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return tmp_path


@pytest.fixture
def archive(tmp_path):
    stream = io.BytesIO()
    np.savez(stream, x_train=COLOUR[:9], y_train=LABELS[:9], x_test=COLOUR[9:], y_test=LABELS[9:])
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "cifar10_10k_2k.npz.xz"
    path.write_bytes(lzma.compress(stream.getvalue(), preset=0))
    return path


def python2_batch(pixels, labels):
    """The bytes of a published batch: strings of Python 2 and an array through NumPy's old module
    names.
    """

    def string(content):
        return b"T" + struct.pack("<i", len(content)) + content

    shape = b"K" + bytes([len(pixels)]) + b"M\x00\x0c\x86"  # (n, 3072)
    dtype = (
        b"cnumpy\ndtype\n"
        + string(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
        + string(b"b")
        + b"\x87R"
    )
    state = (
        b"(K\x01" + shape + dtype + b"\x89" + string(pixels.transpose(0, 3, 1, 2).tobytes()) + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}("
        + string(b"batch_label")
        + string(b"one")
        + string(b"labels")
        + numbers
        + string(b"data")
        + array
        + state
        + b"u."
    )


def write_batches(home):
    home.mkdir()
    for k, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = slice(2 * k, 2 * k + 2)
        (home / name).write_bytes(python2_batch(COLOUR[rows], LABELS[rows]))


def holds(known, pixels, train):
    assert np.array_equal(known.train, pixels[:train])
    assert np.array_equal(known.test, pixels[train:])
    assert known.train_labels.tolist() == LABELS[:train].tolist()
    assert known.test_labels.tolist() == LABELS[train:].tolist()


def test_mnist_packed_and_unpacked(mnist):
    holds(image_set("mnist", mnist), GREY[..., None], 9)
    holds(image_set("mnist", mnist / "mnist"), GREY[..., None], 9)
    for name in IDX:
        packed = mnist / "mnist" / f"{name}.gz"
        (mnist / "mnist" / name).write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    holds(image_set("mnist", mnist), GREY[..., None], 9)


def test_cifar_as_an_archive(archive):
    holds(image_set("cifar10", archive.parents[1]), COLOUR, 9)


def test_cifar_as_batches(tmp_path):
    write_batches(tmp_path / "cifar-10-batches-py")
    holds(image_set("cifar10", tmp_path), COLOUR, 10)


def test_digits_are_always_there(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    known = image_set("digits")
    assert known.train.shape == (1438, 8, 8, 1)
    assert known.test.shape == (359, 8, 8, 1)
    assert known.train.max() == 255
    assert set(known.test_labels.tolist()) == set(range(10))


def test_the_variable_names_the_folder(mnist, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(mnist))
    assert len(image_set("mnist").train) == 9
    monkeypatch.delenv(VARIABLE)
    assert image_files("mnist") == []
    assert image_digest("mnist") == ""
    with pytest.raises(
        InputError,
        match=(
            r"ATTSVM_DATA is not set; set ATTSVM_DATA to a folder with one of:"
            r" train-images-idx3-ubyte\.gz"
        ),
    ):
        image_set("mnist")


def test_a_missing_file_is_said(mnist):
    (mnist / "mnist" / f"{IDX[3]}.gz").unlink()
    with pytest.raises(InputError, match="holds no files of mnist"):
        image_set("mnist", mnist)


def test_the_digest_names_the_bytes(mnist):
    before = image_digest("mnist", mnist)
    assert len(before) == 64
    (mnist / "mnist" / f"{IDX[1]}.gz").write_bytes(gzip.compress(idx(LABELS[:9][::-1].copy())))
    assert image_digest("mnist", mnist) != before


def packed(content: bytes) -> bytes:
    # workers that collect a second apart must see the same tests
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (packed(idx(GREY[:9]))[:-20], "truncated or corrupt"),
        (b"no gzip at all", "truncated or corrupt"),
        (packed(idx(GREY[:9])[:-1]), r"announces shape \(9, 28, 28\) and holds 7055 bytes"),
        (packed(idx(LABELS[:9])), "those of an idx file of 3 axes are 00 00 08 03"),
        (packed(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31)), "announces shape"),
        (packed(idx(GREY[:8])), r"labels of shape \(9,\)"),
        (packed(b""), "its first bytes are"),
    ],
    ids=["cut short", "no gzip", "a byte short", "labels", "huge", "too few", "empty"],
)
def test_damaged_idx_files(mnist, content, sentence):
    (mnist / "mnist" / f"{IDX[0]}.gz").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        image_set("mnist", mnist)


def test_labels_out_of_range(mnist):
    (mnist / "mnist" / f"{IDX[1]}.gz").write_bytes(gzip.compress(idx(np.full(9, 10, np.uint8))))
    with pytest.raises(InputError, match="labels from 10 to 10, where 0 to 9 are due"):
        image_set("mnist", mnist)


def test_damaged_archives(archive):
    whole = archive.read_bytes()
    for content in (whole[:-100], b"", lzma.compress(b"not an archive")):
        archive.write_bytes(content)
        with pytest.raises(InputError, match="truncated or corrupt"):
            image_set("cifar10", archive.parents[1])


class Evil:
    def __reduce__(self):
        return print, ("this must never be printed",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Evil()),
        pickle.dumps({b"labels": [1]}),
        pickle.dumps([1])[:-1],
        b"",
        pickle.dumps(3),
    ],
    ids=["a call", "a dict", "cut short", "empty", "a number"],
)
def test_a_batch_cannot_run_code(tmp_path, capsys, content):
    home = tmp_path / "cifar-10-batches-py"
    write_batches(home)
    (home / "data_batch_3").write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_3 is truncated or corrupt"):
        image_set("cifar10", tmp_path)
    assert "never" not in capsys.readouterr().out


def test_unknown_names_and_folders(tmp_path):
    with pytest.raises(
        InputError, match="there is no image set 'imagenet'; the names are digits, mnist, cifar10"
    ):
        image_set("imagenet")
    with pytest.raises(InputError, match="is not a folder; set ATTSVM_DATA"):
        image_set("mnist", tmp_path / "nowhere")


def test_an_image_set_is_known_by_its_content_and_not_by_its_files(mnist, monkeypatch):
    packed = image_set("mnist", mnist)
    for path in (mnist / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    plain = image_set("mnist", mnist)
    assert plain.sha256() == packed.sha256()
    assert plain.published() is None
    monkeypatch.setitem(image_sets.PUBLISHED, packed.sha256(), "twelve images")
    assert plain.published() == "twelve images"
    plain.train_labels[0] += 1
    assert plain.published() is None
