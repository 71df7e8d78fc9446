"""The page of a fit of slides: the slides that teach most, each with a heatmap and the patches that
decide it.

Heatmaps are drawn from the coordinates of the patches alone. Only slides that are shown are read.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attsvm.base.errors import InputError
from attsvm.base.files import write_file, write_json
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.report.page import POLICY, document
from attsvm.report.token_sequences import data_uri

CONTENT = "page.json"
"""What the page of a fit is drawn from, beside ``run.json``."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class SlideSizes:
    """How much a page of slides shows.

    Attributes:
        slides: with a heatmap.
        wrong, unsure: of them, at most.
        patches: listed for a slide.
        cells: of a heatmap on its longer side; patches of a cell share it.
        pixels: of a heatmap and a thumbnail on its longer side.
    """

    slides: int = 8
    wrong: int = 3
    unsure: int = 2
    patches: int = 5
    cells: int = 240
    pixels: int = 480


SIZES = SlideSizes()

_TISSUE, _HOT, _EDGE = (0.87, 0.88, 0.91), (0.72, 0.07, 0.12), (0.05, 0.1, 0.35)


@dataclass(frozen=True)
class HeatmapAxes:
    """What stands around a heatmap.

    Attributes:
        x, y: ticks of both axes, each with its ``label``, a coordinate, and its ``place``, percent
            of the picture from the left or from the top.
        ratio: width of the picture by its height.
        top: the largest weight of a patch.
        colour: of that patch, as ``#rrggbb``.
    """

    x: list[dict[str, Any]]
    y: list[dict[str, Any]]
    ratio: float
    top: float
    colour: str


@dataclass(frozen=True)
class SlideCard:
    """One slide on the page.

    Attributes:
        name, group: of the slide and of its patient, empty without.
        label, predicted: class names.
        correct: whether they are the same.
        reason: why the slide is on the page.
        probability: of the prediction.
        heatmap, thumbnail: pictures as data; empty where there are none.
        axes: of the heatmap.
        patches: the weightiest, each with position, place and probability.
        deciding: how many patches have to go until the call changes; None where that is not known.
        total: patches of the slide.
    """

    name: str
    group: str
    label: str
    predicted: str
    correct: bool
    reason: str
    probability: float
    heatmap: str
    axes: HeatmapAxes | None
    thumbnail: str
    patches: list[dict[str, Any]]
    deciding: int | None
    total: int


def slides_to_show(
    labels: IntArray, predicted: IntArray, probability: FloatArray, sizes: SlideSizes = SIZES
) -> list[tuple[int, str]]:
    """Positions of the slides that teach most, each with the reason: wrong ones, the most confident
    first; the least sure of the others; then the surest of each class in turn.
    """
    confident = np.argsort(-probability, kind="stable")
    right = confident[(predicted == labels)[confident]]
    reasons = {int(i): "wrong" for i in confident if predicted[i] != labels[i]}
    reasons = dict(list(reasons.items())[: sizes.wrong])
    reasons |= {int(i): "least sure" for i in right[::-1][: sizes.unsure]}
    turn = {int(i): int(np.sum(predicted[right[:k]] == predicted[i])) for k, i in enumerate(right)}
    for i in sorted(turn, key=lambda i: turn[i]):
        if len(reasons) >= sizes.slides:
            break
        reasons.setdefault(i, "surest of its class")
    return list(reasons.items())


def slide_card(
    model: Any,
    bags: Bags,
    weights: FloatArray,
    coordinates: FloatArray | None,
    pictures: Mapping[str, Path],
    **about: Any,
) -> SlideCard:
    """One slide.

    Args:
        model: a fitted classifier of bags.
        bags: this one slide.
        weights: ``(T,)``: of witnesses the probability that each patch is the one, else its
            attention.
        coordinates: ``(T, 2)`` of its patches.
        pictures: of slides, by their names; see :func:`pictures_of_slides`.
        **about: name, group, label, predicted, correct, reason and probability.
    """
    deciding = (
        model.deciding_set(bags)[0] if len(model.classes_) == 2 and model.heads == 1 else None
    )
    order = np.argsort(-weights, kind="stable")[: SIZES.patches]
    patches = [
        {
            "patch": int(t) + 1,
            "x": None if coordinates is None else float(coordinates[t, 0]),
            "y": None if coordinates is None else float(coordinates[t, 1]),
            "probability": float(weights[t]),
        }
        for t in order
    ]
    # red: as likely as the likeliest of the slide; faint where the slide is called negative
    called = about["probability"] if about["predicted_column"] else 1.0 - about["probability"]
    strength = called if model.assumption == "standard" and len(model.classes_) == 2 else 1.0
    shades = strength * weights / (weights.max() or 1.0)
    del about["predicted_column"]
    return SlideCard(
        heatmap="" if coordinates is None else heatmap(coordinates, shades, deciding),
        axes=None if coordinates is None else heatmap_axes(coordinates, weights, strength),
        thumbnail=thumbnail(pictures, about["name"]),
        patches=patches,
        deciding=None if deciding is None else len(deciding),
        total=len(weights),
        **about,
    )


