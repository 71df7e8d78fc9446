"""What each of two gloo processes does in ``test_distributed.py``; run as
``two_processes.py RANK FOLDER``.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Lp, Norm, Schatten, Spectral
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent, split_params

STEPS = 8
BATCH = 6


class Net(nn.Module):
    """Odd sizes, so that shards differ; a matrix of one row, so that one process holds nothing of
    it.
    """

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        # a key bias has no gradient but roundings
        self.attention = nn.MultiheadAttention(6, 2, bias=False, batch_first=True)
        self.wide = nn.Linear(6, 5)
        self.last = nn.Linear(5, 1)
        with torch.no_grad():
            for parameter in self.parameters():  # no zeros: biases too take part at p = 1.1
                parameter.uniform_(0.1, 0.5, generator=generator).mul_(
                    (torch.rand(parameter.shape, generator=generator) < 0.5) * 2 - 1
                )

    def forward(self, x):
        out, _ = self.attention(x, x, x, need_weights=False)
        return self.last(torch.tanh(self.wide(out))).mean(dim=1)


def matrices_only(net, kind=SteepestDescent, **settings):
    split = split_params(net, select=lambda name, tensor: tensor.ndim > 1)
    return CombinedOptimizer(
        [kind(split.attention, **settings), torch.optim.SGD(split.rest, lr=0.01)]
    )


class Counted(Norm):
    """The spectral norm, which counts the matrices whose directions it finds in this process."""

    name = "counted"
    spellings: ClassVar = {}  # on no command line
    acts_on = "singular values"
    directions = 0
    fails = False

    def value(self, W):
        return Spectral().value(W)

    @property
    def dual(self):
        return Spectral().dual

    def project(self, W, radius=1.0):
        return Spectral().project(W, radius)

    def steepest(self, G):
        if Counted.fails:
            raise torch.linalg.LinAlgError("it did not converge")
        Counted.directions += len(G)
        return Spectral().steepest(G)


OPTIMIZERS = {
    **{
        f"mirror p={p} normalize={normalize}": lambda net, p=p, normalize=normalize: MirrorDescent(
            net.parameters(), p=p, lr=0.002 if normalize else 0.01, normalize=normalize
        )
        for p in (1.1,)
        for normalize in (False, True)
    },
    "mirror with momentum and decay": lambda net: MirrorDescent(
        net.parameters(), p=1.5, lr=0.01, momentum=0.9, weight_decay=0.01
    ),
    "mirror schatten": lambda net: matrices_only(
        net, MirrorDescent, lr=0.002, p=1.5, potential="schatten", momentum=0.5
    ),
    "mirror schatten, normalised": lambda net: matrices_only(
        net,
        MirrorDescent,
        lr=0.002,
        p=3,
        potential="schatten",
        normalize=True,
    ),
    "steepest fro": lambda net: SteepestDescent(net.parameters(), lr=0.01, norm=Frobenius()),
    "steepest sign": lambda net: SteepestDescent(
        net.parameters(), lr=0.002, norm=Lp(float("inf")), momentum=0.9
    ),
    "steepest l3": lambda net: SteepestDescent(net.parameters(), lr=0.01, norm=Lp(3)),
    "steepest l3 unnormalised": lambda net: SteepestDescent(
        net.parameters(), lr=0.01, norm=Lp(3), normalize=False
    ),
    "steepest coordinate": lambda net: SteepestDescent(net.parameters(), lr=0.01, norm=Lp(1)),
    "steepest spectral": lambda net: matrices_only(net, lr=0.01, norm=Spectral(), momentum=0.9),
    "steepest spectral, counted": lambda net: matrices_only(net, lr=0.01, norm=Counted()),
    "steepest spectral, rates of AdamW": lambda net: matrices_only(
        net, lr=0.01, norm=Spectral(), momentum=0.9, adjust_lr_fn="match_rms_adamw"
    ),
    "steepest schatten": lambda net: matrices_only(net, lr=0.01, norm=Schatten(3)),
    "split": lambda net: combined(net),
}


def combined(net):
    split = split_params(net)
    return CombinedOptimizer(
        [
            MirrorDescent(split.attention, p=1.1, lr=0.002, normalize=True, momentum=0.5),
            torch.optim.AdamW(split.rest, lr=1e-3),
        ]
    )


def batch(step, dtype):
    return torch.randn(BATCH, 4, 6, generator=torch.Generator().manual_seed(100 + step)).to(dtype)


class Fleet(nn.Module):
    """One network for every optimiser, in one model: what a step costs in messages is paid once."""

    def __init__(self, names):
        super().__init__()
        self.nets = nn.ModuleList(Net() for _ in names)
        self.to(dtype(names[0]))

    def forward(self, x):
        return sum((net(x) - 1).square().mean() for net in self.nets)


def dtype(name):
    """Singular vectors of nearly singular gradients amplify roundings; float64 keeps those away
    from what is compared.
    """
    return (
        torch.float64
        if any(word in name for word in ("spectral", "schatten", "nuclear"))
        else torch.float32
    )


def train(fleet, optimizers, steps, rows=slice(None)):
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        fleet(batch(step, next(fleet.parameters()).dtype)[rows]).backward()
        for optimizer in optimizers:
            optimizer.step()


def fleets():
    kinds = {}
    for name in OPTIMIZERS:
        kinds.setdefault(dtype(name), []).append(name)
    for names in kinds.values():
        fleet = Fleet(names)
        yield (
            names,
            fleet,
            [OPTIMIZERS[name](net) for name, net in zip(names, fleet.nets, strict=True)],
        )


def main(rank, folder):
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    mesh = init_device_mesh("cpu", (2,))
    mine = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    results = {}
    for names, fleet, optimizers in fleets():
        train(DistributedDataParallel(fleet), optimizers, range(STEPS), mine)
        for name, net in zip(names, fleet.nets, strict=True):
            results[f"ddp, {name}"] = [p.detach().clone() for p in net.parameters()]
    Counted.directions = 0
    for names, fleet, _ in fleets():
        fully_shard(fleet, mesh=mesh)
        optimizers = [OPTIMIZERS[name](net) for name, net in zip(names, fleet.nets, strict=True)]
        train(fleet, optimizers, range(STEPS // 2), mine)
        if "split" in names:
            net, optimizer = fleet.nets[names.index("split")], optimizers[names.index("split")]
            saved = {
                "net": get_model_state_dict(net),
                "optimizer": get_optimizer_state_dict(net, optimizer),
            }
            checkpoint.save(saved, checkpoint_id=folder / "checkpoint")
        train(fleet, optimizers, range(STEPS // 2, STEPS), mine)
        for name, net in zip(names, fleet.nets, strict=True):
            results[f"fsdp, {name}"] = [p.full_tensor().detach() for p in net.parameters()]
    counts = [torch.zeros((), dtype=torch.long) for _ in range(2)]
    dist.all_gather(counts, torch.tensor(Counted.directions))
    results["directions"] = torch.stack(counts)
    # one of the two cannot decompose its share
    net, optimizer = next(
        (net, optimizer)
        for name, net, optimizer in zip(names, fleet.nets, optimizers, strict=True)
        if name == "steepest spectral, counted"
    )
    before = [p.full_tensor().detach().clone() for p in net.parameters()]
    Counted.fails = rank == 1
    try:
        optimizer.step()
    except InputError as error:
        results["refused"] = str(error)
    Counted.fails = False
    results["moved"] = [
        not torch.equal(p.full_tensor(), q) for p, q in zip(net.parameters(), before, strict=True)
    ]
    if rank == 0:
        torch.save(results, folder / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
