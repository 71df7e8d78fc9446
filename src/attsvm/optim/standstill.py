r"""A sentence for parameters that an optimiser hardly moves.

Before the first step and after the fiftieth a group is reduced to 64 numbers per parameter: its
entries with random signs, every 64th summed. The squared length of a difference of two such
sketches is on average :math:`\|W_{50}-W_0\|_F^2`, whatever the entries that moved, and nothing else
is kept or read in between.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.optim.reductions import local

STEPS = 50
"""Steps after which a group is looked at."""
LEAST = 0.05
"""A group barely moves when each of its tensors has moved by less than this share of its size: it
would take 1,000 such steps to move by its size. Tensors that began at zero count where all did.
"""
WANTED = 0.3  # what the rate that is proposed would give
FLOOR = 1e-4  # the size of an entry of weights that start at zero, or nearly
_SUMS = 64
_BLOCK = 1 << 20
_PLACE, _MIXED = -7046029254386353131, -4658895280553007687


@dataclass
class _Group:
    """What is known of a group: its parameters with a gradient, their sketches, steps so far."""

    parameters: list[Tensor]
    sketches: list[Tensor]
    steps: int = 0


class Standstill:
    """Watches the first steps of an optimiser and warns once of each group that barely moves."""

    def __init__(self) -> None:
        self._known: dict[int, _Group | None] = {}  # None: nothing more to look at

    def before(self, groups: list[dict[str, Any]]) -> None:
        """A step is about to be taken."""
        for index, group in enumerate(groups):
            if index in self._known:
                continue
            moving = [each for each in group["params"] if each.grad is not None]
            if _unreadable(group):
                self._known[index] = None
            elif moving:
                self._known[index] = _Group(moving, [_sketch(each) for each in moving])

    def after(self, name: str, groups: list[dict[str, Any]]) -> bool:
        """A step of the optimiser of this name has been taken; whether anything is left to do."""
        for index, known in self._known.items():
            if known is None or not _full_length(groups[index]):
                continue
            known.steps += 1
            if known.steps == STEPS:
                self._known[index] = None
                _judge(f"group {index} of {name}", groups[index], known)
        return len(self._known) < len(groups) or any(self._known.values())


def _unreadable(group: dict[str, Any]) -> bool:
    """Whether nothing of a group's step may be read on the host."""
    lr = group["lr"]
    return bool(group.get("capturable")) or (isinstance(lr, Tensor) and lr.device.type != "cpu")


def _full_length(group: dict[str, Any]) -> bool:
    """Whether a scheduler is not still warming up: the rate is half of its base rate at least."""
    return float(group["lr"]) >= 0.5 * float(group.get("initial_lr", 0.0))


def _sketch(parameter: Tensor) -> Tensor:
    """``(64,)``, see above; of what this process has of the parameter."""
    entries = local(parameter.detach()).reshape(-1)
    sums = torch.zeros(_SUMS, device=entries.device)
    for start in range(0, entries.numel(), _BLOCK):
        block = entries[start : start + _BLOCK].float()
        places = torch.arange(start, start + block.numel(), device=block.device).mul_(_PLACE)
        mixed = places.bitwise_xor_(places >> 32).mul_(_MIXED)
        signed = torch.where(mixed < 0, -block, block)
        signed = torch.nn.functional.pad(signed, (0, -block.numel() % _SUMS))
        sums += signed.reshape(-1, _SUMS).sum(dim=0)
    return sums


def _judge(name: str, group: dict[str, Any], known: _Group) -> None:
    now = [_sketch(each) for each in known.parameters]
    pairs = [
        torch.stack([(new - old).square().sum(), old.square().sum()]).cpu()
        for new, old in zip(now, known.sketches, strict=True)
    ]
    lengths = torch.stack(pairs).double().sqrt().tolist()
    count = sum(each.numel() for each in known.parameters)
    begun = [(moved, size) for moved, size in lengths if size] or [
        (moved, FLOOR * math.sqrt(count)) for moved, _ in lengths
    ]
    share = max(moved / size for moved, size in begun)
    if not share < LEAST or not any(_pushed(each) for each in known.parameters):
        return
    told = f"{name} ({len(known.parameters)} tensors, {count} numbers)"
    if not any(size for _, size in lengths):
        told += " began at zero and is still there; give it to AdamW, or where p is below 2 set p=2"
    else:
        times = f"about {float(f'{WANTED / share:.1g}'):.0f} times" if share else "by far"
        advice = f"raise lr (now {float(group['lr']):.3g}) {times}"
        if not group.get("normalize", True):
            advice = f"normalise its steps (normalize=True, lr=0.03), or {advice}"
        told += (
            f" has no tensor that moved by more than {100 * share:.2g}% of its size; unless it is"
        )
        told += f" trained already, {advice}"
    warnings.warn(f"in {STEPS} steps {told}", stacklevel=6)


def _pushed(parameter: Tensor) -> bool:
    """Whether there is a gradient that is not zero: without one no optimiser moves anything."""
    gradient = parameter.grad
    if gradient is None:
        return False
    return gradient.layout is not torch.strided or bool(local(gradient).any())
