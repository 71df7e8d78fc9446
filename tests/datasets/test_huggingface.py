"""Sub-words of a pretrained model, here a random one made on the spot."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch
from tiny_encoder import save_tiny_bert

from attsvm.base.errors import InputError, MissingExtraError
from attsvm.datasets import load

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def save_tiny_gpt(folder):
    """Of random weights, with a token for every byte."""
    tokenizers, transformers = map(importlib.import_module, ("tokenizers", "transformers"))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({p: k for k, p in enumerate(letters)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    config = transformers.GPT2Config(
        vocab_size=len(letters), n_embd=8, n_layer=1, n_head=2, n_positions=16
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2Model(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["wordpiece", "bytes"])
def model(request, tmp_path_factory):
    """A folder with a tiny BERT or GPT-2 and its tokeniser, and its embeddings."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "wordpiece":
        save_tiny_bert(folder, ["the", "film", "story", "plot"], layers=1)
    else:
        save_tiny_gpt(folder)
    network = transformers.AutoModel.from_pretrained(folder)
    return folder, network.get_input_embeddings().weight.detach().double().numpy()


def test_tokens_are_centred_unit_embeddings_of_distinct_subwords(model, jsonl, texts):
    folder, table = model
    dataset = load(jsonl, model=folder, max_tokens=40)
    encoded = dataset.encode(range(60))
    data = encoded.data(2 * dataset.labels - 1)
    assert data.d_x == 8
    assert np.allclose(np.linalg.norm(data.tokens, axis=-1)[data.mask], 1.0)
    assert dataset.provenance["vectors"] == str(folder)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [
        list(dict.fromkeys(tokenizer(content, add_special_tokens=False)["input_ids"]))
        for content in texts[0]
    ]
    centred = table - table[sorted(set().union(*ids[:60]))].mean(axis=0)
    for i in (0, 7, 119):
        expected = centred[ids[i]] / np.linalg.norm(centred[ids[i]], axis=1, keepdims=True)
        assert np.allclose(data.tokens[i][data.mask[i]], expected, atol=1e-12)
        view = encoded.views[i]
        assert view["text"] == texts[0][i]
        assert len(view["spans"]) == data.lengths[i]
        covered = sorted(
            (start, end) for token in view["spans"] for start, end in token if start < end
        )
        assert all(
            not content[0].isspace()
            for content in (texts[0][i][start:end] for start, end in covered)
        )
        letters = {k for start, end in covered for k in range(start, end)}
        assert letters == {k for k, letter in enumerate(texts[0][i]) if not letter.isspace()}


def test_wide_embeddings_are_kept_where_the_training_texts_vary_most(model, jsonl):
    folder, _ = model
    whole = load(jsonl, model=folder).encode(range(60)).bags
    dataset = load(jsonl, model=folder, dim=3)
    encoded = dataset.encode(range(60))
    assert encoded.bags.d == dataset.provenance["dim"] == 3
    assert "Of their 8 directions the 3 of largest variance are kept." in encoded.notes[0]
    best = np.linalg.svd(whole[:60].rows, compute_uv=False)[:3]
    kept = np.linalg.svd(encoded.bags[:60].rows, compute_uv=False)
    assert np.allclose(kept, best)


def test_a_model_that_is_not_there(jsonl, tmp_path):
    with pytest.raises(
        InputError,
        match=r"there is no folder .*missing; give a folder with a saved model",
    ) as caught:
        load(jsonl, model=str(tmp_path / "missing"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["model", "encoder"])
def test_without_transformers_the_extra_is_named(jsonl, monkeypatch, option):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"needs the package transformers; .*attsvm\[hub\]"):
        load(jsonl, **{option: "any"})
