"""The page in a real browser: offline, on a phone, on a desktop, on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attsvm.report

pytestmark = pytest.mark.browser

WIDE = """() => [...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.outerHTML.slice(0, 90))"""


def hard_to_lay_out(
    run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
) -> None:
    """Words without a blank, long names, long paths."""
    run["dataset"] |= {
        "title": "x" * 90,
        "class_names": ["n" * 60, "p" * 60],
        "source": "/a/very/long/path" * 12,
    }
    run["environment"]["platform"] = "Linux-6.8.0-1021-generic-x86_64-with-glibc2.39" * 3
    for entry in run["results"]["accuracy"]:
        entry["title"] = "A method with a rather long name that never ends " + "y" * 40
    for example in shown:
        view = example["view"]
        if view["kind"] == "text":
            places = [[[0, 1600]], [[1601, 1605]], *([] for _ in view["spans"][2:])]
            view |= {"text": "word" * 400 + " tail", "spans": places}
        elif view["kind"] == "array":
            view["labels"] = ["label" * 30] * len(view["labels"])


CONTRAST = """() => {
  const probe = document.createElement('canvas').getContext('2d');
  const light = c => {
    c = c / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => {
    const a = top[3] ?? 1;
    return [0, 1, 2].map(k => a * top[k] + (1 - a) * below[k]);
  };
  const page = numbers(getComputedStyle(document.body).backgroundColor);
  const worst = {};
  for (const e of document.querySelectorAll('body *')) {
    const written = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!written || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    if (svg && e.tagName !== 'text' && e.tagName !== 'tspan') continue;
    const ink = numbers(svg ? style.fill : style.color);
    const paper = svg ? page : over(numbers(style.backgroundColor), page);
    const [a, b] = [luminance(over(ink, paper)), luminance(paper)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) worst[e.tagName + '.' + (e.className.baseVal ?? e.className)] = ratio;
  }
  return worst;
}"""


@pytest.mark.parametrize("change", [None, hard_to_lay_out], ids=["plain", "hard"])
@pytest.mark.parametrize("kind", ["text", "image", "array"])
def test_page_opens_offline_and_fits(
    make_folder: Callable[..., Path],
    written: Callable[..., Path],
    browser: Any,
    kind: str,
    change: Any,
) -> None:
    if change is None:
        page_file = written(kind) / "report.html"
    else:
        page_file = attsvm.report.write(make_folder(kind, change))
    context = browser.new_context(offline=True, viewport={"width": 360, "height": 740})
    page = context.new_page()
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("requestfailed", lambda request: messages.append(f"failed: {request.url}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width, scheme in ((360, "light"), (1280, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        across = page.evaluate("document.documentElement.scrollWidth")
        assert across <= width, page.evaluate(WIDE)[:5]
        assert page.evaluate(CONTRAST) == {}
    assert page.evaluate(
        "[...document.querySelectorAll('figure > svg')].every(s => s.getBoundingClientRect().height"
        " > 40)"
    )
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    context.close()
