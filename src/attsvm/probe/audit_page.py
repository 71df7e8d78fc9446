"""The page of an audit: a grid of heads, and what is known of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from attsvm.geometry import parse_norm
from attsvm.probe.capture import Recording
from attsvm.probe.head_findings import Comparison, Head, Support
from attsvm.report.page import POLICY, document

_SUPPORTS = 12  # rows shown per head
_TEXT = 300  # tokens shown per head
_WIDTH, _HEIGHT = 160, 48  # of a curve over steps

MEANINGS = {
    "top": (
        "top mass",
        "Mean softmax weight of the token that a query selects: 1 is hard selection.",
    ),
    "first": ("first token", "Share of queries that select the first token of the text, a sink."),
    "entropy": ("entropy", "Mean entropy of attention in nats: 0 is one token."),
    "margin": (
        "scale-free margin",
        "Median distance between the selected token's logit and the next, over the typical size of"
        " a logit of that head, so that heads compare.",
    ),
    "excess": (
        "cosine minus null",
        "Cosine of the head's weights and the max-margin solution of its own selections, minus the"
        " largest mean of the nulls. Near zero there is nothing of the max-margin solution in it.",
    ),
}


class Audited(Protocol):
    """What an :class:`~attsvm.probe.Audit` knows, and a page shows."""

    heads: list[Head]
    recording: Recording
    threshold: float

    def support(self, layer: int, head: int) -> list[Support]:
        """The rows that hold up the margin of this head."""


Shown = Audited | Mapping[int, Audited]
"""An audit, or those of the checkpoints of one training by step, ascending."""


def page(found: Shown, title: str, command: str = "", before: Sequence[str] = ()) -> str:
    """One self-contained HTML page, without scripts.

    Args:
        found: what to show; of checkpoints the last one, and curves over steps.
        title: of the page; the model's name.
        command: what made it, printed at its end.
        before: sentences on what was read, before the audit's own notes.
    """
    audit = _last(found)
    values = {key: [_measure(head, key) for head in audit.heads] for key in MEANINGS}
    kept = [key for key in MEANINGS if any(math.isfinite(v) for v in values[key])]
    tops = {key: max((v for v in values[key] if math.isfinite(v)), default=1.0) for key in kept}
    cells: dict[int, list[dict[str, Any]]] = {}
    for k, head in enumerate(audit.heads):
        cells.setdefault(head.layer, []).append(
            {
                "id": f"l{head.layer}h{head.head}",
                "head": head.head,
                "texts": {key: _short(values[key][k]) for key in kept},
                "shades": {key: _shade(values[key][k], tops[key]) for key in kept},
            }
        )
    return document(
        "probe.html.j2",
        policy=POLICY,
        title=title,
        headline=headline(found),
        detail=detail(found),
        notes=[*before, *notes(found)],
        measures=[(key, MEANINGS[key][0]) for key in kept],
        meanings=[(key, *MEANINGS[key]) for key in kept],
        columns=range(max(len(row) for row in cells.values())),
        grid=list(cells.items()),
        heads=[_head(audit, head) for head in audit.heads],
        curves=_curves(found, kept) if isinstance(found, Mapping) else None,
        command=command,
    )


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
        f" strictest null in {above} of them, by more than the 95 % interval in {clear}.{typical}"
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
    for (null, bare), count in missing.items():
        why = "their keys and queries are not linear in inputs, as with rotary positions"
        told.append(
            f"{_heads(count)} not compared with the null {null}:"
            f" {why if bare else 'their layer has no other heads'}."
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


def _short(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.2f}"


def _shade(value: float, top: float) -> str:
    return f"{min(1.0, max(0.0, value / top)) if math.isfinite(value) and top > 0 else 0.0:.2f}"


def _head(audit: Audited, head: Head) -> dict[str, Any]:
    kind = max(head.selects, key=lambda each: head.selects[each])
    supports = audit.support(head.layer, head.head)
    return {
        "id": f"l{head.layer}h{head.head}",
        "layer": head.layer,
        "head": head.head,
        "sentence": (
            f"At {100 * head.sure[0]:.0f} % of its queries one token has more than half of the"
            f" attention; it selects most often: {_KIND[kind]} ({100 * head.selects[kind]:.0f} %)."
        ),
        "rows": [
            ("module", head.name or "the model itself"),
            ("queries", _of(head.queries, head.asked, "spread evenly")),
            (f"of them sure: top mass above {audit.threshold:g}, and a choice", head.sure_queries),
            *(
                [("sure queries in the programme", _of(head.joined, head.sure_queries, "drawn"))]
                if head.fits
                else []
            ),
            ("top mass above .5, .9, .99", " ".join(_short(v) for v in head.sure)),
            ("mean entropy, nats", _short(head.entropy)),
            ("effective number of tokens", _short(head.effective)),
            ("margin in nats: .1, .5, .9 quantile", " ".join(_short(v) for v in head.margin)),
            ("the same, scale-free", " ".join(_short(v) for v in head.scale_free)),
            ("largest logit", _short(head.peak)),
            ("stable rank of the weights", _short(head.rank)),
        ],
        "fits": [_fit(fit) for fit in head.fits],
        "uncompared": head.uncompared,
        "supports": [_row(each) for each in supports[:_SUPPORTS]],
        "supports_in_all": len(supports),
        "text": _text(audit, supports),
    }


def _of(some: int, all_of_them: int, how: str) -> str:
    return f"{some:,}" if some == all_of_them else f"{some:,} of {all_of_them:,}, {how}"


_KIND = {
    "itself": "the query's own token",
    "previous": "the token before it",
    "first": "the first token of the text",
    "same token": "another copy of the same token",
    "special": "a separator",
    "other": "some other token",
}


def _fit(fit: Comparison) -> list[str]:
    low, high = fit.interval()
    excess = _digits(fit.excess)
    if math.isfinite(low):
        excess += f" ({_digits(low)} to {_digits(high)})"
    return [
        parse_norm(fit.norm).title,
        f"{fit.status}, {fit.constraints} rows",
        _digits(fit.cosine),
        _digits(fit.null()),
        excess,
        *map(_digits, (fit.share, fit.agreement, fit.baseline)),
    ]


def _digits(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _row(support: Support) -> list[str]:
    words = support.words or (None, None, None)
    places = (support.query, support.selected, support.rival)
    named = [
        f"{place}" if word is None else f"{word.strip() or '␣'} ({place})"
        for word, place in zip(words, places, strict=True)
    ]
    return [*named, f"{support.multiplier:.3g}"]


def _text(audit: Audited, supports: list[Support]) -> dict[str, Any] | None:
    """Tokens of the text with most multipliers, with the share that selects each."""
    named = [each for each in supports if each.words is not None]
    if not named:
        return None
    totals: dict[int, float] = {}
    for each in named:
        totals[each.text] = totals.get(each.text, 0.0) + each.multiplier
    text = max(totals, key=lambda each: totals[each])
    words = audit.recording.words[text][:_TEXT]
    weights = np.zeros(len(words))
    for each in named:
        if each.text == text and each.selected < len(words):
            weights[each.selected] += each.multiplier
    weights /= max(float(weights.max()), 1e-300)
    tokens, texts = len(audit.recording.words[text]), len(audit.recording.words)
    part = "" if len(words) == tokens else f", its first {len(words):,} of {tokens:,} tokens"
    return {
        "caption": f"Text {text + 1:,} of {texts:,}, which holds most of the multipliers{part}.",
        "words": [(_spaced(word), f"{w:.2f}") for word, w in zip(words, weights, strict=True)],
    }


def _curves(found: Mapping[int, Audited], keys: list[str]) -> list[list[dict[str, str]]]:
    """Per head a small curve of every measure over steps, heights alike for all heads."""
    steps = np.array(list(found), dtype=np.float64)
    x = _WIDTH * (steps - steps[0]) / (steps[-1] - steps[0])
    values = {
        key: np.array([[_measure(head, key) for head in each.heads] for each in found.values()])
        for key in keys
    }
    curves = []
    for h in range(len(_last(found).heads)):
        own = []
        for key in keys:
            finite = values[key][np.isfinite(values[key])]
            low, high = min(0.0, float(finite.min())), float(finite.max())
            y = _HEIGHT * (high - values[key][:, h]) / max(high - low, 1e-300)
            points = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if math.isfinite(b)]
            own.append(
                {
                    "label": MEANINGS[key][0],
                    "points": " ".join(points),
                    "first": _short(float(values[key][0, h])),
                    "last": _short(float(values[key][-1, h])),
                    "low": _short(low),
                    "high": _short(high),
                }
            )
        curves.append(own)
    return curves


def _spaced(word: str) -> str:
    """A piece as it would stand in the text."""
    for mark in ("Ġ", "▁"):
        word = word.replace(mark, " ")
    return word[2:] if word.startswith("##") else word if word[:1] in " \n" else f" {word}"
