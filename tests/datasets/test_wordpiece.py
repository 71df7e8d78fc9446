"""WordPiece ids: those of BERT's own tokeniser, however the vocabulary arrives; cut, padded and
kept.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from attsvm.datasets import WordPiece
from attsvm.errors import InputError, MissingExtraError
from attsvm.files import CACHE_VARIABLE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
tokenizers = pytest.importorskip("tokenizers")

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "film",
    "was",
    "dull",
    "##er",
    "warm",
    "##th",
    "!",
    "cafe",
    "a",
]
TEXTS = ["The film was DULLER!", "a Café, warmth", "film " * 30, "warm"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return path


def test_ids_are_those_of_transformers(vocabulary):
    # takes a vocabulary without a file
    transformers = pytest.importorskip("transformers", minversion="5")
    theirs = transformers.BertTokenizerFast(
        vocab={piece: k for k, piece in enumerate(PIECES)}, do_lower_case=True
    )
    found = WordPiece.load(vocabulary).encode(TEXTS, 64)
    expected = theirs(TEXTS, padding=True)
    assert found.ids.tolist() == expected["input_ids"]
    assert found.mask.tolist() == (np.array(expected["attention_mask"]) == 1).tolist()


def test_cls_comes_first_and_long_texts_lose_their_end(vocabulary):
    found = WordPiece.load(vocabulary).encode(TEXTS, 6)
    assert (found.ids[:, 0] == 2).all()
    assert found.ids[2].tolist() == [2, 6, 6, 6, 6, 6]  # no [SEP]
    assert found.ids[3].tolist() == [2, 10, 3, 0, 0, 0]
    assert found.mask.sum(axis=1).tolist() == [6, 6, 6, 3]
    assert not found.ids[~found.mask].any()


def test_all_ways_to_a_tokeniser_agree(vocabulary, tmp_path):
    first = WordPiece.load(vocabulary)
    (tmp_path / "saved").mkdir()
    first.save(tmp_path / "saved" / "tokenizer.json")
    others = [
        WordPiece.load(tmp_path),
        WordPiece.load(tmp_path / "saved"),
        WordPiece.load(str(tmp_path / "saved" / "tokenizer.json")),
    ]
    assert {other.sha256 for other in others} == {first.sha256}
    assert first.size == len(PIECES)
    assert first.pieces("the warmth") == ["[CLS]", "the", "warm", "##th", "[SEP]"]


def test_a_trained_vocabulary_is_kept_and_covers_its_texts(folder):
    trained = WordPiece.train(TEXTS * 5, 60)
    assert [trained.pieces("")[0], trained.size <= 60] == ["[CLS]", True]
    assert trained.encode(["zzz"]).ids[0, 0] == 2
    assert not (trained.encode(TEXTS).ids == 1).any()  # no [UNK] in what it was trained on
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert WordPiece.train(TEXTS * 5, 60).sha256 == trained.sha256
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == files


def test_training_gives_the_same_vocabulary_in_every_process(tmp_path):
    """The library's trainer alone does not: its order of letters, and with it ties, come from a
    hash table of the process.
    """
    script = (
        "import random; from attsvm.datasets import WordPiece; letters = random.Random(0);texts ="
        " [' '.join(''.join(letters.choices('abcdefghijkl', k=6)) for _ in range(30)) for _ in"
        " range(30)];print(WordPiece.train(texts, 150).sha256)"
    )
    found = set()
    for name in "abc":
        environment = {
            **os.environ,
            CACHE_VARIABLE: str(tmp_path / name),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        found.add(
            subprocess.run(
                [sys.executable, "-c", script],
                env=environment,
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
    assert len(found) == 1


def test_ids_are_computed_once(vocabulary, folder, monkeypatch):
    tokenizer = WordPiece.load(vocabulary)
    first = tokenizer.encode(TEXTS, 8)
    (kept,) = folder.iterdir()
    monkeypatch.setattr(tokenizer, "_tokenizer", None)  # whatever is not kept fails
    again = tokenizer.encode(TEXTS, 8)
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.mask, again.mask)
    with pytest.raises(AttributeError):
        tokenizer.encode(TEXTS, 9)
    with pytest.raises(AttributeError):
        tokenizer.encode(TEXTS[:-1], 8)
    assert list(folder.iterdir()) == [kept]


def test_a_damaged_file_of_the_cache_is_made_anew(vocabulary, folder):
    tokenizer = WordPiece.load(vocabulary)
    first = tokenizer.encode(TEXTS, 8)
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes()[:50])
    assert np.array_equal(tokenizer.encode(TEXTS, 8).ids, first.ids)


def test_nothing_is_kept_when_not_wanted(vocabulary, folder):
    WordPiece.load(vocabulary).encode(TEXTS, 8, cache=False)
    assert not folder.exists()


def test_what_is_no_tokeniser(tmp_path, vocabulary):
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(InputError, match="is not a tokeniser"):
        WordPiece.load(tmp_path / "broken.json")
    with pytest.raises(InputError, match="does not exist"):
        WordPiece.load(tmp_path / "missing.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"neither tokenizer\.json nor vocab\.txt"):
        WordPiece.load(tmp_path / "empty")
    vocabulary.write_text("\n".join(["[UNK]", *PIECES[:1], *PIECES[2:]]))
    with pytest.raises(InputError, match=r"\[PAD\] is 1"):
        WordPiece.load(vocabulary)
    vocabulary.write_text("a\na\n[UNK]\n")
    with pytest.raises(InputError, match="is not a WordPiece vocabulary"):
        WordPiece.load(vocabulary)
    with pytest.raises(InputError, match="from 0 texts"):
        WordPiece.train([])


def test_a_hub_that_does_not_answer(monkeypatch):
    transformers = pytest.importorskip("transformers")

    def offline(name):
        raise OSError(f"cannot reach {name}")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
    with pytest.raises(
        InputError, match=r"neither a file nor reachable on the hub.*WordPiece\.train"
    ):
        WordPiece.load("some/model")


def test_without_the_library(monkeypatch, vocabulary):
    real = importlib.import_module

    def without(name, *rest):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=r"attsvm\[text\]"):
        WordPiece.load(vocabulary)


def test_a_cache_that_cannot_be_made(monkeypatch, tmp_path, vocabulary):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match="set ATTSVM_CACHE"):
        WordPiece.load(vocabulary).encode(TEXTS)


def test_a_long_text_may_keep_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTSVM_CACHE", str(tmp_path))
    tokens = WordPiece.train(["a b c d e f g h"] * 3, 40)
    texts = ["a b c d e f g h", "a b"]
    whole = tokens.encode(texts).ids[0]
    found = tokens.encode(texts, 6, end=4)
    assert found.ids[0].tolist() == [*whole[:2], *whole[-4:]]
    assert found.ids[1].tolist() == tokens.encode(texts, 6).ids[1].tolist()
    with pytest.raises(InputError, match="end is 6 of at most 6 tokens"):
        tokens.encode(texts, 6, end=6)
