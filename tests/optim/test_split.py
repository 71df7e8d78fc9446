"""Every trainable parameter on one side, attention matrices recognised in what people train."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.optim.split import split_params

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def named(groups):
    return {
        name: p
        for group in groups
        for name, p in zip(group["param_names"], group["params"], strict=True)
    }


def huggingface(kind, **settings):
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**settings))


MODELS = {
    "Bert": ({"vocab_size": 50, **SMALL}, ["self.query.weight", "self.key.weight"], [None]),
    "T5": (
        {"vocab_size": 50, "d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 2, "d_ff": 32},
        ["n.q.weight", "n.k.weight"],
        [None],
    ),
    "GPT2": (
        {
            "vocab_size": 50,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        ["attn.c_attn.weight"],
        [(3, -1)],  # Conv1D stores inputs by outputs: the blocks are columns
    ),
    "Phi3": (
        {
            "vocab_size": 50,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            **SMALL,
        },
        ["qkv_proj.weight"],
        [([16, 8, 8], -2)],  # grouped queries: two query heads, one key head, one value head
    ),
    "GPTNeoX": (
        {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, **SMALL},
        ["query_key_value.weight"],
        [(6, -2)],  # interleaved head by head: only heads are contiguous
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_hugging_face_models(kind):
    settings, endings, blocks = MODELS[kind]
    model = huggingface(kind, **settings)
    split = split_params(model)
    attention, rest = named(split.attention), named(split.rest)
    if endings is not None:
        assert {next(e for e in endings if name.endswith(e)) for name in attention} == set(endings)
    # two layers; T5 has six attentions
    assert len(attention) == {"T5": 12}.get(kind, 2 if blocks[0] else 4)
    assert [
        (g["blocks"], g["blocks_axis"]) if "blocks" in g else None for g in split.attention
    ] == blocks
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in (*attention.values(), *rest.values())} == trained
    assert len(attention) + len(rest) == len(trained)
    assert all(model.get_parameter(name) is p for name, p in (*attention.items(), *rest.items()))


def test_torch_layers_and_roles():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert set(named(split_params(layer).attention)) == {"self_attn.in_proj_weight"}
    assert split_params(layer).attention[0]["blocks"] == 3
    assert repr(split_params(nn.Sequential(layer, layer))).splitlines()[0] == (
        "attention  *.self_attn.in_proj_weight   (24, 8)  x 1  query, key, value; 3 equal blocks of"
        " rows"
    )
    assert split_params(layer, blocks=None).attention[0].keys() == {"params", "param_names"}
    heads = split_params(layer, roles=("query", "output"), blocks="heads").attention
    assert [(g["param_names"], g["blocks"], g["blocks_axis"]) for g in heads] == [
        (["self_attn.in_proj_weight"], 6, -2),
        (["self_attn.out_proj.weight"], 2, -1),  # the heads of an output projection are its columns
    ]
    apart = nn.MultiheadAttention(8, 2, kdim=4, vdim=6)
    assert set(named(split_params(apart).attention)) == {"q_proj_weight", "k_proj_weight"}
    assert set(named(split_params(apart, roles=("value",)).attention)) == {"v_proj_weight"}


def test_own_attention():
    data = AttentionData(np.ones((2, 3, 4)), np.array([1, -1]), np.ones((2, 4)))
    split = split_params(Attention.cross(data, head=np.ones(4), runs=3, train_head=True))
    assert set(named(split.attention)) == {"W"}
    assert set(named(split.rest)) == {"head.readout"}


def test_tied_once_frozen_nowhere_wrapped_models_alike():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.Linear(8, 8)
            self.attention = nn.ModuleDict(
                {"query": nn.Linear(8, 8), "key": nn.Linear(8, 8), "value": nn.Linear(8, 8)}
            )
            self.attention["key"].weight = self.memory.weight
            self.attention["value"].requires_grad_(False)

    model = Tied()
    split = split_params(model)
    assert [
        m.parameter is p
        for m, p in zip(
            split.matrices, (model.memory.weight, model.attention["query"].weight), strict=True
        )
    ] == [True] * 2
    assert len(split.others) == 3
    assert split.frozen == ("attention.value.weight", "attention.value.bias")
    assert len(split_params(nn.Sequential(model)).matrices) == 2


def test_override_by_pattern_and_by_function():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert set(named(split_params(layer, select=r"linear\d\.weight").attention)) == {
        "linear1.weight",
        "linear2.weight",
    }
    also = split_params(
        layer, select=lambda name, tensor: True if name == "linear1.weight" else None
    )
    assert set(named(also.attention)) == {"linear1.weight", "self_attn.in_proj_weight"}
    less = split_params(
        nn.Sequential(layer, nn.TransformerEncoderLayer(8, 2, 16)),
        select=lambda name, tensor: False if name[0] == "0" else None,
    )
    assert set(named(less.attention)) == {"1.self_attn.in_proj_weight"}


class OwnLayer(nn.Module):
    """Attention by hand, in a class that does not say so."""

    def __init__(self, name="qkv", rows=24):
        super().__init__()
        self.add_module(name, nn.Linear(8, rows))
        self.out = nn.Linear(8, 8)


def test_a_fused_matrix_is_cut_whatever_its_class():
    for select in (None, r"qkv.weight", "qkv"):
        split = split_params(nn.Sequential(OwnLayer(), OwnLayer()), select=select)
        assert [(g["param_names"], g["blocks"]) for g in split.attention] == [
            (["0.qkv.weight", "1.qkv.weight"], 3)
        ]
        assert "0.qkv.bias" in named(split.rest)
        assert "query, key, value; 3 equal blocks of rows" in repr(split)
    # two thirds of it may be anything
    with pytest.raises(InputError, match="no query or key matrix"):
        split_params(OwnLayer(rows=16))


def test_a_number_of_blocks_cuts_what_is_not_recognised():
    split = split_params(OwnLayer("mix"), select="mix", blocks=3)
    assert [g["blocks"] for g in split.attention] == [3]
    assert repr(split).splitlines()[0] == (
        "attention  mix.weight  (24, 8)  x 1  3 equal blocks of rows"
    )
    assert split_params(nn.MultiheadAttention(8, 2), blocks=6).attention[0]["blocks"] == 6
    plain = nn.MultiheadAttention(8, 2, kdim=4)
    assert all("blocks" not in group for group in split_params(plain, blocks=3).attention)
    with pytest.raises(InputError, match=r"blocks is 5, .* the 24 outputs of mix.weight"):
        split_params(OwnLayer("mix"), select="mix", blocks=5)


def test_refusals_name_what_was_looked_for():
    mlp = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(
        InputError,
        match=(
            r"no query or key matrix was found among the 2 .* of Sequential \(its matrices:"
            r" 0.weight\): looked for query, q_proj"
        ),
    ):
        split_params(mlp)
    with pytest.raises(InputError, match=r"select, 'query', chose nothing"):
        split_params(mlp, select="query")
    with pytest.raises(InputError, match="no regular expression"):
        split_params(mlp, select="(")
    with pytest.raises(InputError, match="roles is"):
        split_params(mlp, roles=("keys",))
    with pytest.raises(InputError, match="blocks is 'head'"):
        split_params(mlp, blocks="head")
    with pytest.raises(InputError, match=r"model is a str; give a torch\.nn\.Module"):
        split_params("mlp")


def test_convolution_kernels_stay_in_the_rest_unless_named():
    model = nn.Module()
    model.attention = nn.ModuleDict({"to_q": nn.Conv2d(4, 4, 3), "to_k": nn.Linear(4, 4)})
    assert [matrix.name for matrix in split_params(model).matrices] == ["attention.to_k.weight"]
    assert len(split_params(model, select="weight").matrices) == 2
