from __future__ import annotations

import random

import pytest

from attsvm.report import token_sequences


def joined(parts: list[token_sequences.Segment]) -> str:
    return "".join(part.text for part in parts)


def test_segments_cover_the_text_exactly_and_mark_every_occurrence() -> None:
    view = {
        "kind": "text",
        "text": "no, no and yes",
        "spans": [[[0, 2], [4, 6]], [[7, 10]], [[11, 14]]],
    }
    parts = token_sequences.segments(view, [0.9, 0.001, 0.099], selected=0, rival=2)
    assert joined(parts) == view["text"]
    assert [(part.text, part.role) for part in parts if part.role != "plain"] == [
        ("no", "selected"),
        ("no", "selected"),
        ("yes", "rival"),
    ]


def test_selected_token_lies_on_top_of_an_overlapping_one() -> None:
    view = {"kind": "text", "text": "abcdef", "spans": [[[0, 6]], [[2, 4]]]}
    parts = token_sequences.segments(view, [0.6, 0.4], selected=1, rival=None)
    assert [(part.text, part.role) for part in parts] == [
        ("ab", "token"),
        ("cd", "selected"),
        ("ef", "token"),
    ]


def test_neighbouring_occurrences_of_one_token_stay_apart() -> None:
    view = {"kind": "text", "text": "haha", "spans": [[[0, 2], [2, 4]]]}
    assert [part.text for part in token_sequences.segments(view, [1.0], 0, None)] == ["ha", "ha"]


@pytest.mark.parametrize("spans", [[], [[]], [[[-5, 99]]], [[[3, 1]]], [[[50, 60]]]])
def test_ranges_outside_the_text_are_cut(spans: list[list[list[int]]]) -> None:
    view = {"kind": "text", "text": "short", "spans": spans}
    assert joined(token_sequences.segments(view, [1.0], 0, 7)) == "short"


def test_empty_text() -> None:
    assert (
        token_sequences.segments({"kind": "text", "text": "", "spans": [[]]}, [1.0], 0, None) == []
    )


def long_view(words: int, seed: int) -> tuple[dict[str, object], list[float]]:
    rng = random.Random(seed)
    places: dict[str, list[list[int]]] = {}
    content, start = [], 0
    for _ in range(words):
        word = rng.choice(
            [
                "alpha",
                "beta",
                "gamma",
                "delta",
                "épsilon",
                "ζ",
                "unusually-long-compound-word" * 2,
                "a",
            ]
        )
        places.setdefault(word, []).append([start, start + len(word)])
        start += len(word) + 1
        content.append(word)
    return {"kind": "text", "text": " ".join(content), "spans": list(places.values())}, [
        1 / len(places)
    ] * len(places)


@pytest.mark.parametrize("seed", range(20))
def test_excerpt_keeps_whole_words_that_matter_in_their_order(seed: int) -> None:
    view, probability = long_view(400, seed)
    parts = token_sequences.segments(view, probability, 1, 2)
    short = token_sequences.excerpt(parts)
    assert short is not None
    assert len(joined(short)) < 3000
    whole = str(view["text"])
    position = 0
    for stretch in joined(short).split(" … "):
        position = whole.index(stretch, position) + len(stretch)
    for role, token in (("selected", 1), ("rival", 2)):
        full = {whole[start:end] for start, end in token_sequences.ranges(view, token)}
        assert {part.text for part in short if part.role == role} == full


def test_short_text_needs_no_excerpt_and_long_text_is_capped() -> None:
    assert token_sequences.excerpt([token_sequences.Segment("a few words", "plain")]) is None
    capped = token_sequences.capped([token_sequences.Segment("x" * 50_000, "plain")])
    assert len(joined(capped)) < 20_010
    assert capped[-1].role == "gap"


def test_word_is_shortened_and_free_of_line_breaks() -> None:
    view = {"kind": "text", "text": "two\n\nlines " + "x" * 100, "spans": [[[0, 10]], [[11, 111]]]}
    assert token_sequences.word(view, 0) == "two lines"
    assert token_sequences.word(view, 1).endswith("…")
    assert token_sequences.word(view, 9) == ""
