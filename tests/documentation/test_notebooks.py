"""The notebooks of ``examples`` run, and open on a phone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = ["bags", "head", "optimiser", "texts", "theory"]
LINES, BYTES = 40, 100_000
"""A screen of text, and what a phone loads in a moment."""


@pytest.fixture(scope="module", autouse=True)
def examples():
    if not EXAMPLES.exists():
        pytest.skip("the documentation is not beside the tests")


def read(name):
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(notebook):
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def texts(notebook):
    return ["".join(output["text"]) for output in outputs(notebook) if "text" in output]


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_its_results_and_is_small(name):
    notebook = read(name)
    assert texts(notebook)
    assert max(text.count("\n") for text in texts(notebook)) <= LINES
    assert (EXAMPLES / f"{name}.ipynb").stat().st_size <= BYTES
    assert not any(cell["metadata"] for cell in notebook["cells"])


@pytest.mark.processes
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    commands = Path(sys.executable).parent  # where `!attsvm` is
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    stored = texts(notebook)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=place).execute()
    ran = texts(notebook)
    assert len(ran) == len(stored)
    assert not any(line.startswith("attsvm: ") for text in ran for line in text.splitlines())
    assert max(text.count("\n") for text in ran) <= LINES
