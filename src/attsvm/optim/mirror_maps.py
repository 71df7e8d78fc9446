"""Potentials of the mirror step: what takes weights to their dual and back."""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.optim.powers import Exponent, mirror_exponents, signed_power
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
