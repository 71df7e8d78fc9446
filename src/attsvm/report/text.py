"""A text with its tokens in place: which characters belong to which token, and what to leave out of
a long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

_VISIBLE = 0.005  # attention below half a percent is not shaded
_WHOLE = 420  # texts up to this many characters are shown whole
_AROUND = 110  # characters kept on either side of a word that matters
_LIMIT = 20_000  # characters of a text that the page holds at most
_READ = 50_000  # characters of a text that are looked at, more than a view has


@dataclass(frozen=True)
class Segment:
    """A run of characters with one look.

    Attributes:
        text: the characters.
        role: ``selected``, ``rival``, ``token`` (shaded by attention), ``plain`` or ``gap`` (left
            out).
        probability: attention on the token that the characters belong to.
    """

    text: str
    role: str
    probability: float = 0.0


def ranges(view: dict[str, Any], token: int) -> list[tuple[int, int]]:
    """Character ranges of a token, cut to the text."""
    spans, length = view.get("spans") or [], len(_text(view))
    if not 0 <= token < len(spans):
        return []
    cut = [(max(0, int(start)), min(length, int(end))) for start, end in spans[token]]
    return [(start, end) for start, end in cut if start < end]


def _text(view: dict[str, Any]) -> str:
    return str(view.get("text", ""))[:_READ]


def word(view: dict[str, Any], token: int, limit: int = 28) -> str:
    """The first occurrence of a token, shortened."""
    found = ranges(view, token)
    text = " ".join(_text(view)[slice(*found[0])].split()) if found else ""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def segments(
    view: dict[str, Any], probability: Sequence[float], selected: int, rival: int | None
) -> list[Segment]:
    """The whole text as segments. Where tokens overlap, the selected one is drawn on top, then the
    rival, then by attention.
    """
    text = _text(view)
    owner = np.full(len(text), -1, dtype=np.int64)
    piece = np.zeros(len(text), dtype=np.int64)
    shaded = [
        token for token in np.argsort(probability, kind="stable") if probability[token] >= _VISIBLE
    ]
    above = [token for token in (rival, selected) if token is not None]
    for token in [*(int(t) for t in shaded if t not in above), *above]:
        for number, (start, end) in enumerate(ranges(view, token)):
            owner[start:end] = token
            piece[start:end] = number
    breaks = np.flatnonzero((np.diff(owner) != 0) | (np.diff(piece) != 0)) + 1
    stops = [0, *breaks.tolist(), len(text)]
    out = []
    for start, end in pairwise(stops):
        if start == end:
            continue
        token = int(owner[start])
        role = (
            "selected"
            if token == selected
            else "rival"
            if token == rival
            else "token"
            if token >= 0
            else "plain"
        )
        out.append(
            Segment(
                text[start:end],
                role if token >= 0 else "plain",
                float(probability[token]) if 0 <= token < len(probability) else 0.0,
            )
        )
    return out


def capped(parts: list[Segment]) -> list[Segment]:
    """The same text, ended after the page's limit of characters."""
    out, left = [], _LIMIT
    for part in parts:
        if len(part.text) > left:
            out.append(Segment(part.text[:left], part.role, part.probability))
            return [*out, Segment(" … ", "gap")]
        out.append(part)
        left -= len(part.text)
    return out


def excerpt(parts: list[Segment]) -> list[Segment] | None:
    """The surroundings of what matters; None when the text is short enough to be shown whole."""
    length = sum(len(part.text) for part in parts)
    if length <= _WHOLE:
        return None
    keep = np.zeros(length, dtype=np.bool_)
    position, places = 0, {"selected": 0, "rival": 0, "token": 0}
    order = {"selected": 2, "rival": 1, "token": 2}  # occurrences shown of each role
    for part in parts:
        if (
            part.role in places
            and places[part.role] < order[part.role]
            and (part.role != "token" or part.probability >= 0.05)
        ):
            places[part.role] += 1
            keep[max(0, position - _AROUND) : position + len(part.text) + _AROUND] = True
        position += len(part.text)
    if not keep.any():
        keep[:_WHOLE] = True
    whole = "".join(part.text for part in parts)
    for edge in np.flatnonzero(
        np.diff(keep.astype(np.int8))
    ):  # move each cut to the next blank inside the kept part
        step = 1 if keep[edge + 1] else -1
        place = int(edge) + 1 if step > 0 else int(edge)
        for _ in range(24):
            if not 0 <= place < length or whole[place].isspace():
                break
            place += step
        else:
            continue
        if step > 0:
            keep[edge + 1 : place] = False
        else:
            keep[place + 1 : edge + 1] = False
    return _kept(parts, keep)


def _kept(parts: list[Segment], keep: np.ndarray) -> list[Segment]:
    """The kept characters, with a gap mark for every stretch left out."""
    out: list[Segment] = []
    position = 0
    for part in parts:
        window = keep[position : position + len(part.text)]
        position += len(part.text)
        if part.role in ("selected", "rival") and window.any():  # a word that matters is never cut
            window = np.ones_like(window)
        stops = [0, *(np.flatnonzero(np.diff(window.astype(np.int8))) + 1).tolist(), len(part.text)]
        for start, end in pairwise(stops):
            if window[start]:
                out.append(Segment(part.text[start:end], part.role, part.probability))
            elif not out or out[-1].role != "gap":
                out.append(Segment(" … ", "gap"))
    return out
