"""What ``attsvm probe`` does not read or compare: the terminal, the page and the record say so."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from attsvm.cli import main
from attsvm.transformers import audit, demo_model
from attsvm.transformers.texts import (
    TextCoverage,
    coverage_record,
    coverage_sentences,
    read_probe_texts,
)

from .conftest import recorded, saved


def probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, *options: str
) -> tuple[dict[str, Any], list[str]]:
    """The record, and the texts of the terminal and of the page."""
    out = tmp_path / "out"
    assert main(["probe", model, "--out", str(out), "--quiet", *options]) == 0
    page = html.unescape((out / "report.html").read_text("utf-8"))
    record = json.loads((out / "run.json").read_text("utf-8"))
    return record, [capsys.readouterr().out, page, " ".join(record["notes"])]


@pytest.mark.parametrize(
    ("content", "most", "cut", "words", "not_used", "lines_cut"),
    [
        (
            "one\n" * 7,
            1,
            {},
            "1 of the 7 texts of reviews.txt was used, 10 tokens; 6 were not (lines 2, 3, 4, 5, 6"
            " and 7), because --texts is 1.",
            [2, 3, 4, 5, 6],
            [],
        ),
        (
            "one\n\n" + "two\n" * 11,
            3,
            {},
            "3 of the 12 texts of reviews.txt were used, 30 tokens; 9 were not (lines 5, 6, 7, 8, 9"
            " and 4 more), because --texts is 3. 1 line is empty and no text.",
            [5, 6, 7, 8, 9],
            [],
        ),
        (
            "\u2028one\r\n\r\rtwo",  # lines as editors count them
            9,
            {4: 88},
            "All 2 texts of reviews.txt were used, 20 tokens. 1 of them is longer than 10 tokens"
            " (line 4): the last 88 tokens were not read, because it is long. 2 lines are empty and"
            " no texts.",
            [],
            [4],
        ),
    ],
)
def test_texts_that_are_read_and_not_read(
    tmp_path: Path,
    content: str,
    most: int,
    cut: dict[int, int],
    words: str,
    not_used: list[int],
    lines_cut: list[int],
) -> None:
    file = tmp_path / "reviews.txt"
    file.write_bytes(content.encode())
    texts, reading = read_probe_texts(file, most), TextCoverage(10, "it is long")
    for line in texts.used:
        reading.add(line, 10 + cut.get(line, 0), 10)
    assert " ".join(coverage_sentences(texts, reading)) == words
    told = coverage_record(texts, reading)
    assert (told["used"], told["used"] + len(texts.beyond)) == (len(texts.used), told["texts"])
    assert told["not_used"]["lines"] == not_used
    assert (told["cut"]["lines"], told["cut"]["tokens"]) == (lines_cut, sum(cut.values()))
    assert told["cut"]["why"] == ("it is long" if cut else None)


def test_what_the_model_cannot_take_and_checkpoints_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = saved(tmp_path / "model"), tmp_path / "reviews.txt"
    for step in (1, 2):
        (model / f"checkpoint-{step}").mkdir()
    text.write_text("w1 " * 598, "utf-8")
    options = ("--text", str(text), "--statistics", "--tokens")
    record, shown = probed(tmp_path, capsys, str(model), *options, "1000")
    assert record["texts"]["tokens"] == 512
    assert record["texts"]["cut"]["tokens"] == 88
    for told in shown:
        assert "The one text of reviews.txt was used, 512 tokens." in told
        assert "It is longer than 512 tokens (line 1): the last 88 tokens were not read" in told
        assert "because the model takes no more" in told
        assert "its checkpoint-N folders (2) were passed over" in told
    _, shown = probed(tmp_path, capsys, str(model), *options, "8", "--overwrite")
    assert all("592 tokens were not read, because --tokens is 8." in t for t in shown)


def test_queries_heads_and_nulls_that_are_left_out_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--norm", "fro", "--null", "heads", "--queries", "12", "--draws", "1")
    record, shown = probed(tmp_path, capsys, "demo", "--tokens", "25", *options)
    compared = [row for row in record["heads"] if "fro_cosine" in row]
    apart = len(record["heads"]) - len(compared)
    drawn = [row for row in compared if row["sure_queries"] > 12]
    assert compared
    assert apart
    assert drawn
    assert {row["programme_queries"] for row in drawn} == {12}
    most = max(row["sure_queries"] for row in drawn)
    assert all(f"{len(compared)} of 40 heads were compared" in told for told in shown[:2])
    for told in shown:
        assert "The text comes with the model; tokens read: 25." in told
        assert f"{apart} heads were not compared with a max-margin solution: fewer than 10" in told
        assert f"In {len(drawn)} of the compared heads the programme holds 12 of up to" in told
        assert f"of up to {most} sure queries, drawn at random." in told
        assert f"{len(compared)} heads were not compared with the null heads" in told


def test_queries_that_a_recording_did_not_keep_are_counted(tmp_path: Path) -> None:
    model, tokenizer, batch = demo_model(tokens=60)
    recording = recorded(model, batch["input_ids"], layers=[0], most_queries=20)
    audit(recording.name_tokens(tokenizer), norms=()).save(tmp_path / "run")
    told = "some queries were looked at, spread evenly: 20 of 60 in a layer."
    record = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert any(told in note for note in record["notes"])
    assert {row["queries_of_texts"] for row in record["heads"]} == {60}
    assert told in (tmp_path / "run" / "report.html").read_text("utf-8")
