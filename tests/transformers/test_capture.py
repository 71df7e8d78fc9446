"""Capture: what eager attention computes, from keys and queries of the fused one."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from attsvm import InputError
from attsvm.transformers import audit, capture
from attsvm.transformers.head_inputs import HeadInputs

from .conftest import batch, family, recorded

FAMILIES = ("bert", "albert", "gpt2", "llama", "vit", "t5")


def eager(name: str, model: nn.Module) -> list[torch.Tensor]:
    """Attention matrices of every layer, in the order of the forward pass."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**batch(name), output_attentions=True)
    if name != "t5":
        return list(out.attentions)
    pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
    return [*out.encoder_attentions, *(each for pair in pairs for each in pair)]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_attention_that_eager_models_compute(name: str) -> None:
    """In two passes, whose texts go on counting; the model computes as without a capture."""
    model = family(name)
    with torch.no_grad():
        before = model(**batch(name)).last_hidden_state
        with capture(model) as recording:
            for _ in range(2):
                assert torch.equal(before, model(**batch(name)).last_hidden_state)
        assert torch.equal(before, model(**batch(name)).last_hidden_state)
    assert recording.texts == 4
    matrices = eager(name, model)
    assert len(recording.layers) == len(matrices)
    for layer, matrix in zip(recording.layers.values(), matrices, strict=True):
        assert [text.text for text in layer.texts] == [0, 1, 2, 3]
        for b, text in enumerate(layer.texts):
            found = torch.softmax(text.logits(), dim=-1)
            wanted = matrix[b % 2][:, text.positions if not layer.cross else slice(None)]
            wanted = wanted[..., : found.shape[-1]]
            assert (found - wanted[:, : found.shape[1]]).abs().max() < 1e-5
    if name != "vit":
        assert [len(ids) for ids in recording.tokens] == [12, 9, 12, 9]
    layers = recording.layers.values()
    assert all((layer.projection is None) == (name == "llama") for layer in layers)


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "vit"])
def test_weights_on_inputs_give_the_logits(name: str) -> None:
    """Up to what is the same for all keys of a query: the bias of the keys."""
    model = family(name)
    for parameter in model.parameters():  # biases that are not zero
        nn.init.normal_(parameter, std=0.2)
    for layer, h in itertools.product(recorded(model, name).layers.values(), range(4)):
        assert layer.projection is not None
        for center in (True, False):
            inputs = HeadInputs(layer, h, center)
            found = inputs.logits(inputs.weights())
            for text, logits in zip(layer.texts, found, strict=True):
                seen = text.logits()[h].double().numpy()
                gap = np.where(text.visible, logits, 0.0) - np.where(text.visible, seen, np.nan)
                spread = np.nanmax(gap, axis=1) - np.nanmin(gap, axis=1)
                assert spread.max() < 1e-3 * max(1.0, np.abs(seen[text.visible]).max())


def test_torch_layers_and_attention_weights_that_are_asked_for() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    x = torch.randn(2, 6, 16)
    layers = recorded(encoder.eval(), x).layers
    assert [(layer.heads, layer.projection is not None) for layer in layers.values()] == [
        (2, True)
    ] * 2
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad(), capture(attention) as recording:
        _, weights = attention(x, x, x, average_attn_weights=False)
    found = torch.softmax(recording.layers[0].texts[1].logits(), dim=-1)
    assert (found - weights[1]).abs().max() < 1e-6


