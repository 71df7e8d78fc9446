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
from attsvm.norms import parse_norm
from attsvm.report.page import POLICY, document
from attsvm.transformers.drawing import Drawing
from attsvm.transformers.head_descriptions import (
    KIND_PHRASES,
    describe_excess,
    describe_selection,
    format_percent,
)
from attsvm.transformers.head_findings import PENDING, Comparison, Head, Support
from attsvm.transformers.recording import Recording
from attsvm.transformers.token_names import as_in_text, strip_marks

NAN = float("nan")
_SCRIPT = Path(__file__).parents[1] / "report" / "templates" / "probe.js"

MEASURES = {
    "top": "mean attention on the selected token",
    "first": "share that selects the first token",
    "entropy": "entropy in nats",
    "margin": "scale-free margin",
    "excess": "cosine minus null",
}


class AuditResults(Protocol):
    """The results of an :class:`~attsvm.transformers.Audit` that a page shows."""

    heads: list[Head]
    recording: Recording
    threshold: float
    drawings: list[Drawing]

    def support(self, layer: int, head: int) -> list[Support]:
        """The rows that hold up the margin of this head."""


AuditOrCheckpoints = AuditResults | Mapping[int, AuditResults]
"""An audit, or those of the checkpoints of one training by step, ascending."""


def render_audit_page(
    audit: AuditOrCheckpoints, title: str, command: str = "", notes_before: Sequence[str] = ()
) -> str:
    """One self-contained HTML page. Its only script sorts, searches and draws; a browser runs no
    other.

    Args:
        audit: what to show; of checkpoints the last one, and curves over steps.
        title: of the page; the model's name.
        command: what made it, printed at its end.
        notes_before: sentences on what was read, before the audit's own notes.
    """
    from markupsafe import Markup

    last = _last_audit(audit)
    # the most selective heads first
    heads = sorted(last.heads, key=lambda head: (-head.sure[0], -head.top))
    # the page's policy admits this very script by its digest, and no other
    script = _SCRIPT.read_text(encoding="utf-8")
    script_hash = base64.b64encode(bytes.fromhex(digest(script))).decode()
    measures = [key for key in MEASURES if any(math.isfinite(_measure(h, key)) for h in heads)]
    pending = sum(head.uncompared == PENDING for head in heads)
    return document(
        "probe.html.j2",
        policy=f"{POLICY}; script-src 'sha256-{script_hash}'",
        script=Markup(script),
        drawings=Markup(_drawings_json(last.drawings)),
        title=title,
        headline=headline(audit),
        pending=pending,
        asked=pending + sum(bool(head.fits) for head in heads),
        detail=detail(audit),
        notes=[*notes_before, *notes(audit)],
        rows=[_table_row(head) for head in heads],
        texts=[_text_title(drawing) for drawing in last.drawings],
        heads=[_head_details(last, head) for head in heads],
        curves=_curves(audit, heads, measures) if isinstance(audit, Mapping) else None,
        command=command,
    )


def _drawings_json(drawings: Sequence[Drawing]) -> str:
    """JSON that can stand inside a page: nothing in it ends the element, or steers the page."""
    content = [
        {
            "words": [strip_marks(word) for word in drawing.words],
            "heads": drawing.heads,
        }
        for drawing in drawings
    ]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def _text_title(drawing: Drawing, length: int = 70) -> str:
    """The beginning of a text, and how many of its tokens are drawn."""
    text = "".join(map(as_in_text, drawing.words)).strip()
    short = text if len(text) <= length else f"{text[: length - 1]}…"
    drawn_tokens, tokens = len(drawing.words), drawing.tokens
    if drawn_tokens == tokens:
        return short
    return f"{short} (the first {drawn_tokens} of {tokens:,} tokens)"


def _table_row(head: Head) -> dict[str, Any]:
    """A row of the table, with what it is sorted by."""
    verdict, number = describe_excess(head)
    selection, chance = describe_selection(head)
    fit = head.fits[0].excess if head.fits else NAN
    return {
        "id": f"l{head.layer}h{head.head}",
        "name": f"{head.layer}.{head.head}",
        "place": 10_000 * head.layer + head.head,
        "does": selection,
        "chance": f"by chance {format_percent(chance)}",
        "sure": format_percent(head.sure[0]),
        "margin": _format_number(head.margin[1]),
        "verdict": verdict,
        "excess": number,
        "keys": [_sort_key(value) for value in (head.sure[0], head.margin[1], fit)],
    }


