"""Normalised gradient descent as the released code of the papers has it."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

EPSILON = 2.2e-16


class GuardedDescent(Optimizer):
    r"""Steps :math:`\eta\,g/(\|g\|+\epsilon)` for each parameter by itself, per run along a leading
    axis.

    The guard :math:`\epsilon=2.2\cdot10^{-16}` is there against division by zero, and ends a
    training: where the gradient falls below it steps shrink with the gradient.
    :class:`attsvm.optim.SteepestDescent` has no such end.

    Args:
        params: parameters ``([runs,] rows, columns)``.
        lr: :math:`\eta`.
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step; there is no closure."""
        for group in self.param_groups:
            for parameter in group["params"]:
                size = torch.linalg.matrix_norm(parameter.grad, keepdim=True)
                parameter.sub_(group["lr"] * parameter.grad / (size + EPSILON))