class PositionsFirst(nn.Module):
    """A layer on ``(T, B, width)``."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (p(x).unflatten(-1, (2, 4)).permute(1, 2, 0, 3) for p in (self.q_proj, self.k_proj))
        return nn.functional.scaled_dot_product_attention(q, k, k)


def test_inputs_whose_first_axis_is_the_position() -> None:
    """Of a module whose decorated ``forward`` takes more than its signature says."""
    model, x = PositionsFirst(), torch.randn(5, 3, 8)
    plain = model.forward
    model.forward = functools.wraps(plain)(lambda x, note: plain(x))
    (layer,) = recorded(model, {"x": x, "note": "more"}).layers.values()
    assert not layer.cross
    for i, inputs in enumerate(layer.projection.query_inputs):
        np.testing.assert_array_equal(inputs, x[:, i].double().numpy())


def test_queries_are_spread_over_a_long_text() -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 1000, 8)
    (text,) = recorded(attention, x, x, x, most_queries=10).layers[0].texts
    assert text.positions.tolist() == np.linspace(0, 999, 10).round().astype(int).tolist()
    assert text.keys.shape == (2, 1000, 4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_chosen_heads_are_those_of_a_whole_capture(name: str) -> None:
    model = family(name)
    whole, some = recorded(model, name), recorded(model, name, layers=[1], heads=[3, 1])
    (layer,) = some.layers.values()
    assert (layer.number, layer.head_numbers, layer.heads) == (1, [1, 3], 2)
    for one, all_heads in zip(layer.texts, whole.layers[1].texts, strict=True):
        torch.testing.assert_close(one.logits(), all_heads.logits()[[1, 3]])
    if layer.projection is not None:
        wanted = whole.layers[1].projection
        np.testing.assert_array_equal(
            layer.projection.W_K.reshape(2, 8, -1), wanted.W_K.reshape(4, 8, -1)[[1, 3]]
        )
    assert [each.head for each in audit(some, norms=()).heads] == [1, 3]
    assert recorded(model, name, projections=False).layers[1].projection is None


def twice(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    once = nn.functional.scaled_dot_product_attention(q, k, k)
    return nn.functional.scaled_dot_product_attention(once, q, q, is_causal=True)


def test_a_function_that_calls_attention() -> None:
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    layers = recorded(twice, q, k).layers
    assert [(each.number, each.cross, each.causal) for each in layers.values()] == [
        (0, True, False),
        (1, False, True),
    ]
    torch.testing.assert_close(layers[0].texts[1].logits(), q[1] @ k[1].mT / 2)
    attend, seen = nn.functional.scaled_dot_product_attention, torch.arange(7)[None] % 3 > 0
    (layer,) = recorded(lambda q, k: attend(q, k, k, seen), q, k).layers.values()
    np.testing.assert_array_equal(layer.texts[1].visible, seen.expand(5, 7))


class Flexible(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x is None else flex_attention(x, x, x)


def broken() -> nn.Module:
    model = family("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[0, 0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: "x", {}, "model is 'x'; give a module"),
        (lambda: nn.Linear(2, 2), {}, "no attention of Linear was seen"),
        (lambda: twice, {}, "no attention of twice was seen"),
        (Flexible, {}, "flex_attention is compiled as a whole"),
        (lambda: family("bert"), {"layers": [7]}, "layer 7 does not exist; the model has layers 0"),
        (lambda: family("bert"), {"heads": [4]}, "layers of .* have heads 0 to 3"),
        (lambda: family("bert"), {"most_queries": 0}, "keep at least one"),
        (broken, {}, r"queries or keys of layer 1 \(encoder.layer.1.attention.self\) hold NaN"),
    ],
)
def test_refusals(make, options, words: str) -> None:
    """And the model is left as it was."""
    model = make()
    bert = hasattr(model, "encoder")
    run = model if bert else lambda **texts: None
    with pytest.raises(InputError, match=words), torch.no_grad(), capture(model, **options):
        run(**batch("bert"))
    assert not bert or not any(module._forward_hooks for module in model.modules())


def test_an_error_inside_the_block_leaves_the_model_as_it_was() -> None:
    model = family("gpt2")
    model.set_attn_implementation("eager")
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with pytest.raises(ZeroDivisionError), capture(model):
        1 / 0  # noqa: B018
    assert model.config._attn_implementation == "eager"
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 1}, "layers is 1; give a list"),
        ({"layers": ["first"]}, r"layers is \['first'\]; give a list"),
        ({"heads": [0.5]}, r"heads is \[0\.5\]; give a list"),
        ({"most_queries": 1.5}, r"most_queries is 1\.5; keep at least one"),
        ({"folder": "/nowhere/at/all"}, "/nowhere/at/all takes no temporary file"),
    ],
)
def test_options_that_are_no_numbers_or_folders(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words), capture(family("gpt2"), **options):
        pass


def test_a_text_that_is_all_padding_is_named() -> None:
    texts = batch("bert")
    texts["attention_mask"][1] = 0
    with pytest.raises(InputError, match="text 1 holds no token that the mask leaves visible"):
        recorded(family("bert"), texts)


def test_a_compiled_model_is_recorded_without_its_compiled_code() -> None:
    model = family("gpt2")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(**batch("gpt2"))
    recording = recorded(compiled, batch("gpt2"))
    expected = recorded(model, "gpt2")
    for number, layer in expected.layers.items():
        for text, same in zip(layer.texts, recording.layers[number].texts, strict=True):
            assert torch.equal(text.queries, same.queries)
