"""The parts of the site that are made while it is built: formulas, the explorer, the gallery."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import attsvm

from .conftest import DOCS, module, read

pytest.importorskip("sphinx", reason="sphinx is not installed")


def formulas() -> list[str]:
    """Every formula of the pages and of the docstrings that they show."""
    found: list[str] = []
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        found += re.findall(r"\$\$(.+?)\$\$", text, flags=re.DOTALL)
        inline = re.sub(r"\$\$.+?\$\$", "", text, flags=re.DOTALL)
        found += re.findall(r"\$([^$]+?)\$", inline)
    for source in Path(attsvm.__file__).parent.rglob("*.py"):
        found += re.findall(r":math:`(.+?)`", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    return found


def test_every_formula_is_drawn_without_a_network() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")
    mathml = module("formulas").mathml
    every = formulas()
    assert len(every) > 500
    for tex in every:
        element = mathml(tex, "inline")
        assert element.startswith("<math alttext=")
        assert "http" not in element.replace("http://www.w3.org/1998/Math/MathML", "")


def test_an_unknown_command_is_not_drawn_as_its_name() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")
    with pytest.raises(ValueError, match="unknown"):
        module("formulas").mathml(r"\nosuchcommand x", "inline")


def test_a_formula_of_two_lines_has_two_rows() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")
    element = module("formulas").mathml(r"a &= b, \\ c &= d", "block")
    assert element.count("<mtr>") == 2
    assert "&</" not in element


def test_pages_that_show_examples_name_ones_that_exist() -> None:
    from attsvm.report.explorer import presets

    known = {each.key for each in presets()}
    named = [
        key
        for page in DOCS.rglob("*.md")
        for key in re.findall(r"```\{explorer\} *(\w*)\n", page.read_text(encoding="utf-8"))
    ]
    assert len(named) >= 3
    assert set(named) - {""} <= known


def test_gallery_tells_verdicts_by_number(tmp_path: Path) -> None:
    gallery = module("gallery")
    run = {
        "id": "mmts-1",
        "paper_title": "A paper",
        "title": "a < b",
        "claims": [{"verdict": "holds"}, {"verdict": "holds"}, {"verdict": "fails"}],
    }
    (tmp_path / "mmts-1").mkdir()
    (tmp_path / "mmts-1" / "run.json").write_text(json.dumps(run))
    (found,) = gallery.runs(tmp_path)
    assert gallery.tally(found) == "3 claims: 2 hold, 1 fails"
    card = gallery.card(tmp_path, found)
    assert "a &lt; b" in card
    assert "<img" not in card  # no figure, no empty frame


def test_gallery_without_a_run_has_the_recorded_verdicts() -> None:
    gallery = module("gallery")
    recorded = {run["id"]: run for run in gallery.recorded()}
    assert len(recorded) > 50
    verdicts = {claim["verdict"] for run in recorded.values() for claim in run["claims"]}
    assert {"holds", "fails"} <= verdicts <= set(gallery.VERDICTS)


def test_the_walks_name_files_and_functions_that_exist() -> None:
    text = read("docs/architecture.md")
    library = Path(attsvm.__file__).parent
    files = re.findall(r"`([a-z_]+(?:/[a-z0-9_]+)*\.py)`", text)
    assert len(files) > 25
    for name in files:
        assert any((home / name).exists() for home in (library, library.with_name("attsvm_papers")))
    rooms = re.findall(r"^\| (`.+?) \|", text, flags=re.MULTILINE)
    named = {name for row in rooms for name in re.findall(r"`(\w+)`", row)}
    there = {path.stem for path in library.iterdir()} - {"__init__", "__pycache__"}
    inside = {path.name for path in (library / "solvers").iterdir() if path.is_dir()} - {
        "__pycache__"
    }
    assert inside <= named <= there | inside
    assert there - named == {"py"}  # py.typed


def test_a_figure_opens_alone() -> None:
    linked = module("accessible").linked
    page = '<p><img alt="a &lt; b" src="_images/a.svg" /></p><p>See <img alt="" src="b.svg" /></p>'
    once = linked(page)
    assert '<a href="_images/a.svg" title="Open larger"><img alt="a &lt; b"' in once
    assert once.endswith('<p>See <img alt="" src="b.svg" /></p>')  # within a line stays there
    assert linked(once) == once
