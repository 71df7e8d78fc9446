"""The sentences of our own: what the attention measure assumes of them."""

import re

from attsvm_papers.networks.opinion_sentences import SENTENCES


def test_every_sentence_has_one_word_of_opinion_that_no_other_has() -> None:
    opinions = {sentence.word for sentence in SENTENCES}
    assert len(SENTENCES) == len(opinions) == 2 * sum(each.positive for each in SENTENCES) >= 60
    for sentence in SENTENCES:
        words = re.findall(r"\w+", sentence.text.lower())
        assert [word for word in words if word in opinions] == [sentence.word]
        assert sentence.text[0].isupper()
        assert sentence.text.endswith(".")
        assert 6 <= len(words) <= 14
