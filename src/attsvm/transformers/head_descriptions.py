"""A head in words, made of measured shares, and the share that stands for chance beside each."""

from __future__ import annotations

import math

from attsvm.transformers.head_findings import PENDING, Comparison, Head
from attsvm.transformers.token_names import strip_marks

KIND_PHRASES = {
    "itself": "the query's own token",
    "previous": "the token before it",
    "next": "the token after it",
    "first": "the first token",
    "same token": "the same token elsewhere",
    "special": "a separator",
}
SINKS = ("first", "special")


def describe_selection(head: Head, mostly: float = 0.5, partly: float = 0.25) -> tuple[str, float]:
    """The tokens that a head selects, ``the token before it, 95 %``, and their share by chance.

    Args:
        head: with its shares by kind.
        mostly: share of queries from which one kind of token names a head; untuned.
        partly: share from which a kind, or a word, is mentioned; untuned.
    """
    first, second = sorted(KIND_PHRASES, key=lambda kind: -head.selects[kind])[:2]
    share, chance = head.selects[first], head.chance[first]
    if share >= mostly:
        sink = "a sink: " if first in SINKS else ""
        return f"{sink}{_phrase(head, first)}, {format_percent(share)}", chance
    # all kinds but "other" are at zero
    if share == 0:
        return "other tokens alone", head.chance["other"]
    # no kind is common: is one word?
    word, often, at_random = head.favourite or ("", 0.0, 0.0)
    if often >= max(partly, share):
        return f"often “{strip_marks(word)}”, {format_percent(often)}", at_random
    if share < partly:
        return (
            f"no fixed place; most often {KIND_PHRASES[first]}, {format_percent(share)}",
            chance,
        )
    also = f", or {_phrase(head, second)}, {format_percent(head.selects[second])}"
    also = also if head.selects[second] >= partly else ""
    return f"partly {_phrase(head, first)}, {format_percent(share)}{also}", chance


def _phrase(head: Head, kind: str) -> str:
    """The kind in words, with the token where it is nearly always one: one that is selected so
    often that it must be of this kind.
    """
    if kind in SINKS and head.favourite is not None:
        word, share, _ = head.favourite
        of_kind = head.selects[kind]
        if share >= 0.8 * of_kind and share + of_kind > 1.0:
            return f"{KIND_PHRASES[kind]}, {strip_marks(word)}"
    return KIND_PHRASES[kind]


def describe_excess(head: Head) -> tuple[str, str]:
    """A verdict, in a word, whether the weights are nearer to their own max-margin solution than
    the nulls are; and the difference with its interval.
    """
    if not head.fits:
        if head.uncompared == PENDING:
            return "not solved yet", ""
        return ("too rarely sure" if head.uncompared.startswith("fewer") else "not compared"), ""
    fit = head.fits[0]
    low, high = fit.interval()
    number = format_signed(fit.excess)
    if math.isfinite(low):
        number += f" ({format_signed(low)} to {format_signed(high)})"
    return _excess_verdict(fit), number


def _excess_verdict(fit: Comparison) -> str:
    if not math.isfinite(fit.excess):
        return "no null"
    if fit.interval()[0] > 0:
        return "nearer"
    return "unclear" if fit.excess > 0 else "no nearer"


def format_percent(share: float) -> str:
    """A share in percent, ``95 %``; one that is not zero is at least ``<1 %``."""
    if not math.isfinite(share):
        return "–"
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def format_signed(value: float) -> str:
    """A number with its sign and two digits, ``+.06``, ``−.01``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:+.2f}".replace("0.", ".", 1).replace("-", "−")
    return "0" if text[1:] == ".00" else text
