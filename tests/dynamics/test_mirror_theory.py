"""What mirror descent is for: trained in the potential of a norm, attention finds the max-margin
direction of that norm.

Data and numbers are those of the published experiments (*Optimizing Attention with Mirror
Descent*): six sequences of eight tokens on the unit sphere of ten dimensions, normalised steps of
0.1 from W = 0 with the head that was drawn.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import Lp, PowerPotential, max_margin, optimal_tokens, selection_margins
from attsvm.datasets import unit_sphere
from attsvm.dynamics import LogSpaced, train
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


def extended_end(p: float, steps: int) -> tuple[float, float]:
    """The published recurrence, machine epsilon and all, in 80-bit numbers and with differences to
    the selected token.
    """
    data, v = unit_sphere(6, 8, 10, seed=1)
    wide = np.longdouble
    X, Z, scores = (
        np.asarray(a, wide)
        for a in (data.tokens, data.queries, data.labels[:, None] * (data.tokens @ v))
    )
    exponent, rate, epsilon = wide(p), wide(0.1), wide(2.0) ** -52
    dual, W = exponent / (exponent - 1), np.zeros((10, 10), wide)
    for _ in range(steps):
        logits = ((X @ W) * Z[:, None, :]).sum(axis=-1)
        best = (np.arange(6), logits.argmax(axis=1))
        weights = np.exp(logits - logits[best][:, None])
        weights /= weights.sum(axis=1, keepdims=True)
        below = scores - scores[best][:, None]
        slope = -1 / (6 * (1 + np.exp((weights * scores).sum(axis=1))))
        moved = slope[:, None] * weights * (below - (weights * below).sum(axis=1, keepdims=True))
        gradient = np.einsum("nt,ntd,ne->de", moved, X - X[best][:, None], Z)
        size = (np.abs(gradient) ** dual).sum() ** (1 / dual)
        image = np.sign(W) * np.abs(W) ** (exponent - 1) - rate * gradient / (size + epsilon)
        W = np.sign(image) * np.abs(image) ** (1 / (exponent - 1))
    return float(W[1, 2]), float(W[3, 4])


@pytest.mark.parametrize("p", sorted(TRAJECTORIES))
def test_published_trajectories_are_reproduced_and_the_recurrence_is_followed(p: float) -> None:
    expected, end = TRAJECTORIES[p], ENDS.get(p)
    found = followed(p, [*expected, *([] if end is None else [end])])
    for step, place in expected.items():
        np.testing.assert_allclose(found[step], place, atol=1e-2)  # the digits printed
    if end is not None:  # 2 000 steps of float64 stay within 1e-9 of 80 bits
        np.testing.assert_allclose(found[end], extended_end(p, end), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("p", sorted(LATER))
def test_published_trajectories_are_reproduced_to_their_ends(p: float) -> None:
    found = followed(p, list(LATER[p]))
    for step, place in LATER[p].items():
        np.testing.assert_allclose(found[step], place, atol=1e-2)


def test_every_p_has_the_best_margin_in_its_own_norm_and_its_own_direction() -> None:
    """Per seed and norm; and the direction of each run goes to the solution of its own norm."""
    # seeds on which all three select the optimal tokens
    exponents, seeds = [1.75, 2.0, 3.0], [1, 3, 5]
    data, v = unit_sphere(6, 8, 10, seed=seeds)
    weights = []
    for p, lr, steps in zip(exponents, (0.1, 0.5, 10.0), (1500, 1000, 1000), strict=True):
        model = Attention.cross(data, v, intercept=None)
        optimizer = MirrorDescent(model.parameters(), lr=lr, p=p, normalize=True)
        weights.append(train(model, data, optimizer, steps, LogSpaced(2)).W[-1])
    for run in range(len(seeds)):
        one = data.instance(run)
        margins = selection_margins(one, optimal_tokens(one, v[run]))
        for column, q in enumerate(exponents):
            best = max_margin(margins, norm=Lp(q)).W
            ratios = [
                margins(W[run]).min() / Lp(q).value(W[run]) * Lp(q).value(best) for W in weights
            ]
            gaps = [
                float(
                    PowerPotential(q).bregman(
                        best / Lp(q).value(best), W[run] / Lp(q).value(W[run])
                    )
                )
                for W in weights
            ]
            assert int(np.argmax(ratios)) == column
            assert int(np.argmin(gaps)) == column
            assert min(gaps) < 2e-3


def test_gradients_below_the_smallest_number_still_give_whole_steps() -> None:
    data, v = unit_sphere(6, 8, 10, seed=[0, 1])
    model = Attention.cross(data, v)
    trajectory = train(
        model,
        data,
        MirrorDescent(model.parameters(), lr=5.0, p=1.75, normalize=True),
        400,
        LogSpaced(4),
    )
    assert (trajectory.log_gradient_norm[-1] < np.log(np.finfo(float).tiny)).all()
    assert (np.diff(trajectory.norm, axis=0) > 0).all()
