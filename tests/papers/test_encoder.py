"""The vision transformer: its attention is torch's, its rows are distributions, and without
positions it does not see order.
"""

import pytest
import torch
from torch.nn import functional as F

from attsvm.base.errors import InputError
from attsvm_papers.networks.classifiers import SelfAttention, VisionTransformer, soft_sparsity


@pytest.fixture
def model():
    torch.manual_seed(0)
    return VisionTransformer(8, 2, channels=3, classes=5, width=24, depth=3, heads=4).double()


@pytest.fixture
def images():
    return torch.randn(6, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_attention_is_that_of_torch():
    torch.manual_seed(0)
    ours, theirs = (
        SelfAttention(12, 3, 4),
        torch.nn.MultiheadAttention(12, 3, bias=True, batch_first=True),
    )
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([ours.query.weight, ours.key.weight, ours.value.weight])
        )
        theirs.in_proj_bias.zero_()
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    x = torch.randn(2, 7, 12)
    expected, rows = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.rows(x), rows, rtol=1e-5, atol=1e-6)


def test_patches_are_read_row_by_row(model):
    image = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    # second row of patches, third column: patch 6, token 7
    image[0, :, 2:4, 4:6] = torch.randn(3, 2, 2, dtype=torch.float64)
    blank = model.tokens(torch.zeros_like(image))
    changed = (model.tokens(image) - blank).abs().amax(dim=(0, 2)) > 0
    assert changed.nonzero().flatten().tolist() == [1 + 6]


def test_without_positions_shuffled_patches_shuffle_the_rows_and_change_no_score(model, images):
    with torch.no_grad():
        model.positions.zero_()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    patches = F.unfold(images, 2, stride=2)
    shuffled = F.fold(patches[..., order], 8, 2, stride=2)
    torch.testing.assert_close(model(shuffled), model(images), rtol=1e-12, atol=1e-13)
    rows, moved = model.cls_rows(images), model.cls_rows(shuffled)
    torch.testing.assert_close(moved[..., 0], rows[..., 0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(moved[..., 1:], rows[..., 1:][..., order], rtol=1e-12, atol=1e-13)


def test_dropout_is_off_unless_asked_for(images):
    model = VisionTransformer(8, 2, channels=3, width=16).double()
    assert torch.equal(model(images), model.train()(images))
    dropping = VisionTransformer(8, 2, channels=3, width=16, dropout=0.5).double()
    assert not torch.equal(dropping(images), dropping(images))
    dropping.eval()
    assert torch.equal(dropping(images), dropping(images))


def test_the_norm_is_that_of_the_stacked_weights(model):
    attention = model.blocks[1].attention
    both = torch.cat([attention.query.weight, attention.key.weight])
    torch.testing.assert_close(model.query_key_norms()[1], both.norm())


def test_the_sizes_of_the_mirror_descent_paper():
    with torch.device("meta"):
        model = VisionTransformer(
            48, 4, channels=3, width=512, depth=6, heads=8, hidden=512, dropout=0.1
        )
    # the paper's 9.56 million
    assert sum(parameter.numel() for parameter in model.parameters()) == 9_565_802
    # its histograms of query weights
    assert sum(block.attention.query.weight.numel() for block in model.blocks) == 1_572_864


def test_soft_sparsity_counts_tokens():
    for rows in (
        torch.tensor([0.0, 1.0, 0.0, 0.0]),
        torch.full((4,), 0.25),
        torch.tensor([0.5, 0.5, 0.0, 0.0]),
    ):
        tokens = float((rows > 0).sum())
        assert [float(spread) for spread in soft_sparsity(rows)] == [tokens, tokens]
    rows = torch.softmax(torch.randn(100, 9, generator=torch.Generator().manual_seed(0)), dim=-1)
    largest, squares = soft_sparsity(rows)
    assert bool((largest >= 1).all())
    assert bool((squares >= largest - 1e-5).all())  # sum s^2 <= max s; float32
    assert bool((squares <= 9 + 1e-4).all())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"patch": 3}, "patches of 3 pixels do not tile a side of 8; choose a divisor of 8"),
        ({"heads": 5}, "5 heads do not divide the width 64; choose a divisor of 64"),
        ({"depth": 0}, "depth is 0; give at least 1"),
    ],
)
def test_arguments_that_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        VisionTransformer(**{"side": 8, "patch": 2, **arguments})


def test_images_of_another_shape_are_refused(model):
    with pytest.raises(
        InputError, match=r"images have shape \(2, 1, 8, 8\); this model takes \(n, 3, 8, 8\)"
    ):
        model(torch.zeros(2, 1, 8, 8, dtype=torch.float64))
