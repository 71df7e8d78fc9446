"""Two gloo processes train like one: replicated parameters (DDP) and sharded ones (FSDP2), and a
checkpoint moves between the two.
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
two = loaded(Path(__file__).with_name("two_processes.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What this process and another one wrote."""
    folder = tmp_path_factory.mktemp("two")
    beside_another(two, folder)
    return folder


@pytest.fixture(scope="module")
def alone():
    """Name, and where one process ends."""
    ends = {}
    for names, fleet, optimizers in two.fleets():
        start = [p.detach().clone() for p in fleet.parameters()]
        two.train(fleet, optimizers, range(two.STEPS))
        assert all(not torch.equal(p, q) for p, q in zip(fleet.parameters(), start, strict=True))
        ends |= {
            name: [p.detach() for p in net.parameters()]
            for name, net in zip(names, fleet.nets, strict=True)
        }
    return ends


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", two.OPTIMIZERS)
def test_two_processes_end_where_one_does(folder, alone, name, kind):
    weights = torch.load(folder / "results.pt", weights_only=True)[f"{kind}, {name}"]
    for expected, weight in zip(alone[name], weights, strict=True):
        # Gradients are summed in another order: roundings of float32, of which weights see 1 / (p -
        # 1) times.
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-6)


def test_two_processes_share_the_decompositions(folder):
    """In each step three blocks of queries, keys and values and three more matrices, dealt out."""
    counts = torch.load(folder / "results.pt", weights_only=True)["directions"]
    assert int(counts.sum()) == 6 * two.STEPS
    assert counts.min() > 0


def test_a_decomposition_that_fails_in_one_process_is_refused_in_both(folder):
    """Here it failed in the other one, and nothing has moved."""
    results = torch.load(folder / "results.pt", weights_only=True)
    assert "could not decompose" in results["refused"]
    assert not any(results["moved"])


# what this test is about
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_checkpoint_of_two_processes_resumes_on_one(folder):
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_state_dict,
    )

    fleet = two.Fleet(["split"])
    net = fleet.nets[0]
    optimizer = two.combined(net)
    state = {
        "net": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(net, optimizer),
    }
    checkpoint.load(state, checkpoint_id=folder / "checkpoint", no_dist=True)
    set_state_dict(
        net, optimizer, model_state_dict=state["net"], optim_state_dict=state["optimizer"]
    )
    two.train(fleet, [optimizer], range(two.STEPS // 2, two.STEPS))
    results = torch.load(folder / "results.pt", weights_only=True)
    for weight, expected in zip(net.parameters(), results["fsdp, split"], strict=True):
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-6)
