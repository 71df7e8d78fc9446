"""Sequences shown in place, in groups, each with what the layer selected and why it matters.

An image with its patches in place: pixels as an embedded PNG, boxes on top.

A text with its tokens in place: which characters belong to which token, and what to leave out of
a long one.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attsvm.report.run_contents import Run

VISIBLE = 0.005
"""Attention below half a percent is not shaded."""
GROUPS = {
    "wrong": ("Wrong", "Test sequences predicted wrongly, the most confident first."),
    "confident": ("Confident", "Test sequences predicted correctly, with the largest outputs."),
    "typical": ("Typical", "Test sequences predicted correctly, drawn at random from the rest."),
    "support": (
        "Support sequences",
        (
            "Their constraints hold with equality and carry the largest duals: these decide the"
            " max-margin weights."
        ),
    ),
}
SHOWN = {"text": 4, "image": 8, "array": 4}  # examples of a group that are open; the others unfold


@dataclass(frozen=True)
class Box:
    """A patch in pixel units: place, size, and the attention on it."""

    x: int
    y: int
    width: int
    height: int
    probability: float


@dataclass(frozen=True)
class Photo:
    """An image for the page: ``uri`` holds the pixels; ``shaded`` are the patches with visible
    attention.
    """

    uri: str
    rows: int
    columns: int
    shaded: list[Box]
    selected: Box | None
    rival: Box | None

    @property
    def stroke(self) -> float:
        """Line width in pixel units that looks the same for images of every size."""
        return max(self.rows, self.columns) / 45


def data_uri(values: NDArray[np.float64], low: float, high: float) -> str:
    """Gray pixels (low black, high white), or colours where there are three channels, as
    ``data:image/png;base64,...``.
    """
    scale = high - low if high > low else 1.0
    levels = np.rint(255 * np.clip((values - low) / scale, 0, 1)).astype(np.uint8)
    png = io.BytesIO()
    Image.fromarray(levels).save(png, "PNG", compress_level=9)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii")


def pixels(view: dict[str, Any]) -> NDArray[np.float64]:
    """The pixels of a view, ``(rows, columns)`` or ``(rows, columns, 3)``."""
    return np.nan_to_num(np.asarray(view["pixels"], dtype=np.float64))


def value_range(views: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Lowest and highest pixel of all images among the views, so that they share one scale."""
    images = [pixels(view) for view in views if view.get("kind") == "image"]
    lowest = min((float(values.min()) for values in images), default=0.0)
    return lowest, max((float(values.max()) for values in images), default=1.0)


def photo_of(
    view: dict[str, Any],
    probability: Sequence[float],
    selected: int,
    rival: int | None,
    scale: tuple[float, float],
) -> Photo:
    """The view as a :class:`Photo`."""
    values = pixels(view)
    boxes = [Box(*box, p) for box, p in zip(_boxes(view), probability, strict=True)]
    return Photo(
        data_uri(values, *scale),
        values.shape[0],
        values.shape[1],
        [box for box in boxes if box.probability >= VISIBLE],
        boxes[selected],
        None if rival is None else boxes[rival],
    )


def crop(view: dict[str, Any], token: int, scale: tuple[float, float]) -> Photo:
    """One patch as a picture of its own."""
    x, y, width, height = _boxes(view)[token]
    patch = pixels(view)[y : y + height, x : x + width]
    return Photo(data_uri(patch, *scale), height, width, [], None, None)


