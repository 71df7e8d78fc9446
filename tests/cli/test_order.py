"""``attsvm order``: what it prints, as text and as JSON, and the sentences of its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attsvm.cli import main


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("a b x a . b a x b . a b y a . b c y b", encoding="utf-8")
    return path


def test_the_account_in_words(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["order", str(text), "--context", "3", "--examples", "1"]) == 0
    shown = capsys.readouterr().out
    assert "19 tokens, 6 distinct, vocabulary 6, 18 sentences" in shown
    assert "cycle under 'x': 'b' > 'a' > 'b' (2 tokens are tied)" in shown
    assert "      'a b x' then 'a'\n" in shown
    chain = (
        "  partial order under 'y': 'a' +1.25 > 'b' +0.25 > 'y' -0.75 (longest chain, max-margin"
        " scores)\n"
    )
    assert f"{chain}      'a b y' then 'a'\n      'b c y' then 'b'\n" in shown


def test_json_alone_on_standard_output(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert (
        main(
            [
                "order",
                str(text),
                "--level",
                "char",
                "--context",
                "3",
                "--limit",
                "9",
                "--json",
                "--out",
                str(folder),
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["sentences"]["all"] == 9
    assert result["source"] == str(text)
    assert json.loads((folder / "order.json").read_text(encoding="utf-8")) == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nowhere.txt"],
            "attsvm: nowhere.txt does not exist; check the spelling and the folder\n",
        ),
        (["{text}", "--vocabulary", "1"], "attsvm: vocabulary is 1; it must be at least 2\n"),
        (["{folder}"], "is a folder; give the file inside it\n"),
    ],
)
def test_refusals(
    text: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["order", *(word.format(text=text, folder=text.parent) for word in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.err.endswith(message)
    assert printed.err.count("\n") == 1
    assert printed.out == ""
