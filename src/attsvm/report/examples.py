"""Sequences shown in place, in groups, each with what the layer selected and why it matters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from attsvm.report import pixels, text
from attsvm.report.folder import Run
from attsvm.report.numbers import finite

GROUPS = {
    "support": (
        "Support sequences",
        (
            "Their constraints hold with equality and carry the largest duals: these decide the"
            " max-margin weights."
        ),
    ),
    "confident": ("Confident", "Test sequences predicted correctly, with the largest outputs."),
    "wrong": ("Wrong", "Test sequences predicted wrongly, the most confident first."),
    "typical": ("Typical", "Test sequences predicted correctly, drawn at random from the rest."),
}
SHOWN = {"text": 8, "image": 12, "array": 8}  # examples of a group that are open; the others unfold
_BARS = 6  # tokens listed of a sequence that has neither a text nor an image


@dataclass(frozen=True)
class Bar:
    """A token in a list: its name, attention, score and role."""

    name: str
    probability: float
    score: float | None
    role: str


@dataclass(frozen=True)
class Example:
    """One sequence ready for the page.

    Attributes:
        kind: ``text``, ``image`` or ``array``.
        place: part and position in the original data, ``training 17``.
        label: name of its class.
        predicted: name of the predicted class, None when unknown.
        correct: whether they agree.
        value: output of the classifier.
        token: the selected token in words.
        rival: the token that comes closest, in words; empty when there is none.
        probability: attention of the soft classifier on the selected token.
        margin: margin at the max-margin direction, over the certified best margin when there is
            one.
        segments: the text, whole.
        excerpt: the text without what does not matter; None when the whole text is short.
        characters: length of the text.
        cut: whether only a part of it is here.
        photo: the image with its patches.
        bars: tokens of a sequence without a view of its own.
        more: tokens not listed in ``bars``.
    """

    kind: str
    place: str
    label: str
    predicted: str | None
    correct: bool
    value: float | None
    token: str
    rival: str
    probability: float | None
    margin: float | None
    segments: list[text.Segment] = field(default_factory=list)
    excerpt: list[text.Segment] | None = None
    characters: int = 0
    cut: bool = False
    photo: pixels.Photo | None = None
    bars: list[Bar] = field(default_factory=list)
    more: int = 0


@dataclass(frozen=True)
class Group:
    """Examples of one kind, with a heading and a sentence."""

    name: str
    title: str
    what: str
    examples: list[Example]


def peak(run: Run) -> float:
    """The largest attention on any token shown: full shade. Attention that is spread thin stays
    visible, on one scale for all.
    """
    found = [
        p
        for example in run.examples
        for p in map(finite, example.get("probability") or [])
        if p is not None and p > 0
    ]
    return max(found, default=1.0)


def view_of(example: dict[str, Any]) -> dict[str, Any]:
    """The view of an example, an empty one when it has none; without labels that do not match the
    tokens one to one.
    """
    view = example.get("view")
    if not isinstance(view, dict):
        return {}
    return (
        view
        if len(view.get("labels") or []) == len(example.get("probability") or [])
        else view | {"labels": []}
    )


def token_name(view: dict[str, Any], token: int | None) -> str:
    """A token in words: the word itself, the patch by its place, or its label."""
    if token is None:
        return ""
    if view.get("kind") == "text" and (found := text.word(view, token)):
        return f"“{found}”"
    if view.get("kind") == "image" and 0 <= token < len(view.get("boxes") or []):
        row, column = view["boxes"][token][:2]
        return f"patch at row {int(row) + 1}, column {int(column) + 1}"
    labels = view.get("labels") or []
    return str(labels[token]) if 0 <= token < len(labels) else f"token {token}"


def groups(run: Run) -> list[Group]:
    """All examples, grouped in the order of :data:`GROUPS`; unknown groups last."""
    scale = pixels.value_range(
        [view_of(example) for example in run.examples if view_of(example).get("kind") == "image"]
    )
    names = list(GROUPS) + sorted(
        {str(e.get("group", "typical")) for e in run.examples} - set(GROUPS)
    )
    out = []
    for name in names:
        members = [
            show(run, example, scale)
            for example in run.examples
            if str(example.get("group", "typical")) == name
        ]
        if members:
            title, what = GROUPS.get(name, (name, ""))
            out.append(Group(name, title, what, members))
    return out


def show(run: Run, example: dict[str, Any], scale: tuple[float, float]) -> Example:
    """One entry of ``examples.json`` ready for the page."""
    view = view_of(example)
    probability = [max(0.0, finite(p) or 0.0) for p in example.get("probability") or []]
    selected, rival = int(example.get("selected", -1)), _integer(example.get("rival"))
    label, predicted = example.get("label"), example.get("predicted")
    margin = finite(example.get("margin"))
    common: dict[str, Any] = {
        "place": (
            f"{'training' if example.get('part') == 'train' else example.get('part', '')}"
            f" {example.get('sequence', '')}".strip()
        ),
        "label": _class(run, label),
        "predicted": None if predicted is None else _class(run, predicted),
        "correct": label == predicted,
        "value": finite(example.get("value")),
        "token": token_name(view, selected),
        "rival": token_name(view, rival),
        "probability": probability[selected] if 0 <= selected < len(probability) else None,
        "margin": None if margin is None else margin / (run.margin or 1.0),
    }
    if view.get("kind") == "text":
        whole = text.segments(view, probability, selected, rival)
        shown = text.capped(whole)
        return Example(
            "text",
            **common,
            segments=shown,
            excerpt=text.excerpt(whole),
            characters=_integer(view.get("characters")) or len(str(view.get("text", ""))),
            cut=bool(_integer(view.get("characters"))) or len(whole) > len(shown),
        )
    if (
        view.get("kind") == "image"
        and (photo := pixels.photo(view, probability, selected, rival, scale)) is not None
    ):
        return Example("image", **common, photo=photo)
    bars, more = _bars(view, probability, example.get("score") or [], selected, rival)
    return Example("array", **common, bars=bars, more=more)


def _bars(
    view: dict[str, Any],
    probability: list[float],
    score: list[Any],
    selected: int,
    rival: int | None,
) -> tuple[list[Bar], int]:
    """The tokens with the most attention, the selected one and the rival among them."""
    order = sorted(
        range(len(probability)),
        key=lambda token: (token != selected, token != rival, -probability[token]),
    )
    chosen = sorted(order[:_BARS], key=lambda token: -probability[token])
    bars = [
        Bar(
            token_name(view, token),
            probability[token],
            finite(score[token]) if token < len(score) else None,
            "selected" if token == selected else "rival" if token == rival else "token",
        )
        for token in chosen
    ]
    return bars, len(order) - len(chosen)


def _class(run: Run, label: Any) -> str:
    value = finite(label)
    return str(label) if value is None else run.class_names[1 if value > 0 else 0]


def _integer(value: Any) -> int | None:
    return (
        int(value)
        if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
        else None
    )
