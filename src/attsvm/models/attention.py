"""One softmax-attention layer, many runs at once: the model, whatever its parameters are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.models.heads import LinearHead
from attsvm.models.linear import linear_loss, matrix_loss
from attsvm.models.losses import Logistic, LogScale, Loss
from attsvm.models.penalty import penalised
from attsvm.models.sequences import Reading, Sequences
from attsvm.models.softmax import Selection, attend_moved, by_sequence, query_logits, select

if TYPE_CHECKING:
    from attsvm.models.building import Head, Init, Losses

Parameterization = Literal["W", "KQ"]


class Attention(nn.Module):
    r"""Softmax attention with a head on top,
    :math:`f_i=h\big(X_i^\top\mathrm{softmax}(X_iWz_i)\big)`; here :math:`W` is the parameter.

    There is no :math:`1/\sqrt d` in the logits. Build it with :meth:`cross`, :meth:`sequence` or
    :meth:`prompt`; the subclasses
    :class:`~attsvm.models.FactoredAttention` :math:`W=KQ^\top`,
    :class:`~attsvm.models.PromptAttention` and
    :class:`~attsvm.models.FixedPromptAttention` have other parameters.

    Attributes:
        W: parameter ``(d_x, d_z)``, or ``(runs, d_x, d_z)``.
        head: the head ``h``; ``head.readout`` is a parameter when a linear head is trained.
        runs: number of runs, ``None`` for a model without run axis.
        objective: the :class:`~attsvm.models.Loss` of a margin :math:`Y_if_i`.
        penalty: :math:`\lambda` of the penalty :math:`\lambda\sum\|\theta\|_F^2` over the attention
            parameters, a number or ``(runs,)``.
        reading: how data is read: key map, prompt, labels of positions.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines*, the model with weights W.
    """

    W: nn.Parameter
    head: Any

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        head: nn.Module | Callable[[Tensor], Tensor],
        runs: int | None = None,
        objective: Loss | None = None,
        penalty: ArrayLike = 0.0,
        reading: Reading | None = None,
    ) -> None:
        super().__init__()
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value))
        self.head = head
        self.runs = runs
        self.objective = Logistic() if objective is None else objective
        self.penalty = np.asarray(penalty, dtype=np.float64)
        self._penalised = bool(self.penalty.any())
        self.reading = Reading() if reading is None else reading
        self._names = tuple(weights)

    @classmethod
    def cross(
        cls,
        data: AttentionData,
        head: Head,
        intercept: ArrayLike | None = 0.0,
        runs: int | None = None,
        init: Init | None = None,
        train_head: bool = False,
        *,
        parameterization: Parameterization = "W",
        inner: int | None = None,
        stacked: bool = False,
        loss: Losses | None = None,
        penalty: ArrayLike = 0.0,
    ) -> Attention:
        r"""Cross-attention: the queries of the data ask. Only shapes of ``data`` are read; it is
        passed again to every method.

        Args:
            data: one instance for all runs, or with one leading axis: one instance per run.
            head: :math:`v` of a linear head, ``(d_x,)`` or ``(runs, d_x)``; or a module or function
                from attention outputs ``(..., N, d_x)`` to values ``(..., N)``, such as
                :class:`~attsvm.models.MLPHead`.
            intercept: :math:`b` of a linear head, a number or ``(runs,)``; None for a head that has
                none (and trains none).
            runs: number of runs; read from the leading axis of ``data`` when left out.
            init: ``"zeros"``; an array ``(d_x, d_z)`` or ``(runs, d_x, d_z)``, for factors a pair
                of arrays for K and Q; or ``("uniform", seed)``, entries uniform on
                :math:`[-1/\sqrt{d}, 1/\sqrt{d}]` with the first dimension of the parameter, run
                ``r`` drawn from its own generator ``(seed, r)``. Left out: zeros for a matrix;
                factors need one, because :math:`K=Q=0` is a stationary point.
            train_head: whether a linear head is a parameter, beside the weights.
            parameterization: ``"W"``, or ``"KQ"`` for factors :math:`W=KQ^\top`.
            inner: columns ``m`` of the factors; ``min(d_x, d_z)`` when left out.
            stacked: keep both factors in one parameter, so that an optimiser that normalises each
                parameter normalises the pair together (only then :math:`K^\top K-Q^\top Q` is
                conserved by small steps).
            loss: a :class:`~attsvm.models.Loss`, a function of margins, or one of these per run;
                logistic when left out.
            penalty: :math:`\lambda` of :math:`\lambda(\|K\|_F^2+\|Q\|_F^2)`, or
                :math:`\lambda\|W\|_F^2`; the published runs of factors have 2.2e-16. It is added in
                log space, whatever the size of the loss gradient. A number, or one per run.

        Raises:
            InputError: shapes that do not match, more than one leading axis, values that are not
                finite, an unknown ``init`` or ``parameterization``, factors without ``init``.
        """
        from attsvm.models.building import build

        factors = (inner, stacked) if _factored(parameterization, inner, stacked) else None
        return build(
            data, head, intercept, runs, init, train_head, loss, penalty, Reading(), factors
        )

    @classmethod
    def sequence(
        cls,
        data: AttentionData,
        labels: ArrayLike,
        head: Head,
        intercept: ArrayLike | None = 0.0,
        runs: int | None = None,
        init: Init | None = None,
        train_head: bool = False,
        *,
        causal: bool = False,
        parameterization: Parameterization = "W",
        inner: int | None = None,
        stacked: bool = False,
        loss: Losses | None = None,
        penalty: ArrayLike = 0.0,
    ) -> Attention:
        r"""Self-attention with an output at every position:
        :math:`f_{ij}=h\big(X_i^\top\mathrm{softmax}(X_iWx_{ij})\big)`.

        Values, probabilities and selections then have an axis of ``T`` positions behind ``n``, and
        the loss is the mean over all visible positions. Queries and labels of ``data`` play no
        part. Its support vector machine is that of
        :func:`attsvm.sequence_margins`. A hidden position selects itself and does not count.

        Args:
            data: see :meth:`cross`.
            labels: ``([runs,] n, T)``, -1 or +1 at every visible position; what stands at hidden
                ones is not read.
            head: see :meth:`cross`.
            intercept: see :meth:`cross`.
            runs: see :meth:`cross`.
            init: see :meth:`cross`.
            train_head: see :meth:`cross`.
            causal: whether a position sees only the positions up to its own.
            parameterization: see :meth:`cross`.
            inner: see :meth:`cross`.
            stacked: see :meth:`cross`.
            loss: see :meth:`cross`.
            penalty: see :meth:`cross`.

        Raises:
            InputError: what :meth:`cross` refuses, or labels of another shape or value.
        """
        from attsvm.models.building import build, position_labels

        factors = (inner, stacked) if _factored(parameterization, inner, stacked) else None
        reading = Reading(labels=position_labels(data, labels), causal=causal)
        return build(data, head, intercept, runs, init, train_head, loss, penalty, reading, factors)

    @classmethod
    def prompt(
        cls,
        data: AttentionData,
        head: Head,
        intercept: ArrayLike | None = None,
        runs: int | None = None,
        init: Init | None = None,
        train_head: bool = False,
        *,
        keys: ArrayLike | None = None,
        prompt: ArrayLike | None = None,
        loss: Losses | None = None,
        penalty: ArrayLike = 0.0,
    ) -> Attention:
        r"""Prompt attention: logits :math:`X_iK^\top p` with a trained vector p, or
        :math:`X_iW^\top u` with a trained W and a fixed u.

        The queries of ``data`` play no part. The support vector machine is that of
        :func:`attsvm.prompt_margins`, with the same ``keys``.

        Args:
            data: see :meth:`cross`.
            head: see :meth:`cross`.
            intercept: see :meth:`cross`; left out by default.
            runs: see :meth:`cross`.
            train_head: see :meth:`cross`.
            init: ``"zeros"`` (the default), an array ``(d_k,)`` for p or ``(d_u, d_x)`` for W, with
                a run axis in front if they differ, or ``("uniform", seed)``.
            keys: the fixed map :math:`K` from tokens to keys, ``(d_k, d_x)``; the identity when
                left out.
            prompt: the fixed prompt ``u``, ``(d_u,)``; then W is trained.
            loss: see :meth:`cross`.
            penalty: see :meth:`cross`.

        Raises:
            InputError: what :meth:`cross` refuses, a key map or prompt of another shape, ``keys``
                together with ``prompt``.

        Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023).
        """
        from attsvm.models.building import build_prompt

        return build_prompt(
            data, head, intercept, runs, init, train_head, loss, penalty, keys, prompt
        )

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The attention parameters by name (without those of the head)."""
        return {name: getattr(self, name) for name in self._names}

    def combined(self) -> Tensor:
        """``([runs,] d_k, d_z)``: the matrix that stands in the logits and is compared with
        solutions; here ``W`` itself.
        """
        return self.W

    def moved(self, queries: Tensor, scale: LogScale | None = None) -> Tensor:
        """``(..., N, d_k)``: queries ``(..., N, d_z)`` moved by the weights, :math:`Wz_i` row by
        row.
        """
        matrix = self._matrix(scale)
        assert matrix is not None
        return queries @ matrix.mT

    def _matrix(self, scale: LogScale | None) -> Tensor | None:
        """What moves the queries, where that is one matrix and no product of larger ones."""
        return self._weight("W", scale)

    def _weight(self, name: str, scale: LogScale | None) -> Tensor:
        """The parameter of this name as the logits see it: its gradient holds that of the
        penalty.
        """
        parameter: Tensor = getattr(self, name)
        return penalised(parameter, self.penalty, scale) if self._penalised else parameter

    def sequences(self, data: AttentionData | Sequences) -> Sequences:
        """``data`` as tensors beside the weights; convert once when calling many times.

        Raises:
            InputError: the data does not match the model's dimensions or runs.
        """
        if isinstance(data, Sequences):
            return data
        like = next(iter(self.weights.values()))
        shape = tuple(self.combined().shape[-2:])
        if self.reading.dimensions(data) != shape:
            raise InputError(
                f"the data has d_x={data.d_x}, d_z={data.d_z} but the model's W is {shape}; use"
                " data of that shape"
            )
        if data.batch_shape not in ((), (self.runs,)):
            raise InputError(
                f"the data has leading axes {data.batch_shape} but the model has runs={self.runs};"
                " give one instance, or one per run"
            )
        return self.reading.read(data, like)

    def logits(self, data: AttentionData | Sequences) -> Tensor:
        r"""``([runs], n, T)``: :math:`a_{it}=x_{it}^\top Wz_i`, measured from their mean over the
        sequence; hidden tokens hold zeros.

        ``([runs], n, T, T)``, the third axis the position that asks, for a model with an output at
        every position.
        """
        sequences = self.sequences(data)
        logits = query_logits(self.moved(sequences.queries), sequences)
        return logits if self.reading.labels is not None else logits[..., 0, :]

    def selection(self, data: AttentionData | Sequences) -> Selection:
        """Selected tokens and log-probabilities."""
        sequences = self.sequences(data)
        mask = sequences.mask if self.reading.labels is not None else sequences.mask[..., 0, :]
        return select(self.logits(sequences), mask)

    def probabilities(self, data: AttentionData | Sequences) -> Tensor:
        """Attention probabilities, shaped like the logits."""
        return self.selection(data).probability

    def selected(self, data: AttentionData | Sequences) -> Tensor:
        """``([runs], n)`` or ``([runs], n, T)``: position of the token with the largest logit, the
        first one on ties.
        """
        return self.selection(data).winner

    def outputs(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        """``([runs], N, d_x)``: attention outputs, one row per query; ``scale`` as in
        :func:`~attsvm.models.attend`.
        """
        sequences = self.sequences(data)
        return attend_moved(self.moved(sequences.queries, scale), sequences, scale)

    def forward(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        """``([runs], n)`` or ``([runs], n, T)``: decision values of soft attention."""
        sequences = self.sequences(data)
        return self._by_position(self.head(self.outputs(sequences, scale)), sequences)

    def hard_values(self, data: AttentionData | Sequences) -> Tensor:
        """Decision values when each query is answered by its selected token alone; shaped like
        :meth:`forward`.
        """
        sequences = self.sequences(data)
        selection = self.selection(sequences)
        one_hot = torch.zeros_like(selection.log_probability).scatter(
            -1, selection.winner[..., None], 1.0
        )
        one_hot = one_hot if self.reading.labels is not None else one_hot[..., None, :]
        chosen = (one_hot @ sequences.tokens).flatten(-3, -2)
        return self._by_position(self.head(chosen), sequences)

    def loss(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        r"""``([runs],)``: the objective of each run,
        :math:`\frac1n\sum_i\ell(Y_if_i)+\lambda\sum\|\theta\|_F^2`.

        Args:
            data: what to evaluate on.
            scale: when given, ``loss.sum().backward()`` stores gradients divided by a positive
                factor per run, so that they neither underflow nor overflow, and writes the
                logarithms of the factors into ``scale``. For optimisers that normalise. Without it
                the gradients are the true ones.
        """
        sequences = self.sequences(data)
        head = linear_head(self)
        if head is None:
            values = self.head(self.outputs(sequences, scale))
            loss = self.objective(sequences.labels * values, scale, sequences.weights)
        else:
            matrix = self._matrix(scale)
            operation, inputs = (
                (matrix_loss, matrix)
                if matrix is not None
                else (linear_loss, self.moved(sequences.queries, scale))
            )
            loss = operation(
                inputs, head.readout, head.has_intercept, sequences, self.objective, scale
            )
        if self._penalised:
            with (
                torch.no_grad()
            ):  # the gradient of the penalty is already in that of the weights, at their scale
                squares = torch.stack(
                    [(parameter**2).sum(dim=(-2, -1)) for parameter in self.weights.values()]
                )
            loss = loss + torch.as_tensor(
                self.penalty, dtype=loss.dtype, device=loss.device
            ) * squares.sum(dim=0)
        return loss

    def scores(self, data: AttentionData | Sequences) -> Tensor:
        r"""``([runs], n, T)``: scores :math:`\gamma_{it}=Y_i\,x_{it}^\top\nabla h(o_i)` at the
        present outputs; hidden tokens score -inf.

        For a linear head they are :func:`attsvm.token_scores` and do not depend on the weights.
        Shaped like the logits.
        """
        sequences = self.sequences(data)
        with torch.no_grad():
            outputs = self.outputs(sequences)
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.head(outputs).sum(), outputs)
        signed = by_sequence(sequences.labels[..., None] * slope, sequences)
        scores: Tensor = (signed @ sequences.tokens.mT).masked_fill(~sequences.mask, -torch.inf)
        return scores if self.reading.labels is not None else scores[..., 0, :]

    def _by_position(self, values: Tensor, sequences: Sequences) -> Tensor:
        return (
            values
            if self.reading.labels is None
            else by_sequence(values[..., None], sequences)[..., 0]
        )


def _factored(parameterization: str, inner: int | None, stacked: bool) -> bool:
    if parameterization not in ("W", "KQ"):
        raise InputError(
            f"parameterization is {parameterization!r}; use 'W' or 'KQ', or Attention.prompt for a"
            " prompt"
        )
    if parameterization == "W" and (inner is not None or stacked):
        raise InputError(
            "inner and stacked belong to factors; pass parameterization='KQ' with them"
        )
    return parameterization == "KQ"


def linear_head(model: Attention) -> LinearHead | None:
    """The head of a model when it is linear."""
    return model.head if type(model.head) is LinearHead else None
