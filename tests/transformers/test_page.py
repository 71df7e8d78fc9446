"""The page of an audit: heads in words, and what a reader does with the table in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attsvm.transformers import Audit, Recording, audit, demo_model
from attsvm.transformers.audit_page import headline, render_audit_page
from attsvm.transformers.drawing import DrawingLimits, drawings
from attsvm.transformers.head_descriptions import describe_excess, describe_selection, format_signed
from attsvm.transformers.recording import Layer, TextAttention
from attsvm.transformers.selections import KINDS

from .conftest import family, recorded


@pytest.fixture(scope="module")
def found() -> Audit:
    model, tokenizer, batch = demo_model(tokens=60)
    recording = recorded(model, batch["input_ids"])
    return audit(recording.name_tokens(tokenizer), nulls=["permuted"], draws=2, most=20)


@pytest.mark.parametrize(
    ("shares", "favourite", "said"),
    [
        ({"previous": 0.95}, None, "the token before it, 95 %"),
        (
            {"first": 0.62, "previous": 0.3},
            ("[CLS]", 0.6, 0.1),
            "a sink: the first token, [CLS], 62 %",
        ),
        ({"special": 0.6}, (".", 0.3, 0.1), "a sink: a separator, 60 %"),  # of several words
        (
            {"previous": 0.45, "itself": 0.3, "other": 0.25},
            None,
            "partly the token before it, 45 %, or the query's own token, 30 %",
        ),
        ({"other": 0.9, "itself": 0.1}, ("▁cat", 0.4, 0.1), "often “cat”, 40 %"),
        (
            {"other": 0.8, "same token": 0.2},
            ("▁cat", 0.1, 0.1),
            "no fixed place; most often the same token elsewhere, 20 %",
        ),
        (
            {"other": 0.85, "special": 0.15},
            ("▁on", 0.14, 0.1),  # no separator
            "no fixed place; most often a separator, 15 %",
        ),
        ({"special": 0.52, "other": 0.48}, ("▁on", 0.45, 0.1), "a sink: a separator, 52 %"),
    ],
)
def test_a_head_in_words(found: Audit, shares, favourite, said) -> None:
    every, chance = {**dict.fromkeys(KINDS, 0.0), **shares}, dict.fromkeys(KINDS, 0.04)
    head = replace(found.heads[0], selects=every, chance=chance, favourite=favourite)
    assert describe_selection(head) == (said, 0.1 if said.startswith("often") else 0.04)


@pytest.mark.parametrize(
    ("sure", "said"),
    [
        (1, "Of 2 heads, 1 attends mostly to one token at more than half of its queries"),
        (2, "Of 2 heads, 2 attend mostly to one token at more than half of their queries"),
        (0, "Of 2 heads, none attend mostly to one token"),
    ],
)
def test_the_headline_counts_one_head_in_the_singular(found: Audit, sure: int, said: str) -> None:
    heads = [replace(found.heads[k], sure=(float(k < sure), 0.0, 0.0)) for k in range(2)]
    assert headline(replace(found, heads=heads)).startswith(said)


def test_a_decoder_of_another_text() -> None:
    """T5: the words of the first text are not those of the second, and cross attention has none."""
    recording = recorded(family("t5"), "t5")
    recording.words = [[f"w{i}" for i in ids] for ids in recording.tokens]
    seen = audit(recording, norms=())
    cross = [layer.number for layer in recording.layers.values() if layer.cross]
    assert cross
    assert render_audit_page(seen, "t5").count("other tokens alone") >= 4 * len(cross)
    drawn = {name.partition(".")[0] for each in seen.drawings for name in each.heads}
    layers = recording.layers.values()
    assert drawn == {str(layer.number) for layer in layers if "encoder" in layer.name}


def test_nearer_is_said_only_where_the_whole_interval_is_above_zero(found: Audit) -> None:
    head = next(each for each in found.heads if each.fits)
    (fit,) = head.fits
    null = {"permuted": (0.09, 0.10, 0.11)}
    for cosine, said in ((0.5, "nearer"), (0.101, "unclear"), (0.05, "no nearer")):
        one = replace(fit, cosine=cosine, nulls=null, resampled=(cosine, cosine + 0.01))
        verdict, number = describe_excess(replace(head, fits=(one,)))
        assert verdict == said
        assert number.startswith(format_signed(cosine - 0.10))
    for why, said in (("fewer than 10 ...", "too rarely sure"), ("something ...", "not compared")):
        assert describe_excess(replace(head, fits=(), uncompared=why)) == (said, "")
    assert [format_signed(x) for x in (0.061, -0.004, -0.25)] == ["+.06", "0", "−.25"]


def test_what_is_drawn_is_what_the_head_attends_to(found: Audit) -> None:
    (drawn,) = found.drawings
    assert len(drawn.words) == DrawingLimits().tokens
    assert drawn.tokens == 60
    text = found.recording.layers[2].texts[0]
    weights = text.logits().softmax(dim=-1)[5]
    for query, own in enumerate(drawn.heads["2.5"]):
        keys, shares = own[::2], own[1::2]
        assert keys[0] == int(weights[query].argmax())
        assert shares == [round(100 * float(weights[query, key])) for key in keys]
        assert all(share >= 5 for share in shares[1:])
    assert "(the first 48 of 60 tokens)" in render_audit_page(found, "a model")


def test_a_token_is_drawn_of_every_query() -> None:
    keys = torch.zeros(1, 30, 2)
    keys[0, 7] = 0.01
    seen = np.ones((30, 30), dtype=bool)
    text = TextAttention(torch.ones(1, 30, 2), keys, np.arange(30), seen, None, 1.0, 0, 30)
    recording = Recording({0: Layer(0, "", [0], False, False, [text])}, words=[["w"] * 30])
    assert drawings(recording)[0].heads == {"0.0": [[7, 3]] * 30}


def test_numbers_of_a_head_stand_on_the_page(found: Audit) -> None:
    html = render_audit_page(found, "a model")
    assert "and none select the first token of the text most of the time" in html
    fits = [fit for head in found.heads for fit in head.fits]
    typical = np.median([fit.cosine / fit.null() for fit in fits if fit.null() > 0])
    assert f"In the median it is {typical:.1f} times its null." in html
    for fit in fits:
        assert f'<td class="num">{fit.cosine:.3f}</td><td class="num">{fit.null():.3f}</td>' in html
    assert "stable rank" not in html, "keys and queries of rotary positions are no linear maps"
    assert "nan" not in html


def test_sorting_searching_and_choosing(found: Audit, tmp_path: Path, browser: Any) -> None:
    (tmp_path / "page.html").write_text(render_audit_page(found, "a model"), "utf-8")
    shown = browser.new_page(viewport={"width": 1400, "height": 900})
    errors: list[str] = []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.on("console", lambda told: errors.append(told.text) if told.type == "error" else None)
    shown.goto((tmp_path / "page.html").as_uri())

    def names() -> list[str]:
        rows = shown.query_selector_all("#heads tbody tr")
        return [row.query_selector("a").inner_text() for row in rows if row.is_visible()]

    def drawn() -> list[str]:
        paths = shown.query_selector_all("#drawing path.selected")
        return [path.get_attribute("d") for path in paths]

    surest = max(found.heads, key=lambda each: (each.sure[0], each.top))
    assert names()[0] == f"{surest.layer}.{surest.head}"
    assert shown.inner_text("#whose") == f"Layer {surest.layer}, head {surest.head}"
    before = drawn()
    assert len(before) == DrawingLimits().tokens
    shown.click("#heads th:nth-child(1) button")
    ordered = [f"{each.layer}.{each.head}" for each in found.heads]
    assert names() == ordered
    shown.click("#heads th:nth-child(4) button")
    firmest = max(found.heads, key=lambda each: each.margin[1])
    assert names()[0] == f"{firmest.layer}.{firmest.head}"
    other = next(each for each in found.heads if each is not surest and each is not firmest)
    wanted = describe_selection(other)[0]
    shown.fill("#search", wanted.upper())
    assert f"{other.layer}.{other.head}" in names()
    assert shown.inner_text("#left") == f"{len(names())} of 40 heads"
    shown.click(f'#heads tr[data-name="{other.layer}.{other.head}"]')
    assert shown.inner_text("#whose") == f"Layer {other.layer}, head {other.head}"
    assert drawn() != before
    assert shown.is_visible(f"#l{other.layer}h{other.head}")
    assert not shown.is_visible(f"#l{surest.layer}h{surest.head}")
    shown.hover("#drawing .query:nth-of-type(5) rect")
    words = found.drawings[0].words
    assert words[4].strip("▁ ") in shown.inner_text("#told")
    assert " % to " in shown.inner_text("#told")
    shown.set_viewport_size({"width": 360, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360
    assert errors == []
