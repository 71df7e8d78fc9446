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

VISIBLE = 0.005
"""Attention below half a percent is not shaded."""


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


def array(view: dict[str, Any]) -> NDArray[np.float64]:
    """The pixels of a view, ``(rows, columns)`` or ``(rows, columns, 3)``."""
    return np.nan_to_num(np.asarray(view["pixels"], dtype=np.float64))


def value_range(views: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Lowest and highest pixel of all images among the views, so that they share one scale."""
    images = [array(view) for view in views if view.get("kind") == "image"]
    lowest = min((float(values.min()) for values in images), default=0.0)
    return lowest, max((float(values.max()) for values in images), default=1.0)


def photo(
    view: dict[str, Any],
    probability: Sequence[float],
    selected: int,
    rival: int | None,
    scale: tuple[float, float],
) -> Photo:
    """The view as a :class:`Photo`."""
    values = array(view)
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
    patch = array(view)[y : y + height, x : x + width]
    return Photo(data_uri(patch, *scale), height, width, [], None, None)


def _boxes(view: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """``(x, y, width, height)`` of every token."""
    return [(column, row, width, height) for row, column, height, width in view["boxes"]]
