"""One softmax-attention layer, many runs at once: the model, whatever its parameters are: a
matrix, factors, a prompt, or keys under a fixed prompt.

A constructor checks what a caller writes, draws starts and spreads the axis of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.data import AttentionData, FloatArray, floats, spread
from attsvm.errors import InputError
from attsvm.margins.checks import reals
from attsvm.models.decision_heads import LinearHead
from attsvm.models.linear import linear_loss, matrix_loss
from attsvm.models.losses import Logistic, LogScale, Loss, PerRun, as_loss, penalised
from attsvm.models.sequences import Reading, Sequences
from attsvm.models.softmax import (
    Selection,
    attend_moved,
    attend_rows,
    by_sequence,
    query_logits,
    select,
)

Init = ArrayLike | Literal["zeros"] | tuple[Literal["uniform"], int] | tuple[ArrayLike, ArrayLike]
Head = ArrayLike | nn.Module | Callable[[Tensor], Tensor]
Losses = Loss | Callable[[Tensor], Tensor] | Sequence[Loss | Callable[[Tensor], Tensor]]
Parameterization = Literal["W", "KQ"]
_Model = TypeVar("_Model", bound="Attention")


class Attention(nn.Module):
    r"""Softmax attention with a head on top,
    :math:`f_i=h\big(X_i^\top\mathrm{softmax}(X_iWz_i)\big)`; here :math:`W` is the parameter.

    There is no :math:`1/\sqrt d` in the logits. Build it with :meth:`cross`, :meth:`sequence` or
    :meth:`prompt`; the subclasses
    :class:`~attsvm.models.FactoredAttention` :math:`W=KQ^\top`,
    :class:`~attsvm.models.PromptAttention` and
    :class:`~attsvm.models.FixedPromptAttention` have other parameters.

    A subclass keeps its class: its constructors make ``cls(weights, head=, runs=, objective=,
    penalty=, reading=)``. What it overrides (``forward``, ``outputs``, ``logits``, ``moved``,
    ``probabilities``, ``selection``, ``loss``) takes part in the loss and in training, through
    torch and with the true gradients, which underflow where attention saturates.

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
    ) -> Self:
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
                finite, an unknown ``init`` or ``parameterization``, factors without ``init``, a
                subclass whose parameters are of another form.
        """
        factors = _factors(parameterization, inner, stacked)
        return build(
            cls, data, head, intercept, runs, init, train_head, loss, penalty, Reading(), factors
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
    ) -> Self:
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
        factors = _factors(parameterization, inner, stacked)
        reading = Reading(labels=position_labels(data, labels), causal=causal)
        return build(
            cls, data, head, intercept, runs, init, train_head, loss, penalty, reading, factors
        )

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
    ) -> Self:
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
        mapped = (
            None if keys is None else reals("keys", keys, (None, data.d_x), f"(d_k, {data.d_x})")
        )
        made: Any = _kind(cls, PromptAttention if prompt is None else FixedPromptAttention)
        reading = Reading(keys=mapped, prompt=True)
        lead, common = _common(data, head, intercept, runs, train_head, loss, penalty, reading)
        if prompt is None:
            d_k = reading.dimensions(data)[0]
            if init is not None and not isinstance(init, (str, tuple)):
                given = init.detach().cpu() if isinstance(init, Tensor) else init
                init = np.asarray(given)[..., None]
            (p,) = _starts({"p": (d_k, 1)}, lead, init)
            return cast("Self", made({"p": p}, **common))
        if keys is not None:
            raise InputError(
                "keys and prompt are both given; W is the key map that is trained under a fixed"
                " prompt, so leave keys out"
            )
        u = floats("prompt", prompt)
        if u.ndim != 1 or not np.isfinite(u).all() or not u.any():
            raise InputError(
                f"prompt has shape {u.shape}; give a finite vector (d_u,) that is not zero"
            )
        (W,) = _starts({"W": (len(u), data.d_x)}, lead, init)
        return cast("Self", made({"W": W}, **common, u=torch.from_numpy(u[:, None].copy())))

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
        if not self._penalised or overridden(self):
            return parameter
        return penalised(parameter, self.penalty, scale)

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
        changed = overridden(self)
        if changed & {"logits", "selection", "probabilities"}:
            return self._attended(sequences, changed)
        return attend_moved(self.moved(sequences.queries, scale), sequences, scale)

    def _attended(self, sequences: Sequences, changed: frozenset[str]) -> Tensor:
        """:meth:`outputs` of logits or probabilities that a subclass has made."""
        plain = self.reading.labels is None
        if changed & {"selection", "probabilities"}:
            shares = self.probabilities(sequences)
            shares = shares[..., None, :] if plain else shares
            return (shares @ sequences.tokens).flatten(-3, -2)
        logits = self.logits(sequences)
        return attend_rows(logits[..., None, :] if plain else logits, sequences)

    def forward(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        """``([runs], n)`` or ``([runs], n, T)``: decision values of soft attention."""
        sequences = self.sequences(data)
        return self._by_position(self.head(self.outputs(sequences, scale)), sequences)

    def hard_values(self, data: AttentionData | Sequences) -> Tensor:
        """Decision values when each query is answered by its selected token alone; shaped like
        :meth:`forward`.
        """
        self._needs_head_on_outputs("hard_values")
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

        Raises:
            InputError: a ``scale`` for a subclass that overrides what decides its values, whose
                gradients have no such factor; a subclass that overrides ``sequences``.
        """
        if changed := overridden(self):
            return self._overridden_loss(data, scale, changed)
        sequences = self.sequences(data)
        head = linear_head(self)
        if head is None or type(self.objective).__call__ is not Loss.__call__:
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
            # the gradient of the penalty is already in that of the weights, at their scale
            with torch.no_grad():
                squares = torch.stack(
                    [(parameter**2).sum(dim=(-2, -1)) for parameter in self.weights.values()]
                )
            loss = loss + torch.as_tensor(
                self.penalty, dtype=loss.dtype, device=loss.device
            ) * squares.sum(dim=0)
        return loss

    def _overridden_loss(
        self, data: AttentionData | Sequences, scale: LogScale | None, changed: frozenset[str]
    ) -> Tensor:
        """The objective through the subclass's own methods and torch's gradients alone."""
        name = type(self).__name__
        if scale is not None:
            raise InputError(
                f"{name} overrides {', '.join(sorted(changed))}, so its gradients cannot be"
                " rescaled; call loss(data) without scale"
            )
        if "sequences" in changed:
            raise InputError(
                f"{name} overrides sequences, which is read once and not trained; override moved,"
                " logits, outputs or forward"
            )
        sequences = self.sequences(data)
        values = self(sequences)
        values = values if self.reading.labels is None else values.flatten(-2)
        loss = self.objective(sequences.labels * values, None, sequences.weights)
        if self._penalised:
            strength = torch.as_tensor(self.penalty, dtype=loss.dtype, device=loss.device)
            squares = [(weight**2).sum(dim=(-2, -1)) for weight in self.weights.values()]
            loss = loss + strength * torch.stack(squares).sum(dim=0)
        return loss

    def _needs_head_on_outputs(self, what: str) -> None:
        """Raise where values are not the head of attention outputs, which ``what`` takes for
        granted.
        """
        if changed := overridden(self) & {"forward", "outputs"}:
            raise InputError(
                f"{type(self).__name__} overrides {' and '.join(sorted(changed))}, which"
                f" Attention.{what} does not see; override {what} too"
            )

    def scores(self, data: AttentionData | Sequences) -> Tensor:
        r"""``([runs], n, T)``: scores :math:`\gamma_{it}=Y_i\,x_{it}^\top\nabla h(o_i)` at the
        present outputs; hidden tokens score -inf.

        For a linear head they are :func:`attsvm.token_scores` and do not depend on the weights.
        Shaped like the logits.
        """
        self._needs_head_on_outputs("scores")
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


