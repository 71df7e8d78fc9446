"""The sentences of our own: what the attention measure assumes of them."""

import re

import pytest

from attsvm_papers.networks.sentences import SENTENCES


def test_there_are_enough_of_both_kinds_and_none_twice() -> None:
    praise = sum(sentence.positive for sentence in SENTENCES)
    assert len(SENTENCES) >= 60
    assert praise == len(SENTENCES) - praise
    assert len({sentence.text for sentence in SENTENCES}) == len(SENTENCES)
    assert len({sentence.word for sentence in SENTENCES}) == len(SENTENCES), (
        "each word of opinion is used once"
    )


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence.word)
def test_the_designated_word_occurs_exactly_once_and_alone(sentence) -> None:
    words = re.findall(r"\w+", sentence.text.lower())
    assert words.count(sentence.word) == 1
    opinions = {other.word for other in SENTENCES}
    assert [word for word in words if word in opinions] == [sentence.word]
    assert sentence.text[0].isupper()
    assert sentence.text.endswith(".")
    assert 6 <= len(words) <= 14
