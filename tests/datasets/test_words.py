"""Words and where they stand."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.documents import occurrences, words


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
