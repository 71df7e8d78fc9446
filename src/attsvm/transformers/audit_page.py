"""The page of an audit: a table of heads in words, a sentence as a head sees it, and details."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attsvm.base.files import digest
from attsvm.base.printable import visible
from attsvm.norms import parse_norm
from attsvm.report.page import POLICY, document
from attsvm.transformers.capture import Recording
from attsvm.transformers.drawing import Drawing
from attsvm.transformers.head_findings import PENDING, Comparison, Head, Support
from attsvm.transformers.in_words import KINDS, bare, excess, percent, selects, spaced

NAN = float("nan")
_NAME = 70  # characters of a text in a list
_SUPPORTS = 12  # rows shown per head
_WIDTH, _HEIGHT = 160, 48  # of a curve over steps
_SCRIPT = Path(__file__).parents[1] / "report" / "templates" / "probe.js"

MEASURES = {
    "top": "mean attention on the selected token",
    "first": "share that selects the first token",
    "entropy": "entropy in nats",
    "margin": "scale-free margin",
    "excess": "cosine minus null",
}


class Audited(Protocol):
    """What an :class:`~attsvm.transformers.Audit` knows, and a page shows."""

    heads: list[Head]
    recording: Recording
    threshold: float
    drawings: list[Drawing]

    def support(self, layer: int, head: int) -> list[Support]:
        """The rows that hold up the margin of this head."""


Shown = Audited | Mapping[int, Audited]
"""An audit, or those of the checkpoints of one training by step, ascending."""


def page(found: Shown, title: str, command: str = "", before: Sequence[str] = ()) -> str:
    """One self-contained HTML page. Its only script sorts, searches and draws; a browser runs no
    other.

    Args:
        found: what to show; of checkpoints the last one, and curves over steps.
        title: of the page; the model's name.
        command: what made it, printed at its end.
        before: sentences on what was read, before the audit's own notes.
    """
    from markupsafe import Markup

    audit = _last(found)
    heads = sorted(audit.heads, key=lambda each: (-each.sure[0], -each.top))
    script = _SCRIPT.read_text(encoding="utf-8")
    script_hash = base64.b64encode(bytes.fromhex(digest(script))).decode()
    kept = [key for key in MEASURES if any(math.isfinite(_measure(h, key)) for h in heads)]
    pending = sum(head.uncompared == PENDING for head in heads)
    return document(
        "probe.html.j2",
        policy=f"{POLICY}; script-src 'sha256-{script_hash}'",
        script=Markup(script),
        drawings=Markup(_drawings(audit.drawings)),
        title=title,
        headline=headline(found),
        pending=pending,
        asked=pending + sum(bool(head.fits) for head in heads),
        detail=detail(found),
        notes=[*before, *notes(found)],
        rows=[_row(head) for head in heads],
        texts=[_named(each) for each in audit.drawings],
        heads=[_head(audit, head) for head in heads],
        curves=_curves(found, heads, kept) if isinstance(found, Mapping) else None,
        command=command,
    )


def _drawings(drawn: Sequence[Drawing]) -> str:
    """JSON that can stand inside a page: nothing in it ends the element, or steers the page."""
    told = [
        {"words": [bare(visible(word)) for word in each.words], "heads": each.heads}
        for each in drawn
    ]
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def _named(drawn: Drawing) -> str:
    text = "".join(map(spaced, drawn.words)).strip()
    short = text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"
    some, every = len(drawn.words), drawn.tokens
    return short if some == every else f"{short} (the first {some} of {every:,} tokens)"


def _row(head: Head) -> dict[str, Any]:
    """A row of the table, with what it is sorted by."""
    verdict, number = excess(head)
    words, chance = selects(head)
    fit = head.fits[0].excess if head.fits else NAN
    return {
        "id": f"l{head.layer}h{head.head}",
        "name": f"{head.layer}.{head.head}",
        "place": 10_000 * head.layer + head.head,
        "does": words,
        "chance": f"by chance {percent(chance)}",
        "sure": percent(head.sure[0]),
        "margin": _short(head.margin[1]),
        "verdict": verdict,
        "excess": number,
        "keys": [_key(value) for value in (head.sure[0], head.margin[1], fit)],
    }


def _key(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "-1e9"


def _last(found: Shown) -> Audited:
    return list(found.values())[-1] if isinstance(found, Mapping) else found


def headline(found: Shown) -> str:
    """What a person learns first."""
    if isinstance(found, Mapping):
        first, *_, last = found
        before, after = (_counts(found[step]) for step in (first, last))
        return (
            f"From step {first} to step {last}, the heads that attend mostly to one token at more"
            f" than half of their queries go from {before[0]} to {after[0]} of"
            f" {len(_last(found).heads)}, and those that select the first token of the text most of"
            f" the time from {before[1]} to {after[1]}."
        )
    counted = [f"{number}" if number else "none" for number in _counts(found)]
    return (
        f"Of {len(found.heads)} heads, {counted[0]} attend mostly to one token at more than half of"
        f" their queries, and {counted[1]} select the first token of the text most of the time."
    )


def _counts(audit: Audited) -> tuple[int, int]:
    """Heads that are sure at most queries, and heads whose selections are a sink."""
    sure = sum(head.sure[0] > 0.5 for head in audit.heads)
    return sure, sum(head.selects["first"] > 0.5 for head in audit.heads)


def detail(found: Shown) -> str:
    """What the comparison with the max-margin solutions came to, in a sentence."""
    if isinstance(found, Mapping):
        return f"{len(found)} checkpoints. At the last one: {detail(_last(found))}"
    audit = found
    fits = [head.fits[0] for head in audit.heads if head.fits]
    if not fits:
        asked = any(head.uncompared for head in audit.heads)
        return "No head was compared with a max-margin solution" + (
            "." if asked else ", because no norm was asked for."
        )
    above = sum(fit.excess > 0 for fit in fits)
    clear = sum(fit.interval()[0] > 0 for fit in fits)
    ratio = [fit.cosine / fit.null() for fit in fits if fit.null() > 0]
    typical = f" In the median it is {np.median(ratio):.1f} times its null." if ratio else ""
    return (
        f"{len(fits)} of {len(audit.heads)} heads were compared with the max-margin solution of"
        f" their own selections ({parse_norm(fits[0].norm).title}); the cosine is above its"
        f" strictest null in {above} of them, by more than the 95 % interval in {clear}, where"
        f" chance alone makes about {0.025 * len(fits):.0f}.{typical}"
    )


def notes(found: Shown) -> list[str]:
    """What the figures of heads leave out, a sentence each."""
    audit = _last(found)
    told = []
    if fewer := [head for head in audit.heads if head.queries < head.asked]:
        head = max(fewer, key=lambda each: each.asked)
        told.append(
            f"Of long texts some queries were looked at, spread evenly: {head.queries:,} of"
            f" {head.asked:,} in a layer."
        )
    for why, count in Counter(head.uncompared for head in audit.heads if head.uncompared).items():
        told.append(f"{_heads(count)} not compared with a max-margin solution: {why}.")
    if drawn := [head for head in audit.heads if head.fits and head.joined < head.sure_queries]:
        told.append(
            f"In {len(drawn):,} of the compared heads the programme holds {drawn[0].joined:,} of"
            f" up to {max(head.sure_queries for head in drawn):,} sure queries, drawn at random."
        )
    missing = Counter(
        (null, math.isnan(head.rank))
        for head in audit.heads
        for null in (head.fits[0].missing if head.fits else ())
    )
    for (null, rotary), count in missing.items():
        why = "their keys and queries are not linear in inputs, as with rotary positions"
        told.append(
            f"{_heads(count)} not compared with the null {null}:"
            f" {why if rotary else 'their layer has no other heads'}."
        )
    fits = [fit for head in audit.heads for fit in head.fits]
    if soft := sum(fit.status == "soft" for fit in fits):
        told.append(
            f"{soft:,} of {len(fits):,} programmes contradict themselves, and were solved with"
            " slack (soft)."
        )
    if open_ := sum(fit.status not in ("optimal", "soft") for fit in fits):
        told.append(
            f"{open_:,} of {len(fits):,} programmes were not solved to the tolerance; their status"
            " stands with the head."
        )
    return told


def _heads(count: int) -> str:
    return "1 head was" if count == 1 else f"{count:,} heads were"


def _measure(head: Head, key: str) -> float:
    fit = head.fits[0] if head.fits else None
    return {
        "top": head.top,
        "first": head.selects["first"],
        "entropy": head.entropy,
        "margin": head.scale_free[1],
        "excess": float("nan") if fit is None else fit.excess,
    }[key]


def _short(value: float, places: int = 2) -> str:
    return f"{value:z.{places}f}" if math.isfinite(value) else "–"


def _head(audit: Audited, head: Head) -> dict[str, Any]:
    supports = audit.support(head.layer, head.head)
    total = sum(each.multiplier for each in supports)
    words, chance = selects(head)
    kinds = sorted(head.selects, key=lambda kind: -head.selects[kind])
    return {
        "id": f"l{head.layer}h{head.head}",
        "layer": head.layer,
        "head": head.head,
        "sentence": (
            f"It selects: {words} (by chance {percent(chance)}). At {percent(head.sure[0])} of its"
            " queries one token has more than half of the attention."
        ),
        "kinds": [
            (
                {**KINDS, "other": "some other token"}[kind],
                percent(head.selects[kind]),
                percent(head.chance[kind]),
            )
            for kind in kinds
            if head.selects[kind] > 0
        ],
        "rows": [
            ("module", head.name or "the model itself"),
            ("queries looked at", _of(head.queries, head.asked, "spread evenly")),
            (f"of them sure: attention above {audit.threshold:g}, and a choice", head.sure_queries),
            *(
                [("sure queries in the programme", _of(head.joined, head.sure_queries, "drawn"))]
                if head.fits
                else []
            ),
            ("queries with attention above .5, .9, .99", " · ".join(map(percent, head.sure))),
            ("mean entropy of attention, nats", _short(head.entropy)),
            ("effective number of tokens", _short(head.effective)),
            ("margin in nats: low, middle, high", " · ".join(map(_short, head.margin))),
            ("margin over the size of a logit", " · ".join(map(_short, head.scale_free))),
            ("largest logit", _short(head.peak)),
            *(
                [("stable rank of the weights", _short(head.rank))]
                if math.isfinite(head.rank)
                else []
            ),
        ],
        "fits": [_fit(fit) for fit in head.fits],
        "uncompared": head.uncompared,
        "supports": [_support(each, total) for each in supports[:_SUPPORTS]],
        "supports_in_all": len(supports),
    }


def _of(some: int, all_of_them: int, how: str) -> str:
    return f"{some:,}" if some == all_of_them else f"{some:,} of {all_of_them:,}, {how}"


def _fit(fit: Comparison) -> list[str]:
    measured = (fit.cosine, fit.null(), fit.excess, fit.share, fit.agreement, fit.baseline)
    told = [_short(each, 3) for each in measured]
    low, high = fit.interval()
    if math.isfinite(low):
        told[2] += f" ({_short(low, 3)} to {_short(high, 3)})"
    return [parse_norm(fit.norm).title, f"{fit.status}, {fit.constraints} rows", *told]


def _support(support: Support, total: float) -> list[str]:
    words = support.words or (None, None, None)
    places = (support.query, support.selected, support.rival)
    named = [
        f"{place}" if word is None else f"{bare(word)} ({place})"
        for word, place in zip(words, places, strict=True)
    ]
    return [*named, percent(support.multiplier / total)]


def _curves(
    found: Mapping[int, Audited], heads: list[Head], keys: list[str]
) -> list[list[dict[str, str]]]:
    """Per head a small curve of every measure over steps, heights alike for all heads."""
    steps = np.array(list(found), dtype=np.float64)
    x = _WIDTH * (steps - steps[0]) / (steps[-1] - steps[0])
    values = {
        key: np.array([[_measure(head, key) for head in each.heads] for each in found.values()])
        for key in keys
    }
    place = {(head.layer, head.head): h for h, head in enumerate(_last(found).heads)}
    curves = []
    for h in (place[head.layer, head.head] for head in heads):
        own = []
        for key in keys:
            finite = values[key][np.isfinite(values[key])]
            low, high = min(0.0, float(finite.min())), float(finite.max())
            y = _HEIGHT * (high - values[key][:, h]) / max(high - low, 1e-300)
            points = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if math.isfinite(b)]
            own.append(
                {
                    "label": MEASURES[key],
                    "points": " ".join(points),
                    "first": _short(float(values[key][0, h])),
                    "last": _short(float(values[key][-1, h])),
                    "low": _short(low),
                    "high": _short(high),
                }
            )
        curves.append(own)
    return curves
