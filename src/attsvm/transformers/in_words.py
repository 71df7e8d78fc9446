"""A head in words, made of measured shares, and the share that stands for chance beside each."""

from __future__ import annotations

import math

from attsvm.transformers.head_findings import PENDING, Comparison, Head

MOSTLY, PARTLY = 0.5, 0.25
"""Shares of queries from which one kind of token names a head, and from which it is mentioned."""

KINDS = {
    "itself": "the query's own token",
    "previous": "the token before it",
    "next": "the token after it",
    "first": "the first token",
    "same token": "the same token elsewhere",
    "special": "a separator",
}
SINKS = ("first", "special")


def selects(head: Head) -> tuple[str, float]:
    """What a head selects, ``the token before it, 95 %``, and the share of that by chance."""
    first, second = sorted(KINDS, key=lambda kind: -head.selects[kind])[:2]
    share, chance = head.selects[first], head.chance[first]
    if share >= MOSTLY:
        sink = "a sink: " if first in SINKS else ""
        return f"{sink}{_named(head, first)}, {percent(share)}", chance
    if share == 0:
        return "other tokens alone", head.chance["other"]
    word, often, at_random = head.favourite or ("", 0.0, 0.0)
    if often >= max(PARTLY, share):
        return f"often “{bare(word)}”, {percent(often)}", at_random
    if share < PARTLY:
        return f"no fixed place; most often {_named(head, first)}, {percent(share)}", chance
    also = f", or {_named(head, second)}, {percent(head.selects[second])}"
    also = also if head.selects[second] >= PARTLY else ""
    return f"partly {_named(head, first)}, {percent(share)}{also}", chance


def _named(head: Head, kind: str) -> str:
    """The kind, with the word where it is nearly always one."""
    if kind in SINKS and head.favourite is not None:
        word, share, _ = head.favourite
        if share >= 0.8 * head.selects[kind]:
            return f"{KINDS[kind]}, {bare(word)}"
    return KINDS[kind]


def excess(head: Head) -> tuple[str, str]:
    """Whether the weights are nearer to their own max-margin solution than the nulls are, in a
    word, and the difference with its interval.
    """
    if not head.fits:
        if head.uncompared == PENDING:
            return "not solved yet", ""
        return ("too rarely sure" if head.uncompared.startswith("fewer") else "not compared"), ""
    fit = head.fits[0]
    low, high = fit.interval()
    number = signed(fit.excess)
    if math.isfinite(low):
        number += f" ({signed(low)} to {signed(high)})"
    return _verdict(fit), number


def _verdict(fit: Comparison) -> str:
    if not math.isfinite(fit.excess):
        return "no null"
    if fit.interval()[0] > 0:
        return "nearer"
    return "unclear" if fit.excess > 0 else "no nearer"


def bare(word: str) -> str:
    """A piece of a word without the marks of its tokenizer."""
    return _unmarked(word).strip() or "␣"


def spaced(word: str) -> str:
    """A piece as it would stand in the text."""
    word = _unmarked(word)
    return word[2:] if word.startswith("##") else word if word[:1] in " \n" else f" {word}"


def _unmarked(word: str) -> str:
    return word.replace("Ġ", " ").replace("▁", " ")


def percent(share: float) -> str:
    """``95 %``; a share that is not zero is at least ``<1 %``."""
    if not math.isfinite(share):
        return "–"
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def signed(value: float) -> str:
    """``+.06``, ``−.01``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:+.2f}".replace("0.", ".", 1).replace("-", "−")
    return "0" if text[1:] == ".00" else text
