"""Data-parallel training: what the processes that torchrun has started tell one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from attsvm.workers import signal_at_end_of_parent


@dataclass(frozen=True)
class Processes:
    """This process among those that train one model.

    Attributes:
        rank: number of this process.
        size: number of processes; 1 without torchrun.
    """

    rank: int = 0
    size: int = 1

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Give every process the tensors of the first."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over the processes, in one message for each type of
        number.
        """
        if self.size == 1:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for members in kinds.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in members])
            dist.all_reduce(flat)
            for tensor, summed in zip(
                members, torch.split(flat, [tensor.numel() for tensor in members]), strict=True
            ):
                tensor.copy_(summed.view_as(tensor))

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


def local_device(device: str | torch.device) -> torch.device:
    """The device, with the accelerator that torchrun gives to this process where none is
    numbered.
    """
    place = torch.device(device)
    if str(place) == "cuda":  # without a number
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    return place


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """The processes of torchrun (or of a group that the caller has set up); this one alone without
    them.
    """
    if dist.is_available() and dist.is_initialized():
        yield Processes(dist.get_rank(), dist.get_world_size())
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun ends its processes, unless it is killed
        signal_at_end_of_parent()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
