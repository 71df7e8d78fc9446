"""The explorer's pages and states, as Python makes them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attsvm
import attsvm.report.explorer as explorer
from attsvm.base.errors import InputError
from attsvm_papers.runs import gallery


def data(n: int = 3, T: int = 4, d: int = 2, seed: int = 0, d_z: int = 1) -> attsvm.AttentionData:
    tokens = np.random.default_rng(seed).normal(size=(n, T, d))
    return attsvm.AttentionData(tokens, np.ones(n), np.ones((n, d_z)))


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found.group(1))


def test_page_names_its_script_and_nothing_outside() -> None:
    page = explorer.page()
    assert f"script-src '{explorer.script_hash()}'" in page
    assert explorer.script() in page
    assert "</script" not in explorer.script()
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_words_of_the_data_cannot_end_the_script() -> None:
    hostile = "</script><script>alert(1)</script>"
    page = explorer.page(explorer.DataExample(explorer.state_of(data()), hostile, hostile))
    assert hostile not in page
    assert embedded(page)["own"] == embedded(page)["sentence"] == hostile


def test_state_holds_the_data_bit_for_bit() -> None:
    tokens = np.random.default_rng(1).normal(size=(2, 3, 2))
    mask = np.array([[True, True, True], [True, False, True]])
    given = attsvm.AttentionData(tokens, [1.0, -1.0], [[2.0], [-0.5]], mask)
    state = embedded(attsvm.report.explore(given, tokens=[1, 2], p=1.5).html())["state"]
    assert state["p"] == 1.5
    first, second = state["sequences"]
    assert np.array_equal(first["tokens"], tokens[0])
    assert np.array_equal(second["tokens"], tokens[1, [0, 2]])
    assert (first["weight"], second["weight"]) == (2.0, -0.5)
    assert (first["chosen"], second["chosen"]) == ([1], [1])
    assert (first["label"], second["label"]) == (1.0, -1.0)


def test_highest_score_is_chosen() -> None:
    scores = np.array([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    state = attsvm.report.explore(data(), scores=scores, p=np.inf).state
    assert [each["chosen"] for each in state["sequences"]] == [[1], [0], [3]]
    assert state["p"] == "inf"


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (data(d=3), {}, "two features"),
        (data(d_z=2), {}, "every sequence has a prompt of its own"),
        (data(n=13), {}, "12 sequences"),
        (data(T=13), {}, "12 tokens"),
        (data(T=1), {}, "one token only"),
        (data(), {"tokens": [4, 0, 0]}, "no token of sequence 0"),
        (data(), {"tokens": [0, 0]}, "shape"),
        (data(), {"scores": [[1.0]]}, "shape"),
        (data(), {"p": 1.0}, "1.1 to infinity"),
        (data(), {"p": float("nan")}, "1.1 to infinity"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    given: attsvm.AttentionData, options: dict, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        attsvm.report.explore(given, **options)


def test_saved_page_is_the_shown_one(tmp_path: Path) -> None:
    shown = attsvm.report.explore(data())
    assert shown.save(tmp_path / "page.html").read_text(encoding="utf-8") == shown.html()
    assert 'srcdoc="' in shown._repr_html_()
    assert len(repr(shown)) <= 300


def test_presets_differ_and_are_named_once() -> None:
    presets = explorer.presets()
    for name in ("key", "name", "say"):
        assert len({getattr(each, name) for each in presets}) == len(presets)
    assert {each.experiment for each in presets} >= {f"mmts-{k}" for k in (1, 3, 4, 6)}


def in_the_plane(run: dict, arrays: dict, shown: list) -> None:
    given = data(n=3, T=4)
    arrays |= {
        "explained_rows": np.arange(len(arrays["explained"])) + 100,
        "plane_sequence": np.array([4, 0, 7]),
        "plane_tokens": given.tokens,
        "plane_labels": given.labels,
        "plane_queries": given.queries,
        "plane_mask": given.mask,
        "plane_selected": np.array([1, 0, 2]),
        "plane_scores": np.eye(4)[[1, 0, 2]],
    }


def test_report_of_a_run_in_the_plane_has_it(
    make_folder: Callable[..., Path], no_pictures: None
) -> None:
    page = attsvm.report.write(make_folder("array", change=in_the_plane)).read_text()
    assert f"script-src '{explorer.script_hash()}'" in html.unescape(page)
    content = embedded(page)
    assert content["own"] == "this run"
    assert "A is row 104, B is row 100, C is row 107" in content["sentence"]
    assert [each["chosen"] for each in content["state"]["sequences"]] == [[1], [0], [2]]


def test_page_of_a_toy_experiment_begins_with_it(tmp_path: Path) -> None:
    run = {
        "id": "mmts-1", "paper_title": "paper", "title": "title", "claims": [], "protocol": "",
        "reference": "", "notes": "", "scale": "quick", "trials": 1, "seconds": 1.0,
        "parameters": {}, "attsvm": "0", "environment": {}, "words": {},
    }  # fmt: skip
    gallery.write_experiment(tmp_path, run, [])
    page = (tmp_path / "report.html").read_text()
    assert explorer.script() in page
    assert embedded(page)["key"] == "one"
    gallery.write_experiment(tmp_path, run | {"id": "md-4"}, [])
    assert "<script" not in (tmp_path / "report.html").read_text()
