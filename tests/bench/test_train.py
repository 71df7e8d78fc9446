"""The textbook loop is the training that the batched path speeds up, and the table compares their
rates.
"""

import numpy as np

from attsvm.bench import train
from attsvm.bench.record import Cells


def test_the_loop_and_the_batched_path_descend_alike():
    from attsvm.datasets import unit_sphere
    from attsvm.dynamics import LogSpaced
    from attsvm.dynamics import train as batched
    from attsvm.models import Attention
    from attsvm.optim import SteepestDescent

    data, v = unit_sphere(*train._SIZE, seed=0)
    model = Attention.cross(data, v)
    batched(model, data, SteepestDescent(model.parameters(), lr=train._LR), 30, LogSpaced(2))
    ours = model.state_dict()["W"].numpy().reshape(10, 10)
    # Before saturation the two gradients differ by rounding and by the epsilon in the loop's
    # divisor.
    np.testing.assert_allclose(ours, train.textbook(data, v, 30), atol=1e-12)


def test_rates_are_given_beside_the_loop(monkeypatch):
    figures = {
        train._LOOP: {"cpu": 2.0, "wall": 2.0, "seed_steps": 100},
        "batched": {"cpu": 1.0, "wall": 1.0, "seed_steps": 5000},
    }
    figures["step"] = {"cpu": 0.5, "wall": 0.25, "seed_steps": 0}
    monkeypatch.setattr(
        train,
        "jobs",
        lambda threads, quick: {name: lambda name=name: figures[name] for name in figures},
    )
    text = train.table(train.run(1, Cells(None), lambda *_: None, quick=True))
    assert "5000/s (100x)" in text
    assert "| step " in text
