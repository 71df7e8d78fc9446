"""A text as next-token data, against windows cut by hand; unknown words, limits, files that cannot
be read.
"""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.next_token import corpus, winners
from attsvm.errors import InputError


def written(folder: Path, text: str, name: str = "text.txt") -> Path:
    path = folder / name
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def read_sentences(read) -> list[tuple[str, str]]:
    data = read.data
    return [
        (" ".join(data.names(s)), data.names(y)[0])
        for s, y in zip(data.sentences, data.labels, strict=True)
    ]


def test_words_and_windows(tmp_path: Path) -> None:
    read = corpus(written(tmp_path, "The cat's hat,\nthe  CAT's coat"), context=3)
    assert read_sentences(read) == [
        ("the", "cat's"),
        ("the cat's", "hat"),
        ("the cat's hat", ","),
        ("cat's hat ,", "the"),
        ("hat , the", "cat's"),
        (", the cat's", "coat"),
    ]
    assert read.data.vocabulary == ("the", "cat's", "hat", ",", "coat")
    assert (read.length, read.words, read.unknown, read.left_out, read.cut) == (7, 5, 0, 0, 0)
    assert read.position.tolist() == list(range(6))


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "text.txt.xz"])
def test_characters_of_any_script_in_any_file(tmp_path: Path, name: str) -> None:
    read = corpus(written(tmp_path, "añ𝄞añ", name), level="char", context=2)
    assert read_sentences(read) == [("a", "ñ"), ("a ñ", "𝄞"), ("ñ 𝄞", "a"), ("𝄞 a", "ñ")]


def test_rare_words_become_unknown_and_are_neither_query_nor_label(tmp_path: Path) -> None:
    read = corpus(written(tmp_path, "a b a c a b d b a"), context=3, vocabulary=3)
    assert read.data.vocabulary == ("a", "b", "<unk>")
    assert read_sentences(read) == [
        ("a", "b"),
        ("a b", "a"),
        ("a <unk> a", "b"),
        ("b <unk> b", "a"),
    ]
    assert (read.words, read.unknown, read.left_out) == (4, 2, 4)
    again = corpus(written(tmp_path, "a b a <unk> a b <unk> b a"), context=3)
    assert again.data.vocabulary == ("a", "b", "<unk>")
    assert read_sentences(again) == read_sentences(read)


def test_the_limit_keeps_the_first_sentences(tmp_path: Path) -> None:
    path = written(tmp_path, "a b c d e f")
    read = corpus(path, limit=3)
    assert (read.data.N, read.cut) == (3, 2)
    assert read_sentences(read) == read_sentences(corpus(path))[:3]


@given(st.text(alphabet="abc", min_size=2, max_size=40), st.integers(1, 5))
def test_copies_are_explained_by_the_window(
    tmp_path_factory: pytest.TempPathFactory, text: str, context: int
) -> None:
    read = corpus(written(tmp_path_factory.mktemp("c"), text), level="char", context=context)
    expected = [text[t + 1] in text[max(0, t + 1 - context) : t + 1] for t in range(len(text) - 1)]
    np.testing.assert_array_equal(winners(read.data) >= 0, expected)


def test_bigrams_match_frequent_pairs_first_and_injectively(tmp_path: Path) -> None:
    read = corpus(written(tmp_path, "a b a b a b c b c a c"), explanation="bigram", context=2)
    names = np.array([*read.data.vocabulary, "-"])
    pairs = dict(zip(names[:-1].tolist(), names[read.data.following].tolist(), strict=True))
    assert pairs == {"a": "b", "b": "a", "c": "-"} or pairs == {"a": "b", "b": "c", "c": "a"}
    known = read.data.following[read.data.following >= 0]
    assert len(np.unique(known)) == len(known)


def test_refusals(tmp_path: Path) -> None:
    good, short = written(tmp_path, "a b c a b"), written(tmp_path, "word", "short.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "broken.xz").write_bytes(b"not compressed")
    for call, message in [
        (lambda: corpus(tmp_path / "nowhere.txt"), "nowhere.txt does not exist"),
        (lambda: corpus(tmp_path), "is a folder; give the file inside it"),
        (lambda: corpus(short), "holds 1 tokens; a text needs at least two"),
        (lambda: corpus(written(tmp_path, "", "empty.txt")), "holds 0 tokens"),
        (lambda: corpus(tmp_path / "latin.txt"), "is not UTF-8 at byte 3"),
        (lambda: corpus(tmp_path / "broken.xz"), "cannot be decompressed"),
        (lambda: corpus(good, byte_limit=3), "holds more than 3 bytes"),
        (lambda: corpus(good, context=0), "context is 0; it must be at least 1"),
        (lambda: corpus(good, vocabulary=1), "vocabulary is 1; it must be at least 2"),
        (
            lambda: corpus(written(tmp_path, "a b c d", "thin.txt"), vocabulary=2),
            "no two neighbouring tokens of the vocabulary",
        ),
        (lambda: corpus(good, level="line"), "level is 'line'"),
        (
            lambda: corpus(good, explanation="magic"),
            "explanation 'magic'|explanation is 'magic'|and explanation 'magic'",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            call()
