"""Step lengths by run under mirror descent: a batch is its runs, each with a step length of its
own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.optim import MirrorDescent
from attsvm.training import AtSteps, Trajectory, train

DATA, V = unit_sphere(4, 5, 6, [0, 1, 2])
START = 0.3 * np.random.default_rng(0).standard_normal((3, 6, 6))
SHARES = [1.0, 0.3, 0.7]


def mirror(
    steps: int,
    scale: Any,
    run: int | None = None,
    lr: float = 0.05,
    backend: str = "auto",
    **options: Any,
) -> Trajectory:
    """All runs, or one of them alone; head and weights are trained."""
    data, head, start = (
        (DATA, V, START) if run is None else (DATA.instance(run), V[run], START[run])
    )
    model = Attention.cross(data, head, 0.1, init=start, train_head=True)
    optimizer = MirrorDescent(model.parameters(), lr=lr, **options)
    return train(model, data, optimizer, steps, AtSteps([steps]), backend=backend, step_scale=scale)


@pytest.mark.parametrize("p", [1.1, 2.0, 3.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": True},
        {"normalize": True, "eps": 0.1},
        {"normalize": True, "momentum": 0.9},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decay_mode": "l2", "normalize": True},
        {"potential": "schatten", "normalize": True},
    ],
)
def test_runs_of_torch_are_those_of_their_own_rate(p: float, options: dict[str, Any]) -> None:
    # A dual is old + share * (new - old) in place of old - share * step: two roundings more a step,
    # of which the weights see 1/(p - 1). Singular vectors are computed anew for every dual, to some
    # tens of roundings.
    rounding = (
        2.0
        * np.finfo(np.float64).eps
        / min(p - 1.0, 1.0)
        * (100.0 if "potential" in options else 1.0)
    )
    for steps in (1, 10):
        together = mirror(steps, SHARES, p=p, backend="autograd", **options)
        for r, share in enumerate(SHARES):
            alone = mirror(steps, None, r, 0.05 * share, p=p, backend="autograd", **options)
            for mine, own in (
                (together.W[-1, r], alone.W[-1]),
                (together.head[-1, r], alone.head[-1]),
            ):
                assert np.abs(mine - own).max() <= steps * rounding * np.abs(own).max()


def test_decay_of_the_weights_is_no_multiple_of_a_step() -> None:
    options = {"weight_decay": 0.1, "decay_mode": "primal"}
    with pytest.raises(InputError, match="decay_mode='primal'"):
        mirror(2, SHARES, p=1.5, **options)
    assert mirror(2, SHARES, p=2.0, **options).steps[-1] == 2  # there it is
