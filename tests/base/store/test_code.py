"""The fingerprint of code: an edit of the library, of a figure's own folder or of what that imports
changes it, and one elsewhere does not.
"""

import importlib
import itertools
from types import SimpleNamespace

import pytest

from attsvm.base.store import code
from attsvm.base.store.code import code_fingerprint
from attsvm_papers.kit import experiment, identifiers

NUMBER = itertools.count()
FILES = {
    "__init__.py": "",
    "paper/__init__.py": "",
    "paper/figure.py": (
        "from {0}.paper import data\n\ndef run():\n    from {0}.networks import tables\n"
    ),
    "paper/data.py": "from {0} import (\n    kit,\n)\n",
    "kit/__init__.py": "from {0}.kit.grid import SIZE\nfrom ..shared import sizes\n",
    "kit/grid.py": "SIZE = 3\n",
    "shared/__init__.py": "",
    "shared/sizes.py": "LARGE = 9\n",
    "networks/__init__.py": "",
    "networks/tables.py": "import math\n",
    "other/__init__.py": "",
    "other/figure.py": "from {0}.networks import tables\n",
    "other.txt": "words",
}


def laboratory(folder, monkeypatch):
    """A package of papers: its folder and the run of a figure."""
    name = f"laboratory{next(NUMBER)}"
    for file, text in FILES.items():
        (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_text(text.format(name))
    monkeypatch.syspath_prepend(str(folder))
    return folder / name, importlib.import_module(f"{name}.paper.figure").run


@pytest.mark.parametrize("file", FILES)
def test_an_edit_counts_where_the_figure_imports(tmp_path, monkeypatch, file):
    folder, run = laboratory(tmp_path, monkeypatch)
    before = code_fingerprint(run)
    (folder / file).write_text((folder / file).read_text() + "\nEDITED = 1\n")
    assert (code_fingerprint(run) != before) == (not file.startswith("other"))


def test_a_script_counts_with_what_it_imports_that_is_not_installed(tmp_path, monkeypatch):
    """Beside it, through links, relative to itself or from elsewhere on the path."""
    name, helper, tools, local, library, other = (
        f"{word}{next(NUMBER)}"
        for word in ("script", "helper", "tools", "local", "library", "other")
    )
    here, elsewhere, installed = (tmp_path / word for word in ("here", "elsewhere", "installed"))
    files = {
        name: here / f"{name}.py",
        helper: here / f"{helper}.py",
        tools: here / tools / "__init__.py",
        "inner": here / tools / "inner.py",
        local: elsewhere / local / "__init__.py",
        library: installed / library / "__init__.py",
        other: here / f"{other}.py",
    }
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    files[name].write_text(f"import os\nimport {helper}, {tools}\nimport {library}, {local}\n")
    files[tools].write_text("from .inner import *\n")
    (installed / library / "compiled.py").write_bytes(b"\xf8")
    (installed / f"{library}-1.0.dist-info").mkdir()
    (tmp_path / "link").symlink_to(here)
    for folder in (tmp_path / "link", elsewhere, installed):
        monkeypatch.syspath_prepend(str(folder))
    importlib.import_module(name)
    run = SimpleNamespace(__module__=name)
    found = [code_fingerprint(run)]
    for module in (other, library, local, helper, "inner", tools, name):
        files[module].write_text(files[module].read_text() + "a = 1\n")
        found.append(code_fingerprint(run))
    assert [a == b for a, b in itertools.pairwise(found)] == [True] * 2 + [False] * 5


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
def test_an_edit_of_the_library_counts_but_for_what_prints_and_draws(
    tmp_path, monkeypatch, file, counts
):
    monkeypatch.setattr(code, "_LIBRARY", tmp_path / "attsvm")
    (tmp_path / "attsvm" / file).parent.mkdir(parents=True)
    found = []
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "attsvm" / file).write_text(text)
        code._library.cache_clear()
        found.append(code_fingerprint())
    code._library.cache_clear()
    assert (found[0] != found[1]) == counts


def test_papers_have_fingerprints_of_their_own():
    papers = {name.partition("-")[0]: name for name in identifiers()}
    found = {code_fingerprint(experiment(name).run) for name in papers.values()}
    assert len(found) == len(papers)
