import ast
import importlib
import importlib.metadata
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

import attsvm


def test_every_public_name_resolves_and_is_the_one_of_its_room():
    names: dict = {}
    exec("from attsvm import *", names)
    assert set(attsvm.__all__) <= set(names)
    for name, room in attsvm._HOME.items():
        assert names[name] is getattr(importlib.import_module(f"attsvm.{room}"), name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = attsvm.nonsense


@pytest.mark.parametrize(
    "room",
    [
        "attsvm",
        "attsvm.datasets",
        "attsvm.theory.sentences",
        "attsvm.base.errors",
        "attsvm.norms",
        "attsvm.margins",
        "attsvm.attention",
        "attsvm.theory",
        "attsvm.sklearn",
        "attsvm.solvers",
    ],
)
def test_dir_holds_public_names_alone(room):
    home = importlib.import_module(room)
    assert dir(home) == sorted(home.__all__)
    assert len(set(home.__all__)) == len(home.__all__)


def test_the_oldest_versions_are_those_of_the_metadata():
    """What is installed to try the lower bounds, and nothing newer by accident."""
    root = Path(__file__).parent.parent
    told = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = told["project"]["optional-dependencies"]
    tested = re.fullmatch(r"attsvm\[(.*)\]", extras["test"][0])[1].split(",")
    bounds = [*told["project"]["dependencies"], *told["build-system"]["requires"]]
    bounds += [each for name in tested for each in extras[name]]
    lines = (root / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    for bound in bounds:
        package, version = re.fullmatch(r"([\w-]+)>=([\d.]+)", bound).groups()
        assert pins.get(package, "missing").startswith(version), bound


def _raised(path):
    """The texts of every exception that a file raises, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_errors_of_python_calls_name_no_option_of_the_command_line():
    """``--overwrite`` means nothing to who has written ``overwrite=True``; the commands, which say
    it the other way, are alone in ``cli`` and in files called ``command.py``.
    """
    source = Path(attsvm.__file__).parent
    option = re.compile(r"(?<![\w-])--[a-z]")
    told = [
        f"{path.name}:{line}: {text}"
        for package in (source, source.parent / "attsvm_papers")
        for path in sorted(package.rglob("*.py"))
        if "cli" not in path.relative_to(package).parts and path.name != "command.py"
        if option.search(path.read_text(encoding="utf-8"))
        for line, text in _raised(path)
        if option.search(text)
    ]
    assert told == []
    assert any(option.search(text) for _, text in _raised(source / "cli" / "solve.py"))


def test_no_line_is_longer_than_100_characters():
    """ruff's E501 leaves out what a remark for a tool makes too long."""
    root = Path(__file__).parents[1]
    long = [
        f"{path.relative_to(root)}:{number}"
        for folder in ("src", "tests", "benchmarks", "docs")
        for path in sorted((root / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert long == []


def test_the_wheel_holds_every_file_of_the_sources(tmp_path):
    """Scripts, styles, templates, the model of the demo and ``py.typed`` are not Python files."""
    root = Path(__file__).parents[1]
    source = root / "src"
    if not source.is_dir():
        pytest.skip("the sources are not beside the tests")
    if "site-packages" in attsvm.__file__:
        held = {str(path) for path in importlib.metadata.files("attsvm")}
    else:
        wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
        (built,) = wheel.WheelBuilder(str(root)).build(
            directory=str(tmp_path), versions=["standard"]
        )
        held = set(zipfile.ZipFile(built).namelist())
    wanted = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(wanted) > 300
    suffixes = {Path(name).suffix for name in wanted}
    assert suffixes >= {".js", ".css", ".j2", ".safetensors", ".json"}
    assert wanted - held == set()


def test_the_citation_and_the_changelog_are_of_this_version():
    root = Path(__file__).parents[1]
    if not (root / "CITATION.cff").is_file():
        pytest.skip("CITATION.cff is not beside the tests")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == attsvm.__version__
    heads = re.findall(r"^## \[(.*?)\]", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert heads[:2] == ["Unreleased", attsvm.__version__]


def test_every_paper_of_the_documentation_is_cited():
    root = Path(__file__).parents[1]
    if not (root / "CITATION.cff").is_file():
        pytest.skip("CITATION.cff is not beside the tests")
    link = re.compile(r"arxiv\.org/abs/(\d{4}\.\d{5})")
    cited = set(link.findall((root / "CITATION.cff").read_text(encoding="utf-8")))
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    linked = {number for page in pages for number in link.findall(page.read_text("utf-8"))}
    assert linked == cited
