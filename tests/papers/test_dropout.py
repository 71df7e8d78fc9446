"""Dropout by bytes: what it keeps, how often, and what passes back."""

import pytest
import torch

from attsvm_papers.networks.dropout import Dropout, dropout


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_entries_are_dropped_as_often_as_asked_and_means_stay(share) -> None:
    torch.manual_seed(0)
    n = 400_003  # no multiple of eight
    found = dropout(torch.ones(n, dtype=torch.float64), share)
    rounded = round(256 * share) / 256
    spread = 5 * (rounded * (1 - rounded) / n) ** 0.5
    assert abs(float((found == 0).double().mean()) - rounded) < spread
    assert set(found.unique().tolist()) == {0.0, 1 / (1 - rounded)}
    # a draw without its sign bit would drop every eighth entry twice as often
    columns = (found[: n - 3].view(-1, 8) == 0).double().mean(dim=0)
    assert float((columns - rounded).abs().max()) < 8**0.5 * spread


def test_gradients_pass_where_entries_were_kept() -> None:
    x = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    found = dropout(x, 0.4)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(gradient * x.detach(), found.detach())
    assert 0 < int((gradient == 0).sum()) < 77


def test_the_seed_decides_and_evaluation_drops_nothing() -> None:
    layer, x, found = Dropout(0.5), torch.ones(64), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(layer(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(layer.eval()(x), x)
    assert dropout(x, 0.001) is x, "less than a 512th is none"
    assert bool(dropout(x, 0.999).isfinite().all())
