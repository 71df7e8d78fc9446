"""Words of a text with their places."""

from __future__ import annotations

import re
from collections.abc import Iterator

Span = tuple[int, int]

# Letters and digits of any script, with apostrophes and hyphens inside ("don't", "well-made"). A
# line-break tag, common in reviews from the web, matches first and captures nothing.
_WORD = re.compile(r"<br\s*/?>|([^\W_]+(?:['’\-][^\W_]+)*)", re.IGNORECASE)


def words(text: str) -> list[str]:
    """The words of a text in order, in lower case; ``<br />`` is no word."""
    return [_plain(word) for word in _WORD.findall(text) if word]


def occurrences(text: str) -> Iterator[tuple[str, Span]]:
    """The words of :func:`words` one by one, each with its characters ``[start, end)``."""
    for match in _WORD.finditer(text):
        if match[1]:
            yield _plain(match[1]), match.span()


def places(text: str) -> dict[str, list[Span]]:
    """Each distinct word of :func:`words` in the order of first occurrence, with the characters
    ``[start, end)`` of every occurrence.
    """
    found: dict[str, list[Span]] = {}
    for word, span in occurrences(text):
        found.setdefault(word, []).append(span)
    return found


def _plain(word: str) -> str:
    return word.lower().replace("’", "'")
