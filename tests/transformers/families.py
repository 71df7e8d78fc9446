"""Tiny random models of the families of transformers, and what eager attention makes of them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import transformers

LAYERS, HEADS, KEY_HEADS, WIDTH, WORDS = 2, 4, 2, 32, 100

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num"), KEY_HEADS),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 64),
    "shared_expert_intermediate_size": 64,
    "d_kv": WIDTH // HEADS,
    "head_dim": WIDTH // HEADS,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_seq_len": 64,
    "n_ctx": 64,
    "image_size": 16,
    "patch_size": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    "sliding_window": 4,
}
"""What a configuration is made small with, where it has such a setting."""

SETTINGS: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "falcon": {"alibi": True, "new_decoder_architecture": False},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "xlnet": {"d_inner": 64},
}
"""What some families need beyond that."""

UNKNOWN = {"falcon": ("head_dim",), "xlnet": ("max_position_embeddings",)}
"""What some configurations have and do not let be set."""

DROPOUTS = ("dropout", "attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")


def tiny(family: str, **settings: Any) -> nn.Module:
    """A random model of this family in evaluation mode, without dropout."""
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    default = transformers.AutoConfig.for_model(family)
    known = {**SMALL, **dict.fromkeys(DROPOUTS, 0.0)}
    unknown = UNKNOWN.get(family, ())
    small = {k: v for k, v in known.items() if hasattr(default, k) and k not in unknown}
    settings = {**SETTINGS.get(family, {}), **settings}
    config = transformers.AutoConfig.for_model(family, **{**small, **settings})
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():  # weights of zero would hide much
        nn.init.normal_(parameter, std=0.3)
    for module in model.modules():
        if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
            nn.init.ones_(module.weight)
    return model


def inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    """Two texts, the second shorter and padded; two pictures; or both."""
    names = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    batch = {}
    if "input_ids" in names:
        ids = torch.randint(3, 90, (2, 12), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 9:] = 0
        batch = {"input_ids": ids, "attention_mask": mask}
        if "decoder_input_ids" in names:
            batch["decoder_input_ids"] = torch.randint(3, 90, (2, 7), generator=generator)
    if "pixel_values" in names:
        batch["pixel_values"] = torch.randn(2, 3, 16, 16, generator=generator)
    return batch


def eager_attentions(model: nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Attention matrices of every layer, as ``output_attentions`` gives them."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**batch, output_attentions=True)
    if out.get("encoder_attentions") is not None:
        own, cross = out.decoder_attentions, out.get("cross_attentions")
        if cross is None:
            return [*out.encoder_attentions, *own]
        pairs = zip(own, cross, strict=True)
        return [*out.encoder_attentions, *(matrix for pair in pairs for matrix in pair)]
    attentions = out.get("attentions")
    return [matrix for matrix in attentions or () if isinstance(matrix, torch.Tensor)]
