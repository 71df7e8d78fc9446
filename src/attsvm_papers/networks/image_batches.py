"""Images on their way into a model: crops and flips at random, size, and normalisation of the
channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Pixels(nn.Module):
    """A classifier of 8-bit images: brings them to its size and scale, then calls the network.

    Args:
        network: takes ``(n, channels, side, side)`` numbers of mean 0 and deviation 1 per channel.
        mean: of every channel, for values in [0, 1].
        std: deviation of every channel.
        side: pixels of a side to which images are resized (bilinear).

    Source: with ``side=48`` and a ``VisionTransformer``, the vision experiment
    of *Optimizing Attention with Mirror Descent*.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        side: int,
    ) -> None:
        super().__init__()
        self.network = network
        self.side = side
        for name, values in (("mean", mean), ("std", std)):
            channels = torch.tensor(values, dtype=torch.float32)[:, None, None]
            self.register_buffer(name, channels, persistent=False)

    def prepared(self, images: Tensor) -> Tensor:
        """The network's inputs ``(n, channels, side, side)`` of images
        ``(n, channels, height, width)`` with values 0 to 255.
        """
        values = images.to(self.mean.dtype) / 255
        if images.shape[-1] != self.side:
            values = F.interpolate(values, size=(self.side, self.side), mode="bilinear")
        return (values - self.mean) / self.std

    def forward(self, images: Tensor) -> Tensor:
        """The network's class scores of images ``(n, channels, height, width)`` with values 0 to
        255.
        """
        return self.network(self.prepared(images))


def draw_shifts(n: int, side: int, seed: int, epoch: int) -> Tensor:
    """Row and column at which every crop begins, and whether it is mirrored ``(3, n)``; a function
    of seed and epoch alone.
    """
    generator = np.random.default_rng([seed, epoch, 1])
    corners = generator.integers(0, 2 * (side // 8) + 1, size=(2, n))
    return torch.from_numpy(np.concatenate([corners, generator.integers(0, 2, size=(1, n))]))


def cropped_and_flipped(images: Tensor, shifts: Tensor) -> Tensor:
    """Images ``(n, channels, side, side)`` with a black border of an eighth of their side, cropped
    where ``shifts`` ``(3, n)`` says.
    """
    n, channels, side, _ = images.shape
    steps = torch.arange(side, device=images.device)
    rows, columns = shifts[0, :, None] + steps, shifts[1, :, None] + steps
    columns = torch.where(shifts[2, :, None] == 1, columns.flip(1), columns)
    padded = F.pad(images, (side // 8,) * 4)
    image, channel = (torch.arange(size, device=images.device) for size in (n, channels))
    return padded[
        image[:, None, None, None],
        channel[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
