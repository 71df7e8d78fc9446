from __future__ import annotations

import html.parser
import json
import math
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
from attsvm.errors import InputError
from attsvm.report.printing import THIN

Make = Callable[..., Path]
VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "track",
    "wbr",
}
FIGURES = {
    "accuracy",
    "joint",
    "loss",
    "selection",
    "norm",
    "direction",
    "margins",
    "concentration",
}


ONE_KIND = ["text", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("image", "array"))]
"""Texts hold most that could go wrong; the others with the slow tests."""


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


def parsed(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def assert_sound(page: Path) -> Reader:
    """Well-formed, unique ids, links that lead somewhere, no address outside the file, no
    script.
    """
    reader = parsed(page)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "script" not in {tag for tag, _ in reader.tags}
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
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"@import|https?://|url\((?!#)", re.sub(r">[^<]*<", "><", text))
    headings = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    return reader


@pytest.mark.parametrize("kind", ["text", "image", "array"])
@pytest.mark.experiment
def test_page_is_sound_and_says_every_number(written: Make, kind: str) -> None:
    folder = written(kind)
    text = assert_sound(folder / "report.html").text
    run = json.loads((folder / "run.json").read_text())
    for said in (
        run["verdict"]["headline"],
        *run["verdict"]["sentences"],
        *(claim["statement"] for claim in run["claims"]),
        *(claim["reason"] for claim in run["claims"]),
        *(entry["title"] for entry in run["results"]["accuracy"]),
        run["dataset"]["sha256"],
        "99.8%",  # share that selects one token
        "496 of 497 sequences",
        "0.0132",  # best margin
        "trained: 93.1% of it",
        "0.0030",  # direction gap
        "angle 4.4°",
        "optimal",
        "gap 3.2×10⁻¹¹, violation 4.1×10⁻¹³",
        "mean pooling 88.6%, majority 49.7%",
        "94 of them, in 71 sequences",
        "within 4.6×10⁻⁴ degrees",
        f"attsvm fit {kind}.npz --seed 0 --test-size 0.2",
        "The theory holds in this run · 3 of 4 claims hold",
        f"attsvm report {kind}",
    ):
        assert " ".join(said.split()) in text, said


@pytest.mark.parametrize("kind", ["text", "image", "array"])
def test_figures_are_files_and_on_the_page(written: Make, kind: str) -> None:
    folder = written(kind)
    reader = parsed(folder / "report.html")
    expected = FIGURES | ({"weights"} if kind == "image" else set())
    assert {path.name for path in (folder / "figures").iterdir()} == {
        name + end for name in expected for end in (".svg", ".png")
    }
    assert expected <= {attributes.get("id") for tag, attributes in reader.tags if tag == "figure"}
    for name in expected:
        root = ET.parse(folder / "figures" / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in folder.rglob("*") if "partial" in path.name]


@pytest.mark.parametrize(
    "kind", ["image", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("text", "array"))]
)
@pytest.mark.experiment
def test_two_writes_give_the_same_bytes(make_folder: Make, written: Make, kind: str) -> None:
    first, second = written(kind), make_folder(kind)
    assert attsvm.report.write(second) == second / "report.html"
    assert content(first) == content(second)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_reader_s_own_matplotlib_settings_change_nothing(
    make_folder: Make, written: Make
) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "text.usetex": True}):
        page = attsvm.report.write(make_folder("text"))
    assert content(page.parent) == content(written("text"))


EVIL = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}</style>"


@pytest.mark.parametrize("kind", ONE_KIND)
def test_text_of_the_user_is_never_markup(make_folder: Make, kind: str) -> None:
    def change(
        run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
    ) -> None:
        run["dataset"] |= {
            "name": EVIL,
            "title": EVIL,
            "source": EVIL,
            "class_names": [EVIL, EVIL],
            "notes": [EVIL],
            EVIL: EVIL,
        }
        run["verdict"] |= {"headline": EVIL, "sentences": [EVIL]}
        run["parameters"][EVIL] = EVIL
        run["environment"][EVIL] = [EVIL]
        run["timing"][EVIL] = 1.0
        run["results"]["margin"] |= {"status": EVIL, "message": EVIL, "solver": EVIL}
        for claim in run["claims"]:
            claim.update(dict.fromkeys(claim, EVIL))
        for entry in run["results"]["accuracy"]:
            entry |= {"title": EVIL, "what": EVIL}
        for example in shown:
            example |= {"group": EVIL, "part": EVIL, "sequence": EVIL}
            if example["view"] and example["view"]["kind"] == "text":
                example["view"] |= {
                    "text": EVIL * 20,
                    "spans": [[[0, 40]], [[41, 60]]],
                    "probability": [0.5, 0.5],
                }
                example |= {"probability": [0.5, 0.5], "selected": 0, "rival": 1}
            elif example["view"]:
                example["view"]["labels"] = [EVIL] * 12

    page = attsvm.report.write(make_folder(kind, change=change))
    reader = assert_sound(page)
    assert "<script" not in page.read_text(encoding="utf-8")
    assert "alert('x')" in reader.text
    assert "img" not in {tag for tag, _ in reader.tags}
    assert "{{ 7*7 }}" in reader.text


