"""Two gloo processes measure and clip like one: replicated parameters (DDP) and sharded ones
(FSDP2).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gloo import beside_another, loaded

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="needs torch.distributed with gloo",
    ),
    pytest.mark.skipif(
        not hasattr(torch.optim, "Muon"), reason="FSDP2 before torch 2.9 takes no CPU"
    ),
]
two = loaded(Path(__file__).with_name("two_guards.py"))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What this process and another one found."""
    folder = tmp_path_factory.mktemp("two")
    beside_another(two, folder)
    return [torch.load(folder / f"results{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("kind", two.KINDS)
def test_two_processes_measure_and_clip_like_one(both, kind):
    net = two.Net()
    wanted, guard = two.train(net, net, slice(None))
    assert sum(row[1] > two.TAU for row in wanted) >= 4
    assert all(each.norm > 0 for each in guard.metrics())
    for rank in range(2):
        found, weights = both[rank][kind]
        for one, other in zip(wanted, found, strict=True):
            # an angle of .01 is the arc cosine of 1 - 5e-5, which has three digits in float32
            assert other[:-1] == pytest.approx(one[:-1], rel=1e-2, abs=1e-5, nan_ok=True)
            assert other[1] == pytest.approx(one[1], rel=1e-5)
            assert other[-1] == one[-1]
        for p, q in zip(net.parameters(), weights, strict=True):
            torch.testing.assert_close(q, p.detach(), rtol=0, atol=1e-6)
