"""The page about next-token prediction: its code runs and says what the comments say, and its
pictures show what the text claims.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from attsvm.report.style import inline

DOCS = Path(__file__).parents[2] / "docs"
if not (DOCS / "next_token_pictures.py").exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(DOCS)
    pictures = importlib.import_module("next_token_pictures")

PAGE = (DOCS / "next-token.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("draw", pictures.PICTURES, ids=lambda function: function.__name__)
def test_a_picture_is_drawn(draw) -> None:
    picture = draw()
    assert picture.title
    assert picture.alt
    assert picture.name.replace("-", "_") == draw.__name__
    drawing = inline(picture)
    assert drawing.count("<path") > 5
    assert "var(--" in drawing


def test_the_page_shows_every_picture_once_and_in_order() -> None:
    assert re.findall(r"```\{picture\} ([\w-]+)\n", PAGE) == [
        function.__name__ for function in pictures.PICTURES
    ]


def test_unseen_sentences_go_to_the_greatest_word() -> None:
    data, solution, trained = pictures.farm()
    for sentence, winner in zip(pictures.UNSEEN, ("fox", "corn", "fox"), strict=True):
        for W in (solution.W, trained.attention.W[-1, 0]):
            shares = pictures._attention(data, W, sentence)
            assert max(shares, key=lambda word: shares[word]) == winner


def test_contradictions_divide_attention_by_frequency() -> None:
    data, course = pictures.tie()
    shares = pictures._attention(data, course.W[-1, 0], "hen fox sees")
    # the rest lingers like one over the steps
    np.testing.assert_allclose([shares["fox"], shares["hen"]], [2 / 3, 1 / 3], atol=2e-3)
