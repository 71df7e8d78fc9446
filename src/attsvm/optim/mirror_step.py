r"""The mirror step itself: :math:`Y\leftarrow\rho Y-\eta g`, :math:`W\leftarrow` its image, as a
loop, multi-tensor, and fused.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from attsvm.optim.base import StateList, TensorList, add_scaled, scalar
from attsvm.optim.mirror_maps import PowerMap, SchattenMap
from attsvm.optim.powers import signed_power, signed_powers

LONG = 1 << 16  # numbers: below it a list of tensors is no work, and starting threads is


def take_step(
    group: dict[str, Any],
    potential: PowerMap,
    weights: TensorList,
    gradients: TensorList,
    duals: StateList,
) -> bool:
    """Decay, dual step and image of one group, by the path that the group asks for or that
    applies.

    Returns:
        Whether that was the compiled kernel.
    """
    lr = scalar(group, "lr")
    decay = group["weight_decay"] if group["decay_mode"] != "l2" else 0.0
    shrink = 1.0 - lr * decay if decay else 1.0
    if decay and group["decay_mode"] == "primal" and potential.p != 2:
        shrink = shrink**potential.forward.value
    if potential.p == 2 and all(
        dual is None and g.dtype == w.dtype
        for dual, g, w in zip(duals, gradients, weights, strict=True)
    ):
        if decay:
            torch._foreach_mul_(weights, shrink)
        add_scaled(weights, gradients, -lr)  # the dual is the weight
        return False
    if _worth_fusing(group, potential, weights):
        from attsvm.optim.fused import fused_step  # and with it numba

        if fused_step(potential, weights, gradients, duals, shrink, lr):
            return True
    if _worth_gathering(group, potential, weights):
        _multi_tensor(potential, weights, gradients, duals, shrink, lr)
        return False
    for weight, gradient, kept in zip(weights, gradients, duals, strict=True):
        dual = potential.mirror(weight.to(gradient.dtype)) if kept is None else kept
        if decay:
            dual.mul_(shrink)
        dual.add_(gradient, alpha=-lr) if not isinstance(lr, Tensor) else dual.sub_(gradient * lr)
        weight.copy_(potential.image(dual))
    return False


def _worth_fusing(group: dict[str, Any], potential: PowerMap, weights: TensorList) -> bool:
    if isinstance(potential, SchattenMap) or torch.compiler.is_compiling():
        return False
    return bool(group["fused"]) or (
        group["fused"] is None
        and group["foreach"] is None
        and not group["capturable"]
        and sum(w.numel() for w in weights) >= LONG
    )


def _worth_gathering(group: dict[str, Any], potential: PowerMap, weights: TensorList) -> bool:
    if isinstance(potential, SchattenMap) or torch.compiler.is_compiling():
        return False
    return bool(group["foreach"]) or (group["foreach"] is None and not weights[0].is_cpu)


def _multi_tensor(
    potential: PowerMap,
    weights: TensorList,
    gradients: TensorList,
    kept: StateList,
    shrink: float | Tensor,
    lr: float | Tensor,
) -> None:
    wide = [w.to(g.dtype) for w, g in zip(weights, gradients, strict=True)]
    duals = signed_powers(wide, potential.forward) if kept[0] is None else cast("TensorList", kept)
    if isinstance(shrink, Tensor) or shrink != 1.0:
        torch._foreach_mul_(duals, shrink)
    add_scaled(duals, gradients, -lr)
    # where multi-tensor calls are loops anyway, and temporaries cost more than calls
    if weights[0].device.type == "cpu":
        for weight, dual in zip(weights, duals, strict=True):
            if weight.dtype == dual.dtype:
                signed_power(dual, potential.inverse, out=weight)
            else:
                weight.copy_(signed_power(dual, potential.inverse))
    else:
        torch._foreach_copy_(weights, signed_powers(duals, potential.inverse))
