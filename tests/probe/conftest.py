"""Tiny models of every family, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attsvm.probe import Recording, capture

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """What is imported when it is named first takes seconds, which are no test's own."""
    for name in ("Albert", "Auto", "Bert", "GPT2", "Llama", "T5", "ViT"):
        getattr(transformers, f"{name}Model")


def family(name: str) -> torch.nn.Module:
    """A random model of this family in evaluation mode."""
    torch.manual_seed(0)
    t = transformers
    small = {key: value for key, value in SMALL.items() if not key.endswith("token_id")}
    models = {
        "bert": lambda: t.BertModel(t.BertConfig(**small)),
        "albert": lambda: t.AlbertModel(t.AlbertConfig(**SMALL, embedding_size=16)),
        "gpt2": lambda: t.GPT2Model(
            t.GPT2Config(
                n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=1, eos_token_id=2
            )
        ),
        "llama": lambda: t.LlamaModel(t.LlamaConfig(**SMALL, num_key_value_heads=2)),
        "vit": lambda: t.ViTModel(
            t.ViTConfig(
                **{key: value for key, value in small.items() if key != "vocab_size"},
                image_size=16,
                patch_size=4,
            )
        ),
        "t5": lambda: t.T5Model(
            t.T5Config(d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2, vocab_size=100)
        ),
    }
    return models[name]().eval()


def batch(name: str) -> dict[str, torch.Tensor]:
    """Two texts, the second shorter and padded; two pictures for vision."""
    torch.manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    ids = torch.randint(3, 90, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return {**given, "decoder_input_ids": ids[:, :7]} if name == "t5" else given


def saved(folder: Path, factor: float = 1.0, tokenizer: Path | None = None) -> Path:
    """A random BERT of 512 positions whose attention is sharpened by this factor, in a folder; its
    words are w0 to w89.
    """
    model = family("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(factor)
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(90))]
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(tokenizer or folder)
    return folder


def recorded(model: torch.nn.Module, *inputs: Any, **options: Any) -> Recording:
    """What a capture keeps of one pass; the inputs of a family by its name."""
    with torch.no_grad(), capture(model, **options) as recording:
        if inputs and isinstance(inputs[0], str):
            model(**batch(inputs[0]))
        else:
            model(*inputs)
    return recording


def sharpened(recording: Recording, factor: float) -> Recording:
    """The recording with queries so many times as long, compared by keys and queries alone."""
    for layer in recording.layers:
        layer.projection = None
        for text in layer.texts:
            text.queries.mul_(factor)
    return recording
