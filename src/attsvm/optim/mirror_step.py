r"""The mirror step itself: :math:`Y\leftarrow\rho Y-\eta g`, :math:`W\leftarrow` its image, as a
loop, multi-tensor, and fused.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from attsvm.optim.base import StateList, TensorList, add_scaled, scalar
from attsvm.optim.powers import Exponent, mirror_exponents, signed_power, signed_powers
from attsvm.optim.reductions import norms


class PowerMap:
    r""":math:`\psi(W)=\frac1p\|W\|_p^p`: its mirror map is the signed power with exponent
    :math:`p-1`, entry by entry.

    The optimiser's side of :class:`attsvm.geometry.PowerPotential`: the same function once more, in
    place, in the precision of its state, and with exponents that are right to the last digit
    (:mod:`attsvm.optim.powers`), because a descent raises its weights to them at every step.

    Attributes:
        p: the exponent.
        q: that of the dual space, :math:`\frac1p+\frac1q=1`.
    """

    def __init__(self, p: float) -> None:
        self.p = p
        self.forward, self.inverse = mirror_exponents(p)
        self.q = 1.0 + self.inverse.value

    def mirror(self, W: Tensor) -> Tensor:
        r""":math:`\nabla\psi(W)`."""
        return signed_power(W, self.forward)

    def image(self, Y: Tensor) -> Tensor:
        r""":math:`(\nabla\psi)^{-1}(Y)`."""
        return signed_power(Y, self.inverse)

    def coordinates(self, gradient: Tensor) -> Tensor:
        """The numbers whose q-norm is the dual norm, with the axes of the gradient."""
        return gradient

    def dual_norms(self, gradients: list[Tensor], runs: bool) -> list[Tensor]:
        r""":math:`\|g\|_q` of each, 0 of zeros; with ``runs`` of each matrix on the last two axes.
        They broadcast against the gradients.
        """
        result: list[Tensor] = list(gradients)
        keeps = [max(0, g.ndim - 2) if runs else 0 for g in gradients]
        for keep in sorted(set(keeps)):
            members = [index for index, kept in enumerate(keeps) if kept == keep]
            for index, value in zip(
                members,
                norms([self.coordinates(gradients[i]) for i in members], self.q, keep),
                strict=True,
            ):
                result[index] = value
        return result

    def agreement(self, W: Tensor, image: Tensor) -> Tensor:
        """Where ``W`` is still the ``image`` of its dual, in pieces that can be replaced by
        themselves.
        """
        return image == W


class SchattenMap(PowerMap):
    r""":math:`\psi(W)=\frac1p\sum_i\sigma_i(W)^p`: the same powers of the singular values of the
    last two axes.
    """

    def mirror(self, W: Tensor) -> Tensor:
        r""":math:`\nabla\psi(W)=U\operatorname{diag}(\sigma^{p-1})V^\top`."""
        return _on_singular_values(W, self.forward)

    def image(self, Y: Tensor) -> Tensor:
        r""":math:`(\nabla\psi)^{-1}(Y)=U\operatorname{diag}(\sigma^{1/(p-1)})V^\top`."""
        return _on_singular_values(Y, self.inverse)

    def coordinates(self, gradient: Tensor) -> Tensor:
        """Singular values, as a row."""
        sigma: Tensor = torch.linalg.svdvals(gradient)
        return sigma[..., None, :]

    def agreement(self, W: Tensor, image: Tensor) -> Tensor:
        """A matrix is replaced as a whole."""
        return (image == W).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)


MAPS = {"power": PowerMap, "schatten": SchattenMap}


def _on_singular_values(matrix: Tensor, exponent: Exponent) -> Tensor:
    U, sigma, Vh = torch.linalg.svd(matrix, full_matrices=False)
    return (U * signed_power(sigma, exponent)[..., None, :]) @ Vh


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


def fused_obstacle(parameter: Tensor) -> str | None:
    """Why the compiled kernel cannot move this parameter, or None."""
    if type(parameter) not in (Tensor, torch.nn.Parameter):
        return f"is a {type(parameter).__name__}"
    if not parameter.is_cpu:
        return f"is on {parameter.device}, and not on the CPU"
    if parameter.dtype not in (torch.float32, torch.float64):
        return f"is {parameter.dtype}, and neither float32 nor float64"
    if not parameter.is_contiguous():
        return f"is not contiguous (its strides are {parameter.stride()})"
    return None


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
    if (
        weights[0].device.type == "cpu"
    ):  # where multi-tensor calls are loops anyway, and temporaries cost more than calls
        for weight, dual in zip(weights, duals, strict=True):
            if weight.dtype == dual.dtype:
                signed_power(dual, potential.inverse, out=weight)
            else:
                weight.copy_(signed_power(dual, potential.inverse))
    else:
        torch._foreach_copy_(weights, signed_powers(duals, potential.inverse))
