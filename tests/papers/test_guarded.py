"""The released optimiser, against its formula."""

import numpy as np
import torch

from attsvm_papers.tfsvm.guarded import EPSILON, GuardedDescent


def test_large_gradients_give_steps_of_length_lr_and_tiny_ones_shrink() -> None:
    weights = torch.nn.Parameter(torch.zeros(2, 2, 3, dtype=torch.float64))
    direction = torch.tensor(np.random.default_rng(0).standard_normal((2, 3)))
    direction /= torch.linalg.matrix_norm(direction)
    weights.grad = torch.stack([5.0 * direction, EPSILON * direction])
    GuardedDescent([weights], 0.1).step()
    moved = torch.linalg.matrix_norm(weights.detach())
    # At the guard's own size the step is halved; 1e-12 is rounding.
    assert torch.allclose(moved, torch.tensor([0.1, 0.05], dtype=torch.float64), rtol=1e-12, atol=0)