def _factors(
    parameterization: str, inner: int | None, stacked: bool
) -> tuple[int | None, bool] | None:
    """What :func:`build` takes for factors; None for the weights W themselves."""
    if parameterization not in ("W", "KQ"):
        raise InputError(
            f"parameterization is {parameterization!r}; use 'W' or 'KQ', or Attention.prompt for a"
            " prompt"
        )
    if parameterization == "W" and (inner is not None or stacked):
        raise InputError(
            "inner and stacked belong to factors; pass parameterization='KQ' with them"
        )
    return (inner, stacked) if parameterization == "KQ" else None


def linear_head(model: Attention) -> LinearHead | None:
    """The head of a model when it is linear, as it was made."""
    head = model.head
    return head if type(head) is LinearHead and not _altered(head, {"forward"}) else None


def _altered(module: nn.Module, methods: Collection[str]) -> set[str]:
    """Which of these methods were replaced on the module itself; hooks count as ``forward``."""
    found = set(vars(module)) & set(methods)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return found | {"forward"} if any(getattr(module, each) for each in hooks) else found


def overridden(model: Attention) -> frozenset[str]:
    """The names by which a model departs from the form that it is of: those that its class, or the
    model itself, overrides. Compiled passes and closed formulas say what a model does where there
    are none.
    """
    kind: Any = type(model)
    form: Any = _form(kind)
    mine = _own_names(kind, form)
    there = _altered(model, _names_of(form))
    return mine | there if there else mine


