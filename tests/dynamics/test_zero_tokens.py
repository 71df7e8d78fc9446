"""Joint training when attention selects a zero token: the head's gradient is all in what attention
leaves to the others.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from attsvm.data import AttentionData
from attsvm.dynamics import LogSpaced, train
from attsvm.models import Attention, Exponential, FunctionLoss, Linear, Logistic, LogScale, Loss
from attsvm.optim import SteepestDescent

# Tokens and weights with few bits, so that logits are free of rounding and what is tested is the
# gradient.
TOKENS = np.array([[[0, 0], [-1, -0.5], [-1.5, 0.25]], [[-2, 1], [0, 0], [-1, 0.5]]])
DATA = AttentionData(TOKENS, [1, -1], np.ones((2, 1)))
HEAD = np.array([0.75, -1.25])


def exact_head_gradient(p: np.ndarray, loss: Loss) -> tuple[np.ndarray, float]:
    """Direction of the head's gradient and the logarithm of its norm, in as many digits as it
    takes.
    """
    with mpmath.workdps(60 + int(10 * np.abs(p).max())):
        total = mpmath.zeros(2, 1)
        for X, y in zip(TOKENS, DATA.labels, strict=True):
            a = [
                mpmath.fsum(mpmath.mpf(x) * mpmath.mpf(w) for x, w in zip(row, p, strict=True))
                for row in X.tolist()
            ]
            e = [mpmath.exp(t - max(a)) for t in a]
            output = [
                mpmath.fsum(w * row[k] for w, row in zip(e, X.tolist(), strict=True))
                / mpmath.fsum(e)
                for k in range(2)
            ]
            u = float(y) * mpmath.fsum(
                o * mpmath.mpf(w) for o, w in zip(output, HEAD.tolist(), strict=True)
            )
            slopes = {
                Logistic: -1 / (1 + mpmath.exp(u)),
                Exponential: -mpmath.exp(-u),
                Linear: mpmath.mpf(-1),
            }
            slope = slopes[type(loss)] if type(loss) in slopes else -1 / (1 + u * u)
            for k in range(2):
                total[k] += slope * float(y) * output[k] / 2
        norm = mpmath.sqrt(mpmath.fsum(x * x for x in total))
        return np.array([float(x / norm) for x in total]), float(mpmath.log(norm))


@pytest.mark.parametrize(
    "loss", [Logistic(), Exponential(), Linear(), FunctionLoss(lambda u: torch.atan(-u))], ids=repr
)
@pytest.mark.parametrize("size", [1.0, 64.0, 512.0, 2.0**20])
def test_head_gradient_against_extended_precision(loss: Loss, size: float) -> None:
    p = size * np.array([1.0, 0.125])
    model, scale = (
        Attention.cross(DATA, HEAD, intercept=None, init=p[:, None], train_head=True, loss=loss),
        LogScale(),
    )
    if size < 1e5:
        assert (model.selected(DATA).numpy() == [0, 1]).all()
    model.loss(DATA, scale).backward()
    gradient = model.head.readout.grad.numpy()[:, 0]
    norm = np.linalg.norm(gradient)
    if size > 1e5:  # e^-1e6: beyond what extended precision does quickly, but no less exact
        assert 1e-3 < norm < 10.0
        assert float(scale.head) == pytest.approx(-0.9375 * size, rel=1e-5)
        return
    unit, log_norm = exact_head_gradient(p, loss)
    np.testing.assert_allclose(gradient / norm, unit, atol=1e-13)
    assert float(scale.head) + np.log(norm) == pytest.approx(log_norm, abs=1e-12, rel=1e-13)


@pytest.mark.parametrize("loss", ["logistic", "exponential", "linear"])
@pytest.mark.parametrize("size", [1.0, 2048.0])
def test_a_step_of_the_head_is_the_same_on_both_paths(size: float, loss: str) -> None:
    weights = []
    for backend in ("compiled", "autograd"):
        model = Attention.cross(
            DATA,
            HEAD,
            None,
            init=size * np.array([[1.0], [0.125]]),
            train_head=True,
            loss=loss,
        )
        train(
            model,
            DATA,
            SteepestDescent(model.parameters(), lr=0.25),
            1,
            LogSpaced(1),
            backend=backend,
        )
        weights.append([value.detach().numpy().copy() for _, value in model.named_parameters()])
        assert np.linalg.norm(weights[-1][1][..., 0] - HEAD) == pytest.approx(0.25, rel=1e-12)
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
