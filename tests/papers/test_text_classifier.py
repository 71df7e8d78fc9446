"""The sentiment model: its size, its padding, its attention, and that leaving out what [CLS] does
not read changes nothing.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attsvm.errors import InputError
from attsvm_papers.networks.classifiers import TextClassifier

TIGHT = {"rtol": 1e-12, "atol": 1e-13}  # float64, sums of tens of terms


@pytest.fixture
def model():
    torch.manual_seed(0)
    return (
        TextClassifier(50, 12, width=24, depth=3, heads=4, hidden=40, dropout=0.3).double().eval()
    )


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([12, 7, 1, 9, 3])
    mask = torch.arange(12) < lengths[:, None]
    return torch.randint(1, 50, (5, 12), generator=generator) * mask, mask


def published(model, ids, mask):
    """The computation as the published code does it: every row of every block, padding hidden from
    queries and keys except key 0.
    """
    visible = mask[:, None, :, None] & mask[:, None, None, :]
    visible[..., 0] = True
    x = F.embedding(ids, model.embedding.weight) + model.positions[: ids.shape[1]]
    for block in model.blocks:
        heads, width = block.attention.heads, x.shape[-1]
        query, key, value = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in block.attention.qkv(x).split(width, dim=-1)
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(width // heads)
        rows = torch.softmax(logits.masked_fill(~visible, -torch.inf), dim=-1)
        x = F.layer_norm(
            x + block.attention.output((rows @ value).transpose(1, 2).flatten(-2)),
            (width,),
            block.after_attention.weight,
        )
        first, _, second, _ = block.network
        x = F.layer_norm(x + second(F.gelu(first(x))), (width,), block.after_network.weight)
    return model.readout(x[:, 0])[:, 0]


@pytest.mark.parametrize(("blocks", "millions"), [(3, 17.23), (4, 19.00), (6, 22.54)])
def test_the_sizes_of_the_mirror_descent_paper(blocks, millions):
    with torch.device("meta"):
        model = TextClassifier(depth=blocks, heads=blocks)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 2) == millions
    # 884 736 for Q, K, V of six
    assert sum(block.attention.qkv.weight.numel() for block in model.blocks) == blocks * 3 * 147_456
    assert model.blocks[0].attention.dropout == model.blocks[0].network[-1].p == 0.2


def test_nothing_has_a_bias(model):
    assert all("bias" not in name for name, _ in model.named_parameters())
    # so mirror descent freezes none of them
    assert all(bool(parameter.any()) for parameter in model.parameters())


def test_logits_and_gradients_are_those_of_the_published_computation(model, batch):
    found, expected = model(*batch), published(model, *batch)
    torch.testing.assert_close(found, expected, **TIGHT)
    pairs = zip(
        torch.autograd.grad(found.sum(), list(model.parameters())),
        torch.autograd.grad(expected.sum(), list(model.parameters())),
        strict=True,
    )
    for (ours, theirs), (name, _) in zip(pairs, model.named_parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name, **TIGHT)


def test_padding_changes_nothing(model, batch):
    ids, mask = batch
    noise = torch.where(mask, ids, 13)
    torch.testing.assert_close(model(noise, mask), model(ids, mask), **TIGHT)
    for row, length in enumerate(mask.sum(dim=1)):
        torch.testing.assert_close(
            model(ids[row : row + 1, :length]), model(ids, mask)[row : row + 1], **TIGHT
        )


def test_a_text_without_tokens_still_sees_key_zero(model):
    ids = torch.tensor([[3, 0, 0]])
    torch.testing.assert_close(model(ids, torch.zeros(1, 3)), model(ids[:, :1]), **TIGHT)


def test_rows_of_cls_are_distributions_over_tokens(model, batch):
    ids, mask = batch
    rows = model.cls_rows(ids, mask)
    assert rows.shape == (5, 3, 4, 12)
    torch.testing.assert_close(
        rows.sum(dim=-1), torch.ones(5, 3, 4, dtype=torch.float64), rtol=0, atol=1e-14
    )
    assert not rows[~mask[:, None, None].expand_as(rows)].any()
    # dropout of earlier blocks moves the later ones
    assert torch.equal(rows, model.train().cls_rows(ids, mask)) is False
    # and the rows themselves are taken before dropout
    assert torch.equal(rows[:, 0], model.cls_rows(ids, mask)[:, 0])


def test_the_rows_are_those_that_the_forward_pass_uses(model, batch):
    ids, mask = batch
    block, x = model.blocks[0], model.embedding(ids) + model.positions
    visible = mask[:, None, None, :]
    value = block.attention.qkv(x)[..., 48:].unflatten(-1, (4, 6)).transpose(1, 2)
    mixed = block.attention.output(
        (block.attention.rows(x, visible) @ value).transpose(1, 2).flatten(-2)
    )
    torch.testing.assert_close(block.attention(x, visible), mixed, **TIGHT)
    torch.testing.assert_close(
        model.cls_rows(ids, mask)[:, 0], block.attention.rows(x, visible)[:, :, 0], **TIGHT
    )


def test_training_drops_attention_weights_and_outputs():
    """With dropout on attention weights alone the residual stream keeps every coordinate; the three
    places differ in what they touch.
    """
    torch.manual_seed(0)
    model = TextClassifier(50, 12, width=24, depth=1, heads=4, hidden=40, dropout=0.5).train()
    attention, x = model.blocks[0].attention, torch.randn(64, 12, 24)
    dropped = (attention(x, None, 1) == 0).float().mean()
    # 1536 coordinates of the output, each zeroed with probability 1/2: five standard deviations are
    # 0.064
    assert abs(float(dropped) - 0.5) < 0.064
    attention.output = nn.Identity()
    kept = attention(x, None, 1)
    twice = torch.stack([attention(x, None, 1) for _ in range(2)])
    # even where outputs survive, weights were dropped
    assert not torch.equal(twice[0][twice.all(dim=0)], twice[1][twice.all(dim=0)])
    assert kept.shape == (64, 1, 24)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"heads": 5}, "do not divide"),
        ({"depth": 0}, "depth is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"hidden": -1}, "hidden is -1"),
    ],
)
def test_sizes_that_make_no_model(arguments, told):
    with pytest.raises(InputError, match=told):
        TextClassifier(**({"vocabulary": 10, "length": 4, "width": 12, "heads": 3} | arguments))


def test_shapes_that_do_not_fit(model):
    with pytest.raises(InputError, match=r"takes \(n, T\) with T from 1 to 12"):
        model(torch.ones(2, 13, dtype=torch.long))
    with pytest.raises(InputError, match="one mask entry per id"):
        model(torch.ones(2, 5, dtype=torch.long), torch.ones(2, 4))