@cache
def _names_of(form: Any) -> frozenset[str]:
    """What decides the outputs of a model of this form."""
    made = {name for each in (form, Attention) for name in vars(each) if not name.startswith("__")}
    own = made - {"cross", "sequence", "prompt", "training"}
    return frozenset(own | {"__call__", "__getattr__", "__getattribute__"})


@cache
def _own_names(kind: Any, form: Any) -> frozenset[str]:
    above = kind.__mro__[: kind.__mro__.index(form)]
    stored = {"W", "K", "Q", "KQ", "p", "u", "head", "objective", "penalty", "runs", "reading"}
    names = {name for each in above for name in vars(each)}
    return frozenset(names & (_names_of(form) | stored))


def _form(kind: type[Attention]) -> type[Attention]:
    """The class of this module that says what the parameters of a model are."""
    forms = (Attention, FactoredAttention, PromptAttention, FixedPromptAttention)
    return next(each for each in kind.__mro__ if each in forms)


def _kind(asked: type[Attention], form: type[Attention]) -> type[Attention]:
    """The class of a model of this form that was asked of class ``asked``.

    Raises:
        InputError: a subclass whose parameters are of another form.
    """
    if asked is Attention:
        return form
    if _form(asked) is form:
        return asked
    how = {
        Attention: "cross or sequence with parameterization='W'",
        FactoredAttention: "cross or sequence with parameterization='KQ'",
        PromptAttention: "prompt without prompt=",
        FixedPromptAttention: "prompt with prompt=",
    }
    raise InputError(
        f"{asked.__name__} is no {form.__name__}, which these arguments make; call"
        f" {asked.__name__}.{how[_form(asked)]}, or make it a subclass of {form.__name__}"
    )


class FactoredAttention(Attention):
    r"""Attention with factors, :math:`W=KQ^\top`.

    Attributes:
        K: ``([runs,] d_x, m)``.
        Q: ``([runs,] d_z, m)``; with ``stacked`` K and Q are views of the one parameter ``KQ``,
            ``([runs,] d_x + d_z, m)``.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines* (2023): its bias is that of
    the nuclear norm.
    """

    K: Tensor
    Q: Tensor

    def __init__(self, weights: Mapping[str, Tensor], *arguments: Any, **options: Any) -> None:
        K, Q = weights["K"], weights["Q"]
        stacked = options.pop("stacked", False)
        weights = {"KQ": torch.cat([K, Q], dim=-2)} if stacked else {"K": K, "Q": Q}
        super().__init__(weights, *arguments, **options)
        self.split: int | None = int(K.shape[-2]) if stacked else None

    def factors(self, scale: LogScale | None = None) -> tuple[Tensor, Tensor]:
        """K and Q as the logits see them."""
        if self.split is None:
            return self._weight("K", scale), self._weight("Q", scale)
        both = self._weight("KQ", scale)
        return both[..., : self.split, :], both[..., self.split :, :]

    def combined(self) -> Tensor:
        r"""``([runs,] d_x, d_z)``: :math:`KQ^\top`."""
        K, Q = self.factors()
        return K @ Q.mT

    def moved(self, queries: Tensor, scale: LogScale | None = None) -> Tensor:
        r"""``(..., N, d_x)``: :math:`KQ^\top z_i` row by row."""
        K, Q = self.factors(scale)
        return (queries @ Q) @ K.mT

    def _matrix(self, scale: LogScale | None) -> None:
        """None: the queries pass through both factors."""


