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

from attsvm.attention.compiled_pass import compiled_pass_over
from attsvm.attention.exact_softmax import query_logits, select
from attsvm.attention.losses import LogScale, Loss
from attsvm.attention.sequences import Sequences
from attsvm.datasets.attention_data import FloatArray

SMALL_PRODUCT = 20_000
"""Multiplications of W with the queries of one run up to which the compiled pass makes them itself
and no library of matrix products is called; about where both take as long."""


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
    code = _kernel_code(loss, moved)
    if code < 0:
        return _TorchLoss.apply(  # type: ignore[no-untyped-call]
            moved, readout, has_intercept, sequences, loss, scale
        )
    return _CompiledLoss.apply(  # type: ignore[no-untyped-call]
        moved, readout, has_intercept, sequences, code, False, scale
    )


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
    products = sequences.queries.shape[-2] * matrix.shape[-1] * matrix.shape[-2]
    code = _kernel_code(loss, matrix) if products <= SMALL_PRODUCT else -1
    if code < 0:
        return linear_loss(
            sequences.queries @ matrix.mT, readout, has_intercept, sequences, loss, scale
        )
    return _CompiledLoss.apply(  # type: ignore[no-untyped-call]
        matrix, readout, has_intercept, sequences, code, True, scale
    )


def _kernel_code(loss: Loss, tensor: Tensor) -> int:
    """The kernels' code of the loss; negative where they do not know it, or not the kind of
    tensor.
    """
    is_known = tensor.dtype == torch.float64 and tensor.device.type == "cpu"
    return loss.code if is_known else -1


class _LossFunction(torch.autograd.Function):
    """A loss whose forward pass leaves the gradients in ``ctx.gradients``, and the logarithms of
    their factors in ``ctx.factors``.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.scale is not None:
            ctx.scale.loss, ctx.scale.attention, ctx.scale.readout = ctx.factors
        weights, column = ctx.gradients
        along = grad[..., None, None]
        if column is not None:
            column = column * along
            if column.ndim > ctx.readout_ndim:  # all runs share the head: the sum over runs
                column = column.sum(dim=0)
        # no gradients for the arguments that are no tensors
        return weights * along, column, *[None] * (len(ctx.needs_input_grad) - 2)


class _CompiledLoss(_LossFunction):
    """The compiled pass: from the weights, or from the queries that they have moved."""

    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        readout: Tensor,
        has_intercept: bool,
        sequences: Sequences,
        code: int,
        is_matrix: bool,
        scale: LogScale | None,
    ) -> Tensor:
        run_axes, width = tuple(weights.shape[:-2]), readout.shape[-2]
        runs, trained = weights.shape[0] if run_axes else 1, ctx.needs_input_grad[1]
        compiled_pass = compiled_pass_over(sequences, runs, trained, has_intercept, is_matrix)
        array = weights.numpy()
        result = compiled_pass(
            array if run_axes else array[None],
            readout.numpy().reshape(-1, width),
            code,
            scale is not None,
        )

        def per_run(row: FloatArray) -> Tensor:
            return torch.from_numpy(row if run_axes else row[0:1].reshape(()))

        gradient = torch.from_numpy(result.weights if run_axes else result.weights[0])
        column = torch.from_numpy(result.readout.reshape(*run_axes, width, 1)) if trained else None
        ctx.gradients, ctx.factors = (gradient, column), [per_run(row) for row in result.factors]
        ctx.scale, ctx.readout_ndim = scale, readout.ndim
        return per_run(result.losses)


class _TorchLoss(_LossFunction):
    r"""The torch pass, on any device and for any loss, from moved queries.

    1. Attention relative to the winner, scores :math:`\gamma` and what the winner is ahead,
       :math:`g`.
    2. Margins, losses and slopes.
    3. Each sequence takes its largest :math:`s_{it}` with :math:`g_{it}\ne0` out as a logarithm;
       where the largest of a run is known, the terms meet.
    4. Coefficients :math:`b` of the keys, which sum to zero, and the gradient of the readout.
    """

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
        # 1. attention relative to the winner
        tokens, labels = sequences.values, sequences.labels
        selection = select(query_logits(moved, sequences.keys), sequences.mask)
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
        # 2. margins, losses, slopes
        margins = (best - (s * g).sum(dim=-1, keepdim=True))[..., 0] + labels * intercept
        losses = loss.value(margins).mean(dim=-1)
        sign, log_slope = loss.slope(margins)
        shares = sign / margins.shape[-1]
        # 3. factors as logarithms, relative to the largest of a run
        untied = log_s.masked_fill(g == 0, -torch.inf)
        top = untied.amax(dim=-1, keepdim=True)
        first = g * torch.exp(untied - _clamp_finite(top))
        factor, sizes = _relative_to_largest(log_slope + top[..., 0], scale)
        # 4. coefficients and gradients
        b = (shares * sizes)[..., None] * (s * first.sum(dim=-1, keepdim=True) - first)
        b = b.scatter(-1, winner, 0.0)
        b = b.scatter(-1, winner, -b.sum(dim=-1, keepdim=True))
        slopes = log_slope.amax(dim=-1)
        column, readout_factor = None, slopes
        if ctx.needs_input_grad[1]:
            column, readout_factor = _readout_gradient(
                log_s, log_slope, shares * labels, tokens, has_intercept, scale
            )
        ctx.factors = slopes, factor - _clamp_finite(slopes), readout_factor
        ctx.gradients = (b[..., None, :] @ sequences.keys)[..., 0, :], column
        ctx.scale, ctx.readout_ndim = scale, readout.ndim
        return losses


def _readout_gradient(
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
        factor, sizes = _relative_to_largest(log_slope, scale)
        outputs = (torch.exp(log_s)[..., None, :] @ tokens)[..., 0, :]
        outputs = torch.cat([outputs, torch.ones_like(outputs[..., :1])], dim=-1)
    else:
        present = log_s.masked_fill((tokens == 0).all(dim=-1), -torch.inf)
        top = present.amax(dim=-1, keepdim=True)
        factor, sizes = _relative_to_largest(log_slope + top[..., 0], scale)
        outputs = (torch.exp(present - _clamp_finite(top))[..., None, :] @ tokens)[..., 0, :]
    return ((signs * sizes)[..., None] * outputs).sum(dim=-2)[..., None], factor


def _relative_to_largest(logs: Tensor, scale: LogScale | None) -> tuple[Tensor, Tensor]:
    """The largest logarithm of a run ``(...)``, and the exponentials of all ``(..., n)``: divided
    by that of the largest when there is a ``scale``.
    """
    largest = logs.amax(dim=-1)
    return largest, torch.exp(logs if scale is None else logs - _clamp_finite(largest)[..., None])


def _clamp_finite(logs: Tensor) -> Tensor:
    """The logarithms, with the lowest number in place of -inf."""
    return logs.clamp(min=torch.finfo(logs.dtype).min)
