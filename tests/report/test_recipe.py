"""The two commands at the end of a report work where the first was typed."""

import html
import re
import shlex

import numpy as np
import pytest

import attsvm.report
from attsvm.cli import main

pytestmark = pytest.mark.usefixtures("no_pictures")


def recipe(page):
    """The commands of the page, as words."""
    text = page.read_text(encoding="utf-8")
    (block,) = re.findall(r'<h2 id="method">.*?<pre><code>(.*?)</code></pre>', text, re.DOTALL)
    return [shlex.split(line) for line in html.unescape(block).splitlines() if line]


@pytest.mark.parametrize(
    "typed",
    [
        "attsvm fit sst2.jsonl --out='my runs/sst 2' --text text",
        "attsvm fit sst2.jsonl --out 'my runs/sst 2'",
    ],
)
def test_the_folder_is_the_one_of_the_fit(make_folder, monkeypatch, typed):
    folder = make_folder("array", lambda run, data, shown: run.update(command_line=typed))
    target = folder.parent / "my runs" / "sst 2"
    target.parent.mkdir()
    folder.rename(target)
    monkeypatch.chdir(folder.parent)
    page = attsvm.report.write(target.relative_to(folder.parent))
    fit, report = recipe(page)
    assert fit == shlex.split(typed)
    page.unlink()
    assert main(report[1:]) == 0
    assert page.exists()


def test_a_fit_that_was_never_typed_can_be_drawn_again(make_folder):
    folder = make_folder("array", lambda run, data, shown: run.update(command_line=None))
    assert recipe(attsvm.report.write(folder)) == [["attsvm", "report", folder.name]]


def test_a_folder_that_was_not_named_is_named(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(40) % 2, 1.0, -1.0)
    np.savez(tmp_path / "bags.npz", X=rng.normal(size=(40, 3, 4)), y=labels)
    monkeypatch.chdir(tmp_path)
    words = ["fit", "bags.npz", "--steps", "20", "--records", "5", "--quiet"]
    assert main(words) == 0
    fit, report = recipe(tmp_path / "runs" / "bags" / "report.html")
    assert fit == ["attsvm", *words, "--out", "runs/bags"]
    assert report == ["attsvm", "report", "runs/bags"]
