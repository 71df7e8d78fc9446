"""What the settings of steepest descent may be, and which of them the compiled step knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Norm, Spectral
from attsvm.optim.base import TensorList
from attsvm.optim.blocks import check_blocks
from attsvm.optim.directions import takes_singular_values
from attsvm.optim.mirror_step import fused_obstacle
from attsvm.optim.reductions import refuse_flat

_FROBENIUS = Frobenius()  # asked for at every step
_LONG = 1 << 16  # numbers: a list of as many is worth all cores


def check_settings(group: dict[str, Any]) -> None:
    """Refuse the settings of a parameter group that have no meaning, alone or together.

    Raises:
        InputError: the setting, its value, and what to give.
    """
    _check_numbers(group)
    norm, polar = group["norm"], group["polar"]
    if not isinstance(norm, Norm):
        raise InputError(f"norm is {norm!r}; give an attsvm.geometry.Norm such as Frobenius()")
    if polar not in ("exact", "newton-schulz", "polar-express"):
        raise InputError(f"polar is {polar!r}; use 'exact', 'newton-schulz' or 'polar-express'")
    if group["normalize"] or norm != _FROBENIUS:
        refuse_flat(group["params"], f"the direction of {norm!r}")
    for parameter in group["params"]:
        if parameter.ndim < 2 and takes_singular_values(norm):
            raise InputError(
                f"norm is {norm!r} for a parameter of shape {tuple(parameter.shape)}, which has no"
                " singular values; put vectors into a group with Frobenius() or an Lp norm"
            )
        check_blocks(group["blocks"], group["blocks_axis"], parameter)
    if group["step_size"] not in ("fixed", "polyak"):
        raise InputError(f"step_size is {group['step_size']!r}; use 'fixed' or 'polyak'")
    if group["step_size"] == "polyak" and group["momentum"]:
        raise InputError(
            f"momentum is {group['momentum']!r} with step_size='polyak', which is the step of a"
            " gradient; set one of them"
        )
    if group["fused"]:
        _check_fused(group)
    if group["capturable"] and decomposes(group):
        raise InputError(
            f"capturable is True, but norm {norm!r} with polar={polar!r} looks at its own result on"
            " the host; use Spectral() with polar='polar-express'"
        )


def decomposes(group: dict[str, Any]) -> bool:
    """Whether the direction takes a singular value decomposition, or may."""
    norm = group["norm"]
    return takes_singular_values(norm) and not (norm == Spectral() and group["polar"] != "exact")


def takes_kernel(group: dict[str, Any], parameters: TensorList) -> bool:
    """Whether the compiled step applies and is wanted; the long lists of one core are shorter work
    for all cores.
    """
    if torch.compiler.is_compiling() or _unfused(group) is not None:
        return False
    if group["fused"] is None and (
        group["foreach"] is not None or sum(parameter.numel() for parameter in parameters) >= _LONG
    ):
        return False
    return group["fused"] is not False and all(
        fused_obstacle(parameter) is None for parameter in parameters
    )


def _unfused(group: dict[str, Any]) -> str | None:
    """The setting that the compiled step does not know, or None."""
    if group["norm"] != _FROBENIUS:
        return f"norm={group['norm']!r}"
    if not group["normalize"]:
        return "normalize=False"
    if group["step_size"] != "fixed":
        return f"step_size={group['step_size']!r}"
    if group["blocks"] is not None:
        return f"blocks={group['blocks']!r}"
    return "capturable=True" if group["capturable"] else None


def _check_fused(group: dict[str, Any]) -> None:
    if group["foreach"]:
        raise InputError("foreach and fused are both True; choose one")
    setting = _unfused(group)
    if setting is not None:
        raise InputError(
            f"fused is True with {setting}; the compiled kernel takes normalised steps in the"
            " Frobenius norm: leave fused out"
        )
    for parameter in group["params"]:
        obstacle = fused_obstacle(parameter)
        if obstacle is not None:
            raise InputError(
                f"fused is True for a parameter of shape {tuple(parameter.shape)} that {obstacle};"
                " leave fused out"
            )


def _check_numbers(group: dict[str, Any]) -> None:
    bounds: dict[str, tuple[Callable[[float], bool], str]] = {
        "momentum": (lambda number: 0 <= number < 1, "0 <= momentum < 1"),
        "dampening": (lambda number: 0 <= number <= 1, "0 <= dampening <= 1"),
        "weight_decay": (lambda number: 0 <= number < math.inf, "a number that is at least 0"),
        "polyak_factor": (lambda number: 0 < number < math.inf, "a positive number"),
    }
    for name, (holds, wanted) in bounds.items():
        value = group[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
            raise InputError(f"{name} is {value!r}; give {wanted}")
    steps, floor = group["ns_steps"], group["loss_floor"]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps < 100:
        raise InputError(f"ns_steps is {steps!r}; give a whole number from 1 to 99")
    if not isinstance(floor, (int, float, Tensor)) or not bool(
        torch.isfinite(torch.as_tensor(floor)).all()
    ):
        raise InputError(
            f"loss_floor is {floor!r}; give the infimum of the loss, a finite number or a tensor of"
            " one per run"
        )
    if group["nesterov"] and not group["momentum"]:
        raise InputError("nesterov is True with momentum 0; give a momentum")
