r"""Heads: what turns the outputs of the attention layer into decision values.

A head is any differentiable callable, most often a module, from outputs ``(..., n, d_v)`` to values
``(..., n)``, or ``(..., n, C)`` beside targets, that treats every output by itself. Leading axes
are runs: parameters and buffers of a head may carry the run axis in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import as_array, broadcast

Head = ArrayLike | nn.Module | Callable[[Tensor], Tensor]


class LinearHead(nn.Module):
    r"""The linear head :math:`h(o)=v^\top o+b`.

    ``v`` and ``b`` are one column ``readout`` of shape ``(..., d_x + 1, 1)`` (``(..., d_x, 1)``
    without an intercept), so that a normalised optimiser measures them with one norm. A parameter
    when trained, else a buffer.

    Args:
        weight: ``(..., d_x)``.
        intercept: ``(...)``, or None for a head that has none.
        trainable: whether ``readout`` is a parameter.

    >>> import torch
    >>> from attsvm.attention import LinearHead
    >>> head = LinearHead(torch.tensor([1.0, -1.0]), torch.tensor(0.5))
    >>> head(torch.tensor([[3.0, 1.0]])), head.intercept.item()
    (tensor([2.5000]), 0.5)
    """

    readout: Tensor

    def __init__(
        self, weight: Tensor, intercept: Tensor | None = None, trainable: bool = False
    ) -> None:
        super().__init__()
        self.has_intercept = intercept is not None
        entries = (
            weight
            if intercept is None
            else torch.cat([weight, intercept.expand(weight.shape[:-1])[..., None]], dim=-1)
        )
        column = entries[..., None].clone()
        if trainable:
            self.readout = nn.Parameter(column)
        else:
            self.register_buffer("readout", column)

    @property
    def trainable(self) -> bool:
        """Whether the head is a parameter."""
        return isinstance(self.readout, nn.Parameter) and self.readout.requires_grad

    @property
    def weight(self) -> Tensor:
        """``(..., d_x)``: the vector ``v``."""
        return self.readout[..., :-1, 0] if self.has_intercept else self.readout[..., 0]

    @property
    def intercept(self) -> Tensor:
        """``(...)``: the intercept ``b``, zeros when the head has none."""
        return (
            self.readout[..., -1, 0]
            if self.has_intercept
            else torch.zeros_like(self.readout[..., 0, 0])
        )

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., n)`` of attention outputs ``(..., n, d_x)``."""
        if not self.has_intercept:
            return (outputs @ self.readout)[..., 0]
        return (outputs @ self.readout[..., :-1, :] + self.readout[..., -1:, :])[..., 0]


class VectorHead(nn.Module):
    r"""The linear head :math:`h(o)=Vo` with ``C`` values.

    Args:
        weight: :math:`V`, ``(..., C, d_v)``.
        trainable: whether ``weight`` is a parameter.

    >>> import torch
    >>> from attsvm.attention import VectorHead
    >>> VectorHead(torch.eye(2))(torch.tensor([[3.0, 1.0]]))
    tensor([[3., 1.]])
    """

    weight: Tensor

    def __init__(self, weight: Tensor, trainable: bool = False) -> None:
        super().__init__()
        if trainable:
            self.weight = nn.Parameter(weight.clone())
        else:
            self.register_buffer("weight", weight.clone())

    def forward(self, outputs: Tensor) -> Tensor:
        """Values ``(..., n, C)`` of attention outputs ``(..., n, d_v)``."""
        return outputs @ self.weight.mT


