"""``attsvm probe`` on kinds of models: encoder-decoders, images, soft caps, sinks, hybrids."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from attsvm.cli import main
from attsvm.transformers import LogitGuard

from .conftest import recorded
from .families import inputs, tiny, transformers

TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def save_tokenizer(folder: Path) -> None:
    """Words w0 to w89."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(90))]
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)


def save_processor(folder: Path) -> None:
    size = {"height": 16, "width": 16}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)


def clip() -> nn.Module:
    config = transformers.CLIPConfig(
        text_config={**TOWER, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**TOWER, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    )
    return transformers.CLIPModel(config).eval()


def probed(
    model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[dict[str, Any], str]:
    """The record and the page of the command."""
    folder, out = tmp_path / "model", tmp_path / "out"
    model.save_pretrained(folder)
    save_tokenizer(folder)
    save_processor(folder)
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{i}" for i in rng.integers(0, 90, 7)) for _ in range(3)]
    (tmp_path / "text.txt").write_text("\n".join(lines), "utf-8")
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    capsys.readouterr()
    command = ["probe", str(folder), "--out", str(out), "--statistics", "--quiet", "--json"]
    assert main([*command, *options]) == 0, capsys.readouterr().err
    record = json.loads(capsys.readouterr().out)
    return record, html.unescape((out / "report.html").read_text("utf-8"))


@pytest.mark.parametrize(
    ("family", "layers"),
    [("t5", 6), ("gemma2", 2), ("gpt_oss", 2), ("bloom", 2), ("deberta-v2", 2), ("clip", 2)],
)
def test_models_of_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, layers: int
) -> None:
    """The decoder of T5 reads the text after its encoder; of CLIP the tower of texts runs."""
    model = clip() if family == "clip" else tiny(family)
    text = str(tmp_path / "text.txt")
    record, page = probed(model, tmp_path, capsys, "--text", text)
    assert len({row["layer"] for row in record["heads"]}) == layers
    assert len(record["heads"]) == 4 * layers
    assert "All 3 texts of text.txt were used, 27 tokens." in page


@pytest.mark.parametrize("family", ["vit", "clip"])
def test_models_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str) -> None:
    model = clip() if family == "clip" else tiny(family)
    folder = str(tmp_path / "pictures")
    record, page = probed(model, tmp_path, capsys, "--images", folder, "--texts", "2")
    assert len(record["heads"]) == 8
    assert record["texts"]["tokens"] == 2 * 17, "the class token and sixteen patches"
    assert "2 of the 3 pictures of pictures were used, 34 patches" in page


def test_layers_of_a_hybrid_are_those_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(tmp_path / "text.txt")
    record, _ = probed(tiny("jamba"), tmp_path, capsys, "--text", text)
    assert {row["layer"] for row in record["heads"]} == {1}


def test_a_model_without_attention_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    tiny("fnet").save_pretrained(folder)
    save_tokenizer(folder)
    (tmp_path / "text.txt").write_text("w1 w2 w3", "utf-8")
    capsys.readouterr()
    assert main(["probe", str(folder), "--text", str(tmp_path / "text.txt"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "no attention of FNetModel was seen" in error
    assert error.count("\n") == 1


def test_texts_of_one_token_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    tiny("llama").save_pretrained(folder)
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, **{f"w{i}": i + 1 for i in range(90)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    (tmp_path / "text.txt").write_text("w1 w2 w3\nw4\nw5 w6\nw7", "utf-8")
    command = ["probe", str(folder), "--text", str(tmp_path / "text.txt"), "--out", str(out)]
    assert main([*command, "--statistics", "--quiet"]) == 0
    record = json.loads((out / "run.json").read_text("utf-8"))
    assert record["texts"]["tokens"] == 5
    assert record["texts"]["used"] == 2
    assert record["texts"]["short"]["lines"] == [2, 4]
    note = "2 of them have fewer than two tokens (lines 2 and 4) and were left out."
    assert any(note in sentence for sentence in record["notes"])


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "bloom"])
def test_the_guard_measures_what_eager_attention_computes(family: str) -> None:
    """Largest logits, before sinks and after soft caps."""
    model = tiny(family)
    batch = {"input_ids": inputs(model)["input_ids"]}  # the guard measures padding, too
    layers = recorded(model, batch).layers.values()
    expected = torch.stack(
        [
            torch.stack([text.logits().amax(dim=(1, 2)) for text in layer.texts]).amax(dim=0)
            for layer in layers
        ]
    )
    guard = LogitGuard(model.train(), every=1)
    model(**batch)
    largest = torch.tensor([head.largest for head in guard.metrics()])
    assert (largest - expected.flatten()).abs().max() <= 1e-4 * expected.abs().max()
