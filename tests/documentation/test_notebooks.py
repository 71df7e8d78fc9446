"""The notebooks of ``examples`` run, and open on a phone. One runs in Jupyter; the others, as what
Jupyter makes of their cells, in this process.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from attsvm.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = ["bags", "head", "optimiser", "texts", "theory"]
IN_JUPYTER = "theory"
LINES, BYTES = 40, 100_000
"""A screen of text, and what a phone loads in a moment."""


@pytest.fixture(scope="module", autouse=True)
def examples():
    if not EXAMPLES.exists():
        pytest.skip("the documentation is not beside the tests")


def read(name):
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(notebook):
    """What each cell prints: in how many pieces it arrived depends on the load of the machine."""
    return [
        "".join("".join(output.get("text", "")) for output in cell["outputs"])
        for cell in code(notebook)
    ]


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_its_results_and_is_small(name):
    notebook = read(name)
    assert any(texts(notebook))
    assert max(text.count("\n") for text in texts(notebook)) <= LINES
    assert (EXAMPLES / f"{name}.ipynb").stat().st_size <= BYTES
    assert not any(cell["metadata"] for cell in notebook["cells"])


def ran_as_shown(printed, notebook):
    """Whether the same cells print, no line is a refusal, and all fits on a screen."""
    assert list(map(bool, printed)) == list(map(bool, texts(notebook)))
    assert not any(line.startswith("attsvm: ") for text in printed for line in text.splitlines())
    assert max(text.count("\n") for text in printed) <= LINES


@pytest.mark.processes
def test_a_notebook_runs_in_jupyter(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / f"{IN_JUPYTER}.ipynb", as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=place).execute()
    ran_as_shown(texts(notebook), read(IN_JUPYTER))


def command(line):
    """``!attsvm ...`` of a cell."""
    name, *words = shlex.split(line)
    assert name == "attsvm"
    assert main(words) == 0


@pytest.mark.experiment
@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name != IN_JUPYTER])
def test_the_cells_of_a_notebook_run(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip("IPython")
    from IPython.core.inputtransformer2 import TransformerManager

    monkeypatch.chdir(tmp_path)
    shell = SimpleNamespace(system=command)
    names, printed = {"__name__": "__main__", "get_ipython": lambda: shell}, []
    for cell in code(read(name)):
        capsys.readouterr()
        source = TransformerManager().transform_cell("".join(cell["source"]))
        exec(compile(source, f"{name}.ipynb", "exec"), names)
        printed.append("".join(capsys.readouterr()))
    ran_as_shown(printed, read(name))