class PromptAttention(Attention):
    r"""Attention that one trained prompt asks: logits :math:`X_iK^\top p` with a fixed key map K.

    Attributes:
        p: ``([runs,] d_k, 1)``, one column, so that a normalised optimiser measures it with one
            norm.

    Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023).
    """

    p: nn.Parameter

    def combined(self) -> Tensor:
        """``([runs,] d_k, 1)``: the prompt."""
        return self.p

    def _matrix(self, scale: LogScale | None) -> Tensor:
        """The prompt, as the one column that moves queries of one entry."""
        return self._weight("p", scale)


class FixedPromptAttention(Attention):
    r"""Attention with trained keys :math:`Wx_{it}` and a fixed prompt u: logits
    :math:`X_iW^\top u`.

    Attributes:
        W: ``([runs,] d_u, d_x)``.
        u: buffer ``(d_u, 1)``, the fixed prompt.

    Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023), Lemma 1:
    descent on W is descent on
    :math:`p=W^\top u` with a step :math:`\|u\|^2` times as long.
    """

    u: Tensor

    def __init__(
        self, weights: Mapping[str, Tensor], *arguments: Any, u: Tensor, **options: Any
    ) -> None:
        super().__init__(weights, *arguments, **options)
        self.register_buffer("u", u)

    def combined(self) -> Tensor:
        r"""``([runs,] d_x, 1)``: :math:`p=W^\top u`."""
        return self.W.mT @ self.u

    def _matrix(self, scale: LogScale | None) -> Tensor:
        r""":math:`W^\top u`, as the one column that moves queries of one entry."""
        return self._weight("W", scale).mT @ self.u


def build(
    asked: type[_Model],
    data: AttentionData,
    head: Head,
    intercept: ArrayLike | None,
    runs: int | None,
    init: Init | None,
    train_head: bool,
    loss: Losses | None,
    penalty: ArrayLike,
    reading: Reading,
    factors: tuple[int | None, bool] | None,
) -> _Model:
    """A model of weights W, or of factors with ``(inner, stacked)``, of the class asked for."""
    made = _kind(asked, Attention if factors is None else FactoredAttention)
    lead, common = _common(data, head, intercept, runs, train_head, loss, penalty, reading)
    d_x, d_z = reading.dimensions(data)
    if factors is None:
        (W,) = _starts({"W": (d_x, d_z)}, lead, init)
        return cast("_Model", made({"W": W}, **common))
    inner = min(d_x, d_z) if factors[0] is None else factors[0]
    if inner < 1:
        raise InputError(f"inner is {inner}; factors need at least one column")
    if init is None:
        raise InputError(
            "factors need an init, because K = Q = 0 is a stationary point; pass ('uniform', seed)"
            " or a pair of arrays (K, Q)"
        )
    K, Q = _starts({"K": (d_x, inner), "Q": (d_z, inner)}, lead, init)
    options: dict[str, Any] = {"stacked": True} if factors[1] else {}
    return cast("_Model", made({"K": K, "Q": Q}, **common, **options))


def position_labels(data: AttentionData, labels: ArrayLike) -> FloatArray:
    """Labels of positions as floats, zero at hidden positions.

    Raises:
        InputError: another shape, or a label other than -1 and +1 at a visible position.
    """
    signs = np.array(labels, dtype=np.float64)
    shape = data.mask.shape
    if signs.shape not in (shape, shape[len(data.batch_shape) :]):
        raise InputError(
            f"labels has shape {signs.shape}; it must be {shape}, one label per position"
        )
    seen = (
        data.mask
        if signs.shape == shape
        else data.mask.any(axis=tuple(range(len(data.batch_shape))))
    )
    wrong = seen & (np.abs(signs) != 1.0)
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"labels holds {signs[tuple(where)]:g} at {where}; labels must be -1 or +1"
        )
    return np.where(seen, signs, 0.0)


