"""Texts as sets of words: tokens, queries, views, and what the notes count."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets import load, text
from attsvm.datasets.documents import _spans, text_view
from attsvm.datasets.sentences import words

TRAIN = np.arange(0, 90)


@pytest.fixture
def dataset(jsonl):
    return text(jsonl, dim=12)


def test_a_data_set_before_it_is_encoded(dataset, jsonl, texts):
    assert (dataset.name, dataset.kind, dataset.class_names) == ("corpus.jsonl", "text", ("0", "1"))
    assert len(dataset) == len(texts[0])
    assert dataset.labels.tolist() == texts[1]
    assert dataset.provenance["rows"] == len(texts[0])
    assert len(dataset.provenance["sha256"]) == 64
    json.dumps(dataset.provenance)


def test_tokens_are_the_distinct_known_words(dataset, texts):
    encoded = dataset.encode(TRAIN)
    data = encoded.data(2 * dataset.labels - 1)
    known = {
        word
        for word in set().union(*map(words, texts[0]))
        if sum(words(texts[0][i]).count(word) for i in TRAIN) >= 2
    }
    vector_of = {}
    for i, content in enumerate(texts[0]):
        expected = [word for word in dict.fromkeys(words(content)) if word in known]
        assert data.lengths[i] == len(expected)
        for t, word in enumerate(expected):
            assert np.array_equal(vector_of.setdefault(word, data.tokens[i, t]), data.tokens[i, t])
    assert np.allclose(np.linalg.norm(data.tokens, axis=-1)[data.mask], 1.0)
    assert not data.duplicate_tokens().any()
    assert len(encoded.views) == len(dataset)
    for i, view in enumerate(encoded.views):
        assert view["text"] == texts[0][i]
        assert len(view["spans"]) == data.lengths[i]
        for spans in view["spans"]:
            (shown,) = {texts[0][i][start:end].lower() for start, end in spans}
            assert len(spans) == words(texts[0][i]).count(shown)


def test_the_query_is_a_constant_and_the_unit_mean(jsonl):
    dataset = text(jsonl, dim=12)
    data = dataset.encode(TRAIN).data(2 * dataset.labels - 1)
    mean = data.tokens.sum(axis=1) / data.lengths[:, None]
    expected = np.hstack(
        [np.ones((data.n, 1)), mean / np.linalg.norm(mean, axis=1, keepdims=True)]
    ) / np.sqrt(2)
    assert np.allclose(data.queries, expected, atol=1e-15)
    constant = text(jsonl, dim=12, query="constant").encode(TRAIN).data(data.labels)
    assert constant.queries.shape == (data.n, 1)
    assert (constant.queries == 1).all()


def test_only_the_training_rows_are_learned_from(jsonl, texts, write):
    changed = list(texts[0])
    changed[100:] = ["Entirely other words words stand here here"] * (len(changed) - 100)
    rows = (
        json.dumps({"text": content, "label": label})
        for content, label in zip(changed, texts[1], strict=True)
    )
    other = write("other.jsonl", "\n".join(rows))
    first, second = (
        text(jsonl, dim=12).encode(range(100)).bags,
        text(other, dim=12).encode(range(100)).bags,
    )
    for i in range(100):
        assert np.array_equal(first[i], second[i])
    assert not second[100:].rows.any()


def test_what_is_left_out_is_counted(write, texts):
    rows = [*zip(*texts, strict=True), ("zebra xylophone", 0), ("!!!", 1)]
    path = write(
        "a.jsonl",
        "\n".join(json.dumps({"text": content, "label": label}) for content, label in rows),
    )
    encoded = text(path, dim=12, max_tokens=3).encode(TRAIN)
    total = sum(len(words(content)) for content, _ in rows)
    assert any(
        note.startswith(f"2 of {total} words have no vector and are dropped")
        for note in encoded.notes
    )
    assert any(
        note.startswith("120 of 122 texts are cut to their first 3") for note in encoded.notes
    )
    unknown = "2 of 122 texts have no known word and are predicted as the largest class."
    assert unknown in encoded.notes
    assert encoded.bags.lengths.max() == 3
    assert encoded.bags.lengths[-2:].tolist() == [1, 1]
    assert not encoded.bags[-2:].rows.any()
    view = {"kind": "text", "text": "!!!", "spans": [[]], "positions": [None]}
    assert encoded.views[-1] == view
    assert len(encoded.views[0]["spans"]) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"dim": 0}, "dim is 0"),
        ({"query": "first"}, "query is 'first'; choose 'mean' or 'constant'"),
        ({"patch": 2}, "option patch does not go with text; it is for digits"),
        (
            {"model": "any", "window": 8},
            "option window does not go with vectors of a model; it is for text",
        ),
        ({"text": "body"}, "has no column body; its columns are text, label"),
    ],
)
def test_options_that_are_refused(jsonl, options, sentence):
    with pytest.raises(InputError, match=sentence):
        load(jsonl, **options)


def words_with_places(text):
    """The characters of every word, and where each stands first."""
    return _spans(dict.fromkeys(words(text), 0), len(text), text)


def test_of_a_long_text_a_view_keeps_what_a_page_can_show():
    long = "early " + "filler " * 100_000 + "late " + "filler " * 1000 + "x" * 300_000
    view = text_view(long, *words_with_places(long))
    assert view["characters"] == len(long)
    assert len(json.dumps(view)) < 200_000
    text, spans = view["text"], view["spans"]
    assert len(spans) == 4
    for name, ranges in zip(("early", "filler", "late", "x" * 100), spans, strict=True):
        assert ranges, name
        assert all(0 <= start < end <= len(text) for start, end in ranges)
        assert all(name.startswith(text[start:end][: len(name)]) for start, end in ranges)
    assert text.endswith(" … ")


def test_a_view_of_a_short_text_is_the_text():
    view = text_view("one one two one", *words_with_places("one one two one"))
    assert view == {
        "kind": "text",
        "text": "one one two one",
        "spans": [[[0, 3], [4, 7], [12, 15]], [[8, 11]]],
        "positions": [1, 3],
    }
