"""Words and sentences of a text by their characters."""

import sys

import pytest

from attsvm.base.errors import MissingExtraError
from attsvm.datasets.sentences import occurrences, sentence_spans

TEXT = 'He saw Dr. Smith at 9 p.m.<br /><br />"Really?" It cost $3.50, i.e. nothing! Great...'


def test_sentences_know_abbreviations_and_line_breaks():
    pytest.importorskip("syntok", reason="syntok is not installed")
    sentences = [TEXT[start:end] for start, end in sentence_spans(TEXT)]
    assert sentences == [
        "He saw Dr. Smith at 9 p.m.",
        '"Really?"',
        "It cost $3.50, i.e. nothing!",
        "Great...",
    ]
    assert sentence_spans("") == []


def test_every_word_is_in_one_sentence():
    pytest.importorskip("syntok", reason="syntok is not installed")
    sentences = sentence_spans(TEXT)
    for _, (start, end) in occurrences(TEXT):
        assert sum(first <= start and end <= last for first, last in sentences) == 1


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "syntok.segmenter", None)
    with pytest.raises(MissingExtraError, match=r"sentences as instances needs the package syntok"):
        sentence_spans("A text.")
