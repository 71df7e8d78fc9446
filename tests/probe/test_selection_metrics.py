"""What is measured of attention probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attsvm.errors import InputError
from attsvm.probe import selection_metrics
from attsvm.probe.selection_metrics import evaluating


def test_metrics_are_those_of_the_logits():
    logits = torch.randn(
        3, 2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    found = selection_metrics([torch.softmax(logits, dim=-1)])
    top = logits.topk(2, dim=-1).values
    assert found["margin"] == pytest.approx(float((top[..., 0] - top[..., 1]).median()), rel=1e-5)
    log_s = torch.log_softmax(logits, dim=-1)
    assert found["entropy"] == pytest.approx(float(-(log_s.exp() * log_s).sum(-1).mean()), rel=1e-5)
    assert found["top_share"] == pytest.approx(float(log_s.exp().amax(-1).mean()), rel=1e-6)


def test_uniform_and_hard_attention():
    uniform = selection_metrics([torch.full((1, 2, 3, 4), 0.25)])
    assert uniform == pytest.approx({"top_share": 0.25, "entropy": math.log(4), "margin": 0.0})
    hard = selection_metrics([torch.eye(4).expand(1, 2, 4, 4)])
    assert hard == pytest.approx(
        {"top_share": 1.0, "entropy": 0.0, "margin": -math.log(torch.finfo(torch.float32).tiny)}
    )


def test_padded_queries_do_not_count():
    attention = torch.full((1, 2, 3, 4), 0.25)
    attention[:, :, 2] = torch.tensor([1.0, 0, 0, 0])
    assert selection_metrics([attention], torch.tensor([[1, 1, 0]]))["top_share"] == pytest.approx(
        0.25
    )


def test_a_model_is_left_as_found() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model[0].eval()
    with evaluating(model):
        assert not model[1].training
        assert not torch.is_grad_enabled()
    assert not model[0].training
    assert model[1].training
    assert torch.is_grad_enabled()


def test_refusals() -> None:
    with pytest.raises(InputError, match="attn_implementation='eager'"):
        selection_metrics([])
    with pytest.raises(InputError, match=r"attention is \(2, 3, 4\)"):
        selection_metrics([torch.ones(2, 3, 4)])
