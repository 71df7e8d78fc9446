"""Published data as users have them: layouts, damage in one sentence, and word pieces that are
those of BERT.
"""

import gzip
import io
import json
import lzma
import subprocess
import sys

import numpy as np
import pytest

from attsvm.base.errors import InputError, UnavailableError
from attsvm_papers.networks.published_data import IDX, VARIABLE, published, published_files_digest
from attsvm_papers.networks.word_pieces import LearnedWordPieces

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10
TRAIN = [("so dull", 0), ("a waste", 0), ("warm and funny", 1)]
TEST = [("I left", 0), ("again, please", 1)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def idx(array):
    sides = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sides + array.tobytes()


def mnist(folder, packed=True):
    folder.mkdir(exist_ok=True)
    for name, array in zip(IDX, (GREY[:9], LABELS[:9], GREY[9:], LABELS[9:]), strict=True):
        content = gzip.compress(idx(array)) if packed else idx(array)
        (folder / f"{name}-ubyte{'.gz' if packed else ''}").write_bytes(content)


def cifar(folder, name, **changed):
    parts = {"x_train": COLOUR[:9], "y_train": LABELS[:9, None]}
    parts |= {"x_test": COLOUR[9:], "y_test": LABELS[9:, None]}
    stream = io.BytesIO()
    np.savez(stream, **{**parts, **changed})
    content = stream.getvalue()
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(lzma.compress(content, preset=0) if ".xz" in name else content)


def lines(folder):
    folder.mkdir()
    for part, rows in (("train", TRAIN), ("test", TEST)):
        with lzma.open(folder / f"{part}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows)


def unpacked(folder):
    for part, rows in (("train", TRAIN), ("test", TEST)):
        for k, (text, label) in enumerate(rows):
            kept = folder / part / ("pos" if label else "neg")
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"{k}_7.txt").write_text(text, encoding="utf-8")


def holds(found, pixels):
    assert np.array_equal(found.train, pixels[:9])
    assert np.array_equal(found.test, pixels[9:])
    assert [*found.train_labels, *found.test_labels] == LABELS.tolist()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["mnist", "."])
def test_mnist(home, packed, place):
    mnist(home / place, packed)
    holds(published("mnist"), GREY[..., None])


@pytest.mark.parametrize("name", ["cifar10_10k_2k.npz.xz", "cifar10.npz"])
def test_cifar(home, name):
    cifar(home / "cifar10", name)
    holds(published("cifar10"), COLOUR)


@pytest.mark.parametrize(("write", "place"), [(lines, "imdb"), (unpacked, "aclImdb")])
def test_reviews(home, write, place):
    write(home / place)
    found = published("imdb")
    assert (found.train, found.test) == ([t for t, _ in TRAIN], [t for t, _ in TEST])
    assert (found.train_labels.tolist(), found.test_labels.tolist()) == ([0, 0, 1], [0, 1])
    before = published_files_digest("imdb")
    path = next(path for path in sorted((home / place).rglob("*")) if path.is_file())
    path.write_bytes(path.read_bytes() + b" ")
    assert published_files_digest("imdb") != before, "the digest names the bytes"


def test_digits_are_always_there(monkeypatch):
    monkeypatch.delenv(VARIABLE)
    found = published("digits")
    assert (found.train.shape, found.test.shape) == ((1438, 8, 8, 1), (359, 8, 8, 1))
    assert found.train.max() == 255
    assert set(found.test_labels.tolist()) == set(range(10))


def test_what_is_missing_is_said(home, monkeypatch):
    with pytest.raises(UnavailableError, match="holds no files of mnist; set ATTSVM_DATA to a"):
        published("mnist")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UnavailableError, match=r"ATTSVM_DATA is not set.*train and test"):
        published_files_digest("imdb")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("mnist", gzip.compress(idx(GREY[:9]), mtime=0)[:-20], "truncated or corrupt"),
        ("mnist", gzip.compress(idx(GREY[:9])[:-1], mtime=0), "truncated or corrupt"),
        ("mnist", gzip.compress(b"", mtime=0), "truncated or corrupt"),
        ("mnist", gzip.compress(idx(GREY[:8]), mtime=0), "with 9 labels"),
        ("mnist", gzip.compress(idx(LABELS[:9]), mtime=0), r"images of shape \(9,\)"),
        ("cifar10", b"not an archive", "truncated or corrupt"),
        ("cifar10", {"y_test": np.full(3, 10)}, "each with a class from 0 to 9, are due"),
        ("cifar10", {"x_test": COLOUR[9:] / 255}, "each with a class from 0 to 9, are due"),
        ("imdb", b"no lines", "holds no reviews"),
    ],
)
def test_what_is_damaged_is_said(home, name, content, sentence):
    if name == "cifar10" and isinstance(content, dict):
        cifar(home / name, "cifar10.npz", **content)
    else:
        write = {"mnist": mnist, "imdb": lines}.get(name, lambda folder: folder.mkdir())
        write(home / name)
        file = {"mnist": f"{IDX[0]}-ubyte.gz", "imdb": "test.jsonl.xz"}.get(name, "cifar10.npz")
        (home / name / file).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        published(name)


TEXTS = ["The film was DULLER!", "a Café, warmth", "film " * 30, "warm"] * 5


@pytest.fixture(scope="module")
def tokens():
    pytest.importorskip("tokenizers")
    return LearnedWordPieces(TEXTS, 60)


def test_ids_are_those_of_transformers(tokens):
    # takes a vocabulary without a file
    transformers = pytest.importorskip("transformers", minversion="5")
    theirs = transformers.BertTokenizerFast(vocab=tokens.pieces, do_lower_case=True)
    expected = theirs(TEXTS, padding=True)
    ids, mask = tokens.ids(TEXTS, 64)
    assert ids.tolist() == expected["input_ids"]
    assert mask.tolist() == (np.array(expected["attention_mask"]) == 1).tolist()


def test_long_texts_keep_their_beginning_and_end(tokens):
    whole, shown = (part[2] for part in tokens.ids(TEXTS, 64))
    whole = whole[shown].tolist()
    assert tokens.ids(TEXTS, 6)[0][2].tolist() == whole[:6]
    assert tokens.ids(TEXTS, 6, end=2)[0][2].tolist() == whole[:4] + whole[-2:]
    assert tokens.split("warm")[0] == "[CLS]"
    assert len(tokens) <= 60


@pytest.mark.processes
def test_every_process_learns_the_same_pieces():
    pytest.importorskip("tokenizers")
    code = (
        "import random; from attsvm_papers.networks.word_pieces import LearnedWordPieces;"
        "r = random.Random(0); texts = [' '.join(''.join(r.choices('abcdefgh', k=4))"
        " for _ in range(20)) for _ in range(30)];"
        "print(sorted(LearnedWordPieces(texts, 150).pieces.items()))"
    )
    run = [subprocess.run([sys.executable, "-c", code], capture_output=True) for _ in range(2)]
    assert run[0].stdout == run[1].stdout != b""
