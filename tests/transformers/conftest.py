"""Tiny models of every family, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attsvm.transformers import Recording, capture

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


def family(name: str, layers: int = 2) -> nn.Module:
    """A random model of this family in evaluation mode, without dropout."""
    t, small = transformers, {**SMALL, "num_hidden_layers": layers}
    if name == "deepseek" and not hasattr(t, "DeepseekV3Model"):
        pytest.skip("transformers before 4.51 has no latent heads")
    torch.manual_seed(0)
    plain = {key: value for key, value in small.items() if not key.endswith("token_id")}
    picture = {key: value for key, value in plain.items() if key != "vocab_size"}
    latent = {
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "moe_intermediate_size": 8,
    }
    sizes = {"n_embd": 32, "n_layer": layers, "n_head": 4, "vocab_size": 100}
    models = {
        "bert": lambda: t.BertModel(t.BertConfig(**plain)),
        "albert": lambda: t.AlbertModel(t.AlbertConfig(**small, embedding_size=16)),
        "gpt2": lambda: t.GPT2Model(t.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)),
        "llama": lambda: t.LlamaModel(t.LlamaConfig(**small, num_key_value_heads=2)),
        "vit": lambda: t.ViTModel(t.ViTConfig(**picture, image_size=16, patch_size=4)),
        "t5": lambda: t.T5Model(
            t.T5Config(d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=layers, vocab_size=100)
        ),
        "gpt_neox": lambda: t.GPTNeoXModel(t.GPTNeoXConfig(**small)),
        "phi3": lambda: t.Phi3Model(t.Phi3Config(**small, num_key_value_heads=2)),
        "falcon": lambda: t.FalconModel(
            t.FalconConfig(**small, num_kv_heads=2, new_decoder_architecture=True)
        ),
        "deepseek": lambda: t.DeepseekV3Model(t.DeepseekV3Config(**small, **latent)),
    }
    model = models[name]()
    for part in (*model.modules(), model.config):
        for rate in ("p", "dropout", "attention_dropout", "attention_probs_dropout_prob"):
            if isinstance(getattr(part, rate, None), float):
                setattr(part, rate, 0.0)
    return model.eval()


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


class Attention(nn.Module):
    """Heads ``softmax(x_t^T W z) x`` whose weights are given as they are."""

    def __init__(
        self, W_Q: np.ndarray, W_K: np.ndarray, heads: int, b_Q: np.ndarray | None = None
    ) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(W_Q.shape[1], W_Q.shape[0], b_Q is not None, dtype=torch.float64)
        self.k_proj = nn.Linear(W_K.shape[1], W_K.shape[0], bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.q_proj.weight.copy_(torch.from_numpy(W_Q))
            if b_Q is not None:
                self.q_proj.bias.copy_(torch.from_numpy(b_Q))
            self.k_proj.weight.copy_(torch.from_numpy(W_K))

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        q, k = (
            moved.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for moved in (self.q_proj(x if z is None else z), self.k_proj(x))
        )
        return nn.functional.scaled_dot_product_attention(q, k, k)


def one_head(W: np.ndarray, size: float) -> Attention:
    """The head with these weights ``(d, d + 1)``, so many times as large, on ``(z, 1)``."""
    U, s, Vt = np.linalg.svd(size * len(W) ** 0.5 * W, full_matrices=False)
    moved, keys = np.sqrt(s)[:, None] * Vt, (U * np.sqrt(s)).T
    return Attention(moved[:, :-1], keys, 1, moved[:, -1])


def recorded(model: nn.Module, *inputs: Any, **options: Any) -> Recording:
    """What a capture keeps of one pass; inputs by their names, or those of a family by its."""
    given = batch(inputs[0]) if isinstance(inputs[0], str) else inputs[0]
    with torch.no_grad(), capture(model, **options) as recording:
        model(**given) if isinstance(given, dict) else model(*inputs)
    return recording


def sharpened(recording: Recording, factor: float) -> Recording:
    """The recording with queries so many times as long, compared by keys and queries alone."""
    for layer in recording.layers.values():
        layer.projection = None
        for text in layer.texts:
            text.queries.mul_(factor)
    return recording