def _boxes(view: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """``(x, y, width, height)`` of every token."""
    return [(column, row, width, height) for row, column, height, width in view["boxes"]]


@dataclass(frozen=True)
class Bar:
    """A token in a list: its name, attention and role."""

    name: str
    probability: float
    role: str


@dataclass(frozen=True)
class Example:
    """One sequence ready for the page.

    Attributes:
        kind: ``text``, ``image`` or ``array``.
        origin: part and row, ``training row 17``.
        label: name of its class.
        predicted: name of the predicted class, None when unknown.
        correct: whether they agree.
        token: the selected token in words.
        rival: the token that comes closest, in words; empty when there is none.
        probability: attention of the soft classifier on the selected token.
        margin: margin at the max-margin direction, over the certified best margin when there is
            one.
        segments: the text, as whole as its view.
        excerpt: the text without what does not matter; None when the whole text is short.
        characters: length of the text where its view holds a part of it, else 0.
        photo: the image with its patches.
        bars: tokens of a sequence without a view of its own.
        more: tokens not listed in ``bars``.
    """

    kind: str
    origin: str
    label: str
    predicted: str | None
    correct: bool
    token: str
    rival: str
    probability: float
    margin: float | None
    segments: list[Segment] = field(default_factory=list)
    excerpt: list[Segment] | None = None
    characters: int = 0
    photo: Photo | None = None
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
    return max((p for example in run.examples for p in example["probability"]), default=1.0)


def view_of(example: dict[str, Any]) -> dict[str, Any]:
    """The view of an example, an empty one when it has none."""
    return example.get("view") or {}


def token_name(view: dict[str, Any], token: int) -> str:
    """A token in words: the word itself, the patch by row and column, or its label."""
    if view.get("kind") == "text" and (text := word(view, token)):
        return f"“{text}”"
    if view.get("kind") == "image":
        row, column = view["boxes"][token][:2]
        return f"patch at row {row + 1}, column {column + 1}"
    return view["labels"][token] if "labels" in view else f"token {token}"


def groups(run: Run) -> list[Group]:
    """All examples, in the order of :data:`GROUPS`."""
    scale = value_range([view_of(example) for example in run.examples])
    out = []
    for name, (title, what) in GROUPS.items():
        members = [
            read_example(run, example, scale)
            for example in run.examples
            if example["group"] == name
        ]
        if members:
            out.append(Group(name, title, what, members))
    return out


def read_example(run: Run, example: dict[str, Any], scale: tuple[float, float]) -> Example:
    """One entry of ``examples.json`` ready for the page."""
    view, probability, margin = view_of(example), example["probability"], example["margin"]
    selected, rival = example["selected"], example["rival"]
    label, predicted = example["label"], example["predicted"]
    common: dict[str, Any] = {
        "origin": f"{'training' if example['part'] == 'train' else example['part']}"
        f" row {example.get('row', example['sequence'])}",
        "label": _class(run, label),
        "predicted": None if predicted is None else _class(run, predicted),
        "correct": label == predicted,
        "token": token_name(view, selected),
        "rival": "" if rival is None else token_name(view, rival),
        "probability": probability[selected],
        "margin": None if margin is None else margin / (run.margin or 1.0),
    }
    kind = view.get("kind")
    if kind == "text":
        text_segments = segments(view, probability, selected, rival)
        return Example(
            "text",
            **common,
            segments=text_segments,
            excerpt=excerpt(text_segments),
            characters=view.get("characters", 0),
        )
    if kind == "image":
        photo = photo_of(view, probability, selected, rival, scale)
        return Example("image", **common, photo=photo)
    bars, more = _bars(view, probability, selected, rival)
    return Example("array", **common, bars=bars, more=more)


def _bars(
    view: dict[str, Any],
    probability: list[float],
    selected: int,
    rival: int | None,
    most: int = 6,
) -> tuple[list[Bar], int]:
    """The ``most`` tokens with the most attention, the selected one and the rival among them, and
    the number of the others.
    """
    order = sorted(
        range(len(probability)),
        key=lambda token: (token != selected, token != rival, -probability[token]),
    )
    chosen = sorted(order[:most], key=lambda token: -probability[token])
    bars = [
        Bar(
            token_name(view, token),
            probability[token],
            "selected" if token == selected else "rival" if token == rival else "token",
        )
        for token in chosen
    ]
    return bars, len(order) - len(chosen)


def _class(run: Run, label: int) -> str:
    return run.class_names[label]


@dataclass(frozen=True)
class Segment:
    """Characters that are drawn alike.

    Attributes:
        text: the characters.
        role: ``selected``, ``rival``, ``token`` (shaded by attention), ``plain`` or ``gap`` (left
            out).
        probability: attention on the token that the characters belong to.
    """

    text: str
    role: str
    probability: float = 0.0


def word(view: dict[str, Any], token: int, limit: int = 28) -> str:
    """The first occurrence of a token, shortened."""
    spans = view["spans"][token]  # none where a text has no word that is known
    text = " ".join(view["text"][slice(*spans[0])].split()) if spans else ""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def segments(
    view: dict[str, Any], probability: Sequence[float], selected: int, rival: int | None
) -> list[Segment]:
    """The whole text as segments. Where tokens overlap, the selected one is drawn on top, then the
    rival, then by attention.
    """
    text = view["text"]
    owner = np.full(len(text), -1, dtype=np.int64)
    piece = np.zeros(len(text), dtype=np.int64)
    shaded = [
        token for token in np.argsort(probability, kind="stable") if probability[token] >= VISIBLE
    ]
    above = [token for token in (rival, selected) if token is not None]
    for token in [*(token for token in shaded if token not in above), *above]:
        for number, (start, end) in enumerate(view["spans"][token]):
            owner[start:end] = token
            piece[start:end] = number
    breaks = np.flatnonzero((np.diff(owner) != 0) | (np.diff(piece) != 0)) + 1
    stops = [0, *breaks.tolist(), len(text)]
    out = []
    for start, end in pairwise(stops):
        if start == end:
            continue
        token = int(owner[start])
        role = {-1: "plain", rival: "rival", selected: "selected"}.get(token, "token")
        out.append(Segment(text[start:end], role, probability[token] if token >= 0 else 0.0))
    return out


def excerpt(segments: list[Segment], longest: int = 420, around: int = 110) -> list[Segment] | None:
    """The surroundings of what matters; None when the text is short enough to be shown whole.

    1. Mark the first occurrences of the selected token, of the rival and of tokens with attention,
       with what stands around them.
    2. Move each cut to the next blank.
    3. Keep what is marked.

    Args:
        segments: the text.
        longest: characters up to which a text is shown whole.
        around: characters that stay on either side of a word that matters.
    """
    length = sum(len(segment.text) for segment in segments)
    if length <= longest:
        return None
    # 1: at most so many occurrences of each role
    most = {"selected": 2, "rival": 1, "token": 2}
    counts = dict.fromkeys(most, 0)
    keep = np.zeros(length, dtype=np.bool_)
    start = 0
    for segment in segments:
        end = start + len(segment.text)
        if (
            segment.role in most
            and counts[segment.role] < most[segment.role]
            and (segment.role != "token" or segment.probability >= 0.05)
        ):
            counts[segment.role] += 1
            keep[max(0, start - around) : end + around] = True
        start = end
    if not keep.any():
        keep[:longest] = True
    # 2: into what is kept, at most 24 characters far
    text = "".join(segment.text for segment in segments)
    for edge in np.flatnonzero(np.diff(keep.astype(np.int8))):
        step = 1 if keep[edge + 1] else -1
        cut = int(edge) + 1 if step > 0 else int(edge)
        for _ in range(24):
            if not 0 <= cut < length or text[cut].isspace():
                break
            cut += step
        else:
            continue
        if step > 0:
            keep[edge + 1 : cut] = False
        else:
            keep[cut + 1 : edge + 1] = False
    # 3: segments of what is kept
    return _cut_segments(segments, keep)


def _cut_segments(segments: list[Segment], keep: np.ndarray) -> list[Segment]:
    """The characters at which ``keep`` is true, with a gap mark for every stretch left out."""
    out: list[Segment] = []
    position = 0
    for segment in segments:
        window = keep[position : position + len(segment.text)]
        position += len(segment.text)
        if segment.role in ("selected", "rival") and window.any():
            window = np.ones_like(window)  # a word that matters is never cut
        edges = np.flatnonzero(np.diff(window.astype(np.int8))) + 1
        for start, end in pairwise([0, *edges.tolist(), len(segment.text)]):
            if window[start]:
                out.append(Segment(segment.text[start:end], segment.role, segment.probability))
            elif not out or out[-1].role != "gap":
                out.append(Segment(" … ", "gap"))
    return out
