"""One rate for a whole model: every trained parameter moves, by steps of one size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attsvm.base.errors import InputError
from attsvm.optim import MirrorDescent, for_model


class Model(nn.Module):
    """Queries and keys of other shapes than the rest, and one parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"q_proj": nn.Linear(16, 8), "k_proj": nn.Linear(16, 64)})
        self.last = nn.Linear(72, 3)
        self.still = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([layer(x) for layer in self.attention.values()], dim=-1))


def test_the_first_step_of_every_matrix_is_a_fifth_of_the_rate_of_adamw() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = for_model(model, lr=0.01, weight_decay=0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # generic gradients: those of a loss over three outputs would have a rank of three
    for p in model.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad else None
    optimizer.step()
    for name, p in model.named_parameters():
        size = float((p.detach() - before[name]).square().mean().sqrt())
        is_spectral = name.startswith("attention") and name.endswith("weight")
        expected = 0.0 if name == "still" else 0.002 if is_spectral else 0.01
        # polar-express ends within a few percent of one
        assert size == pytest.approx(expected, rel=0.05)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = Model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = for_model(model, lr=0.1, weight_decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if p.ndim > 1 else 1.0))


def test_another_optimiser_takes_the_matrices_of_attention() -> None:
    optimizer = for_model(Model(), attention=lambda groups: MirrorDescent(groups, lr=0.03, p=1.1))
    assert [type(member).__name__ for member in optimizer.optimizers] == ["MirrorDescent", "AdamW"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.03, 1e-3, 1e-3]
    only = nn.Module()
    only.attention = nn.ModuleDict({"q_proj": nn.Linear(4, 4, bias=False)})
    assert len(for_model(only).optimizers) == 1
    with pytest.raises(InputError, match="attention is 'spectrum'; give 'spectral', or a function"):
        for_model(Model(), attention="spectrum")
