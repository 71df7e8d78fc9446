"""Caches under TransformerLens' names, built by hand beside a capture of the same model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attsvm import InputError
from attsvm.transformers import Recording, audit, from_cache

from .conftest import batch, family, recorded


def captured(name: str) -> tuple[nn.Module, Recording]:
    model = family(name)
    for parameter in model.parameters():  # biases that are not zero
        nn.init.normal_(parameter, std=0.2)
    return model, recorded(model, name)


def hooked(model: nn.Module, modules: list[str], name: str) -> dict[str, tuple]:
    """Inputs and outputs of these modules, as eager attention computes them."""
    kept: dict[str, tuple] = {}
    handles = [
        model.get_submodule(each).register_forward_hook(
            lambda module, args, output, each=each: kept.update({each: (args[0], output)})
        )
        for each in modules
    ]
    with torch.no_grad():
        model(**batch(name))
    for handle in handles:
        handle.remove()
    return kept


def gpt2_cache(model: nn.Module) -> dict[str, torch.Tensor]:
    """``hook_q``, ``hook_k``, scores with the mask, and the inputs of attention."""
    seen = hooked(model, [f"h.{n}.attn.c_attn" for n in range(2)], "gpt2")
    hidden = batch("gpt2")["attention_mask"] == 0
    cache = {}
    for n in range(2):
        x, out = seen[f"h.{n}.attn.c_attn"]
        q, k, _ = out.unflatten(-1, (3, 4, 8)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
        cache[f"blocks.{n}.ln1.hook_normalized"] = x
        cache[f"blocks.{n}.attn.hook_q"], cache[f"blocks.{n}.attn.hook_k"] = q, k
        cache[f"blocks.{n}.attn.hook_attn_scores"] = scores.masked_fill(
            hidden[:, None, None], -torch.inf
        )
    return cache


def same(found: Recording, wanted: Recording) -> None:
    assert len(found.layers) == len(wanted.layers)
    for a, b in zip(found.layers, wanted.layers, strict=True):
        assert (a.number, a.numbers, a.cross, a.causal) == (b.number, b.numbers, b.cross, b.causal)
        for one, two in zip(a.texts, b.texts, strict=True):
            assert one.scale == pytest.approx(two.scale)
            np.testing.assert_array_equal(one.positions, two.positions)
            np.testing.assert_array_equal(one.visible, two.visible)
            torch.testing.assert_close(one.logits(), two.logits(), atol=1e-5, rtol=1e-5)


def test_scores_or_the_mask_and_the_order_tell_what_queries_see() -> None:
    model, wanted = captured("gpt2")
    cache, given = gpt2_cache(model), batch("gpt2")
    found = from_cache(cache, given["input_ids"], attention_mask=given["attention_mask"])
    same(found, wanted)
    assert all(text.bias is None for layer in found.layers for text in layer.texts)
    for a, b in zip(found.tokens, wanted.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(audit(found).heads, audit(wanted).heads, strict=True):
        np.testing.assert_allclose(a.margin, b.margin, rtol=1e-3, atol=1e-5)
    cache = {name: x for name, x in cache.items() if "scores" not in name}
    same(from_cache(cache, attention_mask=given["attention_mask"]), wanted)


def test_weights_of_the_model_that_the_cache_belongs_to() -> None:
    model, wanted = captured("gpt2")
    blocks = []
    for block in model.h:
        weight = block.attn.c_attn.weight.detach().unflatten(1, (3, 4, 8)).permute(1, 2, 0, 3)
        shift = block.attn.c_attn.bias.detach().reshape(3, 4, 8)
        attn = SimpleNamespace(W_Q=weight[0], W_K=weight[1], b_Q=shift[0], b_K=shift[1])
        blocks.append(SimpleNamespace(attn=attn))
    mask = batch("gpt2")["attention_mask"]
    lens = SimpleNamespace(blocks=blocks, cfg=SimpleNamespace(attn_scale=8**0.5))
    found = from_cache(gpt2_cache(model), attention_mask=mask, model=lens)
    same(found, wanted)
    for one, two in zip(found.layers, wanted.layers, strict=True):
        for name, exact in vars(two.projection).items():
            for x, y in zip(getattr(one.projection, name), exact, strict=True):
                np.testing.assert_allclose(x, y, atol=1e-5, err_msg=name)
    blocks[1].attn.W_Q = blocks[1].attn.W_Q + 0.1  # of another model
    found = from_cache(gpt2_cache(model), attention_mask=mask, model=lens)
    assert found.layers[0].projection is not None
    assert found.layers[1].projection is None


def test_keys_that_heads_share_are_repeated_beside_their_weights() -> None:
    x, W_Q, W_K = torch.randn(1, 6, 8), torch.randn(4, 8, 2), torch.randn(2, 8, 2)
    q, k = (torch.einsum("btw,hwd->bthd", x, W) for W in (W_Q, W_K))
    whole, none = W_K.repeat_interleave(2, dim=0), torch.zeros(4, 2)
    attn = SimpleNamespace(W_Q=W_Q, W_K=whole, b_Q=none, b_K=none)
    cache = {"blocks.0.hook_resid_pre": x, "blocks.0.attn.hook_q": q, "blocks.0.attn.hook_k": k}
    lens = SimpleNamespace(blocks=[SimpleNamespace(attn=attn)])
    (layer,) = from_cache(cache, model=lens).layers
    np.testing.assert_array_equal(layer.projection.W_K, whole.mT.flatten(0, 1))


def test_rotated_queries_are_preferred_and_heads_share_keys() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model, wanted = captured("llama")
    names = [f"layers.{n}.self_attn.{part}_proj" for n in range(2) for part in "qk"]
    seen = hooked(model, names, "llama")
    cos, sin = model.rotary_emb(torch.zeros(1), torch.arange(12)[None])
    cache = {}
    for n in range(2):
        q, k = (
            seen[f"layers.{n}.self_attn.{part}_proj"][1].unflatten(-1, (-1, 8)) for part in "qk"
        )
        turned = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        cache[f"blocks.{n}.attn.hook_q"], cache[f"blocks.{n}.attn.hook_k"] = q, k
        cache[f"blocks.{n}.attn.hook_rot_q"] = turned[0].transpose(1, 2)
        cache[f"blocks.{n}.attn.hook_rot_k"] = turned[1].transpose(1, 2)
    mask = batch("llama")["attention_mask"]
    same(from_cache(cache, attention_mask=mask), wanted)
    one_text = {name: x[0].numpy() for name, x in cache.items()}
    found = from_cache(one_text, most_queries=5)
    assert [len(layer.texts) for layer in found.layers] == [1, 1]
    assert found.layers[0].texts[0].queries.shape == (4, 5, 8)


def test_added_scores_are_kept_as_a_bias() -> None:
    q, k, shift = torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4), torch.randn(1, 2, 6, 6)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) + shift
    cache = {"blocks.0.attn.hook_q": q, "blocks.0.attn.hook_k": k}
    found = from_cache({**cache, "blocks.0.attn.hook_attn_scores": scores}, scale=1.0)
    torch.testing.assert_close(found.layers[0].texts[0].logits(), scores[0])
    assert not found.layers[0].causal
    for hook, keys in (("blocks.0.attn", k[:, :4]), ("blocks.0.cross_attn", k)):
        (layer,) = from_cache({f"{hook}.hook_q": q, f"{hook}.hook_k": keys}).layers
        assert layer.cross
        assert layer.texts[0].visible.all()


def test_refusals() -> None:
    q = torch.randn(1, 6, 3, 4)
    with pytest.raises(InputError, match=r"no queries and keys \(it holds hook_embed\)"):
        from_cache({"hook_embed": q})
    cache = {"blocks.0.attn.hook_q": q, "blocks.0.attn.hook_k": q[:, :, :2]}
    with pytest.raises(InputError, match="query heads a multiple of key heads"):
        from_cache(cache)
    cache["blocks.0.attn.hook_k"] = q * torch.nan
    with pytest.raises(InputError, match="hook_k holds NaN or infinity"):
        from_cache(cache)
    cache["blocks.0.attn.hook_k"] = q
    with pytest.raises(InputError, match=r"has shape \(1, 3, 5, 6\); with these queries it is"):
        from_cache({**cache, "blocks.0.attn.hook_attn_scores": torch.zeros(1, 3, 5, 6)})
