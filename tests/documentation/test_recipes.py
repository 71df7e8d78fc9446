"""The commands of a page fit together: what is read on it, a command of it has written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .conftest import PAGES


def strangers(text: str) -> list[str]:
    """Folders of runs that a page reads, or names, and that none of its commands writes before."""
    known = {"runs/digits"} if "$ make demo" in text else set()
    found = []
    typed = r"^\$ attsvm (.*)$|(?<!`)`attsvm ([^`\n]*)`"
    for line, inside in re.findall(typed, text, flags=re.M):
        words = shlex.split(line or inside, comments=True)
        if words[0] == "report" and len(words) > 1 and not words[1].isupper():
            found += [words[1]] if words[1] not in known else []
        if "--out" in words[:-1]:
            known.add(words[words.index("--out") + 1])
        elif words[0] == "fit" and len(words) > 1:
            known.add(f"runs/{Path(words[1]).name.split('.')[0]}")
        elif words[0] == "reproduce":
            known.add("runs/reproduce")
    for path in re.findall(r"(?<![\w/])runs/[\w.-]+(?:/[\w.-]+)*", text):
        in_python = f'"{path}"' in text
        if not in_python and not any(f"{path}/".startswith(f"{folder}/") for folder in known):
            found.append(path)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_folders_of_a_page_are_written_on_it(page: Path) -> None:
    assert strangers(page.read_text(encoding="utf-8")) == []


def test_a_folder_of_another_name_is_found() -> None:
    recipe = "$ attsvm fit sst2/train.jsonl --out runs/sst2\n$ attsvm report {}\n"
    assert strangers(recipe.format("runs/sst2")) == []
    assert strangers(recipe.format("sst2")) == ["sst2"]
    wrong = "$ attsvm fit reviews.csv\n`runs/review/report.html`\n"
    assert strangers(wrong) == ["runs/review/report.html"]
