"""Tiny models of every family, with random weights."""

from __future__ import annotations

import pytest
import torch

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
