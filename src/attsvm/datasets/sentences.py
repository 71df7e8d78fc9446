"""Words and sentences of a text, each by its characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attsvm.base.extras import imported

Span = tuple[int, int]
"""Characters ``[start, end)`` of a text."""

# Letters and digits of any script, with apostrophes and hyphens inside ("don't", "well-made"). A
# line-break tag, common in reviews from the web, matches first and captures nothing.
_WORD = re.compile(r"<br\s*/?>|([^\W_]+(?:['’\-][^\W_]+)*)", re.IGNORECASE)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def words(text: str) -> list[str]:
    """The words of a text in order, in lower case; ``<br />`` is no word.

    Example:
        >>> from attsvm.datasets.sentences import words
        >>> words("Don't look!<br />A well-made film")
        ["don't", 'look', 'a', 'well-made', 'film']
    """
    return [_plain(word) for word in _WORD.findall(text) if word]


def occurrences(text: str) -> Iterator[tuple[str, Span]]:
    """The words of :func:`words` one by one, each with its characters ``[start, end)``."""
    for match in _WORD.finditer(text):
        if match[1]:
            yield _plain(match[1]), match.span()


def _plain(word: str) -> str:
    return word.lower().replace("’", "'")


def sentence_spans(text: str) -> list[Span]:
    """The characters of each sentence of a text, in order, by the rules of syntok for languages of
    Latin script; ``<br />`` ends a sentence.

    Raises:
        MissingExtraError: syntok is not installed.

    Example:
        >>> from attsvm.datasets.sentences import sentence_spans
        >>> text = "Dr. Smith paid $3.50, i.e. nothing! Was it good?"
        >>> [text[start:end] for start, end in sentence_spans(text)]
        ['Dr. Smith paid $3.50, i.e. nothing!', 'Was it good?']
    """
    segmenter = imported("syntok.segmenter", "sentences as instances", "syntok", "sentences")
    lines = _BREAK.sub(lambda tag: "\n" * len(tag[0]), text)  # characters stay where they are
    return [
        (sentence[0].offset, sentence[-1].offset + len(sentence[-1].value))
        for paragraph in segmenter.analyze(lines)
        for sentence in map(list, paragraph)
    ]
