"""``attsvm probe``: the demo, a model in a folder, bad input, and pages on which nothing runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image

from attsvm.cli import main
from attsvm.transformers import audit, demo_model
from attsvm.transformers.audit_page import render_audit_page

from .conftest import family, recorded, saved, sharpened, transformers


def test_the_model_that_comes_along_tells_its_demo_model() -> None:
    """The first words of the published sample at temperature zero (llama2.c, stories260K.md)."""
    _, pieces, batch = demo_model(tokens=40)
    text = "".join(pieces.convert_ids_to_tokens(batch["input_ids"][0].tolist()))
    told = "Once upon a time, there was a little girl named Lily. She loved to play outside"
    assert told in text


def test_the_demo_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of a model is written but statistics, the words that the page shows, and names."""
    out = tmp_path / "out"
    command = ["probe", "demo", "--tokens", "40", "--out", str(out), "--norm", "fro", "--quiet"]
    assert main([*command, "--null", "permuted", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((out / "run.json").read_text("utf-8"))
    files = {path.name for path in out.rglob("*") if path.is_file()}
    assert files == {".lock", "request.json", "run.json", "report.html"}
    told = {"format", "key", "files", "request", "environment", "headline", "detail", "heads"}
    assert set(record) == told | {"notes", "texts"}
    assert len(record["heads"]) == 40
    for row in record["heads"]:
        assert all(value is None or isinstance(value, str | float | int) for value in row.values())
        assert len(row) < 60
    assert "Lily" not in (out / "run.json").read_text("utf-8")
    html = (out / "report.html").read_text("utf-8")
    assert "Lily" in html
    assert html.count('class="head"') == 40
    assert len(html) < 500_000
    before = (out / "run.json").stat().st_mtime_ns
    assert main([*command, "--null", "permuted"]) == 0  # nothing is done twice
    assert (out / "run.json").stat().st_mtime_ns == before
    assert main([*command, "--null", "rotated"]) == 2
    assert "--overwrite" in capsys.readouterr().err


def words_of(folder: Path) -> None:
    """A model whose tokenizer knows one word and drops tildes."""
    tokenizers = pytest.importorskip("tokenizers")
    family("gpt2").save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w1": 0, "[UNK]": 1}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.normalizer = tokenizers.normalizers.Replace("~", "")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("demo --norm nonsense", "nonsense"),
        ("demo --null mean", "--null is 'mean'; choose from heads"),
        ("demo --text text", "'demo' comes with its own text"),
        ("demo words", "'demo' is one model"),
        ("words --text void", "holds no text"),
        ("words --text latin", "is not UTF-8"),
        ("words --text missing", "does not exist"),
        ("words --text pipe", "pipe is"),
        ("words --text short", "line 1 of short has fewer than two tokens, and so has every other"),
        ("bare --text text", "bare holds no tokenizer; save it into the same folder"),
        ("words --text text --images words", "give option --text or option --images, not both"),
        ("words --images pictures", "words is a model of texts; give them with option --text"),
        ("words --images words", "words holds no pictures"),
        ("pixels --text text", "pixels is a model of images; give them with option --images"),
        ("pixels --images pictures", "pixels holds no preprocessor_config.json"),
        ("nan --text text", "hold NaN or infinity"),
        ("words", "give option --text, a UTF-8 file"),
        ("empty --text text", "empty holds no config.json; give a folder"),
        ("broken --text text", "broken cannot be loaded ("),
        ("text --text text", "text is a file; give a folder"),
        ("nothere", "there is no folder nothere, and no model of this name came from the hub ("),
        ("nothere --text missing", "there is no folder nothere, and no model of this name"),
        ("./nothere --text missing", "no folder ./nothere; give a folder with a saved model"),
        ("demos --text missing", "; did you mean demo?"),
        ("wrods", "; did you mean words?"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    told: str,
) -> None:
    """A model that is not there is told before a text that is not."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    words_of(tmp_path / "words")
    if command.startswith("nan"):
        saved(tmp_path / "nan", factor=float("nan"))
    for name in ("empty", "broken"):
        Path(name).mkdir()
    Path("broken/config.json").write_text('{"model_type": "bert"}', "utf-8")
    Path("void").touch()
    Path("short").write_text("w1\n~\n", "utf-8")
    family("bert").save_pretrained("bare")
    family("vit").save_pretrained("pixels")
    Path("pictures").mkdir()
    Image.new("RGB", (16, 16)).save("pictures/one.png")
    Path("latin").write_bytes(b"\xff\xfe\x00")
    Path("text").write_text("w1\u2028w1\n\n\n~\n", "utf-8")
    os.mkfifo("pipe")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()  # saving draws a bar of its own
    assert main(["probe", *command.split(), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert ("from the hub" in error) == (command.split()[0] in ("nothere", "demos"))
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_words_of_a_text_are_inert_on_the_page() -> None:
    recording = recorded(family("bert"), "bert")
    hostile = "</b><script>alert(1)</script>\u202e"
    recording.words = [[hostile] * 12, [hostile] * 9]
    found = audit(sharpened(recording, 300.0), norms=["fro"], nulls=["permuted"], draws=1)
    assert any(found.support(head.layer, head.head) for head in found.heads)
    html = render_audit_page(found, hostile, hostile)
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


def test_a_hub_that_does_not_answer_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens at this port."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    url = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("a b", "utf-8")
    assert main(["probe", "nowhere-at-all", "--text", "text", "--quiet"]) == 2
    assert "there is no folder nowhere-at-all, and no model" in capsys.readouterr().err
    assert waits == []
