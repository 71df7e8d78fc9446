from __future__ import annotations

import random

import pytest

from attsvm.report import token_sequences


def joined(parts: list[token_sequences.Segment]) -> str:
    return "".join(part.text for part in parts)


@pytest.mark.parametrize(
    ("text", "spans", "probability", "selected", "rival", "expected"),
    [
        (
            "no, no and yes",
            [[[0, 2], [4, 6]], [[7, 10]], [[11, 14]]],
            [0.9, 0.001, 0.099],
            0,
            2,
            ["no selected", ",  plain", "no selected", " and  plain", "yes rival"],
        ),
        # the selected token lies on top of one with more attention
        ("abcd", [[[0, 4]], [[1, 3]]], [0.6, 0.4], 1, None, ["a token", "bc selected", "d token"]),
        # neighbouring occurrences of a token stay apart
        ("haha", [[[0, 2], [2, 4]]], [1.0], 0, None, ["ha selected", "ha selected"]),
        # whatever its attention
        ("ab", [[[0, 1]], [[1, 2]]], [0.999, 0.001], 1, None, ["a token", "b selected"]),
        ("!!!", [[]], [1.0], 0, None, ["!!! plain"]),
        ("", [[]], [1.0], 0, None, []),
    ],
)
def test_segments_cover_the_text(text, spans, probability, selected, rival, expected) -> None:
    view = {"kind": "text", "text": text, "spans": spans}
    parts = token_sequences.segments(view, probability, selected, rival)
    assert [f"{part.text} {part.role}" for part in parts] == expected
    assert all(part.probability in (*probability, 0.0) for part in parts)


WORDS = ["alpha", "beta", "gamma", "delta", "épsilon", "ζ", "unusually-long-compound-word" * 2, "a"]


@pytest.mark.parametrize("seed", range(5))
def test_excerpt_keeps_whole_words_that_matter_in_their_order(seed: int) -> None:
    rng, places, whole = random.Random(seed), {}, ""
    for _ in range(400):
        word = rng.choice(WORDS)
        places.setdefault(word, []).append([len(whole), len(whole) + len(word)])
        whole += f"{word} "
    view = {"kind": "text", "text": whole, "spans": [*places.values()]}
    parts = token_sequences.segments(view, [1 / len(places)] * len(places), 1, 2)
    short = token_sequences.excerpt(parts)
    assert short is not None
    assert len(joined(short)) < 3000
    position = 0
    for stretch in joined(short).split(" … "):
        position = whole.index(stretch, position) + len(stretch)
    for role, token in (("selected", 1), ("rival", 2)):
        full = {whole[start:end] for start, end in view["spans"][token]}
        assert {part.text for part in short if part.role == role} == full


def test_short_text_needs_no_excerpt_and_one_without_a_word_has_its_beginning() -> None:
    assert token_sequences.excerpt([token_sequences.Segment("a few words", "plain")]) is None
    (kept, gap) = token_sequences.excerpt([token_sequences.Segment("x" * 500, "plain")])
    assert (kept.text, gap.role) == ("x" * 420, "gap")


def test_word_is_shortened_and_free_of_line_breaks() -> None:
    spans = [[[0, 10]], [[11, 111]], []]
    view = {"kind": "text", "text": "two\n\nlines " + "x" * 100, "spans": spans}
    words = [token_sequences.word(view, token) for token in range(3)]
    assert words == ["two lines", "x" * 27 + "…", ""]
