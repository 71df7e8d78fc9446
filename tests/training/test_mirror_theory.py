"""What mirror descent is for: trained in the potential of a norm, attention finds the max-margin
direction of that norm.

Data and numbers are those of the published experiments (*Optimizing Attention with Mirror
Descent*): six sequences of eight tokens on the unit sphere of ten dimensions, normalised steps of
0.1 from W = 0 with the head that was drawn.
"""

from __future__ import annotations

import numpy as np
import pytest
from references import extended_descent, needs_wide

from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.optim import MirrorDescent
from attsvm.training import train

TRAJECTORIES = {  # (W_12, W_34) counted from zero
    1.75: {
        140: (-1.019, 0.011),
        225: (-2.458, -0.064),
        310: (-4.179, -0.216),
        425: (-5.812, -0.377),
    },
    2.0: {
        300: (-1.773, -0.174),
        500: (-3.378, -0.476),
        700: (-5.016, -0.781),
        900: (-6.573, -1.068),
    },
    3.0: {1500: (-2.053, -0.709)},
}


def followed(p: float, marks: list[int]) -> dict[int, tuple[float, float]]:
    """(W_12, W_34) at these steps under the published settings: machine epsilon added to the dual
    norm.
    """
    data, v = unit_sphere(6, 8, 10, seed=1)
    model = Attention.cross(data, v, intercept=None)
    sequences = model.sequences(data)
    optimizer = MirrorDescent(model.parameters(), lr=0.1, p=p, normalize=True, eps=2.0**-52)
    found = {}
    for step in range(1, max(marks) + 1):
        optimizer.zero_grad()
        model.loss(sequences).backward()
        optimizer.step()
        if step in marks:
            W = model.W.detach()
            found[step] = float(W[1, 2]), float(W[3, 4])
    return found


@pytest.mark.parametrize("p", TRAJECTORIES)
def test_published_trajectories_are_reproduced(p: float) -> None:
    found = followed(p, list(TRAJECTORIES[p]))
    for step, place in TRAJECTORIES[p].items():
        np.testing.assert_allclose(found[step], place, atol=1e-2)  # the digits printed


@needs_wide
@pytest.mark.parametrize("p", [1.5, 1.75, 3.0])
@pytest.mark.parametrize("size", [1.0, 2500.0])
def test_steps_are_exact_where_gradients_are_far_below_the_smallest_number(
    p: float, size: float
) -> None:
    data, v = unit_sphere(4, 5, 6, 3)
    start = size * np.random.default_rng(1).standard_normal((6, 6))
    model = Attention.cross(data, v, None, init=start)
    lr = 0.01 * size ** (p - 1)
    trajectory = train(
        model, data, MirrorDescent(model.parameters(), lr=lr, p=p, normalize=True), 5
    )
    if size > 1.0:
        assert trajectory.log_gradient_norm[0] < -750.0
    expected = extended_descent(data, v, start, [5], lr, p)[5]
    moved = np.abs(expected - start).max()
    # Logits of 2500 are rounded at 1e-13, and attention by as much.
    assert np.abs(trajectory.W[-1] - expected).max() < 1e-12 * moved * size
