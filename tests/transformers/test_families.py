"""Families of transformers: the attention that eager models compute, or one sentence."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attsvm import InputError
from attsvm.transformers import Recording, capture
from attsvm.transformers.head_inputs import HeadInputs

from .families import HEADS, eager_attentions, inputs, tiny, transformers

OFTEN = [
    "gpt2",
    "llama",
    "gemma2",
    "gpt_oss",
    "bloom",
    "gptj",
    "gpt_neo",
    "mpnet",
    "deberta-v2",
    "t5",
]

OTHERS = [
    "afmoe",
    "albert",
    "apertus",
    "arcee",
    "aria_text",
    "bart",
    "beam",
    "beit",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "biogpt",
    "bitnet",
    "blenderbot",
    "blenderbot-small",
    "camembert",
    "canine",
    "chinese_clip_vision_model",
    "clip_text_model",
    "clip_vision_model",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "convbert",
    "ctrl",
    "cwm",
    "data2vec-text",
    "deberta",
    "deit",
    "diffllama",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "distilbert",
    "doge",
    "dpr",
    "electra",
    "ernie",
    "ernie4_5",
    "ernie4_5_moe",
    "eurobert",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_h1",
    "flaubert",
    "flex_olmo",
    "fsmt",
    "gemma",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_neox_japanese",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "gte",
    "helium",
    "higgs_audio_v2",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "ibert",
    "idefics3_vision",
    "ijepa",
    "imagegpt",
    "inkling_text",
    "internlm3",
    "internvl_vision",
    "iquestcoder",
    "jais2",
    "jamba",
    "jetmoe",
    "jina_embeddings_v3",
    "kolibri1",
    "laguna",
    "layoutlm",
    "lfm2",
    "llama4_text",
    "m2m_100",
    "marian",
    "markuplm",
    "mbart",
    "megatron-bert",
    "mellum",
    "mimo_v2_flash",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "mlcd",
    "mlcd_vision_model",
    "mobilebert",
    "modernbert",
    "modernbert-decoder",
    "molmo2_text",
    "mpt",
    "mt5",
    "muse_glimmer_text",
    "mvp",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "nllb-moe",
    "nomic_bert",
    "nystromformer",
    "olmo",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "openai-gpt",
    "openai_privacy_filter",
    "opt",
    "pegasus",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "pixio",
    "pixtral",
    "plbart",
    "qianfan_ocr_vision",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "seed_oss",
    "smollm3",
    "smolvlm_vision",
    "solar_open",
    "splinter",
    "stablelm",
    "starcoder2",
    "switch_transformers",
    "tapas",
    "tipsv2_text_model",
    "tipsv2_vision_model",
    "ultrabert",
    "vaultgemma",
    "visual_bert",
    "vit",
    "vit_msn",
    "vitdet",
    "xglm",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xlnet",
]

REFUSED = {
    "fnet": "no attention of FNetModel was seen",
    "mamba": "no attention of MambaModel was seen",
    "led": "attends inside windows or to samples of a text",
    "longformer": "attends inside windows or to samples of a text",
    "longt5": "attends inside windows or to samples of a text",
    "mra": "no attention of MraModel was seen",
}


def unpadded(matrix: torch.Tensor, mask: torch.Tensor | None, cross: bool) -> torch.Tensor:
    """The rows and columns of an attention matrix ``(heads, q, T)`` that are no padding."""
    if mask is None or matrix.shape[-1] != len(mask):
        return matrix
    keep = mask.bool()
    return matrix[..., keep] if cross else matrix[:, keep][..., keep]


def check_against_eager(model: nn.Module, batch: dict[str, torch.Tensor]) -> Recording:
    """Weights to 1e-5, and every selection where the two largest weights differ by more; outputs
    inside the block are those outside.
    """
    with torch.no_grad():
        plain = model(**batch)
    with torch.no_grad(), capture(model) as recording:
        output = model(**batch)
    assert torch.equal(output.to_tuple()[0], plain.to_tuple()[0])
    matrices = eager_attentions(model, batch)
    assert len(recording.layers) == len(matrices) > 0
    masks = batch.get("attention_mask", [None] * len(matrices[0]))
    for layer, matrix in zip(recording.layers.values(), matrices, strict=True):
        assert len(layer.texts) == len(matrix)
        for text, own, mask in zip(layer.texts, matrix, masks, strict=True):
            weights, expected = text.weights(), unpadded(own, mask, layer.cross)
            torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)
            selected = weights.argmax(dim=-1, keepdim=True)
            loss = expected.amax(dim=-1, keepdim=True) - expected.gather(-1, selected)
            assert loss.max() <= 1e-6, "another token is selected"
    return recording


def check_family(family: str) -> None:
    model = tiny(family)
    if family == "falcon":  # its two implementations differ under ALiBi
        model.set_attn_implementation("eager")
        model.config._attn_implementation = "eager"
    check_against_eager(model, inputs(model))


@pytest.mark.parametrize("family", OFTEN)
def test_common_families_are_recorded_as_eager_attention_computes_them(family: str) -> None:
    check_family(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", OTHERS)
def test_every_family_is_recorded_as_eager_attention_computes_it(family: str) -> None:
    check_family(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", REFUSED)
def test_families_without_products_of_all_queries_and_keys_are_refused(family: str) -> None:
    model = tiny(family)
    batch, told = inputs(model), REFUSED[family]
    with pytest.raises(InputError, match=told) as error, torch.no_grad(), capture(model):
        model(**batch)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_each_implementation_of_falcon_computes_what_it_computes(implementation: str) -> None:
    """They differ under ALiBi, and a recording does not change from one to the other."""
    model = tiny("falcon")
    model.set_attn_implementation(implementation)
    model.config._attn_implementation = implementation
    batch = inputs(model)
    with torch.no_grad():
        plain = model(**batch).last_hidden_state
        with capture(model) as recording:
            output = model(**batch).last_hidden_state
    assert torch.equal(output, plain)
    assert len(recording.layers) == 2


@pytest.mark.parametrize("family", ["opt", "gpt_bigcode"])
def test_scaled_and_shared_projections_are_linear_maps(family: str) -> None:
    """OPT scales its queries, and the heads of GPT-BigCode share one set of keys."""
    model = tiny(family)
    with torch.no_grad(), capture(model) as recording:
        model(**inputs(model))
    for layer, h in itertools.product(recording.layers.values(), range(HEADS)):
        head = HeadInputs(layer, h)
        assert layer.projection is not None
        for text, logits in zip(layer.texts, head.logits(head.weights()), strict=True):
            expected = np.where(text.visible, text.logits()[h].double().numpy(), 0.0)
            gap = np.where(text.visible, logits, np.nan) - expected
            # a bias of keys moves a row as a whole
            assert (np.nanmax(gap, axis=1) - np.nanmin(gap, axis=1)).max() < 1e-4


def test_layers_have_the_numbers_of_their_blocks() -> None:
    """A hybrid whose second block alone attends."""
    model = tiny("jamba")
    with torch.no_grad(), capture(model, layers=[1]) as recording:
        model(**inputs(model))
    assert list(recording.layers) == [1]
    assert recording.layers[1].name == "layers.1.self_attn"


def test_both_towers_of_a_model_of_texts_and_pictures() -> None:
    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**tower, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    batch: dict[str, Any] = inputs(model)
    pixels = {"pixel_values": batch.pop("pixel_values")}
    check_against_eager(model.text_model, batch)
    check_against_eager(model.vision_model, pixels)


def test_soft_caps_and_sinks_are_those_of_the_model() -> None:
    model = tiny("gemma2", attn_logit_softcapping=2.0)
    layer = check_against_eager(model, inputs(model)).layers[0]
    assert layer.texts[0].softcap == 2.0
    model = tiny("gpt_oss")
    layer = check_against_eager(model, inputs(model)).layers[1]
    assert torch.equal(layer.texts[0].sinks, model.layers[1].self_attn.sinks.detach())
    assert (layer.texts[0].weights().sum(dim=-1) < 1).all()
