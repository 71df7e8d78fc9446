"""Words, where they stand, and their vectors against their definition, written out slowly."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.datasets.documents import (
    cooccurrence,
    positive_information,
    vocabulary,
    word_vectors,
)
from attsvm.datasets.sentences import occurrences, words

RNG = np.random.default_rng(0)
TEXTS = [[f"w{k}" for k in RNG.zipf(1.6, size=RNG.integers(3, 12)) % 40] for _ in range(80)]


def test_the_vocabulary_counts_and_sorts():
    assert vocabulary([["b", "a", "b"], ["c", "a"]], 2) == {"a": 0, "b": 1}
    assert vocabulary([["b", "a", "b"], ["c", "a"]], 1) == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_cooccurrence_counts_pairs_inside_one_text(window, block):
    texts = [*TEXTS[:5], [], ["w1"]]
    numbers = vocabulary(texts, 2)
    expected = Counter()
    for text in texts:
        for i, a in enumerate(text):
            for j, b in enumerate(text):
                if i != j and abs(i - j) <= window and a in numbers and b in numbers:
                    expected[numbers[a], numbers[b]] += 1
    counts = cooccurrence(texts, numbers, window, block).todok()
    assert {key: value for key, value in counts.items() if value} == dict(expected)


def test_positive_information_is_its_formula():
    counts = cooccurrence(TEXTS, vocabulary(TEXTS, 2), 3)
    dense, found = counts.toarray(), positive_information(counts).toarray()
    context = dense.sum(axis=0) ** 0.75
    for w in range(len(dense)):
        for c in range(len(dense)):
            ratio = dense[w, c] / dense[w].sum() / (context[c] / context.sum())
            assert found[w, c] == pytest.approx(
                max(0.0, math.log(ratio)) if ratio > 0 else 0.0, abs=1e-12
            )


def test_vectors_span_the_leading_left_singular_space():
    numbers, found = word_vectors(TEXTS, dim=4, window=5)
    matrix = positive_information(cooccurrence(TEXTS, numbers, 5)).toarray()
    U, S, _ = np.linalg.svd(matrix)
    exact = U[:, :4] * S[:4]
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0)
    assert np.allclose(found @ found.T, exact @ exact.T, atol=0.05)


def test_too_few_words():
    with pytest.raises(
        InputError,
        match=(
            r"the training texts have 2 words that occur 1 times or more, too few for vectors of"
            r" length 64; give a smaller one"
        ),
    ):
        word_vectors([["a", "b"]], min_count=1)
    with pytest.raises(InputError, match="no two words that occur 2 times or more stand together"):
        word_vectors([["a"], ["b"]] * 2, dim=1)
    with pytest.raises(InputError, match=r"have 0 words .* of length 1; give more texts, of words"):
        word_vectors([[], []], dim=1)


def test_a_word_that_always_stands_alone_has_no_vector():
    numbers, found = word_vectors([*TEXTS, ["hermit"], ["hermit"], ["hermit"]], dim=4)
    assert "hermit" not in numbers
    assert sorted(numbers.values()) == list(range(len(found)))
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0)
    without = word_vectors(TEXTS, dim=4)
    assert list(numbers) == list(without[0])
    # the decomposition is randomised
    assert np.allclose(found @ found.T, without[1] @ without[1].T, atol=0.01)


def test_words_of_a_review():
    assert words("It’s <br /><br/>a well-made film , isn't it ? does n't 10/10 snake_case") == [
        *(
            "it's",
            "a",
            "well-made",
            "film",
            "isn't",
            "it",
            "does",
            "n't",
            "10",
            "10",
            "snake",
            "case",
        )
    ]
    assert words("Éclair ÜBER 電影 --- ''") == ["éclair", "über", "電影"]
    assert words("<br> break a < b") == ["break", "a", "b"]


@given(st.text(st.sampled_from("aB'’- \n.<br/>éİ_9"), max_size=60))
def test_occurrences_list_every_word_where_it_stands(text):
    spans = [(span, word) for word, span in occurrences(text)]
    assert [word for _, word in spans] == words(text)
    for (start, end), word in spans:
        assert text[start:end].lower().replace("’", "'") == word
    assert all(first[0][1] <= second[0][0] for first, second in itertools.pairwise(spans))
