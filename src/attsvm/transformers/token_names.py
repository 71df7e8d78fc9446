"""Tokens as pages, tables and terminals write them."""

from __future__ import annotations

from attsvm.base.printable import visible


def strip_marks(word: str) -> str:
    r"""A piece of a word without the marks of its tokenizer, on one line: a line break is
    ``\n``, and other characters that steer a terminal or a page are signs.
    """
    word = _without_marks(word).strip(" ")
    for character, code in (("\n", r"\n"), ("\r", r"\r"), ("\t", r"\t")):
        word = word.replace(character, code)
    return visible(word) or "␣"


def as_in_text(word: str) -> str:
    """A piece as it would stand in the text."""
    word = _without_marks(word)
    return word[2:] if word.startswith("##") else word if word[:1] in " \n" else f" {word}"


def _without_marks(word: str) -> str:
    return word.replace("Ġ", " ").replace("▁", " ")
