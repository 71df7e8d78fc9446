"""What each of two gloo processes does in ``test_guard_distributed.py``; run as ``two_guards.py
RANK FOLDER``.
"""

from __future__ import annotations

import sys
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.transformers import LogitGuard

STEPS, TAU = 4, 2.0
KINDS = ("ddp", "fsdp", "fsdp, root alone")


class Attention(nn.Module):
    """Odd sizes, so that shards differ; two heads share keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(7, 12), nn.Linear(7, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (4, 3)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (2, 3)).transpose(1, 2)
        found = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        return found.transpose(1, 2).flatten(2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.last = Attention(), nn.Linear(12, 1)
        with torch.no_grad():
            self.attention.q_proj.weight.mul_(9)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attention(x))


def batch(step: int) -> Tensor:
    return torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(100 + step))


def train(
    net: nn.Module, guarded: nn.Module, rows: slice
) -> tuple[list[tuple[float, ...]], LogitGuard]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    guard = LogitGuard(guarded, tau=TAU, action="clip", every=1, optimizer=optimizer)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(step)[rows]).square().mean().backward()
        optimizer.step()
        found += [astuple(each)[3:] for each in guard.metrics()]
    return found, guard


def main(rank: int, folder: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    meeting = {"init_method": f"file://{folder}/meeting", "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", rank=rank, world_size=2, **meeting)
    mesh = init_device_mesh("cpu", (2,))
    mine = slice(rank * 3, rank * 3 + 3)
    results = {}
    for kind in KINDS:
        net = Net()
        if kind == "ddp":
            found, _ = train(DistributedDataParallel(net), net, mine)
        else:
            if kind == "fsdp":
                fully_shard(net.attention, mesh=mesh)
            fully_shard(net, mesh=mesh)
            found, _ = train(net, net, mine)
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
        results[kind] = (found, [p.detach().clone() for p in whole])
    torch.save(results, folder / f"results{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