def _sort_key(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "-1e9"


def _last_audit(audit: AuditOrCheckpoints) -> AuditResults:
    return list(audit.values())[-1] if isinstance(audit, Mapping) else audit


def headline(audit: AuditOrCheckpoints) -> str:
    """One sentence on all heads: how many attend to one token, and how many are sinks."""
    if isinstance(audit, Mapping):
        first, *_, last = audit
        before, after = (_counts(audit[step]) for step in (first, last))
        return (
            f"From step {first} to step {last}, the heads that attend mostly to one token at more"
            f" than half of their queries go from {before[0]} to {after[0]} of"
            f" {len(_last_audit(audit).heads)}, and those that select the first token of the text"
            f" most of the time from {before[1]} to {after[1]}."
        )
    sure, sinks = _counts(audit)
    attend = "1 attends" if sure == 1 else f"{sure or 'none'} attend"
    select = "1 selects" if sinks == 1 else f"{sinks or 'none'} select"
    return (
        f"Of {len(audit.heads)} heads, {attend} mostly to one token at more than half of"
        f" {'its' if sure == 1 else 'their'} queries, and {select} the first token of the text"
        " most of the time."
    )


def _counts(audit: AuditResults) -> tuple[int, int]:
    """Heads that are sure at most queries, and heads whose selections are a sink."""
    sure = sum(head.sure[0] > 0.5 for head in audit.heads)
    return sure, sum(head.selects["first"] > 0.5 for head in audit.heads)


def detail(audit: AuditOrCheckpoints) -> str:
    """One sentence on the comparison with the max-margin solutions."""
    if isinstance(audit, Mapping):
        return f"{len(audit)} checkpoints. At the last one: {detail(_last_audit(audit))}"
    fits = [head.fits[0] for head in audit.heads if head.fits]
    if not fits:
        has_norm = any(head.uncompared for head in audit.heads)
        return "No head was compared with a max-margin solution" + (
            "." if has_norm else ", because no norm was asked for."
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


def notes(audit: AuditOrCheckpoints) -> list[str]:
    """Sentences on what the figures of heads leave out."""
    audit = _last_audit(audit)
    sentences = []
    if sampled := [head for head in audit.heads if head.queries < head.queries_of_texts]:
        head = max(sampled, key=lambda head: head.queries_of_texts)
        sentences.append(
            f"Of long texts some queries were looked at, spread evenly: {head.queries:,} of"
            f" {head.queries_of_texts:,} in a layer."
        )
    if layers := audit.recording.differences:
        sentences.append(
            f"{len(layers)} {'layer subtracts' if len(layers) == 1 else 'layers subtract'} the"
            " second half of their heads from the first (a difference of two softmaxes); selections"
            " and margins are those of each softmax alone."
        )
    # one sentence for each reason, with the number of its heads
    for why, count in Counter(head.uncompared for head in audit.heads if head.uncompared).items():
        sentences.append(f"{_heads_were(count)} not compared with a max-margin solution: {why}.")
    compared = [head for head in audit.heads if head.fits]
    if thinned := [head for head in compared if head.programme_queries < head.sure_queries]:
        sentences.append(
            f"In {len(thinned):,} of the compared heads the programme holds"
            f" {thinned[0].programme_queries:,} of up to"
            f" {max(head.sure_queries for head in thinned):,} sure queries, drawn at random."
        )
    # a null may be missing for two reasons, which the rank tells apart
    missing = Counter(
        (null, math.isnan(head.rank))
        for head in audit.heads
        for null in (head.fits[0].missing if head.fits else ())
    )
    for (null, rotary), count in missing.items():
        why = "their keys and queries are not linear in inputs, as with rotary positions"
        sentences.append(
            f"{_heads_were(count)} not compared with the null {null}:"
            f" {why if rotary else 'their layer has no other heads'}."
        )
    fits = [fit for head in audit.heads for fit in head.fits]
    if soft_count := sum(fit.status == "soft" for fit in fits):
        sentences.append(
            f"{soft_count:,} of {len(fits):,} programmes contradict themselves, and were solved"
            " with slack (soft)."
        )
    if unsolved := sum(fit.status not in ("optimal", "soft") for fit in fits):
        sentences.append(
            f"{unsolved:,} of {len(fits):,} programmes were not solved to the tolerance; their"
            " status stands with the head."
        )
    return sentences


def _heads_were(count: int) -> str:
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


def _format_number(value: float, digits: int = 2) -> str:
    return f"{value:z.{digits}f}" if math.isfinite(value) else "–"


def _head_details(audit: AuditResults, head: Head, longest: int = 12) -> dict[str, Any]:
    """Everything below the drawing of a head; of its support the first ``longest`` rows."""
    supports = audit.support(head.layer, head.head)
    total = sum(support.multiplier for support in supports)
    selection, chance = describe_selection(head)
    kinds = sorted(head.selects, key=lambda kind: -head.selects[kind])
    return {
        "id": f"l{head.layer}h{head.head}",
        "layer": head.layer,
        "head": head.head,
        "sentence": (
            f"It selects: {selection} (by chance {format_percent(chance)}). At"
            f" {format_percent(head.sure[0])} of its queries one token has more than half of the"
            " attention."
        ),
        "kinds": [
            (
                {**KIND_PHRASES, "other": "some other token"}[kind],
                format_percent(head.selects[kind]),
                format_percent(head.chance[kind]),
            )
            for kind in kinds
            if head.selects[kind] > 0
        ],
        "rows": [
            ("module", head.name or "the model itself"),
            (
                "queries looked at",
                _count_of_total(head.queries, head.queries_of_texts, "spread evenly"),
            ),
            (f"of them sure: attention above {audit.threshold:g}, and a choice", head.sure_queries),
            *(
                [
                    (
                        "sure queries in the programme",
                        _count_of_total(head.programme_queries, head.sure_queries, "drawn"),
                    )
                ]
                if head.fits
                else []
            ),
            (
                "queries with attention above .5, .9, .99",
                " · ".join(map(format_percent, head.sure)),
            ),
            ("mean entropy of attention, nats", _format_number(head.entropy)),
            ("effective number of tokens", _format_number(head.effective)),
            ("margin in nats: low, middle, high", " · ".join(map(_format_number, head.margin))),
            ("margin over the size of a logit", " · ".join(map(_format_number, head.scale_free))),
            ("largest logit", _format_number(head.peak)),
            *(
                [("stable rank of the weights", _format_number(head.rank))]
                if math.isfinite(head.rank)
                else []
            ),
        ],
        "fits": [_comparison_row(fit) for fit in head.fits],
        "uncompared": head.uncompared,
        "supports": [_support_row(support, total) for support in supports[:longest]],
        "supports_in_all": len(supports),
    }


def _count_of_total(count: int, total: int, how: str) -> str:
    return f"{count:,}" if count == total else f"{count:,} of {total:,}, {how}"


def _comparison_row(fit: Comparison) -> list[str]:
    measured = (fit.cosine, fit.null(), fit.excess, fit.share, fit.agreement, fit.baseline)
    texts = [_format_number(value, 3) for value in measured]
    low, high = fit.interval()
    if math.isfinite(low):
        texts[2] += f" ({_format_number(low, 3)} to {_format_number(high, 3)})"
    return [parse_norm(fit.norm).title, f"{fit.status}, {fit.constraints} rows", *texts]


def _support_row(support: Support, total: float) -> list[str]:
    words = support.words or (None, None, None)
    positions = (support.query, support.selected, support.rival)
    tokens = [
        f"{position}" if word is None else f"{strip_marks(word)} ({position})"
        for word, position in zip(words, positions, strict=True)
    ]
    return [*tokens, format_percent(support.multiplier / total)]


def _curves(
    checkpoints: Mapping[int, AuditResults],
    heads: list[Head],
    measures: list[str],
    width: int = 160,
    height: int = 48,
) -> list[list[dict[str, str]]]:
    """Per head a small curve of every measure over steps, heights alike for all heads."""
    steps = np.array(list(checkpoints), dtype=np.float64)
    x = width * (steps - steps[0]) / (steps[-1] - steps[0])
    values = {
        key: np.array([[_measure(h, key) for h in audit.heads] for audit in checkpoints.values()])
        for key in measures
    }
    last = _last_audit(checkpoints)
    column = {(head.layer, head.head): h for h, head in enumerate(last.heads)}
    curves = []
    for h in (column[head.layer, head.head] for head in heads):
        curves_of_head = []
        for key in measures:
            # the same scale for all heads, with zero in sight
            finite = values[key][np.isfinite(values[key])]
            low, high = min(0.0, float(finite.min())), float(finite.max())
            y = height * (high - values[key][:, h]) / max(high - low, 1e-300)
            points = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if math.isfinite(b)]
            curves_of_head.append(
                {
                    "label": MEASURES[key],
                    "points": " ".join(points),
                    "first": _format_number(float(values[key][0, h])),
                    "last": _format_number(float(values[key][-1, h])),
                    "low": _format_number(low),
                    "high": _format_number(high),
                }
            )
        curves.append(curves_of_head)
    return curves
