"""One softmax-attention layer, many runs at once: a matrix or two factors move the queries, keys
answer them, values are averaged and a head reads the average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.attention.decision_heads import Head, as_head, values_of
from attsvm.attention.exact_softmax import Selection, attend, query_logits, select
from attsvm.attention.initial_weights import Init, factor_shapes, run_axis, starts, strengths
from attsvm.attention.linear import linear_loss, matrix_loss
from attsvm.attention.losses import (
    Logistic,
    LogScale,
    Loss,
    TargetLoss,
    as_loss,
    as_target_loss,
    target_loss,
)
from attsvm.attention.overriding import form_of, linear_head, overridden
from attsvm.attention.sequences import (
    Features,
    Inputs,
    Sequences,
    as_targets,
    module_features,
    with_unit_queries,
)
from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import AttentionData, floats

Losses = Loss | str | Callable[[Tensor], Tensor] | TargetLoss
Similarity = Callable[[Tensor, Tensor], Tensor]
Parameterization = Literal["W", "KQ"]


class Attention(nn.Module):
    r"""Softmax attention with a head on top,
    :math:`f_i=h\big(V_i^\top\mathrm{softmax}(K_iWz_i)\big)`; here :math:`W` is the parameter.

    Keys :math:`K_i` and values :math:`V_i` are the tokens :math:`X_i` unless they are given. There
    is no :math:`1/\sqrt d` in the logits. Build it with :meth:`cross` or :meth:`prompt`; the
    subclass :class:`~attsvm.attention.FactoredAttention` has factors, :math:`W=KQ^\top`, and
    :class:`~attsvm.attention.ScaledAttention` temperatures.

    A subclass keeps its class: its constructors make ``cls(weights, head=, runs=, objective=,
    penalty=, inputs=, similarity=)``. What it overrides (``forward``, ``outputs``, ``logits``,
    ``moved``, ``probabilities``, ``selection``, ``loss``) takes part in the loss and in training,
    through torch and with the true gradients, which underflow where attention saturates.

    Attributes:
        W: parameter ``(d_k, d_z)``, or ``(runs, d_k, d_z)``.
        head: the head ``h``; ``head.readout`` is a parameter when a linear head is trained.
        runs: number of runs, ``None`` for a model without run axis.
        objective: the :class:`~attsvm.attention.Loss` of a margin :math:`Y_if_i`, or a function of
            values and targets.
        penalty: :math:`\lambda` of the penalty :math:`\lambda\sum\|\theta\|_F^2` over the attention
            parameters, a number or ``(runs,)``.
        inputs: how data is read: keys, values, targets, prompt.
        key_module, value_module: what makes keys and values of tokens, trained when the optimizer
            has its parameters; None where keys and values are fixed.
        similarity: what makes logits of moved queries and keys; None for their product.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines*, the model with weights W.

    >>> from attsvm.datasets import unit_sphere
    >>> from attsvm.attention import Attention
    >>> data, head = unit_sphere(n=6, T=8, d=10, seed=0)
    >>> model = Attention.cross(data, head)
    >>> tuple(model.selected(data).shape), round(model.probabilities(data)[0, 0].item(), 9)
    ((6,), 0.125)
    """

    parameterization: ClassVar[Parameterization] = "W"
    W: nn.Parameter
    head: Any

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        head: nn.Module | Callable[[Tensor], Tensor],
        runs: int | None = None,
        objective: Loss | TargetLoss | None = None,
        penalty: ArrayLike = 0.0,
        inputs: Inputs | None = None,
        similarity: Similarity | None = None,
    ) -> None:
        super().__init__()
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value))
        self.head = head
        self.runs = runs
        self.objective: Any = Logistic() if objective is None else objective
        self.penalty = np.asarray(penalty, dtype=np.float64)
        self.inputs = Inputs() if inputs is None else inputs
        self.key_module = self.inputs.modules.get("keys")
        self.value_module = self.inputs.modules.get("values")
        self.similarity = similarity
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
        keys: Features | None = None,
        values: Features | None = None,
        similarity: Similarity | None = None,
        targets: ArrayLike | None = None,
        temperature: ArrayLike | Literal["query"] | None = None,
    ) -> Self:
        r"""Cross-attention: the queries of the data ask. Only shapes of ``data`` are read; it is
        passed again to every method.

        Every position asks in the data of :func:`attsvm.sequence_pairs`, each under a mask of its
        own (causal, windows).

        Args:
            data: one instance for all runs, or with one leading axis: one instance per run.
            head: :math:`v` of a linear head, ``(d_v,)`` or ``(runs, d_v)``; beside ``targets`` also
                a matrix ``(C, d_v)``; or a module or function from attention outputs
                ``(..., n, d_v)`` to values ``(..., n)``, such as
                :class:`~attsvm.attention.MLPHead`, or ``(..., n, C)`` beside ``targets``.
            intercept: :math:`b` of a linear head, a number or ``(runs,)``; None for a head that has
                none (and trains none).
            runs: number of runs; read from the leading axis of ``data`` when left out.
            init: ``"zeros"``; an array ``(d_k, d_z)`` or ``(runs, d_k, d_z)``, for factors a pair
                of arrays for K and Q; or ``("uniform", seed)``, entries uniform on
                :math:`[-1/\sqrt{d}, 1/\sqrt{d}]` with the first dimension of the parameter, run
                ``r`` drawn from its own generator ``(seed, r)``. Left out: zeros for a matrix;
                factors need one, because :math:`K=Q=0` is a stationary point.
            train_head: whether a linear head is a parameter, beside the weights.
            parameterization: ``"W"``, or ``"KQ"`` for factors :math:`W=KQ^\top`.
            inner: columns ``m`` of the factors; ``min(d_k, d_z)`` when left out.
            stacked: keep both factors in one parameter, so that an optimiser that normalises each
                parameter normalises the pair together (only then :math:`K^\top K-Q^\top Q` is
                conserved by small steps).
            loss: of margins: ``"logistic"`` (the default), ``"exponential"``, ``"linear"``, a
                :class:`~attsvm.attention.Loss`, or a function of margins written in torch, entry by
                entry. Beside ``targets``: ``"squared"`` (the default), ``"cross_entropy"``, or a
                function of values and targets with one number, or one row of numbers, per sequence.
            penalty: :math:`\lambda` of :math:`\lambda(\|K\|_F^2+\|Q\|_F^2)`, or
                :math:`\lambda\|W\|_F^2`; the published runs of factors have 2.2e-16. It is added in
                log space, whatever the size of the loss gradient. A number, or one per run.
            keys: what the moved queries are compared with: a matrix ``(d_k, d_x)`` that maps tokens
                to keys, the keys themselves ``([runs,] n, T, d_k)``, or a function of the data that
                gives them (rotated by their positions, say), none of them trained; or a module
                of float64 from tokens ``([runs,] n, T, d_x)`` to keys, such as
                :class:`~attsvm.attention.WordEmbeddings`, which is. The tokens when left out.
            values: what attention averages, given in the same ways, with ``d_v`` features.
            similarity: a function written in torch of moved queries ``([runs,] n, d_k)`` and keys
                ``([runs,] n, T, d_k)`` that gives logits ``([runs,] n, T)``; their product when
                left out. Parameters of a module are trained when the optimizer has them.
            targets: ``([runs,] n)`` or ``([runs,] n, C)``, with which the values are compared;
                numbers of classes for ``"cross_entropy"``. Labels of ``data`` then play no part.
            temperature: features ``([runs,] n, f)`` of the queries, or ``"query"`` for the queries
                themselves: the model is a :class:`~attsvm.attention.ScaledAttention`, which trains
                a temperature of each query. Its ``init`` is that of ``W``.

        Raises:
            InputError: shapes that do not match, more than one leading axis, values that are not
                finite, an unknown ``init``, ``loss`` or ``parameterization``, factors without
                ``init``, a loss that torch cannot differentiate, a head that is not float64, a
                subclass whose parameters are of another form.
        """
        form: Any = _class_for(
            cls, parameterization, inner is not None or stacked, temperature is not None
        )
        lead = run_axis(data, runs)
        has_targets = targets is not None
        inputs = Inputs(
            keys,
            values,
            targets=None if targets is None else as_targets(targets, data, loss == "cross_entropy"),
        )
        width = inputs.value_width(data)
        common: dict[str, Any] = {
            "head": as_head(head, intercept, lead, width, train_head, has_targets),
            "runs": lead[0] if lead else None,
            "objective": (
                as_target_loss("squared" if loss is None else cast(Any, loss))
                if has_targets
                else as_loss("logistic" if loss is None else cast(Any, loss), data.labels.shape)
            ),
            "penalty": strengths(penalty, lead),
            "inputs": inputs,
        }
        if similarity is not None:
            common["similarity"] = similarity
        d_k, d_z = inputs.dimensions(data)
        if temperature is not None:
            common["features"] = _temperature_features(temperature, data, lead)
            width = data.d_z if common["features"] is None else common["features"].shape[-1]
            weights = starts({"W": (d_k, d_z)}, lead, init)
            return form({**weights, **starts({"log_scale": (width, 1)}, lead, None)}, **common)
        if form.parameterization == "W":
            return form(starts({"W": (d_k, d_z)}, lead, init), **common)
        weights = starts(factor_shapes(d_k, d_z, inner, init), lead, init)
        return form(weights, **common, **({"stacked": True} if stacked else {}))

    @classmethod
    def prompt(
        cls,
        data: AttentionData,
        head: Head,
        intercept: ArrayLike | None = None,
        runs: int | None = None,
        init: Init | None = None,
        train_head: bool = False,
        **options: Any,
    ) -> Self:
        r"""Prompt attention: logits :math:`K_ip` with a trained vector p, the one column of ``W``.

        It is :meth:`cross` where every query is the number 1; the queries of ``data`` play no part.
        The support vector machine is that of :func:`attsvm.prompt_margins`, with the same ``keys``.

        Args:
            data: see :meth:`cross`.
            head: see :meth:`cross`.
            intercept: see :meth:`cross`; left out by default.
            runs: see :meth:`cross`.
            init: ``"zeros"`` (the default), an array ``(d_k,)`` or ``(runs, d_k)`` for p, or
                ``("uniform", seed)``.
            train_head: see :meth:`cross`.
            **options: ``keys``, ``loss`` and so on of :meth:`cross`.

        Raises:
            InputError: what :meth:`cross` refuses.

        Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023). A
        fixed prompt u under a trained key map W is :meth:`cross` of data whose queries are u (its
        Lemma 1: descent on W is descent on :math:`p=Wu` with a step :math:`\|u\|^2` times as long).
        """
        if init is not None and not isinstance(init, (str, tuple)):
            column = init.detach().cpu() if isinstance(init, Tensor) else init
            init = np.asarray(column)[..., None]
        prompted = with_unit_queries(data)
        model = cls.cross(prompted, head, intercept, runs, init, train_head, **options)
        model.inputs = replace(model.inputs, prompt=True)
        return model

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The attention parameters by name (without those of the head)."""
        return {name: getattr(self, name) for name in self._names}

    def combined(self) -> Tensor:
        """``([runs,] d_k, d_z)``: the matrix that stands in the logits and is compared with
        solutions; here ``W`` itself.
        """
        return self.W

    def moved(self, queries: Tensor) -> Tensor:
        """``(..., n, d_k)``: queries ``(..., n, d_z)`` moved by the weights, :math:`Wz_i` row by
        row.
        """
        return queries @ self.combined().mT

    def require(self, data: AttentionData) -> None:
        """Refuse data that is not for this model.

        Raises:
            InputError: the data does not match the model's dimensions or runs.
        """
        shape = tuple(self.combined().shape[-2:])
        if self.inputs.dimensions(data) != shape:
            raise InputError(
                f"the data has d_x={data.d_x}, d_z={data.d_z} but the model's W is {shape}; use"
                " data of that shape"
            )
        if data.batch_shape not in ((), (self.runs,)):
            raise InputError(
                f"the data has leading axes {data.batch_shape} but the model has runs={self.runs};"
                " give one instance, or one per run"
            )

    def sequences(self, data: AttentionData | Sequences) -> Sequences:
        """``data`` as tensors beside the weights; convert once when calling many times.

        Raises:
            InputError: the data does not match the model's dimensions or runs.
        """
        if isinstance(data, Sequences):
            return data
        self.require(data)
        like = next(iter(self.weights.values()))
        return self.inputs.read(data, like, centred=self.similarity is None)

    def logits(self, data: AttentionData | Sequences) -> Tensor:
        r"""``([runs], n, T)``: :math:`a_{it}=k_{it}^\top Wz_i`, measured from their mean over the
        sequence unless keys are trained, or what ``similarity`` gives; what hidden tokens hold is
        not read.
        """
        sequences = self.sequences(data)
        moved = self.moved(sequences.queries)
        keys = module_features("keys", self.key_module, sequences.keys)
        if self.similarity is None:
            return query_logits(moved, keys)
        logits: Any = self.similarity(moved, keys)
        shape = (*moved.shape[:-1], sequences.mask.shape[-1])
        if not isinstance(logits, Tensor) or logits.shape != shape:
            raise InputError(
                f"similarity gives {tuple(getattr(logits, 'shape', ()))} for moved queries of shape"
                f" {tuple(moved.shape)} and keys of shape {tuple(sequences.keys.shape)}; give a"
                f" tensor of logits of shape {shape}"
            )
        return logits

    def selection(self, data: AttentionData | Sequences) -> Selection:
        """Selected tokens and log-probabilities."""
        sequences = self.sequences(data)
        return select(self.logits(sequences), sequences.mask)

    def probabilities(self, data: AttentionData | Sequences) -> Tensor:
        """Attention probabilities, shaped like the logits."""
        return self.selection(data).probability

    def selected(self, data: AttentionData | Sequences) -> Tensor:
        """``([runs], n)``: position of the token with the largest logit, the first one on ties."""
        return self.selection(data).winner

    def outputs(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        """``([runs], n, d_v)``: attention outputs; ``scale`` as in :func:`attend`."""
        sequences = self.sequences(data)
        values = module_features("values", self.value_module, sequences.values)
        if overridden(self) & {"selection", "probabilities"}:
            shares = self.probabilities(sequences)
            return (shares[..., None, :] @ values)[..., 0, :]
        return attend(self.logits(sequences), values, sequences.mask, scale)

    def forward(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        """``([runs], n)``: decision values of soft attention; ``([runs], n, C)`` of a head with
        ``C`` values.
        """
        return self._read(self.outputs(self.sequences(data), scale))

    def _read(self, outputs: Tensor) -> Tensor:
        """Decision values ``([runs], n)``, or ``([runs], n, C)`` beside targets, of outputs."""
        return values_of(self.head, outputs, self.inputs.targets is not None)

    def loss(self, data: AttentionData | Sequences, scale: LogScale | None = None) -> Tensor:
        r"""``([runs],)``: the objective of each run,
        :math:`\frac1n\sum_i\ell(Y_if_i)+\lambda\sum\|\theta\|_F^2`.

        Args:
            data: what to evaluate on.
            scale: when given, ``loss.sum().backward()`` stores gradients divided by a positive
                factor per run, so that they neither underflow nor overflow, and writes the
                logarithms of the factors into ``scale``. For optimisers that normalise. That of the
                penalty is then left to :meth:`add_penalty`. Without it the gradients are the true
                ones.

        Raises:
            InputError: a ``scale`` for trained keys or values, or for a subclass that overrides
                what decides its values, whose gradients have no such factor; a subclass that
                overrides ``sequences``; targets of other data.
        """
        if names := overridden(self):
            self._refuse_overridden(names, scale)
        trains_features = bool(self.inputs.modules)
        if trains_features and scale is not None:
            raise InputError(
                "keys or values are trained, so the gradients cannot be rescaled; call loss(data)"
                " without scale"
            )
        sequences = self.sequences(data)
        has_targets = self.inputs.targets is not None
        # attention, linear head and loss of a margin have one exact pass
        is_plain = not (names or has_targets or trains_features or self.similarity is not None)
        head = linear_head(self) if is_plain else None
        if head is not None and type(self.objective).__call__ is Loss.__call__:
            loss = self._linear_loss(sequences, head.readout, head.has_intercept, scale)
        else:
            values = self(sequences) if scale is None else self(sequences, scale)
            loss = (
                self._loss_of_targets(values, sequences, scale)
                if has_targets
                else self.objective(sequences.labels * values, scale)
            )
        if not self.penalty.any():
            return loss
        with torch.set_grad_enabled(torch.is_grad_enabled() and scale is None):
            squares = [(weight**2).sum(dim=(-2, -1)) for weight in self.weights.values()]
            penalty = self._penalty_like(loss) * torch.stack(squares).sum(dim=0)
        return loss + penalty

    def _linear_loss(
        self, sequences: Sequences, readout: Tensor, has_intercept: bool, scale: LogScale | None
    ) -> Tensor:
        """The loss of a linear head, attention and head in one pass."""
        return matrix_loss(self.W, readout, has_intercept, sequences, self.objective, scale)

    def _loss_of_targets(
        self, values: Tensor, sequences: Sequences, scale: LogScale | None
    ) -> Tensor:
        """The mean loss of values and targets."""
        if sequences.targets is None:
            raise InputError(
                f"the model has targets for other sequences than these {sequences.mask.shape[-2]};"
                " losses and scores are those of the data that it was made for"
            )
        targets, axes = sequences.targets, 0 if self.runs is None else 1
        if sequences.labels.ndim == axes:  # one instance for all runs
            targets = targets.expand(values.shape[0], *targets.shape)
        return target_loss(self.objective, values, targets, axes, scale)

    def _penalty_like(self, like: Tensor) -> Tensor:
        """The penalty as a tensor, of the type and on the device of ``like``."""
        return torch.as_tensor(self.penalty, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def add_penalty(self, scale: LogScale) -> None:
        r"""Add the gradient of the penalty to gradients that went backward with a ``scale``.

        They are :math:`e^{-M}g` of the loss gradient :math:`g`, which may be smaller than any
        floating-point number. The sum is taken at the scale of the larger part,
        :math:`F=\max(M,\log\lambda)`:
        :math:`e^{M-F}(e^{-M}g)+2e^{\log\lambda-F}\theta`, and ``scale.penalty`` is :math:`F`.
        """
        log_loss = scale.data  # M
        log_penalty = torch.log(self._penalty_like(log_loss))
        larger = torch.maximum(log_loss, log_penalty)  # F
        scale.penalty = larger
        # a run without a gradient and without a penalty has F = -inf
        base = larger.masked_fill(torch.isneginf(larger), 0.0)
        loss_share = torch.exp(log_loss - base)[..., None, None]
        penalty_share = torch.exp(log_penalty - base)[..., None, None]
        for weight in self.weights.values():
            if weight.grad is not None:
                weight.grad.mul_(loss_share).add_((2.0 * penalty_share) * weight)

    def _refuse_overridden(self, names: frozenset[str], scale: LogScale | None) -> None:
        """Raise for what a subclass that overrides these methods cannot do."""
        name = type(self).__name__
        if scale is not None:
            raise InputError(
                f"{name} overrides {', '.join(sorted(names))}, so its gradients cannot be"
                " rescaled; call loss(data) without scale"
            )
        if "sequences" in names:
            raise InputError(
                f"{name} overrides sequences, which is read once and not trained; override moved,"
                " logits, outputs or forward"
            )

    def scores(self, data: AttentionData | Sequences) -> Tensor:
        r"""``([runs], n, T)``: scores :math:`\gamma_{it}=Y_i\,v_{it}^\top\nabla h(o_i)` at the
        present outputs; hidden tokens score -inf. Beside targets they are
        :math:`-v_{it}^\top\nabla_{o_i}\ell\big(h(o_i)\big)`.

        For a linear head they are :func:`attsvm.token_scores` and do not depend on the weights.
        """
        if names := overridden(self) & {"forward", "outputs"}:
            raise InputError(
                f"{type(self).__name__} overrides {' and '.join(sorted(names))}, which"
                " Attention.scores does not see; override scores too"
            )
        sequences = self.sequences(data)
        with torch.no_grad():
            outputs = self.outputs(sequences)
        # the gradient of what the head gains, with respect to the outputs
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            decisions = self._read(outputs)
            if self.inputs.targets is None:
                gain = (sequences.labels * decisions).sum()
            else:
                count = sequences.mask.shape[-2]
                gain = -count * self._loss_of_targets(decisions, sequences, None).sum()
            (slope,) = torch.autograd.grad(gain, outputs)
        with torch.no_grad():
            values = module_features("values", self.value_module, sequences.values)
        scores: Tensor = (slope[..., None, :] @ values.mT)[..., 0, :]
        return scores.masked_fill(~sequences.mask, -torch.inf)


class FactoredAttention(Attention):
    r"""Attention with factors, :math:`W=KQ^\top`.

    Attributes:
        K: ``([runs,] d_k, m)``.
        Q: ``([runs,] d_z, m)``; with ``stacked`` K and Q are views of the one parameter ``KQ``,
            ``([runs,] d_k + d_z, m)``.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines* (2023): its bias is that of
    the nuclear norm.

    >>> from attsvm.datasets import unit_sphere
    >>> from attsvm.attention import Attention
    >>> data, head = unit_sphere(n=6, T=8, d=10, seed=0)
    >>> model = Attention.cross(data, head, parameterization="KQ", inner=2, init=("uniform", 0))
    >>> type(model).__name__, [tuple(part.shape) for part in model.factors()]
    ('FactoredAttention', [(10, 2), (10, 2)])
    """

    parameterization: ClassVar[Parameterization] = "KQ"
    K: Tensor
    Q: Tensor

    def __init__(self, weights: Mapping[str, Tensor], *arguments: Any, **options: Any) -> None:
        K, Q = weights["K"], weights["Q"]
        stacked = options.pop("stacked", False)
        weights = {"KQ": torch.cat([K, Q], dim=-2)} if stacked else {"K": K, "Q": Q}
        super().__init__(weights, *arguments, **options)
        self.split: int | None = int(K.shape[-2]) if stacked else None

    def factors(self) -> tuple[Tensor, Tensor]:
        """K and Q."""
        if self.split is None:
            return self.K, self.Q
        both: Tensor = self.get_parameter("KQ")
        return both[..., : self.split, :], both[..., self.split :, :]

    def combined(self) -> Tensor:
        r"""``([runs,] d_k, d_z)``: :math:`KQ^\top`."""
        K, Q = self.factors()
        return K @ Q.mT

    def moved(self, queries: Tensor) -> Tensor:
        r"""``(..., n, d_k)``: :math:`KQ^\top z_i` row by row."""
        K, Q = self.factors()
        return (queries @ Q) @ K.mT

    def _linear_loss(
        self, sequences: Sequences, readout: Tensor, has_intercept: bool, scale: LogScale | None
    ) -> Tensor:
        """The loss of a linear head; the queries pass through both factors."""
        moved = self.moved(sequences.queries)
        return linear_loss(moved, readout, has_intercept, sequences, self.objective, scale)


class ScaledAttention(Attention):
    r"""Attention with a trained temperature of each query: logits
    :math:`a_i=e^{\phi_i^\top u}\,K_iWz_i`.

    With features :math:`\phi_i` of the query's own, such as the rows of ``numpy.eye(n)``, every
    query has a temperature :math:`e^{-u_i}` of its own; with ``temperature="query"`` it is a
    log-linear function of the query. It starts at 1.

    Attributes:
        log_scale: parameter u, ``([runs,] f, 1)``.
        features: ``([runs,] n, f)``, or None where they are the queries.

    Source: Zhang et al., *Selective Attention* (2024), where the temperature is a small network.

    >>> import numpy as np
    >>> from attsvm.datasets import unit_sphere
    >>> from attsvm.attention import Attention
    >>> data, head = unit_sphere(n=6, T=8, d=10, seed=0)
    >>> model = Attention.cross(data, head, temperature=np.eye(6))
    >>> type(model).__name__, [tuple(weight.shape) for weight in model.weights.values()]
    ('ScaledAttention', [(10, 10), (6, 1)])
    """

    log_scale: nn.Parameter
    features: Tensor | None

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        *arguments: Any,
        features: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(weights, *arguments, **options)
        self.register_buffer("features", features)

    def query_scales(self, queries: Tensor) -> Tensor:
        r"""``(..., n, 1)``: :math:`e^{\phi_i^\top u}`, one over the temperature of each query."""
        features = queries if self.features is None else self.features
        return torch.exp(features @ self.log_scale)

    def moved(self, queries: Tensor) -> Tensor:
        r"""``(..., n, d_k)``: :math:`e^{\phi_i^\top u}Wz_i` row by row."""
        return self.query_scales(queries) * super().moved(queries)

    def require(self, data: AttentionData) -> None:
        """Refuse data that is not for this model.

        Raises:
            InputError: what :meth:`Attention.require` refuses, and another number of queries than
                there are features.
        """
        super().require(data)
        count = data.queries.shape[-2]
        if self.features is not None and self.features.shape[-2] != count:
            raise InputError(
                f"the model has features of {self.features.shape[-2]} queries but the data has"
                f" {count}; give temperature='query' for a temperature that other queries have too"
            )

    def _linear_loss(
        self, sequences: Sequences, readout: Tensor, has_intercept: bool, scale: LogScale | None
    ) -> Tensor:
        """The loss of a linear head; the queries pass through W and their temperatures."""
        moved = self.moved(sequences.queries)
        return linear_loss(moved, readout, has_intercept, sequences, self.objective, scale)


def _temperature_features(
    temperature: ArrayLike | str, data: AttentionData, lead: tuple[int, ...]
) -> Tensor | None:
    """The features of the queries, None where they are the queries.

    Raises:
        InputError: another word than ``query``, or features of another number of queries or runs.
    """
    if isinstance(temperature, str) and temperature == "query":
        return None
    n = data.queries.shape[-2]
    features = None if isinstance(temperature, str) else floats("temperature", temperature)
    if features is None or features.shape[:-1] not in ((n,), (*lead, n)):
        raise InputError(
            f"temperature is {kind(temperature)}; give 'query', or features of {n} queries, one row"
            " each"
        )
    return torch.from_numpy(features)


def _class_for(
    requested: type[Attention], parameterization: str, of_factors: bool, is_scaled: bool
) -> type[Attention]:
    """The class of a model with these parameters whose constructor was called on ``requested``.

    Raises:
        InputError: an unknown parameterisation, arguments of another one, or a subclass whose
            parameters are of another form.
    """
    forms: dict[str, type[Attention]] = {"W": Attention, "KQ": FactoredAttention}
    if parameterization not in forms:
        raise InputError(
            f"parameterization is {parameterization!r}; use 'W' or 'KQ', or Attention.prompt for a"
            " prompt"
        )
    if parameterization == "W" and of_factors:
        raise InputError(
            "inner and stacked belong to factors; pass parameterization='KQ' with them"
        )
    if is_scaled:
        if parameterization != "W":
            raise InputError("temperatures belong to W; leave out parameterization='KQ'")
        forms["W"] = ScaledAttention
    if requested is Attention:
        return forms[parameterization]
    form = form_of(requested)
    if form is forms[parameterization]:
        return requested
    instead = (
        "pass temperature"
        if form is ScaledAttention
        else f"pass parameterization={form.parameterization!r}"
    )
    raise InputError(
        f"{requested.__name__} is no {forms[parameterization].__name__}, which these arguments"
        f" make; {instead}, or make it a subclass of {forms[parameterization].__name__}"
    )
