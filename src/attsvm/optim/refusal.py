"""A step that is refused, or fails on the way, changes nothing.

What a step can know beforehand it is asked before anything is written. A decomposition can fail in
the middle: what such a step writes is copied first, and put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from attsvm.errors import InputError
from attsvm.optim.reductions import local


@contextmanager
def unchanged_on_error(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Put parameters, state and settings of these groups back where the block raises.

    Args:
        optimizer: whose groups they are.
        groups: what the block moves.

    Raises:
        InputError: for a decomposition that LAPACK could not finish; other errors pass.
    """
    if getattr(optimizer, "_copied", False):  # by a block around this one
        yield
        return
    settings = [(group, dict(group)) for group in groups]
    moved = [p for group in groups for p in group["params"] if p.grad is not None]
    known = {p: dict(optimizer.state[p]) for p in moved if p in optimizer.state}
    kept = [value for entry in known.values() for value in entry.values()]
    written = [local(each) for each in (*moved, *kept) if isinstance(each, Tensor)]
    copies = [tensor.clone() for tensor in written]
    optimizer._copied = True  # type: ignore[attr-defined]
    try:
        yield
    except BaseException as error:
        for tensor, copy in zip(written, copies, strict=True):
            tensor.copy_(copy)
        for group, before in settings:
            group.clear()
            group.update(before)
        for parameter in moved:
            optimizer.state.pop(parameter, None)
            if parameter in known:
                optimizer.state[parameter] = known[parameter]
        if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            raise InputError(
                f"{type(optimizer).__name__} could not decompose a gradient or its state"
                f" ({error}); nothing was moved: skip this step, or lower lr"
            ) from error
        raise
    finally:
        optimizer._copied = False  # type: ignore[attr-defined]


def check_state(parameter: Tensor, known: dict[str, Any], names: Sequence[str]) -> None:
    """Raise :class:`~attsvm.errors.InputError` unless the state of these ``names`` has the shape
    and the place of its parameter.
    """
    for name in names:
        kept = known.get(name)
        if kept is not None and (kept.shape != parameter.shape or kept.device != parameter.device):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} on {parameter.device} has a {name}"
                f" of shape {tuple(kept.shape)} on {kept.device}; load a checkpoint of this model,"
                " or build the optimizer anew"
            )
