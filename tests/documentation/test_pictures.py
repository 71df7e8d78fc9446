"""The pictures of the pages about the theory and about next tokens: each is drawn, says what it
shows, and its page uses them all in order.
"""

import re

import numpy as np
import pytest

from attsvm.report.style import inline

from .conftest import module, read

theory, next_token = module("theory_pictures"), module("next_token_pictures")
PAGES = {"docs/theory.md": theory.PICTURES, "docs/next-token.md": next_token.PICTURES}
CHECKED_BELOW = (theory.geometries, theory.growth)


@pytest.mark.parametrize(
    "draw",
    [draw for each in PAGES.values() for draw in each if draw not in CHECKED_BELOW],
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
    render = theory.render

    def watched(figure, *words):
        seen.append(figure)
        return render(figure, *words)

    monkeypatch.setattr(theory, "render", watched)
    complete(draw(), draw)
    return seen[0]


@pytest.mark.parametrize(("page", "numbered"), [("docs/theory.md", 10), ("docs/next-token.md", 0)])
def test_a_page_shows_every_picture_once_and_in_order(page, numbered):
    shown = re.findall(r"```\{picture\} ([\w-]+)\n", read(page))
    assert [name.replace("-", "_") for name in shown] == [draw.__name__ for draw in PAGES[page]]
    assert len(re.findall(r"^## \d+\. ", read(page), flags=re.M)) == numbered
    assert numbered in (0, len(shown))


def test_mirror_descent_is_nearest_to_its_own_norm(monkeypatch):
    (ax,) = drawn(theory.geometries, monkeypatch).axes
    table = np.reshape([float(text.get_text()) for text in ax.texts[:9]], (3, 3))
    np.testing.assert_array_equal(table.argmin(axis=1), range(3))  # what the page says


def test_the_textbook_gradient_stalls_and_log_space_does_not(monkeypatch):
    norms, gaps = (
        [line.get_ydata() for line in ax.lines] for ax in drawn(theory.growth, monkeypatch).axes
    )
    assert norms[0][-1] > 1900  # 20 000 steps of 0.1 that hardly turn
    assert norms[1][-1] < 50
    assert gaps[0][-1] < 1e-6 < 1e-4 < gaps[1][-1]


def test_unseen_sentences_go_to_the_greatest_word():
    data, solution, trained = next_token.farm()
    for sentence, winner in zip(next_token.UNSEEN, ("fox", "corn", "fox"), strict=True):
        for W in (solution.W, trained.attention.W[-1, 0]):
            shares = next_token._attention(data, W, sentence)
            assert max(shares, key=lambda word: shares[word]) == winner


def test_contradictions_divide_attention_by_frequency():
    data, course = next_token.tie()
    shares = next_token._attention(data, course.W[-1, 0], "hen fox sees")
    # the rest lingers like one over the steps
    np.testing.assert_allclose([shares["fox"], shares["hen"]], [2 / 3, 1 / 3], atol=2e-3)