def test_dollar_signs_are_not_formulas(make_folder: Make) -> None:
    def change(
        run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
    ) -> None:
        for entry in run["results"]["accuracy"]:
            entry["title"] = "costs $5_{x}$ & 漢字"

    folder = make_folder(change=change)
    attsvm.report.write(folder)
    assert "$5_{x}$" in (folder / "figures" / "accuracy.svg").read_text(encoding="utf-8")


def infeasible(
    run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
) -> None:
    margin = run["results"]["margin"]
    margin |= dict.fromkeys(
        (
            "norm",
            "margin",
            "gap",
            "violation",
            "trained_margin_ratio",
            "trained_margin",
            "support_constraints",
        )
    )
    margin |= {"status": "infeasible", "message": "no weights separate sequence 3"}
    run["results"]["direction"] = dict.fromkeys(run["results"]["direction"])
    run["results"]["selection"] |= {"locally_optimal": None, "locally_optimal_sequences": None}
    run["verdict"] |= {"holds": False}
    for name in (
        "W_margin",
        "dual",
        "margin_values",
        "best_margins",
        "trajectory_direction_gap",
        "support_tokens",
    ):
        del data[name]
    for example in shown:
        example |= {"margin": None, "rival": None}


def soft(run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]) -> None:
    run["results"]["margin"] |= {"hard": False, "slack": 10.0, "trained_margin_ratio": -0.4}
    data["margin_values"] -= 1.5
    data["best_margins"] -= 2 / 75.9


def inaccurate(
    run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
) -> None:
    run["results"]["margin"] |= {"status": "inaccurate", "gap": 3e-4}


def perfect(run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]) -> None:
    for entry in run["results"]["accuracy"]:
        entry |= {"train": 1.0, "validation": None, "test": 1.0, "std": None}
    run["results"]["accuracy"][-1] |= {"train": 0.0, "test": 0.0}
    data["trajectory_direction_gap"][:] = 0.0
    data["trajectory_direction_gap"][-1] = np.nan
    data["trained_margins"][:] = np.inf
    for example in shown:
        example |= {"margin": math.inf, "predicted": example["label"]}


def empty(run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]) -> None:
    shown.clear()
    for key in ("dataset", "parameters", "environment", "results", "claims", "verdict", "timing"):
        del run[key]
    data.clear()
    data["W"] = np.zeros((2, 2))


def flat(run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]) -> None:
    for name, array in data.items():
        if name.startswith(("trajectory_", "joint_")) and not name.endswith("step"):
            array[:] = 0.5
    data["best_margins"][:] = data["trained_margins"][:] = 1 / 75.9
    data["dual"][:] = 1.0


def without_views(
    run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
) -> None:
    for example in shown:
        example.pop("view")
        example |= {"score": None, "value": None, "predicted": None, "rival": None}


CHANGES = {
    f.__name__: f for f in (infeasible, soft, inaccurate, perfect, empty, flat, without_views)
}
SAYS = {
    "infeasible": "cannot all be separated",
    "soft": "price C = 10.0",
    "inaccurate": "The tolerance was not reached",
    "perfect": "100%",
    "without_views": "token 1",
}


@pytest.mark.parametrize("name", CHANGES)
def test_unusual_runs(make_folder: Make, name: str) -> None:
    reader = assert_sound(attsvm.report.write(make_folder("image", change=CHANGES[name], count=8)))
    text = reader.text
    assert SAYS.get(name, "") in text
    assert not re.search(r"\bnan\b|\bNone\b|Undefined|\binf\b", text)


@pytest.mark.parametrize(
    ("kind", "count", "records"),
    [("text", 1, 1), ("image", 1, 3), ("array", 1, 1), ("image", 0, 60)],
)
def test_small_runs(make_folder: Make, kind: str, count: int, records: int) -> None:
    assert_sound(attsvm.report.write(make_folder(kind, count=count, records=records)))


