"""What ``attsvm probe`` does not read or compare: the terminal, the page and the record say so."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attsvm.cli import main
from attsvm.probe import audit, capture, story

from .conftest import family


def probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, content: str, *options: str
) -> tuple[dict[str, Any], str, str]:
    """The record, the terminal's lines and the page's text."""
    (tmp_path / "reviews.txt").write_text(content, "utf-8")
    out = tmp_path / "out"
    command = ["probe", model, "--text", str(tmp_path / "reviews.txt"), "--out", str(out)]
    assert main([*command, "--quiet", *options]) == 0
    shown = capsys.readouterr().out
    page = html.unescape((out / "report.html").read_text("utf-8"))
    return json.loads((out / "run.json").read_text("utf-8")), shown, page


def test_texts_beyond_the_limit_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "A dog ran.\n\n" + "The cat sat.\n" * 11
    record, shown, page = probed(tmp_path, capsys, "demo", content, "--statistics", "--texts", "3")
    assert record["texts"]["texts"] == 12
    assert record["texts"]["used"] == 3
    assert record["texts"]["not_used"]["count"] == 9
    assert record["texts"]["not_used"]["lines"] == [5, 6, 7, 8, 9]
    for told in (shown, page, " ".join(record["notes"])):
        assert "3 of the 12 texts of reviews.txt were used" in told
        assert "9 were not (lines 5, 6, 7, 8, 9 and 4 more), because --texts is 3." in told
        assert "1 line is empty" in told


def test_all_texts_used_is_said_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = "A dog ran.\nThe cat sat.\n"
    record, shown, page = probed(tmp_path, capsys, "demo", content, "--statistics")
    assert record["texts"]["used"] == record["texts"]["texts"] == 2
    assert record["texts"]["not_used"] == {"count": 0, "lines": [], "why": None}
    for told in (shown, page):
        assert "All 2 texts of reviews.txt were used" in told
        assert "not read" not in told


def test_tokens_that_are_cut_off_are_counted_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "A dog.\n" + "Once upon a time there was a dog. " * 3 + "\n"
    whole, _, _ = probed(tmp_path, capsys, "demo", content, "--statistics")
    record, shown, page = probed(
        tmp_path, capsys, "demo", content, "--statistics", "--tokens", "8", "--overwrite"
    )
    lost = whole["texts"]["tokens"] - record["texts"]["tokens"]
    assert lost > 10
    assert record["texts"]["cut"] == {
        "count": 1,
        "lines": [2],
        "why": "--tokens is 8",
        "tokens": lost,
    }
    for told in (shown, page):
        assert f"1 of them is longer than 8 tokens (line 2): the last {lost} tokens" in told
        assert "because --tokens is 8" in told


def test_what_the_model_cannot_take_is_cut_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    family("bert").save_pretrained(folder)  # of 512 positions
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w1"]
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)
    record, shown, _ = probed(
        tmp_path, capsys, str(folder), "w1 " * 598, "--statistics", "--tokens", "1000"
    )
    assert record["texts"]["tokens"] == 512
    assert record["texts"]["cut"]["tokens"] == 88
    assert "It is longer than 512 tokens (line 1): the last 88 tokens" in shown
    assert "because the model takes no more" in shown


def test_a_line_is_counted_as_an_editor_counts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty lines count, and other characters that end a line for Unicode do not."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    family("gpt2").save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w1": 0, "[UNK]": 1}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    text.write_text("w1\u2028w1\n\n\nw1\n", "utf-8")
    command = ["probe", str(folder), "--text", str(text), "--out", str(tmp_path / "out")]
    assert main([*command, "--quiet"]) == 2
    assert "line 4 of" in capsys.readouterr().err


def test_checkpoints_that_are_passed_over_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    family("bert").save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w1"]
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)
    for step in (1, 2):
        (folder / f"checkpoint-{step}").mkdir()
    _, shown, page = probed(tmp_path, capsys, str(folder), "w1 w1\n", "--statistics")
    for told in (shown, page):
        assert "its checkpoint-N folders (2) were passed over" in told


def test_queries_heads_and_nulls_that_are_left_out_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--norm", "fro", "--null", "heads", "--queries", "12", "--draws", "1")
    content = "Once upon a time there was a dog. The dog ran to the park.\n"
    record, shown, page = probed(tmp_path, capsys, "demo", content, *options)
    compared = [row for row in record["heads"] if "fro_cosine" in row]
    apart = len(record["heads"]) - len(compared)
    drawn = [row for row in compared if row["sure_queries"] > 12]
    assert compared
    assert apart
    assert drawn
    assert {row["programme_queries"] for row in drawn} == {12}
    most = max(row["sure_queries"] for row in drawn)
    for told in (shown, page):
        assert f"{len(compared)} of 40 heads were compared" in told
        assert f"{apart} heads were not compared with a max-margin solution: fewer than 10" in told
        assert f"In {len(drawn)} of the compared heads the programme holds 12 of up to" in told
        assert f"of up to {most} sure queries, drawn at random." in told
        assert f"{len(compared)} heads were not compared with the null heads" in told


def test_queries_that_a_recording_did_not_keep_are_counted(tmp_path: Path) -> None:
    model, tokenizer, batch = story(tokens=60)
    with torch.no_grad(), capture(model, [0], most_queries=20) as recording:
        model(**batch)
    audit(recording.name_tokens(tokenizer), norms=()).save(tmp_path / "run")
    told = "some queries were looked at, spread evenly: 20 of 60 in a layer."
    record = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert any(told in note for note in record["notes"])
    assert {row["queries_of_texts"] for row in record["heads"]} == {60}
    assert told in (tmp_path / "run" / "report.html").read_text("utf-8")
