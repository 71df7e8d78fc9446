"""Words of a text with their places."""

from __future__ import annotations

import re

Span = tuple[int, int]

# Letters and digits of any script, with apostrophes and hyphens inside ("don't", "well-made"). A
# line-break tag, common in reviews from the web, matches first and captures nothing.
_WORD = re.compile(r"<br\s*/?>|([^\W_]+(?:['’\-][^\W_]+)*)", re.IGNORECASE)


def words(text: str) -> list[str]:
    """The words of a text in order, in lower case; ``<br />`` is no word."""
    return [_plain(word) for word in _WORD.findall(text) if word]


def places(text: str) -> dict[str, list[Span]]:
    """Each distinct word of :func:`words` in the order of first occurrence, with the characters
    ``[start, end)`` of every occurrence.
    """
    found: dict[str, list[Span]] = {}
    for match in _WORD.finditer(text):
        if match[1]:
            found.setdefault(_plain(match[1]), []).append(match.span())
    return found


def _plain(word: str) -> str:
    return word.lower().replace("’", "'")
