"""The site as it was built last: ``make docs``, which CI runs before the tests, or the folder that
``ATTSVM_SITE`` names. Opened from the file system, with the network off.

``ATTSVM_AXE`` names the file ``axe.min.js`` of axe-core (``npm pack axe-core``); without it the
rules of accessibility are not checked. ``ATTSVM_REPORTS`` names further pages to hold to them, such
as reports, with colons between.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(os.environ.get("ATTSVM_SITE") or Path(__file__).parents[2] / "docs/_build/html")
AXE = os.environ.get("ATTSVM_AXE")
REPORTS = [Path(name) for name in os.environ.get("ATTSVM_REPORTS", "").split(":") if name]
if not (SITE / "index.html").exists():
    pytest.skip("the documentation has not been built: make docs", allow_module_level=True)

PAGES = sorted(path for path in SITE.rglob("*.html") if "_modules" not in path.parts)
KINDS = (
    "index",
    "start/data",
    "start/claim",
    "theory",
    "next-token",
    "norms",
    "probe",
    "gallery",
    "claims",
    "experiments",
    "experiments/md",
    "reference/index",
    "reference/solving",
    "architecture",
    "search",
    "genindex",
)
"""A page of every kind."""

LOADED = ("stylesheet", "icon", "preload", "shortcut icon")


class Parts(HTMLParser):
    """What a page refers to, what it offers to links, and the elements that it begins with."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {""}
        self.pictures: list[dict[str, str | None]] = []
        self.headings: list[str] = []
        self.opening: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[key] or "" for key in ("id", "name") if key in given}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag == "link" and given.get("rel") in LOADED:
            self.loaded.append(str(given["href"]))
        if given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "img":
            self.pictures.append(given)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)
        elif self.headings and tag in ("p", "table", "div", "ul"):
            self.opening.append(tag if tag != "div" else str(given.get("class")))


@pytest.fixture(scope="module")
def parts() -> dict[Path, Parts]:
    return {page: Parts(page) for page in SITE.rglob("*.html")}


def test_every_link_is_live(parts: dict[Path, Parts]) -> None:
    dead, seen = [], 0
    for page, found in parts.items():
        for link in found.links:
            where = urlsplit(link)
            if where.scheme:
                assert where.scheme == "https", link
                continue
            seen += 1
            target = (page.parent / unquote(where.path)).resolve() if where.path else page
            fragment = unquote(where.fragment)
            known = target in parts and (fragment in parts[target].anchors)
            if not (known or (target.is_file() and not fragment)):
                dead.append(f"{page.relative_to(SITE)}: {link}")
    assert dead == []
    assert seen > 2000


def test_nothing_is_loaded_from_elsewhere(parts: dict[Path, Parts]) -> None:
    for page, found in parts.items():
        for address in found.loaded:
            where = urlsplit(address)
            if where.scheme != "data":
                assert not where.scheme, f"{page.name}: {address}"
                assert not where.netloc, f"{page.name}: {address}"
                assert (page.parent / unquote(where.path)).exists(), f"{page.name}: {address}"
    for sheet in SITE.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), sheet.name


def test_pictures_have_words_and_headings_have_an_order(parts: dict[Path, Parts]) -> None:
    for page, found in parts.items():
        assert all(picture.get("alt") is not None for picture in found.pictures), page.name
        levels = [int(heading[1]) for heading in found.headings]
        assert levels.count(1) == 1, page.name
        steps = [b - a for a, b in pairwise(levels)]
        assert max(steps, default=0) <= 1, page.name


def test_no_page_begins_with_a_table_or_a_list(parts: dict[Path, Parts]) -> None:
    made = ("genindex.html", "py-modindex.html", "search.html")
    for page in PAGES:
        if page.name not in made:
            assert parts[page].opening[0] == "p", f"{page.name}: {parts[page].opening[:2]}"


def test_no_page_is_a_megabyte() -> None:
    sizes = {page.relative_to(SITE).as_posix(): page.stat().st_size for page in PAGES}
    assert [name for name, size in sizes.items() if size > 300_000] == []


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """A page without a network that may complain about nothing."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    yield page
    assert [text for text in said if not text.startswith(("file:", "data:", "blob:"))] == []
    context.close()


SHOWN = """() => [...document.querySelectorAll('article math')].filter(each => {
  const box = each.getBoundingClientRect();
  return !(box.width > 2 && box.height > 4);
}).map(each => each.getAttribute('alttext'))"""


@pytest.mark.browser
def test_every_formula_is_seen(opened: Any) -> None:
    seen = 0
    for page in PAGES:
        if "<math " in page.read_text(encoding="utf-8"):
            opened.goto(page.as_uri())
            assert opened.evaluate(SHOWN) == [], page.name
            seen += opened.locator("article math").count()
    assert seen > 500


RULES = """async () => {
  const { violations } = await axe.run(document, { preload: false, resultTypes: ['violations'] });
  return violations.map(each => `${each.id}: ${each.nodes[0].html.slice(0, 120)}`);
}"""


@pytest.mark.browser
@pytest.mark.skipif(AXE is None, reason="ATTSVM_AXE does not name axe.min.js")
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_rules_of_accessibility(opened: Any, width: int, scheme: str) -> None:
    opened.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    opened.set_viewport_size({"width": width, "height": 900})
    broken = {}
    for page in [*(SITE / f"{kind}.html" for kind in KINDS), *REPORTS]:
        opened.goto(page.as_uri())
        opened.evaluate(Path(str(AXE)).read_text(encoding="utf-8"))  # past the page's own policy
        if found := opened.evaluate(RULES):
            broken[str(page)] = found
    assert broken == {}
