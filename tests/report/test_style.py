"""The house style: one layout for all formats of a picture."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from attsvm.report.style import PictureOptions, canvas, logarithmic, render, saved_with


@pytest.fixture(autouse=True)
def as_for_readers() -> Iterator[None]:
    with saved_with(PictureOptions()):
        yield


def filled(axes: Any) -> None:
    """Two panels whose long labels need room, one of them logarithmic."""
    for ax in axes.flat:
        ax.plot([1.0, 2.0, 3.0], [1e-6, 0.1, 2e4])
        ax.set(xlabel="steps of descent", ylabel="gap of the direction\nin two lines")
    logarithmic(axes.flat[0].yaxis, np.array([1e-6, 2e4]))
    axes.flat[1].set_title("A title that stands above its panel")


def as_matplotlib_saves_it(layout: str | None) -> tuple[bytes, bytes]:
    svg, png = io.BytesIO(), io.BytesIO()
    with canvas(2.4, columns=2) as (figure, axes):
        filled(axes)
        figure.set_layout_engine(layout)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def test_a_picture_has_the_bytes_that_matplotlib_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = as_matplotlib_saves_it("constrained")
    assert kept != as_matplotlib_saves_it("none"), "the layout decides nothing here"
    drawn: list[Figure] = []
    draw = Figure.draw
    monkeypatch.setattr(
        Figure, "draw", lambda figure, renderer: (drawn.append(figure), draw(figure, renderer))
    )
    with canvas(2.4, columns=2) as (figure, axes):
        filled(axes)
        picture = render(figure, "name", "title", "caption", "alt")
    assert (picture.svg, picture.png) == kept
    assert len(drawn) == 2, "once for each format"