def test_examples_may_be_absent(make_folder: Make) -> None:
    folder = make_folder()
    (folder / "examples.json").unlink()
    assert "What was selected" not in parsed(attsvm.report.write(folder)).text


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "run.json").unlink(), "has no run.json"),
        (lambda folder: (folder / "run.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "run.json").write_text("[]"), "has no format"),
        (lambda folder: (folder / "run.json").write_text("{}"), "has no format"),
        (
            lambda folder: (folder / "run.json").write_text('{"format": "attsvm-run/0"}'),
            "this version reads 'attsvm-run/1'",
        ),
        (lambda folder: (folder / "arrays.safetensors").unlink(), "arrays.safetensors"),
        (
            lambda folder: (folder / "arrays.safetensors").write_bytes(b"\0" * 40),
            "arrays.safetensors",
        ),
        (
            lambda folder: (folder / "examples.json").write_text('{"a": 1}'),
            "is not a list of objects",
        ),
        (lambda folder: (folder / "examples.json").write_bytes(b"\xff\xfe"), "cannot be read"),
    ],
)
def test_damaged_folders_cost_a_sentence(
    make_folder: Make, damage: Callable[[Path], object], says: str
) -> None:
    folder = make_folder(count=2, records=3)
    damage(folder)
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        attsvm.report.write(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_page_can_be_written_before_run_json_and_knows_no_times(
    make_folder: Make, written: Make
) -> None:
    folder = make_folder("text")
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").unlink()
    run["timing"] = {"fit": 123.456}
    assert (
        attsvm.report.write(folder, run).read_bytes()
        == (written("text") / "report.html").read_bytes()
    )


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        attsvm.report.write(tmp_path / "nowhere")


def test_import_is_cheap_and_writing_needs_neither_torch_nor_pyplot(make_folder: Make) -> None:
    code = (
        "import sys, attsvm.report\n"
        "heavy = {'matplotlib', 'jinja2', 'torch', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "attsvm.report.write(sys.argv[1])\n"
        "heavy = {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code, str(make_folder(count=2, records=3))], check=True)


def test_table_of_constraints_names_the_words_of_its_sequence(written: Make) -> None:
    from attsvm.report.page import constraints
    from attsvm.report.run_contents import read

    run = read(written("text"))
    rows = constraints(run)
    assert [row.dual for row in rows] == sorted((row.dual for row in rows), reverse=True)
    first = int(np.argmax(run.arrays["dual"]))
    assert rows[0].sequence == run.arrays["train"][run.arrays["constraint_sequence"][first]]
    assert rows[0].share == pytest.approx(run.arrays["dual"].max() / run.arrays["dual"].sum())
    shown = [
        example
        for example in run.examples
        if example["part"] == "train" and example["sequence"] == rows[0].sequence
    ]
    assert rows[0].selected.strip("“”") in shown[0]["view"]["text"]


def test_labels_that_do_not_match_the_tokens_are_not_shown(make_folder: Make) -> None:
    def change(
        run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]
    ) -> None:
        for example in shown:
            example["view"] = {"kind": "array", "labels": ["misplaced"]}

    text = parsed(attsvm.report.write(make_folder("array", change=change, count=4))).text
    assert "token 3" in text
    assert "misplaced" not in text


STEERING = "\x00\x1b[31m\x07\x9b\u202e\u2066\u2028"


def steering(run: dict[str, Any], data: dict[str, np.ndarray], shown: list[dict[str, Any]]) -> None:
    """Characters that steer a terminal or a browser, wherever a file may hold text."""
    run["dataset"] |= {"title": STEERING, "class_names": [f"a{STEERING}", f"b{STEERING}\ud800"]}
    run["verdict"]["sentences"] = [STEERING]
    run["environment"][STEERING] = STEERING
    for example in shown:
        if example["view"] and example["view"]["kind"] == "text":
            example["view"]["text"] = STEERING + example["view"]["text"]
        elif example["view"] and example["view"]["kind"] == "array":
            example["view"]["labels"][0] = STEERING


@pytest.mark.parametrize("kind", ONE_KIND)
def test_no_character_that_steers_reaches_a_page_or_a_figure(make_folder: Make, kind: str) -> None:
    folder = make_folder(kind, change=steering, count=8)
    page = attsvm.report.write(folder)
    for path in (page, *(folder / "figures").glob("*.svg")):
        content = path.read_bytes().decode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", content)
        if path.suffix == ".svg":
            ET.fromstring(content)
    assert "␀␛[31m␇" in page.read_text(encoding="utf-8")  # and what was there can be seen
    assert_sound(page)


def test_a_browser_may_run_and_load_nothing(written: Make) -> None:
    policies = [
        attributes["content"]
        for tag, attributes in parsed(written("text") / "report.html").tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    (policy,) = policies
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "script-src" not in rules
    assert rules["img-src"] == "data:"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("examples.json", "[" * 100_000),
        ("examples.json", '{"a": 1}'),
        ("examples.json", "[1]"),
        ("examples.json", '[{"selected": "x"}]'),
        ("examples.json", '[{"selected": 1e400, "probability": [1]}]'),
        ("examples.json", '[{"probability": 5}]'),
        (
            "examples.json",
            '[{"view": {"kind": "text", "text": 3, "spans": 7}, "probability": [1]}]',
        ),
        ("examples.json", '[{"view": {"kind": "image", "pixels": [[1]], "boxes": ["x"]}}]'),
        ("run.json", '{"format": "attsvm-run/1", "results": {"direction": {"measure": {"a": 1}}}}'),
        ("run.json", '{"format": "attsvm-run/1", "claims": [{"measured": {}}], "dataset": 7}'),
        ("run.json", "\xff"),
    ],
)
def test_damaged_files_are_one_sentence(make_folder: Make, name: str, content: str) -> None:
    folder = make_folder("text", count=4)
    (folder / name).write_bytes(content.encode("latin-1"))
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError) as caught:
        attsvm.report.write(folder)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before
