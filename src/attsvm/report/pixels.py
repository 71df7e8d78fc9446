"""An image with its patches in place: pixels as an embedded PNG, boxes on top."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_VISIBLE = 0.005  # attention below half a percent is not shaded


@dataclass(frozen=True)
class Box:
    """A patch in pixel units: place, size, and the attention on it."""

    x: float
    y: float
    width: float
    height: float
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


def array(view: dict[str, Any]) -> NDArray[np.float64] | None:
    """The pixels of a view, ``(rows, columns)`` or ``(rows, columns, 3)``; None when they are not a
    picture.
    """
    try:
        values = np.asarray(view.get("pixels"), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    picture = values.ndim == 2 or (values.ndim == 3 and values.shape[2] == 3)
    return np.nan_to_num(values) if picture and values.size else None


def value_range(views: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Lowest and highest pixel of all images, so that they share one scale."""
    found = [values for values in (array(view) for view in views) if values is not None]
    return (
        (min(float(v.min()) for v in found), max(float(v.max()) for v in found))
        if found
        else (0.0, 1.0)
    )


def photo(
    view: dict[str, Any],
    probability: Sequence[float],
    selected: int,
    rival: int | None,
    scale: tuple[float, float],
) -> Photo | None:
    """The view as a :class:`Photo`, None when it holds no picture."""
    values = array(view)
    if values is None:
        return None
    shaded = [
        box
        for token, p in enumerate(probability)
        if p >= _VISIBLE and (box := _box(view, token, p, values.shape)) is not None
    ]
    outlined = [_box(view, token, 0.0, values.shape) for token in (selected, rival)]
    return Photo(
        data_uri(values, *scale), values.shape[0], values.shape[1], shaded, outlined[0], outlined[1]
    )


def crop(view: dict[str, Any], token: int, scale: tuple[float, float]) -> Photo | None:
    """One patch as a picture of its own."""
    values = array(view)
    box = None if values is None else _box(view, token, 0.0, values.shape)
    if values is None or box is None:
        return None
    patch = values[int(box.y) : int(box.y + box.height), int(box.x) : int(box.x + box.width)]
    return (
        Photo(data_uri(patch, *scale), patch.shape[0], patch.shape[1], [], None, None)
        if patch.size
        else None
    )


def _box(
    view: dict[str, Any], token: int | None, probability: float, shape: tuple[int, ...]
) -> Box | None:
    """The box of a token, cut to the image."""
    boxes = view.get("boxes") or []
    if token is None or not 0 <= token < len(boxes):
        return None
    row, column, height, width = (float(value) for value in boxes[token])
    top, left = max(0.0, row), max(0.0, column)
    bottom, right = min(float(shape[0]), row + height), min(float(shape[1]), column + width)
    return (
        Box(left, top, right - left, bottom - top, float(probability))
        if bottom > top and right > left
        else None
    )
