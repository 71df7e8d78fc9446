r"""Attention, a linear head and the loss as one operation: from the weights to the loss of each
run, and its gradients beside it.

With :math:`g_{it}=\gamma_{i\alpha_i}-\gamma_{it}`, the score of the winner minus that of token t,
and :math:`u_i` the margin,

.. math::
    -\frac{\partial L}{\partial a_{it}}=-\tfrac1n\ell'(u_i)\,s_{it}\Big(g_{it}-\sum_\tau
    s_{i\tau}g_{i\tau}\Big)\quad(t\ne\alpha_i),\qquad
    -\nabla_vL=-\tfrac1n\sum_i\ell'(u_i)\,Y_i\sum_ts_{it}x_{it}.

Both are sums of terms of any size. Each row keeps its largest probability and its slope as
logarithms, and they meet only once the largest of the run is known: of the rivals with
:math:`g_{it}\ne0` for the weights, of the tokens :math:`x_{it}\ne0` for the head. So the head's
gradient survives when every sequence selects a zero token, as it does in joint training on data
that hold one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attsvm.attention.compiled_pass import fused
from attsvm.attention.losses import LogScale, Loss
from attsvm.attention.sequences import Sequences
from attsvm.attention.softmax import query_logits, select

_SMALL = 20_000  # products of one run


def linear_loss(
    moved: Tensor,
    readout: Tensor,
    has_intercept: bool,
    sequences: Sequences,
    loss: Loss,
    scale: LogScale | None = None,
) -> Tensor:
    r""":math:`\frac1n\sum_i\ell\big(Y_i(v^\top o_i+b)\big)` of each run, with exact gradients for
    the moved queries and the readout.

    On the CPU in float64, and for losses that the kernels know, everything is one compiled pass.

    Args:
        moved: ``([runs,] n, d_k)``, row ``i`` being :math:`Wz_i`.
        readout: ``([runs,] d_x, 1)``, or with an intercept ``([runs,] d_x + 1, 1)``.
        has_intercept: whether the last entry of ``readout`` is the intercept.
        sequences: what is attended to.
        loss: loss of a margin.
        scale: see :meth:`attsvm.attention.Attention.loss`.

    Returns:
        ``([runs])``.
    """
    code = _code(loss, moved)
    operation = _Torch if code < 0 else _Fused
    how = loss if code < 0 else (code, False)
    given = moved, readout, has_intercept, sequences, how, scale
    return operation.apply(*given)  # type: ignore[no-untyped-call]


def matrix_loss(
    matrix: Tensor,
    readout: Tensor,
    has_intercept: bool,
    sequences: Sequences,
    loss: Loss,
    scale: LogScale | None = None,
) -> Tensor:
    """:func:`linear_loss` of the queries that ``matrix``, ``([runs,] d_k, d_z)``, moves.

    Where the compiled pass applies and the matrices are too small for a library's products, it
    multiplies as well.
    """
    small = sequences.queries.shape[-2] * matrix.shape[-1] * matrix.shape[-2] <= _SMALL
    code = _code(loss, matrix) if small else -1
    if code < 0:
        return linear_loss(
            sequences.queries @ matrix.mT, readout, has_intercept, sequences, loss, scale
        )
    return _Fused.apply(  # type: ignore[no-untyped-call]
        matrix, readout, has_intercept, sequences, (code, True), scale
    )


def _code(loss: Loss, tensor: Tensor) -> int:
    """What the kernels call the loss; negative where they do not know it, or not the kind of
    tensor.
    """
    known = tensor.dtype == torch.float64 and tensor.device.type == "cpu"
    return loss.code if known else -1


class _Gradients(torch.autograd.Function):
    """The forward pass leaves the gradients in ``ctx.gradients``, and the logarithms of their
    factors in ``ctx.factors``.
    """

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        if ctx.scale is not None:
            ctx.scale.loss, ctx.scale.attention, ctx.scale.readout = ctx.factors
        pulled, column = ctx.gradients
        along = grad[..., None, None]
        own = None if column is None else _unexpand(column * along, ctx)
        return pulled * along, own, None, None, None, None


def _unexpand(column: Tensor, ctx: Any) -> Tensor:
    """The gradient of a head that all runs share is the sum over runs."""
    return column.sum(dim=0) if column.ndim > int(ctx.readout_ndim) else column


class _Fused(_Gradients):
    """The compiled pass: from the weights, or from the queries that they have moved."""

    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        readout: Tensor,
        has_intercept: bool,
        sequences: Sequences,
        how: tuple[int, bool],
        scale: LogScale | None,
    ) -> Tensor:
        code, matrix = how
        front, length = tuple(weights.shape[:-2]), readout.shape[-2]
        runs, joint = weights.shape[0] if front else 1, ctx.needs_input_grad[1]
        passing = fused(sequences, runs, joint, has_intercept, matrix)
        given, columns = weights.numpy(), readout.numpy().reshape(-1, length)
        gradient, column, found = passing(
            given if front else given[None], columns, code, scale is not None
        )
        losses, *factors = (
            torch.from_numpy(row if front else row[0:1].reshape(())) for row in found
        )
        gradients = torch.from_numpy(gradient if front else gradient[0])
        ctx.factors, ctx.scale, ctx.readout_ndim = factors, scale, readout.ndim
        own = torch.from_numpy(column.reshape(*front, length, 1)) if joint else None
        ctx.gradients = gradients, own
        return losses


class _Torch(_Gradients):
    @staticmethod
    def forward(
        ctx: Any,
        moved: Tensor,
        readout: Tensor,
        has_intercept: bool,
        sequences: Sequences,
        loss: Loss,
        scale: LogScale | None,
    ) -> Tensor:
        tokens, labels = sequences.values, sequences.labels
        selection = select(query_logits(moved, sequences), sequences.mask)
        log_s, s, winner = (
            selection.log_probability,
            selection.probability,
            selection.winner[..., None],
        )
        v, intercept = (
            (readout[..., :-1, :], readout[..., -1:, 0]) if has_intercept else (readout, 0.0)
        )
        scores = labels[..., None] * (tokens @ v[..., None, :, :])[..., 0]
        scores = scores.expand(log_s.shape)
        best = scores.gather(-1, winner)
        g = best - scores
        margins = (best - (s * g).sum(dim=-1, keepdim=True))[..., 0] + labels * intercept
        losses = loss.value(margins).mean(dim=-1)
        sign, log_slope = loss.slope(margins)
        shares = sign / margins.shape[-1]
        untied = log_s.masked_fill(g == 0, -torch.inf)
        top = untied.amax(dim=-1, keepdim=True)
        first = g * torch.exp(untied - _finite(top))
        factor, sizes = _meet(log_slope + top[..., 0], scale)
        b = (shares * sizes)[..., None] * (s * first.sum(dim=-1, keepdim=True) - first)
        b = b.scatter(-1, winner, 0.0)
        b = b.scatter(-1, winner, -b.sum(dim=-1, keepdim=True))
        slopes = log_slope.amax(dim=-1)
        column, own = None, slopes
        if ctx.needs_input_grad[1]:
            column, own = _column(log_s, log_slope, shares * labels, tokens, has_intercept, scale)
        ctx.factors = slopes, factor - _finite(slopes), own
        ctx.gradients = (b[..., None, :] @ sequences.keys)[..., 0, :], column
        ctx.scale, ctx.readout_ndim = scale, readout.ndim
        return losses


def _column(
    log_s: Tensor,
    log_slope: Tensor,
    signs: Tensor,
    tokens: Tensor,
    has_intercept: bool,
    scale: LogScale | None,
) -> tuple[Tensor, Tensor]:
    """The readout's gradient and the logarithm of what was taken out of it; an intercept sees a one
    in every token.
    """
    if has_intercept:
        factor, sizes = _meet(log_slope, scale)
        outputs = (torch.exp(log_s)[..., None, :] @ tokens)[..., 0, :]
        outputs = torch.cat([outputs, torch.ones_like(outputs[..., :1])], dim=-1)
    else:
        present = log_s.masked_fill((tokens == 0).all(dim=-1), -torch.inf)
        top = present.amax(dim=-1, keepdim=True)
        factor, sizes = _meet(log_slope + top[..., 0], scale)
        outputs = (torch.exp(present - _finite(top))[..., None, :] @ tokens)[..., 0, :]
    return ((signs * sizes)[..., None] * outputs).sum(dim=-2)[..., None], factor


def _meet(logs: Tensor, scale: LogScale | None) -> tuple[Tensor, Tensor]:
    """The largest logarithm of a run, and the exponentials of all: divided by that of the largest
    when there is a ``scale``.
    """
    largest = logs.amax(dim=-1)
    return largest, torch.exp(logs if scale is None else logs - _finite(largest)[..., None])


def _finite(logs: Tensor) -> Tensor:
    return logs.clamp(min=torch.finfo(logs.dtype).min)
