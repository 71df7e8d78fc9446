"""The list of skips is whole, and says which of them may not happen here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import skips

HERE = Path(__file__).parent


def reasons() -> Iterator[tuple[str, str]]:
    """Every reason that is written in the tests, and its place. ``importorskip`` without one is the
    missing package itself, which is no reason.
    """
    for path in sorted(HERE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path == Path(__file__) or "skip" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            told: list[ast.expr] = []
            if node.func.attr == "skip":
                told = node.args[:1]
            elif node.func.attr in ("skipif", "importorskip"):
                told = [each.value for each in node.keywords if each.arg == "reason"]
            for each in told:
                parts = each.values if isinstance(each, ast.JoinedStr) else [each]
                words = [part.value if isinstance(part, ast.Constant) else "..." for part in parts]
                yield "".join(map(str, words)), f"{path.relative_to(HERE)}:{node.lineno}"


def test_every_reason_is_listed_and_every_line_of_the_list_is_used() -> None:
    found = list(reasons())
    assert len(found) > 20
    unknown = [
        f"{place}: {words}"
        for words, place in found
        if not any(re.search(each.reason, words) for each in skips.SKIPS)
    ]
    assert unknown == [], "list the reason in tests/running/skips.py, with when it holds"
    unused = [
        each.reason
        for each in skips.SKIPS
        if not any(re.search(each.reason, words) for words, _ in found)
    ]
    assert unused == []


def test_a_skip_that_does_not_hold_here_is_told() -> None:
    assert skips.unexpected("the moon is full")
    assert skips.unexpected("could not import 'transformers': No module named 'transformers'")
    browser = "no chromium, chromium-browser or google-chrome on this machine"
    assert skips.unexpected(browser) == (skips.BROWSER is not None)


def test_a_run_with_an_unexpected_skip_fails() -> None:
    def ended(reason: str) -> int:
        plugin, session = skips.Skipped(), SimpleNamespace(exitstatus=0)
        told = ("test_one.py", 1, f"Skipped: {reason}")
        plugin.pytest_runtest_logreport(SimpleNamespace(skipped=True, longrepr=told, nodeid="one"))
        plugin.pytest_sessionfinish(session, 0)
        return int(session.exitstatus)

    assert ended("no moon") == pytest.ExitCode.TESTS_FAILED
    assert ended("ATTSVM_DATA names no folder with the reviews") == 0
