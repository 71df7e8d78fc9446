"""One step weighs every sequence by its slope; steps of factors of their own have a floor."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.data import AttentionData
from attsvm.dynamics import AtSteps, train
from attsvm.models import Attention
from attsvm.optim import MirrorDescent, SteepestDescent


def gradients(
    data: AttentionData, W: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Minus the slope of the mean logistic loss: the part of every sequence in that of W,
    ``(n, d_x, d_z)``, its part in that of the head, and |l'|; as the papers write them.
    """
    logits = np.einsum("itd,de,ie->it", data.tokens, W, data.queries)
    s = np.exp(logits - logits.max(axis=1, keepdims=True))
    s /= s.sum(axis=1, keepdims=True)
    scores = data.labels[:, None] * (data.tokens @ v)
    margin = (s * scores).sum(axis=1)
    slope = 1.0 / (1.0 + np.exp(margin))
    a = slope[:, None] * s * (scores - margin[:, None]) / data.n
    outputs = (slope * data.labels / data.n)[:, None] * np.einsum("it,itd->id", s, data.tokens)
    return np.einsum("it,itd,ie->ide", a, data.tokens, data.queries), outputs, slope


@pytest.mark.parametrize("backend", ["compiled", "autograd"])
@pytest.mark.parametrize("form", ["W", "factors", "head", "mirror"])
def test_one_step_weighs_every_sequence_by_its_slope(form: str, backend: str) -> None:
    # Slopes of the loss differ by a factor of thirty here, and every sequence has a say.
    rng = np.random.default_rng(30)
    n, T, d, v = 4, 5, 4, 2.0 * rng.standard_normal(4)
    data = AttentionData(
        rng.standard_normal((n, T, d)),
        np.array([1.0, -1.0, 1.0, -1.0]),
        rng.standard_normal((n, d)),
    )
    K, Q = 0.3 * rng.standard_normal((2, d, d))
    W = K @ Q.T if form == "factors" else K
    parts, of_head, slope = gradients(data, W, v)
    ascent = parts.sum(axis=0)
    assert slope.max() > 30 * slope.min()
    assert (np.linalg.norm(parts, axis=(1, 2)) > 0.01 * np.linalg.norm(ascent)).all()
    if form == "factors":
        model = Attention.cross(data, v, parameterization="KQ", stacked=False, init=(K, Q))
        wanted = {"K": K + ascent @ Q, "Q": Q + ascent.T @ K}
    else:
        model = Attention.cross(data, v, init=W, train_head=form == "head", intercept=None)
        wanted = {"W": W + ascent}
    optimizer: SteepestDescent | MirrorDescent = SteepestDescent(
        model.parameters(), lr=1.0, normalize=False
    )
    if form == "head":
        wanted["head.readout"] = (v + of_head.sum(axis=0))[:, None]
    if form == "mirror":
        optimizer = MirrorDescent(model.parameters(), lr=1.0, p=3.0)
        moved = np.sign(W) * W**2 + ascent
        wanted["W"] = np.sign(moved) * np.sqrt(np.abs(moved))
    how = "autograd" if backend == "autograd" else "auto"
    assert train(model, data, optimizer, 1, AtSteps([1]), backend=how).backend == backend
    for name, value in wanted.items():
        found = model.get_parameter(name).detach().numpy()
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-12)
