from __future__ import annotations

import html.parser
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attsvm.report
from attsvm.base.errors import InputError
from attsvm.report import figures
from attsvm.report.printing import THIN, degrees, number, percent

Make = Callable[..., Path]
Record = dict[str, Any]
Arrays = dict[str, np.ndarray]
Shown = list[dict[str, Any]]
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"}
FIGURES = {"accuracy", "loss", "selection", "norm", "direction", "margins"}


class Reader(html.parser.HTMLParser):
    """Checks nesting, collects ids, links, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> crosses another element at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).replace(THIN, "").split())


def sound(page: Path) -> Reader:
    """The page, read: well-formed, unique ids, links that lead somewhere, no address outside the
    file, no script, and a policy that allows none.
    """
    reader = Reader()
    text = page.read_text(encoding="utf-8")
    reader.feed(text)
    reader.close()
    assert reader.open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "<script" not in text
    for tag, attributes in reader.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href", "action"):
                assert value is not None
                assert value.startswith(("#", "data:")), (tag, name, value)
                assert not value.startswith("#") or value[1:] in ids, value
            elif name == "aria-labelledby":
                assert value in ids
            for target in re.findall(r"url\(#([^)]*)\)", value or ""):
                assert target in ids
    assert not re.search(r"@import|https?://|url\((?!#)", re.sub(r">[^<]*<", "><", text))
    headings = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    (policy,) = (
        attributes["content"] or ""
        for tag, attributes in reader.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "script-src" not in rules
    return reader


@pytest.mark.parametrize("kind", ["text", "image", "array"])
def test_page_says_every_number_and_shows_every_figure(written: Make, kind: str) -> None:
    folder = written(kind)
    reader = sound(folder / "report.html")
    run = json.loads((folder / "run.json").read_text())
    results, claims = run["results"], run["claims"]
    selection, margin, direction = (results[key] for key in ("selection", "margin", "direction"))
    holds = [claim["verdict"] for claim in claims].count("holds")
    for said in (
        run["verdict"]["headline"],
        *run["verdict"]["sentences"],
        *(claim["statement"] for claim in claims),
        *(claim["reason"] for claim in claims),
        *(entry["title"] for entry in results["accuracy"]),
        run["dataset"]["sha256"] if kind != "array" else "",
        percent(selection["saturated"] / selection["sequences"]),
        f"{selection['saturated']} of {selection['sequences']} sequences",
        number(margin["margin"]),
        f"trained: {percent(margin['trained_margin_ratio'])} of it",
        number(direction["gap"], 2),
        f"angle {degrees(direction['angle_degrees'])}",
        f"gap {number(margin['gap'], 2)}, violation {number(margin['violation'], 2)}",
        f"{margin['support_constraints']} of them, in {margin['support_sequences']} sequences",
        f"within {degrees(direction['certified_angle_degrees'])}",
        f"{holds} of {len(claims)} claims hold",
        f"attsvm report {kind}",
    ):
        assert " ".join(said.replace(THIN, "").split()) in reader.text, said
    shown = json.loads((folder / "examples.json").read_text())
    wrong = sum(example["label"] != example["predicted"] for example in shown)
    assert len(re.findall(r"predicted \S+ ✗", reader.text)) == wrong
    assert "1.00×" in reader.text  # support sequences have the best margin
    expected = FIGURES | ({"weights"} if kind == "image" else set())
    assert expected <= {attributes.get("id") for tag, attributes in reader.tags if tag == "figure"}
    for name in expected:
        root = ET.parse(folder / "figures" / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len([*(folder / "figures").iterdir()]) == 2 * len(expected)
    assert not [path for path in folder.rglob("*") if "partial" in path.name]


@pytest.mark.parametrize("kind", ["text", "image", "array"])
def test_the_answer_comes_first_and_the_theory_is_folded(written: Make, kind: str) -> None:
    page = (written(kind) / "report.html").read_text(encoding="utf-8")
    answer, _, theory = page.partition('<h2 id="theory">')
    assert '<h2 id="accuracy-section">' in answer
    assert ("says most" in answer.lower()) == (kind == "text")
    assert "✗" not in answer.partition("<main>")[0]
    for heading in ("claims", "training", "geometry", "tokens", "support"):
        assert f'<h3 id="{heading}">' in theory.partition("</details>\n</section>")[0]
    assert "<details open" not in page


def test_slopes_of_powers_are_exact() -> None:
    steps = np.array([1.0, 2.0, 10.0, 20.0, 50.0, 100.0])
    gaps = np.where(steps < 10, 1.0, 3.0 * steps**-0.5)  # of the last decade alone
    assert figures.slope(steps, gaps) == pytest.approx(-0.5)
    assert figures.slope(steps[-3:], gaps[-3:]) is None


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "run.json"
    }


def test_a_report_has_the_same_bytes_whatever_the_clock_and_the_reader_s_settings(
    make_folder: Make, tmp_path: Path
) -> None:
    """Written before ``run.json`` is, too."""
    import matplotlib as mpl

    first = make_folder("image")
    second = make_folder("image", above=tmp_path / "again")
    assert attsvm.report.write(first) == first / "report.html"
    run = json.loads((second / "run.json").read_text())
    (second / "run.json").unlink()
    run["timing"] = {"fit": 123.456}
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "text.usetex": True}):
        attsvm.report.write(second, run)
    assert content(first) == content(second)


STEERING = "\x00\x1b[31m\x07\x9b\u202e\u2066\u2028"
EVIL = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}</style>" + STEERING


def evil(run: Record, data: Arrays, shown: Shown) -> None:
    """Markup, and characters that steer a terminal or a browser, wherever a file may hold text."""
    run["dataset"] |= dict.fromkeys(("name", "title", "source", EVIL), EVIL)
    run["dataset"] |= {"class_names": [EVIL, f"{EVIL}\ud800"], "notes": [EVIL]}
    run["verdict"] |= {"headline": EVIL, "sentences": [EVIL]}
    run["parameters"][EVIL] = EVIL
    run["environment"][EVIL] = [EVIL]
    run["timing"][EVIL] = 1.0
    run["results"]["margin"] |= {"status": EVIL, "message": EVIL, "solver": EVIL}
    for claim in run["claims"]:
        claim.update(dict.fromkeys(claim, EVIL))
    for entry in run["results"]["accuracy"]:
        entry |= {"title": EVIL, "what": EVIL}
    run["results"]["accuracy"][0]["title"] = "costs $5_{x}$ & 漢字"
    for example in shown:
        view = example["view"]
        example["sequence"] = example["row"] = EVIL
        if view["kind"] == "text":
            places = [[[0, 40]], [[41, 60]], *([] for _ in view["spans"][2:])]
            example["view"] = {"kind": "text", "text": EVIL * 20, "spans": places}
        else:
            view["labels"] = [EVIL] * len(view["labels"])


@pytest.mark.parametrize("kind", ["text", "array"])
def test_text_of_the_user_is_never_markup(make_folder: Make, kind: str) -> None:
    page = attsvm.report.write(make_folder(kind, evil))
    reader = sound(page)
    assert "alert('x')" in reader.text
    assert "img" not in {tag for tag, _ in reader.tags}
    assert "{{ 7*7 }}" in reader.text
    assert "␀␛[31m␇" in reader.text  # what was there can be seen
    drawings = [*(page.parent / "figures").glob("*.svg")]
    for path in (page, *drawings):
        steers = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
        assert not re.search(steers, path.read_bytes().decode("utf-8"))
    for path in drawings:
        ET.parse(path)
    drawn = (page.parent / "figures" / "accuracy.svg").read_text(encoding="utf-8")
    assert "$5_{x}$" in drawn  # no formula


def infeasible(run: Record, data: Arrays, shown: Shown) -> None:
    margin = run["results"]["margin"]
    missing = "norm margin gap violation trained_margin_ratio trained_margin support_constraints"
    margin |= dict.fromkeys(missing.split())
    margin |= {"status": "infeasible", "message": "no weights separate sequence 3"}
    run["results"]["direction"] = dict.fromkeys(run["results"]["direction"])
    run["results"]["selection"] |= {"locally_optimal": None, "locally_optimal_sequences": None}
    run["verdict"] |= {"holds": False}
    for name in ["W_margin", "dual", "margin_values", "best_margins", "support_tokens"]:
        del data[name]
    del data["trajectory_direction_gap"]
    for example in shown:
        example |= {"margin": None, "rival": None}


def soft(run: Record, data: Arrays, shown: Shown) -> None:
    run["results"]["margin"] |= {"hard": False, "slack": 10.0, "trained_margin_ratio": -0.4}
    data["margin_values"] -= 1.5
    data["best_margins"] -= 0.1
    data["best_margins"][0] = data["trained_margins"][0] = np.inf  # a sequence of one token
    data["trained_margins"][1:] = np.abs(data["trained_margins"][1:])
    data["trained_margins"][1] = -0.01


def inaccurate(run: Record, data: Arrays, shown: Shown) -> None:
    run["results"]["margin"] |= {"status": "inaccurate", "gap": 3e-4}


def perfect(run: Record, data: Arrays, shown: Shown) -> None:
    for entry in run["results"]["accuracy"]:
        entry |= {"train": 1.0, "validation": None, "test": 1.0, "std": None}
    run["results"]["accuracy"][-1] |= {"train": 0.0, "test": 0.0}
    data["trajectory_direction_gap"][:] = 0.0
    data["trajectory_direction_gap"][-1] = np.nan
    data["trained_margins"][:] = np.inf


def empty(run: Record, data: Arrays, shown: Shown) -> None:
    shown.clear()
    for key in ["dataset", "parameters", "environment", "results", "claims", "verdict", "timing"]:
        del run[key]
    data.clear()
    data["W"] = np.zeros((2, 2))


def flat(run: Record, data: Arrays, shown: Shown) -> None:
    del run["results"]["training"]
    for name, array in data.items():
        if name.startswith("trajectory_") and not name.endswith("step"):
            array[:] = 0.5
    data["best_margins"][:] = data["trained_margins"][:] = 0.01


def few(run: Record, data: Arrays, shown: Shown) -> None:
    del shown[1:]
    for name in [name for name in data if name.startswith("trajectory_")]:
        data[name] = data[name][-1:]


def without_views(run: Record, data: Arrays, shown: Shown) -> None:
    for example in shown:
        example |= {"view": None, "predicted": None, "rival": None}


@pytest.mark.parametrize(
    ("change", "says", "kind"),
    [
        (infeasible, "cannot all be separated", "image"),
        (soft, "price C = 10.0", "image"),
        (soft, "At the trained direction 1 of 266 lie below zero", "image"),
        (soft, "1 sequences with a single token have no margin", "image"),
        (perfect, "100%", "image"),
        (inaccurate, "The tolerance was not reached", "array"),
        (without_views, "token 1", "text"),
        (empty, "", "array"),
        (flat, "", "array"),
        (few, "What was selected", "text"),
    ],
)
def test_unusual_runs_are_drawn_and_said(
    make_folder: Make, change: Any, says: str, kind: str
) -> None:
    text = sound(attsvm.report.write(make_folder(kind, change))).text
    assert says in text
    assert not re.search(r"\bnan\b|\bNone\b|Undefined|\binf\b", text)


FORMAT = '{"format": "attsvm-run/1", '


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("run.json", None, "has no run.json"),
        ("run.json", "\xff", "cannot be read"),
        ("run.json", "[]", "has no format"),
        ("run.json", '{"format": "attsvm-run/0"}', "this version reads 'attsvm-run/1'"),
        ("run.json", FORMAT + '"request": {"command": "probe"}}', "holds a probe, and only fits"),
        ("run.json", FORMAT + '"results": {"direction": {"measure": {"a": 1}}}}', "are not as"),
        ("run.json", FORMAT + '"claims": [{"measured": {}}], "dataset": 7}', "are not as"),
        ("arrays.safetensors", None, "arrays.safetensors is missing"),
        ("arrays.safetensors", "\0" * 40, "arrays.safetensors"),
        ("examples.json", "[" * 100_000, "cannot be read"),
        ("examples.json", '{"a": 1}', "are not as attsvm fit writes them"),
        ("examples.json", '[{"probability": 5}]', "are not as attsvm fit writes them"),
        (".", None, "is not a folder"),
    ],
)
def test_a_damaged_folder_costs_a_sentence(
    make_folder: Make, no_pictures: None, name: str, content: str | None, says: str
) -> None:
    folder = make_folder("array")
    if name == ".":
        folder = folder / "nowhere"
    elif content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content.encode("latin-1"))
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        attsvm.report.write(folder)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before


def one_figure(run: Record, data: Arrays, shown: Shown) -> None:
    shown.clear()
    for name in [name for name in data if name != "W"]:
        del data[name]


@pytest.mark.parametrize(("named", "kept"), [("nonsense", "None"), ("svg", "svg")])
def test_writing_needs_neither_torch_nor_pyplot_nor_a_backend(
    make_folder: Make, named: str, kept: str
) -> None:
    """The environment may name a backend that does not exist; one that exists is still the
    reader's.
    """
    code = (
        "import sys, attsvm.report\n"
        "heavy = {'matplotlib', 'jinja2', 'torch', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "attsvm.report.write(sys.argv[1])\n"
        "heavy = {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import matplotlib, os\n"
        "print(os.environ['MPLBACKEND'], matplotlib.rcParams._get_backend_or_none())\n"
    )
    folder = make_folder("array", one_figure)
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=os.environ | {"MPLBACKEND": named},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [named, kept]
    assert (folder / "figures" / "accuracy.png").exists()


def test_table_of_constraints_names_the_words_of_its_sequence(written: Make) -> None:
    from attsvm.report.page import constraints
    from attsvm.report.run_contents import read

    run = read(written("text"))
    rows = constraints(run)
    assert [row.dual for row in rows] == sorted((row.dual for row in rows), reverse=True)
    first = int(np.argmax(run.arrays["dual"]))
    sequence = run.arrays["explained"][run.arrays["constraint_sequence"][first]]
    assert rows[0].row == sequence + 1
    assert rows[0].share == pytest.approx(run.arrays["dual"].max() / run.arrays["dual"].sum())
    (view,) = {
        example["view"]["text"]
        for example in run.examples
        if example["part"] == "train" and example["sequence"] == sequence
    }
    assert rows[0].selected.strip("“”") in view
