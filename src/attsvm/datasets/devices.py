"""Where a pretrained model runs, and in which floating-point type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attsvm.base.errors import InputError, UnavailableError
from attsvm.base.pretrained import DTYPES
from attsvm.base.printable import escaped

if TYPE_CHECKING:
    import torch


def check_device(device: str = "cpu", dtype: str = "float32") -> None:
    """Refuse a device that is not on this machine, and a type that it does not compute with.

    Args:
        device: a name of torch: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        dtype: one of :data:`attsvm.base.pretrained.DTYPES`.

    Raises:
        InputError: no name of a device or of a type.
        UnavailableError: the device is not here, or does not compute with this type.

    Example:
        >>> from attsvm.datasets.devices import check_device
        >>> check_device("cpu", "bfloat16")
        >>> check_device("cpu", "float8")
        Traceback (most recent call last):
            ...
        attsvm.base.errors.InputError: dtype is 'float8'; choose float32, bfloat16 or float16
    """
    import torch

    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; choose {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    present = ["cpu"]
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        numbers = range(torch.accelerator.device_count())
        present += [f"{accelerator.type}:{number}" for number in numbers]
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind in ("", "meta"):
        raise InputError(f"device {device!r} is unknown; this machine has {', '.join(present)}")
    try:
        numbers_there = torch.ones(2, 2, device=device, dtype=getattr(torch, dtype))
        numbers_there @ numbers_there
    # what a device that is not there raises differs by its kind
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120].rstrip(" .")
        raise UnavailableError(
            f"device {device} with {dtype} is not available ({reason}); this machine has"
            f" {', '.join(present)}"
        ) from None


@contextmanager
def refused_without_room(model: str, device: str | torch.device, others: str) -> Iterator[None]:
    """A block in which a model runs on a device: where its memory is too small, one sentence.

    Args:
        model: its name.
        device: where it runs.
        others: what helps beside a smaller type, in words.

    Raises:
        InputError: memory of the device ran out.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        raise InputError(
            f"{escaped(model)} does not fit into the memory of {device}; give option dtype"
            f" bfloat16, {others}"
        ) from None
