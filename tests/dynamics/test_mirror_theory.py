"""What mirror descent is for: trained in the potential of a norm, attention finds the max-margin
direction of that norm.

Data and numbers are those of the published experiments (*Optimizing Attention with Mirror
Descent*): six sequences of eight tokens on the unit sphere of ten dimensions, normalised steps of
0.1 from W = 0 with the head that was drawn.
"""

from __future__ import annotations

import numpy as np
import pytest
from references import extended_descent

from attsvm.datasets import unit_sphere
from attsvm.models import Attention
from attsvm.optim import MirrorDescent

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
LATER = {
    3.0: {
        4000: (-3.600, -1.383),
        8000: (-5.253, -2.016),
        13000: (-6.804, -2.522),
        20000: (-8.517, -3.011),
    }
}
# The published ends of the other two, (-6.296, -0.465) at 1500 and (-7.503, -1.235) at 2000, are no
# numbers to reproduce: there the gradient (1.6e-18 and 5.9e-18) is far below the epsilon added to
# its norm, and what a plain softmax gives is its own roundings. Eight orders of the same operations
# in float64 end between (-6.45, -0.47) and (-6.27, -0.44). What the algorithm itself does is
# decided by extended precision, below.
ENDS = {1.75: 1500, 2.0: 2000}


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


@pytest.mark.parametrize("p", sorted(TRAJECTORIES))
def test_published_trajectories_are_reproduced_and_the_recurrence_is_followed(p: float) -> None:
    expected, end = TRAJECTORIES[p], ENDS.get(p)
    found = followed(p, [*expected, *([] if end is None else [end])])
    for step, place in expected.items():
        np.testing.assert_allclose(found[step], place, atol=1e-2)  # the digits printed
    if end is not None:  # 2 000 steps of float64 stay within 1e-9 of 80 bits
        data, v = unit_sphere(6, 8, 10, seed=1)
        W = extended_descent(data, v, np.zeros((10, 10)), [end], p=p, epsilon=2.0**-52)[end]
        np.testing.assert_allclose(found[end], (W[1, 2], W[3, 4]), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("p", sorted(LATER))
def test_published_trajectories_are_reproduced_to_their_ends(p: float) -> None:
    found = followed(p, list(LATER[p]))
    for step, place in LATER[p].items():
        np.testing.assert_allclose(found[step], place, atol=1e-2)
