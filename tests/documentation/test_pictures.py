"""The pictures of the page about the theory: each is drawn, says what it shows, and the page uses
them all.
"""

import importlib
import re
from pathlib import Path

import pytest

from attsvm.report.style import inline

DOCS = Path(__file__).parents[2] / "docs"
if not (DOCS / "theory_pictures.py").exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(DOCS)
    theory_pictures = importlib.import_module("theory_pictures")

PAGE = (DOCS / "theory.md").read_text(encoding="utf-8")


CHECKED_BELOW = (theory_pictures.geometries, theory_pictures.growth)


@pytest.mark.parametrize(
    "draw",
    [draw for draw in theory_pictures.PICTURES if draw not in CHECKED_BELOW],
    ids=lambda function: function.__name__,
)
def test_a_picture_is_drawn(draw):
    complete(draw(), draw)


def complete(picture, draw):
    assert picture.title
    assert picture.alt
    assert picture.name.replace("-", "_") == draw.__name__
    drawing = inline(picture)
    assert drawing.count("<path") > 5
    assert "var(--" in drawing  # it follows a light or dark page
    assert "nan" not in re.sub(r"<text.*?</text>", "", drawing, flags=re.S).lower()


def drawn(draw, monkeypatch):
    """The figure behind a picture, which is checked for completeness on the way."""
    seen = []
    original = theory_pictures.render
    monkeypatch.setattr(
        theory_pictures,
        "render",
        lambda figure, *words: seen.append(figure) or original(figure, *words),
    )
    complete(draw(), draw)
    return seen[0]


def test_the_page_shows_every_picture_once_and_in_order():
    shown = re.findall(r"```\{picture\} ([\w-]+)\n", PAGE)
    assert [name.replace("-", "_") for name in shown] == [
        function.__name__ for function in theory_pictures.PICTURES
    ]
    assert len(re.findall(r"^## \d+\. ", PAGE, flags=re.M)) == len(shown) == 10


def test_mirror_descent_is_nearest_to_its_own_norm(monkeypatch):
    (ax,) = drawn(theory_pictures.geometries, monkeypatch).axes
    table = [
        [float(text.get_text()) for text in ax.texts[3 * row : 3 * row + 3]] for row in range(3)
    ]
    for row in range(3):
        assert min(table[row]) == table[row][row]  # what the page says


def test_the_textbook_gradient_stalls_and_log_space_does_not(monkeypatch):
    norms, gaps = (
        [line.get_ydata() for line in ax.lines]
        for ax in drawn(theory_pictures.growth, monkeypatch).axes
    )
    assert norms[0][-1] > 1900  # 20 000 steps of 0.1 that hardly turn
    assert norms[1][-1] < 50
    assert gaps[0][-1] < 1e-6 < 1e-4 < gaps[1][-1]