class LambdaHead(nn.Module):
    r"""The concave head :math:`h(o)=v^\top o-\lambda\|o\|^2`, which prefers mixtures of tokens to a
    single one.

    With orthonormal tokens, label +1 and scores :math:`\gamma_t=v^\top x_t` the best attention is
    :math:`\mathrm{sparsemax}(\gamma/2\lambda)`, see :func:`attsvm.theory.sparsemax_selection`.

    Args:
        weight: :math:`v`, ``(..., d_x)``.
        strength: :math:`\lambda\ge0`, a number or ``(...)``.

    Source: the mode of that name in the code of Tarzanagh et al., *Transformers as Support Vector
    Machines* (2023).

    >>> import torch
    >>> from attsvm.attention import LambdaHead
    >>> LambdaHead(torch.ones(2), 0.5)(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.5000, 0.7500])
    """

    weight: Tensor
    strength: Tensor

    def __init__(self, weight: Tensor, strength: Tensor | float) -> None:
        super().__init__()
        self.register_buffer("weight", weight.clone())
        self.register_buffer(
            "strength", torch.as_tensor(strength, dtype=weight.dtype, device=weight.device).clone()
        )

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., n)`` of attention outputs ``(..., n, d_x)``."""
        return (outputs @ self.weight[..., None])[..., 0] - self.strength[..., None] * (
            outputs * outputs
        ).sum(dim=-1)


class MLPHead(nn.Module):
    r"""The two-layer head :math:`h(o)=\mathbf 1^\top\mathrm{ReLU}(V^\top o)` with fixed first layer
    and unit second layer.

    Args:
        weight: :math:`V`, ``(..., d_x, hidden)``.

    Source: the nonlinear experiments of Tarzanagh et al., *Transformers as Support Vector Machines*
    (2023).

    >>> import torch
    >>> from attsvm.attention import MLPHead
    >>> MLPHead(torch.eye(2))(torch.tensor([[3.0, -1.0]]))
    tensor([3.])
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.clone())

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., n)`` of attention outputs ``(..., n, d_x)``."""
        return torch.relu(outputs @ self.weight).sum(dim=-1)


def as_head(
    head: Head,
    intercept: ArrayLike | None,
    lead: tuple[int, ...],
    width: int,
    train_head: bool,
    vector: bool,
) -> Any:
    """A head as it is, or of a vector ``(d_v,)`` or, beside targets, a matrix ``(C, d_v)``.

    Args:
        head: see :meth:`attsvm.attention.Attention.cross`.
        intercept: of a vector.
        lead: the axis of runs, which vectors may have.
        width: ``d_v``.
        train_head: whether a vector or a matrix is a parameter.
        vector: whether there are targets.

    Raises:
        InputError: a vector or matrix of another shape, an intercept beside a head that is no
            vector, a module that is trained on its own, or one of another precision than float64.
    """
    function = isinstance(head, nn.Module) or (callable(head) and not isinstance(head, Tensor))
    shape = () if function else np.shape(as_array("head", head))  # type: ignore[arg-type]
    matrix = vector and len(shape) > 1
    if (function or matrix) and intercept is not None and np.any(intercept):
        raise InputError(
            f"intercept is {intercept!r} beside a head that is no vector; leave it out, or give a"
            " module that adds it"
        )
    if function:
        if train_head:
            raise InputError(
                "train_head makes a linear head a parameter; the parameters of a module are trained"
                " when the optimizer has them"
            )
        tensors = head.state_dict().values() if isinstance(head, nn.Module) else ()
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise InputError(
                    f"the head {type(head).__name__} holds {tensor.dtype} and the layer works in"
                    " float64; pass head.double()"
                )
        return head
    if matrix:
        weight = broadcast("head", head, (*lead, shape[-2], width), 2)  # type: ignore[arg-type]
        return VectorHead(torch.from_numpy(weight), train_head)
    v = broadcast("head", head, (*lead, width), 1)  # type: ignore[arg-type]
    b = None if intercept is None else torch.from_numpy(broadcast("intercept", intercept, lead, 0))
    return LinearHead(torch.from_numpy(v), b, train_head)


def values_of(head: Any, outputs: Tensor, vector: bool) -> Tensor:
    """Values ``(..., n)`` or ``(..., n, C)`` that a head gives for outputs ``(..., n, d_v)``.

    Args:
        head: any callable.
        outputs: of the attention layer.
        vector: whether it may give several values per output.

    Raises:
        InputError: a head that fails on these outputs, or gives values of another shape or
            precision.
    """
    shape = tuple(outputs.shape)
    try:
        values: Any = head(outputs)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"the head takes no outputs of shape {shape}: {error}") from error
    if not isinstance(values, Tensor) or values.dtype != outputs.dtype:
        described = values.dtype if isinstance(values, Tensor) else kind(values)
        raise InputError(
            f"the head gives {described} for outputs of {outputs.dtype}; write it in torch, in that"
            " precision"
        )
    rows = shape[:-1]
    if values.shape[: len(rows)] != rows or (values.ndim > len(rows) and not vector):
        expected = "one value" if not vector else "one value or one row of values"
        raise InputError(
            f"the head gives values of shape {tuple(values.shape)} for outputs of shape {shape};"
            f" give {expected} per output, shape {rows}"
        )
    return values
