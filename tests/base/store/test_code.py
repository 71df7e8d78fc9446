"""The digest of code: an edit of the library, or anywhere in the package that a function is from,
changes it.
"""

import importlib
import itertools
from types import SimpleNamespace

import pytest

from attsvm.base.store import code_digest
from attsvm_papers.kit import experiment

NUMBER = itertools.count()


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("paper/figure.py", True),
        ("paper/__init__.py", True),
        ("kit/grid.py", True),
        ("words.txt", False),
    ],
)
def test_an_edit_anywhere_in_the_package_counts(tmp_path, monkeypatch, file, counts):
    name = f"laboratory{next(NUMBER)}"
    files = ("__init__.py", "paper/__init__.py", "paper/figure.py", "kit/grid.py", "words.txt")
    written(tmp_path / name, dict.fromkeys(files, "def run(): ...\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    run = importlib.import_module(f"{name}.paper.figure").run
    before = code_digest(run)
    (tmp_path / name / file).write_text("def run(): return 1\n")
    assert (code_digest(run) != before) == counts


def test_a_script_counts_with_the_modules_and_packages_beside_it(tmp_path, monkeypatch):
    name = f"script{next(NUMBER)}"
    beside = ("helper.py", "tools/__init__.py", "tools/inner.py")
    others = ("data/table.py", "notes.txt")
    written(tmp_path, dict.fromkeys((f"{name}.py", *beside, *others), "a = 1\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(name)
    run = SimpleNamespace(__module__=name)
    digests = [code_digest(run)]
    for file in (*others, *beside, f"{name}.py"):
        (tmp_path / file).write_text("a = 2\n")
        digests.append(code_digest(run))
    assert [a == b for a, b in itertools.pairwise(digests)] == [True] * 2 + [False] * 4


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("solvers/ascent.py", True),
        ("native/active_set.hpp", True),
        ("report/page.py", False),
        ("cli/fit.py", False),
        ("report/templates/page.html.j2", False),
    ],
)
def test_an_edit_of_the_library_counts_but_for_what_prints_and_draws(tmp_path, file, counts):
    for version in ("1", "2"):
        written(tmp_path / version, {file: f"a = {version}\n"})
    one, two = (code_digest(library=tmp_path / version) for version in ("1", "2"))
    assert (one != two) == counts


def test_the_library_is_in_the_digest_of_every_function(tmp_path):
    run = experiment("tfsvm-1").run
    written(tmp_path, {"solvers/ascent.py": "a = 1\n"})
    assert code_digest(run) != code_digest(run, library=tmp_path)
    assert code_digest(code_digest) == code_digest()
