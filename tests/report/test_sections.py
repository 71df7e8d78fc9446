"""Pages of sections, and what a benchmark prints as one."""

from __future__ import annotations

import re

from attsvm.report.sections import Section, from_markdown, sections_page
from attsvm.report.style import canvas, render

PRINTED = """**fro, S: 42 constraints**

| solver | gap 1e-03 |
|--------|----------:|
| attsvm |    5 ms   |
| a \\| b |  missing  |

**nuc, S**

| solver | gap 1e-03 |
|--------|----------:|
| attsvm |    9 ms   |

CPU seconds of a whole call.
A second line.

- cvxpy: not installed (fro S)
- other: failed

`attsvm bench step`, today.
A machine."""


def test_every_word_of_a_benchmark_is_on_its_page() -> None:
    first, second, end = from_markdown(PRINTED)
    assert first == Section(
        "fro, S: 42 constraints",
        headers=("solver", "gap 1e-03"),
        rows=(("attsvm", "5 ms"), ("a | b", "missing")),
    )
    assert (second.title, second.rows) == ("nuc, S", (("attsvm", "9 ms"),))
    assert end.title == ""
    assert end.words == (
        "CPU seconds of a whole call. A second line.",
        "attsvm bench step, today. A machine.",
    )
    assert end.items == ("cvxpy: not installed (fro S)", "other: failed")


def test_the_page_is_self_contained_and_escapes_what_it_is_given() -> None:
    with canvas(1) as (figure, panels):
        panels[0].plot([0, 1])
        picture = render(figure, "one", "One", "alt", "caption")
    sections = [
        Section("A <b>", ("words & more",), ("item <i>",), pictures=(picture,)),
        Section(headers=("name", "count"), rows=(("<script>", "3"),)),
    ]
    page = sections_page("Title", "Head", sections, "attsvm order x").decode()
    assert "A &lt;b&gt;" in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="https?:', page)
    assert page.count("<figure") == 1
    assert '<td class="num">3</td>' in page
    assert "attsvm order x" in page
