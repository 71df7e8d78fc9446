"""``attsvm probe``: the demo, a model in a folder, bad input, and pages on which nothing runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attsvm.cli import main
from attsvm.probe import audit, capture
from attsvm.probe.audit_page import page
from attsvm.probe.demo import Pieces, Stories

from .conftest import batch, family


def test_the_model_that_comes_along_tells_its_story() -> None:
    """The first words of the published sample at temperature zero (llama2.c, stories260K.md)."""
    model, pieces = Stories().eval(), Pieces()
    ids = model.generate(40)
    text = "".join(pieces.convert_ids_to_tokens(ids[0].tolist()))
    told = "Once upon a time, there was a little girl named Lily. She loved to play outside"
    assert told in text
    assert pieces("Once upon a time, there was a little girl")[:9] == ids[0, :9].tolist()


def test_the_demo_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a dog.\nThe dog ran to the park.\n", "utf-8")
    out = tmp_path / "out"
    command = ["probe", "demo", "--text", str(text), "--out", str(out), "--norm", "fro", "--quiet"]
    assert main([*command, "--null", "permuted", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["heads"]) == 40
    assert (out / "report.html").read_text("utf-8").count('class="head"') == 40
    assert json.loads((out / "run.json").read_text("utf-8"))["headline"] == record["headline"]
    before = (out / "run.json").stat().st_mtime_ns
    assert main([*command, "--null", "permuted"]) == 0  # nothing is done twice
    assert (out / "run.json").stat().st_mtime_ns == before
    assert main([*command, "--null", "rotated"]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_a_model_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    family("bert").save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(90))]
    (folder / "vocab.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w3 w1\nw4 w5\n", "utf-8")
    out = tmp_path / "out"
    common = ["--text", str(text), "--out", str(out), "--statistics", "--quiet"]
    assert main(["probe", str(folder), *common]) == 0
    assert "Of 8 heads" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", [], "holds no text"),
        ("a\n", ["--norm", "nonsense"], "nonsense"),
        ("a\n", ["--null", "mean"], "invalid choice"),
        (b"\xff\xfe\x00", [], "is not UTF-8"),
        (None, [], "does not exist"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | bytes | None,
    arguments: list[str],
    message: str,
) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content.encode() if isinstance(content, str) else content)
    out = tmp_path / "out"
    code = main(["probe", "demo", "--text", str(text), "--out", str(out), "--quiet", *arguments])
    error = capsys.readouterr().err.strip()
    assert code == 2
    assert message in error
    assert "\n" not in error
    assert not out.exists()


def test_a_pipe_is_refused_and_nothing_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    out = tmp_path / "out"
    command = ["probe", "demo", "--text", str(tmp_path / "pipe"), "--out", str(out), "--quiet"]
    assert main(command) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not out.exists()


def test_models_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a\n", "utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    common = ["--text", str(text), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(["probe", str(empty), *common]) == 2
    assert "empty holds no config.json; give a folder" in capsys.readouterr().err
    (empty / "config.json").write_text('{"model_type": "bert"}', "utf-8")
    assert main(["probe", str(empty), *common]) == 2
    assert "empty cannot be loaded (" in capsys.readouterr().err
    assert main(["probe", str(text), *common]) == 2
    assert "text.txt is a file; give a folder" in capsys.readouterr().err
    assert main(["probe", str(empty), "--out", str(tmp_path / "out")]) == 2
    assert "give text, a UTF-8 file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [[], ["--text", "missing.txt"]])
@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("nothere", "there is no folder nothere, and no model of this name came from the hub ("),
        ("./nothere", "there is no folder ./nothere; give a folder with a saved model"),
        ("demos", "; did you mean demo?"),
        ("modle", "; did you mean model?"),
    ],
)
def test_a_model_that_is_not_there_is_told_before_texts_that_are_not(
    given: list[str],
    model: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    assert main(["probe", model, *given]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_nothing_of_a_model_is_written_but_statistics_texts_of_supports_and_names(
    tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a dog named Xylophone.\n", "utf-8")
    out = tmp_path / "out"
    command = ["probe", "demo", "--text", str(text), "--out", str(out), "--quiet", "--json"]
    assert main([*command, "--null", "permuted"]) == 0
    files = {path.name for path in out.rglob("*") if path.is_file()}
    assert files == {".lock", "request.json", "run.json", "report.html"}
    record = json.loads((out / "run.json").read_text("utf-8"))
    told = {"format", "key", "files", "request", "environment", "headline", "detail", "heads"}
    assert set(record) == told | {"notes", "texts"}
    for row in record["heads"]:
        assert all(value is None or isinstance(value, str | float | int) for value in row.values())
    numbers = sum(len(row) for row in record["heads"])
    assert numbers < 60 * 40  # statistics of 40 heads; the model has 260,032 weights
    assert "Xylophone" not in (out / "run.json").read_text("utf-8")
    assert (out / "report.html").stat().st_size < 500_000


def test_a_text_that_is_empty_after_tokenising(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    family("gpt2").save_pretrained(folder)
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w1": 0, "[UNK]": 1}, "[UNK]"))
    words.normalizer = tokenizers.normalizers.Strip()
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.normalizer = tokenizers.normalizers.Replace("~", "")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    text.write_text("w1 w1\n~\n", "utf-8")
    out = tmp_path / "out"
    assert main(["probe", str(folder), "--text", str(text), "--out", str(out), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "line 2 of" in error
    assert "fewer than two tokens" in error
    assert not out.exists()


def test_weights_that_are_not_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    model = family("bert")
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight[0, 0] = torch.nan
    model.save_pretrained(folder)
    (folder / "words.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1", "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)
    text.write_text("w1 w1\n", "utf-8")
    out = tmp_path / "out"
    capsys.readouterr()  # saving draws a bar of its own
    assert main(["probe", str(folder), "--text", str(text), "--out", str(out), "--quiet"]) == 2
    error = capsys.readouterr().err.strip()
    assert "hold NaN or infinity" in error
    assert "\n" not in error
    assert not out.exists()


def test_a_thousand_heads_on_one_page() -> None:
    model = family("bert")
    with torch.no_grad(), capture(model) as recording:
        model(**batch("bert"))
    found = audit(recording, norms=())
    found.heads = [
        replace(found.heads[0], layer=layer, head=head) for layer in range(25) for head in range(40)
    ]
    html = page(found, "a large model")
    assert html.count('class="head"') == 1000
    assert len(html) < 4_000_000


def test_words_of_a_text_are_inert_on_the_page() -> None:
    model = family("bert")
    with torch.no_grad(), capture(model) as recording:
        model(**batch("bert"))
    hostile = "</b><script>alert(1)</script>\u202e"
    recording.words = [[hostile] * 12, [hostile] * 9]
    for layer in recording.layers:
        layer.projection = None
        for text in layer.texts:
            text.queries.mul_(300.0)
    found = audit(recording, norms=["fro"], nulls=["permuted"], draws=1)
    assert any(found.support(head.layer, head.head) for head in found.heads)
    html = page(found, hostile, hostile)
    assert html.count("<script") == 2, "the page's own, which its policy names, and its data"
    assert "alert(1)</script>" not in html
    assert "\u202e" not in html
    assert "\\u202e" not in html
    script = re.search(r'<script type="module">(.*)</script>', html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in html
    assert "default-src &#39;none&#39;" in html
    assert "Frobenius norm" in html
    assert ">fro<" not in html, "norms are named in words"