def _common(
    data: AttentionData,
    head: Head,
    intercept: ArrayLike | None,
    runs: int | None,
    train_head: bool,
    loss: Losses | None,
    penalty: ArrayLike,
    reading: Reading,
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The run axis, and what every kind of model is built from."""
    count = _runs(data, runs)
    lead = () if count is None else (count,)
    objective = Logistic() if loss is None else as_loss(loss)
    if isinstance(objective, PerRun) and len(objective.losses) != count:
        raise InputError(
            f"loss lists {len(objective.losses)} losses but the model has runs={count}; give one"
            " per run"
        )
    strength = floats("penalty", penalty)
    if strength.shape not in ((), lead) or not (np.isfinite(strength) & (strength >= 0)).all():
        raise InputError(
            f"penalty is {penalty!r}; give a finite number, 0 or more, or as many of them as there"
            f" are runs ({count})"
        )
    built = _head(head, intercept, lead, data.d_x, train_head)
    return lead, {
        "head": built,
        "runs": count,
        "objective": objective,
        "penalty": strength,
        "reading": reading,
    }


def _head(
    head: Head, intercept: ArrayLike | None, lead: tuple[int, ...], d_x: int, train_head: bool
) -> Any:
    if isinstance(head, nn.Module) or (callable(head) and not isinstance(head, Tensor)):
        if train_head:
            raise InputError(
                "train_head makes a linear head a parameter; the parameters of a module are trained"
                " when the optimizer has them"
            )
        return head
    v = spread("head", head, (*lead, d_x), 1)
    b = None if intercept is None else torch.from_numpy(spread("intercept", intercept, lead, 0))
    return LinearHead(torch.from_numpy(v), b, train_head)


def _runs(data: AttentionData, runs: int | None) -> int | None:
    if len(data.batch_shape) > 1:
        raise InputError(
            f"data has leading axes {data.batch_shape}; a model takes at most one, the runs"
        )
    if runs is not None and runs < 1:
        raise InputError(
            f"runs is {runs}; ask for at least one run, or None for a model without run axis"
        )
    if data.batch_shape and runs not in (None, data.batch_shape[0]):
        raise InputError(
            f"runs is {runs} but data holds {data.batch_shape[0]} instances; leave runs out or make"
            " them equal"
        )
    return data.batch_shape[0] if data.batch_shape else runs


def _starts(shapes: dict[str, tuple[int, int]], lead: tuple[int, ...], init: Any) -> list[Tensor]:
    """The start of every parameter, in order."""
    full = [(*lead, *shape) for shape in shapes.values()]
    if init is None or (isinstance(init, str) and init == "zeros"):
        arrays = [np.zeros(shape) for shape in full]
    elif (
        isinstance(init, tuple)
        and len(init) == 2
        and isinstance(init[0], str)
        and init[0] == "uniform"
    ):
        arrays = _uniform(int(init[1]), full)
    elif isinstance(init, str) or (isinstance(init, tuple) and len(shapes) == 1):
        raise InputError(f"init is {init!r}; use 'zeros', an array, or ('uniform', seed)")
    elif len(shapes) == 1:
        arrays = [spread("init", init, full[0], 2)]
    else:
        if not isinstance(init, (tuple, list)) or len(init) != len(shapes):
            raise InputError(
                f"init of factors is a pair of arrays ({', '.join(shapes)}), 'zeros' or ('uniform',"
                " seed)"
            )
        arrays = [spread(f"init[{k}]", init[k], shape, 2) for k, shape in enumerate(full)]
    return [torch.from_numpy(array) for array in arrays]


def _uniform(seed: int, shapes: list[tuple[int, ...]]) -> list[FloatArray]:
    count = shapes[0][0] if len(shapes[0]) == 3 else 1
    generators = [np.random.default_rng([seed, r]) for r in range(count)]
    out = []
    for shape in shapes:
        width = 1.0 / np.sqrt(shape[-2])
        out.append(
            np.stack(
                [generator.uniform(-width, width, shape[-2:]) for generator in generators]
            ).reshape(shape)
        )
    return out
