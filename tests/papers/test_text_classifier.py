"""The sentiment model: its size, its padding, its attention, and that leaving out what [CLS] does
not read changes nothing.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
    mask = torch.arange(12) < torch.tensor([12, 7, 1, 9, 3])[:, None]
    return torch.randint(1, 50, (5, 12), generator=generator) * mask, mask


def published(model, ids, mask):
    """Logits and the attention of [CLS] as the published code computes them: every row of every
    block, padding hidden from queries and keys except key 0.
    """
    visible = mask[:, None, :, None] & mask[:, None, None, :]
    visible[..., 0] = True
    x, seen = F.embedding(ids, model.embedding.weight) + model.positions[: ids.shape[1]], []
    for block in model.blocks:
        heads, width = block.attention.heads, x.shape[-1]
        query, key, value = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in block.attention.qkv(x).split(width, dim=-1)
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(width // heads)
        rows = torch.softmax(logits.masked_fill(~visible, -torch.inf), dim=-1)
        seen.append(rows[:, :, 0])
        mixed = block.attention.output((rows @ value).transpose(1, 2).flatten(-2))
        x = F.layer_norm(x + mixed, (width,), block.after_attention.weight)
        first, _, second, _ = block.network
        x = F.layer_norm(x + second(F.gelu(first(x))), (width,), block.after_network.weight)
    return model.readout(x[:, 0])[:, 0], torch.stack(seen, dim=1)


@pytest.mark.parametrize(("blocks", "millions"), [(3, 17.23), (4, 19.00), (6, 22.54)])
def test_the_sizes_of_the_mirror_descent_paper(blocks, millions):
    with torch.device("meta"):
        model = TextClassifier(depth=blocks, heads=blocks)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 2) == millions
    # 884 736 for Q, K, V of six
    assert sum(block.attention.qkv.weight.numel() for block in model.blocks) == blocks * 3 * 147_456
    assert model.blocks[0].attention.dropout == model.blocks[0].network[-1].p == 0.2
    # so mirror descent, which freezes zeros, freezes none of them
    assert all("bias" not in name for name, _ in model.named_parameters())


def test_logits_gradients_and_attention_are_those_of_the_published_computation(model, batch):
    found, (expected, rows) = model(*batch), published(model, *batch)
    torch.testing.assert_close(found, expected, **TIGHT)
    torch.testing.assert_close(model.cls_rows(*batch), rows, **TIGHT)
    assert not model.cls_rows(*batch)[~batch[1][:, None, None].expand_as(rows)].any()
    gradients = (
        torch.autograd.grad(each.sum(), [*model.parameters()]) for each in (found, expected)
    )
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **TIGHT)


def test_padding_changes_nothing(model, batch):
    ids, mask = batch
    torch.testing.assert_close(model(torch.where(mask, ids, 13), mask), model(ids, mask), **TIGHT)
    for row, length in enumerate(mask.sum(dim=1)):
        alone = model(ids[row : row + 1, :length])
        torch.testing.assert_close(alone, model(ids, mask)[row : row + 1], **TIGHT)
    torch.testing.assert_close(model(ids, 0 * mask), model(ids[:, :1]), **TIGHT)  # key 0 is seen


def test_training_drops_attention_weights_and_outputs(model, batch):
    """With dropout on attention weights alone the residual stream keeps every coordinate; the three
    places differ in what they touch.
    """
    rows, dropped = model.cls_rows(*batch), model.train().cls_rows(*batch)
    assert torch.equal(dropped[:, 0], rows[:, 0]), "rows are taken before dropout"
    assert not torch.equal(dropped[:, 1], rows[:, 1]), "and later ones are moved by it"
    torch.manual_seed(0)
    model = TextClassifier(50, 12, width=24, depth=1, heads=4, hidden=40, dropout=0.5).train()
    attention, x = model.blocks[0].attention, torch.randn(64, 12, 24)
    # 1536 coordinates of the output, each zeroed with probability 1/2: five standard deviations
    assert abs(float((attention(x, None, 1) == 0).float().mean()) - 0.5) < 0.064
    attention.output = nn.Identity()
    twice = torch.stack([attention(x, None, 1) for _ in range(2)])
    # even where outputs survive, weights were dropped
    assert not torch.equal(twice[0][twice.all(dim=0)], twice[1][twice.all(dim=0)])
