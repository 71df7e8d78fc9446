"""The fingerprint of code: an edit inside of what a result depends on changes it, and one
elsewhere does not.
"""

import importlib
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attsvm
from attsvm.store.code import closure, code_fingerprint

FILES = {
    "__init__": "",
    "data": '''
"""Random data."""
from {package}.tables import SIZES
def draw(n):
    """Numbers."""
    return list(range(n + SIZES["few"]))
def draws(n):
    return [draw(n)]
def unused():
    return 1
''',
    "tables": "SIZES = {{}}\nSIZES['few'] = 2\nOTHER = 3\n",
    "figure": """
from __future__ import annotations
from typing import TYPE_CHECKING
from {package} import drawing
from {package}.data import draws, unused
if TYPE_CHECKING:
    from {package}.drawing import Picture
STEPS = 5
CLAIMS = (unused(), "at most 3")
def run(first: int, count: int = 2) -> dict[str, int]:
    from .helpers import total
    return {{"sum": total(draws(first)) + STEPS}}
def plot(evidence) -> Picture:
    return drawing.line(evidence)
EXPERIMENT = (run, plot, CLAIMS)
""",
    "helpers": """
from {package}.kernels import add
def total(rows):
    return Sum()(rows)
class Sum:
    def __call__(self, rows):
        return add(rows)
""",
    "kernels": "def one(x):\n    return x\ndef add(rows):\n    return one(rows)\n",
    "drawing": "class Picture: pass\ndef line(evidence): return Picture()\n",
}
NUMBER = itertools.count()


def package(folder, monkeypatch, **edits):
    """The package with its files edited: each edit is (old, new)."""
    name = f"laboratory{next(NUMBER)}"
    (folder / name).mkdir()
    for file, text in FILES.items():
        old, new = edits.pop(file, ("", ""))
        assert old in text
        text = text.replace(old, new) if old else text
        (folder / name / f"{file}.py").write_text(text.format(package=name))
    assert not edits
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(f"{name}.figure")


def parts(module):
    """What counts, with the package's name, which differs from test to test, left out."""
    name = module.__name__.partition(".")[0]
    return {
        key.replace(name, "lab"): text.replace(name, "lab")
        for key, text in closure(module.run).items()
    }


INSIDE = {
    "the function": ("figure", "+ STEPS", "- STEPS"),
    "a number that it reads": ("figure", "STEPS = 5", "STEPS = 6"),
    "a default": ("figure", "count: int = 2", "count: int = 3"),
    "a function named draws": ("data", "[draw(n)]", "[draw(n), 1]"),
    "a function named draw": ("data", "range(n +", "range(1 + n +"),
    "a helper imported inside": ("helpers", "Sum()", "Sum.__call__(None, rows)"),
    "a method": ("helpers", "add(rows)", "add(rows[:1])"),
    "a kernel that a kernel calls": ("kernels", "return x", "return 2 * x"),
    "an entry of a table": ("tables", "= 2", "= 4"),
    "the package's import": ("__init__", "", "print('hello')"),
}
OUTSIDE = {
    "a plot": ("figure", "drawing.line(evidence)", "None"),
    "a claim": ("figure", "at most 3", "at most 4"),
    "what only claims use": ("data", "return 1", "return 2"),
    "another table": ("tables", "OTHER = 3", "OTHER = 4"),
    "words": ("data", "Numbers.", "Whole numbers."),
    "a comment": ("kernels", "return x", "return x  # itself"),
    "an annotation": ("figure", "dict[str, int]", "dict[str, float]"),
    "drawing": ("drawing", "Picture()", "None"),
}


@pytest.mark.parametrize("edit", list(INSIDE))
def test_an_edit_inside_changes_it(tmp_path, monkeypatch, edit):
    file, old, new = INSIDE[edit]
    before = parts(package(tmp_path, monkeypatch))
    if not old:
        monkeypatch.setitem(FILES, file, new)
        old = new = ""
    assert parts(package(tmp_path, monkeypatch, **{file: (old, new)})) != before


@pytest.mark.parametrize("edit", list(OUTSIDE))
def test_an_edit_elsewhere_does_not(tmp_path, monkeypatch, edit):
    file, old, new = OUTSIDE[edit]
    before = parts(package(tmp_path, monkeypatch))
    assert parts(package(tmp_path, monkeypatch, **{file: (old, new)})) == before


def test_what_a_function_wraps_counts(tmp_path, monkeypatch):
    import functools

    first = package(tmp_path, monkeypatch)
    whole = code_fingerprint(first.run)

    def local(*arguments):
        return first_run(*arguments)

    first_run = first.run
    for wrapped in (functools.partial(first.run, 3), functools.wraps(first.run)(local), local):
        found = closure(wrapped)
        assert set(closure(first.run)) <= set(found)
    assert code_fingerprint(functools.partial(first.run, 3)) == whole


EDITS = {
    "none": ("errors.py", "", ""),
    "data drawn by the room's helper": (
        "../attsvm_papers/graph/priority.py",
        "d, seed, cyclic",
        "d, 1, cyclic",
    ),
    "a stage that a solver runs": (
        "solvers/ascent.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\nEDITED = 1\n",
    ),
}
NOT_REACHED = ("report/page.py", "datasets/reviews.py")


@pytest.mark.slow
def test_the_library_counts_by_modules_that_are_reached(tmp_path):
    """The solver that a table names by a string, and the data that a helper draws, count."""
    script = (
        "from attsvm_papers.kit import experiment\nfrom attsvm.store import code_fingerprint\n"
        "print(code_fingerprint(experiment('graph-1').run))"
    )
    found = {}
    for name in (*EDITS, "not reached"):
        root = tmp_path / name
        for package in ("attsvm", "attsvm_papers"):
            shutil.copytree(
                Path(attsvm.__file__).parents[1] / package,
                root / package,  # with what Python compiled: to do that again takes seconds
            )
        line = "import annotations\n"
        others = [(file, line, f"{line}EDITED = 1\n") for file in NOT_REACHED]
        for file, old, new in [EDITS[name]] if name in EDITS else others:
            text = (root / "attsvm" / file).read_text()
            assert old in text
            (root / "attsvm" / file).write_text(text.replace(old, new, 1))
        found[name] = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    assert found["not reached"] == found["none"]
    assert len(set(found.values())) == 3
