"""Crops and flips against slices written out, and pixels that reach the network with mean 0 and
deviation 1.
"""

import numpy as np
import pytest
import torch
from torch import nn

from attsvm.errors import InputError
from attsvm.training import Pixels
from attsvm.training.augmentation import cropped_and_flipped, draw_shifts


def test_crops_and_flips_are_slices_of_the_padded_image():
    images = torch.randint(
        0, 256, (30, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    shifts = draw_shifts(30, 16, seed=1, epoch=2)
    found = cropped_and_flipped(images, shifts)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for k in range(30):
        row, column, mirrored = shifts[:, k].tolist()
        crop = padded[k, :, row : row + 16, column : column + 16]
        assert np.array_equal(found[k].numpy(), crop[..., ::-1] if mirrored else crop)


def test_shifts_are_of_seed_and_epoch_and_cover_their_range():
    shifts = draw_shifts(2000, 32, 0, 0)
    assert torch.equal(shifts, draw_shifts(2000, 32, 0, 0))
    assert not torch.equal(shifts, draw_shifts(2000, 32, 0, 1))
    # four pixels either way
    assert [sorted(set(row.tolist())) for row in shifts] == [list(range(9)), list(range(9)), [0, 1]]


def test_the_network_sees_normalised_channels():
    model = Pixels(nn.Identity(), (0.2, 0.6), (0.1, 0.5))
    # 0.2 and 0.6 of 255
    images = torch.tensor([51, 153], dtype=torch.uint8).view(1, 2, 1, 1).expand(1, 2, 4, 4)
    assert model(images).abs().max() < 1e-6
    brighter = model(images + torch.tensor([51, 51], dtype=torch.uint8).view(2, 1, 1))
    torch.testing.assert_close(brighter[0, :, 0, 0], torch.tensor([2.0, 0.4]), rtol=1e-5, atol=1e-6)


def test_resizing_keeps_a_ramp_a_ramp():
    ramp = torch.arange(0, 128, 8, dtype=torch.uint8).expand(1, 1, 16, 16)
    prepared = Pixels(nn.Identity(), (0.0,), (1.0,), side=24).prepared(ramp)
    steps = prepared[0, 0, 0].diff()[1:-1]
    assert prepared.shape == (1, 1, 24, 24)
    torch.testing.assert_close(
        steps, torch.full_like(steps, 8 / 255 * 16 / 24), rtol=1e-4, atol=1e-6
    )


def test_channels_and_shapes_that_do_not_fit():
    with pytest.raises(InputError, match="mean has 2 and std 1"):
        Pixels(nn.Identity(), (0.1, 0.2), (0.1,))
    with pytest.raises(InputError, match="square images"):
        cropped_and_flipped(torch.zeros(2, 3, 8, 9), draw_shifts(2, 8, 0, 0))
