"""The commands of a page fit together: what one reads, an earlier one has written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)

PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
]
READS = ("report",)
"""Commands whose first word is a folder that another has written."""


def typed(text: str) -> Iterator[list[str]]:
    """The words of every ``attsvm`` command of a page, in blocks and in sentences."""
    for line, inside in re.findall(r"^\$ (attsvm .*)$|(?<!`)`(attsvm [^`\n]*)`", text, flags=re.M):
        yield shlex.split(line or inside, comments=True)[1:]


def written(words: list[str]) -> str | None:
    """The folder that a command writes."""
    if "--out" in words[:-1]:
        return words[words.index("--out") + 1]
    if words[0] == "fit" and len(words) > 1:
        return f"runs/{Path(words[1]).name.split('.')[0]}"
    return "runs/reproduce" if words[0] == "reproduce" else None


def strangers(text: str) -> list[str]:
    """Folders that a page reads and that none of its commands writes before."""
    known: set[str] = {"runs/digits"} if "$ make demo" in text else set()
    found = []
    for words in typed(text):
        if words[0] in READS and len(words) > 1 and not words[1].isupper():
            found += [words[1]] if words[1] not in known else []
        known |= {folder for folder in [written(words)] if folder}
    for path in re.findall(r"(?<![\w/])runs/[\w.-]+(?:/[\w.-]+)*", text):
        python = re.search(rf"\"{re.escape(path)}\"", text)
        if not python and not any(f"{path}/".startswith(f"{folder}/") for folder in known):
            found.append(path)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_folders_of_a_page_are_written_on_it(page: Path) -> None:
    assert strangers(page.read_text(encoding="utf-8")) == []


def test_a_folder_of_another_name_is_found() -> None:
    recipe = "$ attsvm fit sst2/train.jsonl --out runs/sst2\n$ attsvm report {}\n"
    assert strangers(recipe.format("runs/sst2")) == []
    assert strangers(recipe.format("sst2")) == ["sst2"]
    assert strangers("$ attsvm fit reviews.csv\n`runs/review/report.html`\n") == [
        "runs/review/report.html"
    ]
