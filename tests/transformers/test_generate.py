"""Capture while a model writes: texts go on with what the cache of keys holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attsvm import InputError
from attsvm.transformers import Recording, capture

from .families import tiny, transformers

FAMILIES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "bloom": "BloomForCausalLM"}


def writer(family: str, **settings: Any) -> nn.Module:
    base = tiny(family, **settings)
    model = getattr(transformers, FAMILIES.get(family, "MistralForCausalLM"))(base.config).eval()
    model.base_model.load_state_dict(base.state_dict())
    return model


def prompts(padded: bool) -> dict[str, torch.Tensor]:
    """Two prompts of six tokens; the second is padded on its left."""
    ids = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        ids[1, :2], mask[1, :2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def written(model: nn.Module, batch: dict[str, torch.Tensor], **options: Any) -> Any:
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, **options}
    return model.generate(**batch, **settings)


def check_equal(recording: Recording, expected: Recording) -> None:
    for number, layer in expected.layers.items():
        assert recording.layers[number].causal == layer.causal
        assert not recording.layers[number].cross
        for text, whole in zip(recording.layers[number].texts, layer.texts, strict=True):
            np.testing.assert_array_equal(text.positions, whole.positions)
            np.testing.assert_array_equal(text.visible, whole.visible)
            torch.testing.assert_close(text.weights(), whole.weights(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_that_is_written_is_recorded_as_if_it_were_read(family: str, padded: bool) -> None:
    """Positions, what queries see, tokens and weights are those of one pass over all of it."""
    model, batch = writer(family), prompts(padded)
    with torch.no_grad(), capture(model) as recording:
        ids = written(model, batch)
    read = ids[:, :-1]  # the last token is written and not read
    mask = torch.nn.functional.pad(batch["attention_mask"], (0, read.shape[1] - 6), value=1)
    with torch.no_grad(), capture(model) as expected:
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        arguments = {} if family == "bloom" else {"position_ids": positions}
        model(input_ids=read, attention_mask=mask, **arguments)
    assert recording.texts == 2
    for tokens, whole in zip(recording.tokens, expected.tokens, strict=True):
        np.testing.assert_array_equal(tokens, whole)
    check_equal(recording, expected)


def test_a_sliding_window_keeps_the_keys_that_it_has_dropped() -> None:
    model = writer("mistral", sliding_window=4)
    with torch.no_grad(), capture(model) as recording:
        ids = written(model, prompts(False))
    with torch.no_grad(), capture(model) as expected:
        model(input_ids=ids[:, :-1])
    check_equal(recording, expected)


def test_queries_beyond_the_limit_are_left_out_at_the_end() -> None:
    model = writer("gpt2")
    with torch.no_grad(), capture(model, most_queries=4) as recording:
        written(model, prompts(False))
    layer = recording.layers[0]
    assert [len(text.positions) for text in layer.texts] == [4, 4]
    assert layer.texts[0].positions[-1] == 9
    assert layer.projection is not None
    assert [len(rows) for rows in layer.projection.query_inputs] == [4, 4]
    assert [len(rows) for rows in layer.projection.key_inputs] == [10, 10]


def test_a_cache_that_changes_is_one_sentence() -> None:
    model, batch = writer("llama"), prompts(False)
    with (
        pytest.raises(InputError, match="record with num_beams=1"),
        torch.no_grad(),
        capture(model),
    ):
        written(model, batch, num_beams=3)
    with torch.no_grad():
        cache = model(**batch).past_key_values
    step = {"input_ids": batch["input_ids"][:, :1], "past_key_values": cache}
    with (
        pytest.raises(InputError, match="begin the texts inside the block"),
        torch.no_grad(),
        capture(model),
    ):
        model(**step)