def heatmap(
    coordinates: FloatArray, shades: FloatArray, marked: IntArray | None, sizes: SlideSizes = SIZES
) -> str:
    """A picture of patches where they lie, as ``data:image/png;base64,...``.

    Args:
        coordinates: ``(T, 2)``, y downwards.
        shades: ``(T,)`` from 0, tissue, to 1, red.
        marked: patches with an edge.
        sizes: see :class:`SlideSizes`.
    """
    cells = _cells(coordinates, sizes)
    width, height = (cells.max(axis=0) + 1).tolist()
    values = np.full((height, width), -1.0)
    np.maximum.at(values, (cells[:, 1], cells[:, 0]), shades)
    colours = _colours(values)
    colours[values < 0] = 1.0
    size = max(1, sizes.pixels // max(width, height))
    pixels = colours.repeat(size, axis=0).repeat(size, axis=1)
    if size > 3 and marked is not None:
        edge = np.r_[: size // 6 + 1, -(size // 6) - 1 : 0]
        for x, y in np.unique(cells[marked], axis=0):
            block = pixels[y * size : (y + 1) * size, x * size : (x + 1) * size]
            block[edge] = block[:, edge] = _EDGE
    return data_uri(pixels, 0.0, 1.0)


def heatmap_axes(
    coordinates: FloatArray, weights: FloatArray, strength: float, sizes: SlideSizes = SIZES
) -> HeatmapAxes:
    """The axes of :func:`heatmap`, whose cells begin at the coordinates of their patches.

    Args:
        coordinates: ``(T, 2)``, y downwards.
        weights: ``(T,)`` of the patches.
        strength: shade of the largest weight.
        sizes: see :class:`SlideSizes`.
    """
    step = patch_distance(coordinates, sizes.cells)
    low, spans = coordinates.min(axis=0), step * (_cells(coordinates, sizes).max(axis=0) + 1.0)
    x, y = (
        axis_ticks(start, span, most=4 if span > 0.6 * spans.max() else 2)
        for start, span in zip(low.tolist(), spans.tolist(), strict=True)
    )
    red, green, blue = (round(255 * float(level)) for level in _colours(np.array(strength)))
    return HeatmapAxes(
        x=x,
        y=y,
        ratio=float(spans[0] / spans[1]),
        top=float(weights.max()),
        colour=f"#{red:02x}{green:02x}{blue:02x}",
    )


def axis_ticks(low: float, span: float, most: int = 4) -> list[dict[str, Any]]:
    """Round coordinates, ``most`` or half as many steps: ``label``, and ``place`` in percent of the
    span from ``low``.
    """
    power = 10.0 ** np.floor(np.log10(span / most))
    steps = power * np.array([1.0, 2.0, 2.5, 5.0, 10.0, 20.0])
    step = steps[np.argmax(span <= most * steps)]
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor((low + span) / step + 1e-9))
    return [
        {
            "label": f"{value:,.6f}".rstrip("0").rstrip("."),
            "place": round(100.0 * (value - low) / span, 2),
        }
        for value in step * np.arange(first, last + 1)
    ]


def _cells(coordinates: FloatArray, sizes: SlideSizes) -> IntArray:
    """``(T, 2)``: column and row of each patch in its heatmap."""
    step = patch_distance(coordinates, sizes.cells)
    return np.rint((coordinates - coordinates.min(axis=0)) / step).astype(np.int64)


def _colours(shades: FloatArray) -> FloatArray:
    """``(..., 3)``: from tissue to red."""
    glow = np.clip(shades, 0.0, 1.0)[..., None]
    return np.asarray(np.array(_TISSUE) + glow * (np.array(_HOT) - np.array(_TISSUE)))


def patch_distance(coordinates: FloatArray, most_cells: int) -> float:
    """The distance of neighbouring patches along an axis, the usual one; longer where a heatmap
    would have more cells.
    """
    steps = []
    for axis in coordinates.T:
        gaps = np.diff(np.unique(axis))
        if len(gaps):
            steps.append(float(np.median(gaps)))
    longest = float(np.ptp(coordinates, axis=0).max())
    return max(min(steps, default=1.0), longest / (most_cells - 1), 1e-9)


def pictures_of_slides(images: Path) -> dict[str, Path]:
    """The pictures in a folder by their name without ending; their headers are read.

    Raises:
        InputError: no such folder, or a file that is no picture.
    """
    if not images.is_dir():
        raise InputError(f"{images} is no folder; give the one with a picture of each slide")
    pictures = {}
    for path in sorted(images.iterdir()):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            try:
                with Image.open(path):
                    pictures[path.stem] = path
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                raise InputError(f"{path} is no picture ({error}); remove it") from None
    return pictures


def thumbnail(pictures: Mapping[str, Path], name: str, sizes: SlideSizes = SIZES) -> str:
    """The picture of a slide, made small; empty where there is none."""
    path = pictures.get(name, pictures.get(Path(name).stem))
    if path is None:
        return ""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
    small.thumbnail((sizes.pixels, sizes.pixels))
    jpeg = io.BytesIO()
    small.save(jpeg, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode("ascii")


def write_slides(path: Path, cards: list[SlideCard], run: dict[str, Any]) -> Path:
    """Write the page of a fit of slides and, beside it, what it is drawn from.

    Args:
        path: the HTML file.
        cards: of the slides on the page.
        run: the content of ``run.json``.
    """
    content = json.loads(json.dumps({"cards": [asdict(card) for card in cards]}))
    write_json(path.with_name(CONTENT), content)
    return write_file(path, slides_document(content, run))


def slides_document(content: dict[str, Any], run: dict[str, Any]) -> str:
    """The HTML of the page."""
    return document("slides.html.j2", policy=POLICY, run=run, results=run["results"], **content)
