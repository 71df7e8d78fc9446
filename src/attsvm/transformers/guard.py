r"""Logits that grow: a watch over training that tells saturation from trouble, and can stop it.

The theory separates two growths of attention logits. In the first the direction of
:math:`W=W_K^\top W_Q` has settled and its norm grows: attention saturates on the tokens that it
selects, and nothing is wrong. In the second the direction still moves while logits grow: the
softmax turns into an ever harder maximum of something that has not been learned, and the loss is
about to rise. :class:`LogitGuard` measures both now and then (:mod:`attsvm.transformers.growth`
says how). With ``action="clip"`` it rescales the query and key weights of a head whose largest
logit is :math:`S>\tau` so that its logits shrink by :math:`\tau/S`, after the optimiser's step
(QK-clip, Kimi Team, *Kimi K2: Open Agentic Intelligence*, 2025;
:mod:`attsvm.transformers.head_weights` says for which heads how). Clipped weights would turn
further in each step of the same length, so their later steps are shortened by the same factors
(``shorten``): relative to its weights, a head then moves as if it had never been clipped. Weights
under normalised queries and keys slow themselves down in the same way, as they grow.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.base.errors import InputError
from attsvm.transformers.attention_calls import AttentionCall, CallObserver
from attsvm.transformers.growth import (
    DEFAULT_GROWTH,
    GrowthOptions,
    HeadGrowth,
    HeadMetrics,
    LogitRecord,
    steps_to_next_measurement,
)
from attsvm.transformers.guard_response import ClipResponse, HeadKey, HeadSizes, join_sizes
from attsvm.transformers.head_weights import (
    HeadWeights,
    LogitClip,
    find_head_weights,
    weight_inner_products,
)
from attsvm.transformers.logit_statistics import logit_statistics, query_blocks
from attsvm.transformers.registered_attention import observed_registry

_NORMALISING_MODULES = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm")

_LIBRARY_PACKAGES = (
    "attsvm",
    "torch",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
)

_FORESEEABLE = 1e6  # steps: no training is foreseen further ahead

_clipping: WeakKeyDictionary[Optimizer, LogitGuard] = WeakKeyDictionary()
"""Guards that clip after the steps of an optimiser."""

Action = Literal["warn", "clip"] | Callable[[list[HeadMetrics]], None]


class LogitWarning(UserWarning):
    """Attention logits of a head run away: they grow fast, and have reached tau or are about to."""


class UnreadWeightsWarning(UserWarning):
    """The guard cannot read the query and key weights of some heads, so it watches their logits
    alone.
    """


def in_trouble(
    head: HeadMetrics, tau: float, horizon: int, options: GrowthOptions = DEFAULT_GROWTH
) -> bool:
    """Whether a head is warned of: its norm raises its largest logit by more than ``fast``, or it
    is not known by how much; and that logit is beyond tau, or the head is unstable, has passed the
    share ``low`` of tau, and reaches tau within the horizon.
    """
    soon = head.steps_to_tau <= horizon and head.largest >= options.low * tau
    close = (soon and head.state in ("unstable", "unread")) or not head.largest <= tau
    return close and not head.pace <= options.fast


class LogitGuard:
    """Watch the attention logits of a model in training; warn, or clip.

    Of one optimiser step in ``every`` all passes in training mode with gradients are measured: one
    product of keys and queries more, and nothing on other steps. While logits grow so fast that
    they would double before that (:meth:`HeadGrowth.steps_until_doubled`), and after the first
    measurement, the next one comes sooner, after a fifth of ``every`` at the least. Passes for
    evaluation never count.

    The guard is a hook of the model and of the optimiser, so it works in any loop, with gradient
    accumulation, several passes per step, ``torch.compile`` (measured passes run without it),
    ``DistributedDataParallel`` and ``fully_shard``. With :mod:`torch.distributed` the largest logit
    is that of all processes, which must take the same steps and hold the same heads.

    It keeps one copy of the query and key weights, to see their direction move.

    Args:
        model: any module that attends, as for :func:`~attsvm.transformers.capture`; it computes in
            a measured pass what it computes without one.
        tau: the logit that no head should reach.
        action: ``"warn"``, ``"clip"`` or a function of the metrics of the heads in trouble.
        every: steps between two measurements, while logits do not grow fast; 1 with ``"clip"``
            holds every step at tau.
        optimizer: what moves the weights. It says when a step ends, and weights are clipped after
            it; without one every pass in training mode counts as a step.
        horizon: steps ahead for which an unstable head is announced, see :func:`in_trouble`; four
            times ``every`` when left out.
        by_hand: measure between :meth:`start` and :meth:`stop` alone, for loops that never call
            ``model`` itself; needs ``optimizer``.
        shorten: with ``"clip"``, multiply every later change that the optimiser makes to clipped
            weights (weight decay, too) by the product of their factors; ``False`` is K2's rule
            alone.
        growth: where the lines between growths are drawn.

    Attributes:
        steps: optimiser steps so far.
        measured: steps before the latest measurement; -1 before the first one.

    Raises:
        InputError: a tau or a count that is not positive, an unknown action, ``"clip"`` without an
            optimiser or for a model that normalises queries and keys (its logits do not follow
            their weights), an optimiser that holds no parameter of the model; at the first
            measurement, a model without attention; at a clip, weights that were not found; at the
            step after it, logits that did not follow, once the weights are as they were.

    Example:
        >>> import torch
        >>> from attsvm.transformers import LogitGuard
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
        >>> optimizer = torch.optim.AdamW(layer.parameters(), lr=0.3)
        >>> guard = LogitGuard(layer, tau=10.0, action="clip", every=1, optimizer=optimizer)
        >>> for _ in range(3):
        ...     layer(torch.randn(8, 10, 16)).square().mean().backward()
        ...     optimizer.step()
        >>> guard.steps
        3
    """

    def __init__(
        self,
        model: nn.Module,
        tau: float = 100.0,
        action: Action = "warn",
        every: int = 50,
        optimizer: Optimizer | None = None,
        horizon: int | None = None,
        by_hand: bool = False,
        shorten: bool = True,
        growth: GrowthOptions = DEFAULT_GROWTH,
    ) -> None:
        _check_arguments(model, tau, action, every, horizon, optimizer)
        if by_hand and optimizer is None:
            raise InputError("by_hand=True has no passes to count steps by; pass optimizer=")
        self.tau, self.action, self.every, self._options = float(tau), action, every, growth
        self.horizon = 4 * every if horizon is None else horizon
        self.steps, self.measured = 0, -1
        self._next_measurement = 0
        self._model = model
        self._measurements: dict[int, _LayerMeasurement] = {}
        self._heads: dict[tuple[int, int], HeadGrowth] = {}
        self._warned: set[tuple[int, int]] = set()
        self._head_weights: dict[_AttentionShape, HeadWeights | None] = {}
        self._previous_weights: dict[_AttentionShape, tuple[Tensor, Tensor | None, Tensor]] = {}
        self._observer = CallObserver(model, self._record_call, inside_pass=not by_hand)
        self._clip = LogitClip(model)
        self._shorten = shorten
        self._response = ClipResponse(model) if action == "clip" else None
        self._sizes: dict[HeadKey, HeadSizes] = {}
        self._measuring = ExitStack()
        self._started = False
        self._ends_with_pass = optimizer is None
        self._hooks: list[Any] = []
        if not by_hand:
            before, after = _OwnHook(self._before_forward), _OwnHook(self._after_forward)
            self._hooks = [
                model.register_forward_pre_hook(before, prepend=True),
                model.register_forward_hook(after, always_call=True),
            ]
        if optimizer is not None:
            if action == "clip":
                _clipping[optimizer] = self
                self._hooks.append(optimizer.register_step_pre_hook(self._before_optimizer_step))
            self._hooks.append(optimizer.register_step_post_hook(self._after_optimizer_step))

    def __repr__(self) -> str:
        action = self.action if isinstance(self.action, str) else "a function"
        call = f"LogitGuard({type(self._model).__name__}, tau={self.tau:g}, action={action!r}"
        heads = self.metrics()
        if not heads:
            return f"{call}, every={self.every}): nothing measured in {self.steps} steps"
        worst = max(heads, key=lambda head: head.largest)
        return (
            f"{call}, every={self.every}): {len(heads)} heads at step {self.measured}, largest"
            f" logit {worst.largest:.3g} (layer {worst.layer}, head {worst.head}, {worst.state})"
        )

    def remove(self) -> None:
        """Take all hooks off the model and the optimiser."""
        self.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for optimizer in [o for o, guard in _clipping.items() if guard is self]:
            del _clipping[optimizer]

    def metrics(self) -> list[HeadMetrics]:
        """The latest record of every head, layer by layer; empty before the first one."""
        return [
            growth.metrics(layer, head, self.tau)
            for (layer, head), growth in sorted(self._heads.items())
        ]

    def summary(self) -> dict[str, float]:
        """Four numbers for a training log, without the steps to tau where they are more than a
        million; empty before the first record.
        """
        heads = self.metrics()
        if not heads:
            return {}
        steps = min(head.steps_to_tau for head in heads)
        return {
            "guard/largest_logit": max(head.largest for head in heads),
            **({"guard/steps_to_tau": steps} if steps <= _FORESEEABLE else {}),
            "guard/saturating": float(sum(head.state == "saturating" for head in heads)),
            "guard/unstable": float(sum(head.state == "unstable" for head in heads)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Steps, records, warnings and factors in plain numbers and lists, for a checkpoint."""
        return {
            "steps": self.steps,
            "measured": self.measured,
            "next": self._next_measurement,
            "warned": sorted(list(key) for key in self._warned),
            "shrunk": {name: factors.tolist() for name, factors in self._clip.row_factors.items()},
            "response": {} if self._response is None else self._response.state_dict(),
            "heads": [
                [*key, growth.name, [list(record) for record in growth.records]]
                for key, growth in self._heads.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; directions are compared anew from the next record on.

        Raises:
            InputError: no state of a guard, or one of another model; the guard stays as it was.
        """
        try:
            steps, measured = int(state["steps"]), int(state.get("measured", -1))
            next_measurement = int(state.get("next", 0))  # not in states of older versions
            warned = {(layer, head) for layer, head in state["warned"]}
            row_factors = {
                name: torch.tensor(factors, dtype=torch.float64)
                for name, factors in state["shrunk"].items()
            }
            heads = {
                (layer, head): HeadGrowth(
                    name, [LogitRecord(*record) for record in records], self._options
                )
                for layer, head, name, records in state["heads"]
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"this is no state of a guard ({type(error).__name__}: {error}); give what"
                " state_dict() has returned"
            ) from error
        self._clip.check_row_factors(row_factors)
        if self._response is not None:
            self._response.load_state_dict(state.get("response", {}))
        self.steps, self.measured, self._next_measurement = steps, measured, next_measurement
        self._warned, self._heads, self._clip.row_factors = warned, heads, row_factors
        # weights are not part of the state, so directions begin anew
        self._previous_weights = {}

    def start(self) -> None:
        """Measure until :meth:`stop` if this step is one that is measured; the hook of the model
        calls both around every pass in training.
        """
        # nested calls of the model, and steps on which nothing is measured
        if self._observer.running or self.steps < self._next_measurement:
            return
        self._started = True
        self._measuring.enter_context(observed_registry(self._model, self._observer))
        # compiled code calls nothing that could be seen
        try:
            self._measuring.enter_context(torch.compiler.set_stance("force_eager"))
        except RuntimeError as error:
            self._measuring.close()
            raise InputError(
                f"{type(self._model).__name__} runs inside torch.compile, where nothing can be"
                " measured; guard the compiled model, LogitGuard(torch.compile(model))"
            ) from error
        if self._response is not None:
            self._measuring.enter_context(self._response)
        self._measuring.enter_context(self._observer)

    def stop(self) -> None:
        """End what :meth:`start` began."""
        self._measuring.close()

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self.start()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        # passes for evaluation, and those that failed, are no steps
        counted = module.training and torch.is_grad_enabled()
        self.stop()
        if counted and output is not None and self._ends_with_pass:  # None: the pass failed
            self._end_step()

    def _before_optimizer_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            if self._response is not None and self._measurements:
                self._check_response(self._response)
            if self._shorten:
                self._clip.before_step()

    def _check_response(self, response: ClipResponse) -> None:
        """Take back the clips since the last measurement that logits did not follow, before the
        weights move.

        Raises:
            InputError: there are such heads, which are not clipped again.
        """
        layers = dict(sorted(self._measurements.items()))
        self._sizes = join_sizes(
            {number: layer.sizes for number, layer in layers.items()}, _several_processes()
        )
        names = []
        for number, head in response.check_trials(self._sizes):
            shape = layers[number].shape
            weights = self._find_weights(shape)
            if weights is not None:
                self._clip.restore(weights, head)
            names.append(f"head {head} of layer {number} ({self._name_of(shape)})")
        self._clip.forget()
        if names:
            self._measurements, self._started = {}, False
            raise InputError(
                f"{', '.join(names)}: logits did not follow the clip, so queries or keys are"
                " normalised after their projection; the weights are as before the clip, and these"
                " heads are not clipped again: use action='warn'"
            )

    def _after_optimizer_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            self._clip.after_step()
        self._end_step()

    def _record_call(self, call: AttentionCall) -> None:
        if not (call.q.numel() and call.k.numel()):  # seen, and there is nothing to measure
            self._started = False
            return
        shape = _AttentionShape(call.name, call.q.shape[1], call.q.shape[3])
        measurement = self._measurements.setdefault(call.number, _LayerMeasurement(shape, [], []))
        # a pass in mixed precision would round the products, and the largest of them
        with torch.autocast(call.q.device.type, enabled=False):
            measurement.passes.append(_measure_call(call, self.tau))
            if self._response is not None:
                measurement.sizes.append(self._response.measure(call, self._find_weights(shape)))

    def _end_step(self) -> None:
        started, self._started = self._started, False
        if started and not self._measurements:
            raise InputError(
                f"no attention of {type(self._model).__name__} was seen in a training pass; guard a"
                " model that computes a softmax of products of queries and keys"
            )
        # records are made of all passes of a step, so they wait for its end
        if self._measurements:
            first = next(iter(self._measurements.values()))
            device = first.passes[0][0].device.type
            with torch.no_grad(), torch.autocast(device, enabled=False):
                self._close_measurement()
        self.steps += 1

    def _close_measurement(self) -> None:
        """Add a record to every head, and act on what the records say.

        1. Join the passes of this step, and those of all processes.
        2. Measure how far the weights of every head moved since the last record.
        3. Add the records, and ask for a clip where a head is beyond tau.
        4. Clip all heads together, then warn.
        """
        measurements, self._measurements = dict(sorted(self._measurements.items())), {}
        # 1. one collective call for all layers
        statistics = iter(_join_passes([layer.passes for layer in measurements.values()]))
        # 2. in one order in every process: reading sharded weights is a collective call
        shapes = dict.fromkeys(layer.shape for layer in measurements.values())
        motion = {shape: self._weight_motion(shape) for shape in shapes}
        # 3. heads in the order in which their statistics were joined
        for number, (shape, *_) in measurements.items():
            for head, (norm, turned) in enumerate(motion[shape]):
                peak, pressure, margin, entropy = next(statistics)
                growth = self._heads.setdefault(
                    (number, head), HeadGrowth(shape.name, options=self._options)
                )
                growth.records.append(LogitRecord(self.steps, peak, margin, entropy, norm, turned))
                if self.action == "clip" and self.tau < pressure < math.inf:
                    self._request_clip((number, head), shape, self.tau / pressure)
        if self.measured < 0:
            self._report_unread([shape for shape in shapes if self._head_weights[shape] is None])
        self.measured = self.steps
        self._next_measurement = self.steps + self._steps_to_next_measurement()
        # 4. after all requests, since layers may share weights
        self._clip.apply()
        self._act_on_trouble()

    def _find_weights(self, shape: _AttentionShape) -> HeadWeights | None:
        if shape not in self._head_weights:
            self._head_weights[shape] = find_head_weights(self._model, *shape)
        return self._head_weights[shape]

    def _name_of(self, shape: _AttentionShape) -> str:
        return shape.name or type(self._model).__name__

    def _report_unread(self, shapes: list[_AttentionShape]) -> None:
        """Warn once of modules whose query and key weights were not recognised."""
        if not shapes or (_several_processes() and torch.distributed.get_rank() != 0):
            return
        names = ", ".join(map(self._name_of, shapes[:3]))
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        warnings.warn(
            f"the query and key weights of {names}{more} were not recognised among the trained"
            " matrices (frozen ones and adapters count as none): their heads are 'unread', watched"
            " by their logits alone, and cannot be clipped; name the projections q_proj and k_proj,"
            " or qkv, in a module named attention, to have their directions measured",
            UnreadWeightsWarning,
            _caller_stack_level(),
        )

    def _request_clip(self, key: HeadKey, shape: _AttentionShape, factor: float) -> None:
        weights = self._head_weights[shape]
        if weights is None:
            raise InputError(
                f"the query and key weights of {self._name_of(shape)} were not found among the"
                " trained matrices of the model, so its logits cannot be clipped; use"
                " action='warn'"
            )
        if self._response is None or key in self._response.refused:
            return
        on_trial = key in self._sizes and self._response.put_on_trial(key, self._sizes[key])
        self._clip.request(weights, key[1], factor, on_trial)

    def _steps_to_next_measurement(self) -> int:
        """Steps to the next measurement, 1 where a clip waits for its check; benchmarks/guard.py
        measures at equal distances.
        """
        if self._response is not None and self._response.has_trials:
            return 1
        return steps_to_next_measurement(self._heads.values(), self.tau, self.every)

    def _weight_motion(self, shape: _AttentionShape) -> list[tuple[float, float]]:
        """Per head the norm of the weights, and one minus the cosine to the last record's; NaN
        where they are not known.
        """
        weights = self._find_weights(shape)
        if weights is None:
            return [(math.nan, math.nan)] * shape.heads
        queries, keys = weights.of(self._model)
        square = weight_inner_products(queries, keys, queries, keys)
        previous = self._previous_weights.get(shape)
        self._previous_weights[shape] = queries, keys, square
        turned = [math.nan] * shape.heads
        if previous is not None:
            old_queries, old_keys, old_square = previous
            # the model may have moved to another device since
            old_queries, old_square = old_queries.to(queries), old_square.to(square)
            old_keys = None if old_keys is None else old_keys.to(queries)
            # the cosine of W and the old W, from products of the heads' size
            product = weight_inner_products(queries, keys, old_queries, old_keys)
            turned = (1.0 - product / (square * old_square).sqrt()).tolist()
        return list(zip(square.sqrt().tolist(), turned, strict=True))

    def _act_on_trouble(self) -> None:
        """Warn of heads that have come into trouble, or hand them to the action, once each until
        their logits are well below tau again.
        """
        trouble = []
        for key, growth in sorted(self._heads.items()):
            if growth.records[-1].largest < self._options.low * self.tau:  # whatever its growth
                self._warned.discard(key)
                continue
            head = growth.metrics(*key, self.tau)
            if in_trouble(head, self.tau, self.horizon, self._options):
                if key not in self._warned:
                    trouble.append(head)
                    self._warned.add(key)
            elif head.largest < 0.5 * self.tau:
                self._warned.discard(key)
        if self.action == "clip":  # which no factor can mend where logits are no numbers
            trouble = [head for head in trouble if not math.isfinite(head.largest)]
        if not trouble:
            return
        if callable(self.action):
            self.action(trouble)
        # of several processes one speaks
        elif not _several_processes() or torch.distributed.get_rank() == 0:
            text = _warning_text(trouble, self.tau, self._options.fast)
            warnings.warn(text, LogitWarning, _caller_stack_level())


class _OwnHook:
    """A hook of a guarded model that its copies, in memory or on disk, have without the guard.

    Args:
        hook: what it calls; ``None`` in a copy.
    """

    def __init__(self, hook: Callable[..., None] | None) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        if self._hook is not None:
            self._hook(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _OwnHook, (None,)


def _caller_stack_level() -> int:
    """Number of calls from :meth:`LogitGuard._act_on_trouble`, which is 1, to the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _LIBRARY_PACKAGES:
            break
        frame, level = frame.f_back, level + 1
    return level


class _AttentionShape(NamedTuple):
    """A module that attends, and with what: several layers may share it with its weights."""

    name: str
    heads: int
    d: int


class _LayerMeasurement(NamedTuple):
    """Statistics of one layer in this step: per pass ``(2, heads)`` maxima and means, and for
    clips the sizes of queries and keys, ``(4, heads)``.
    """

    shape: _AttentionShape
    passes: list[tuple[Tensor, Tensor]]
    sizes: list[Tensor]


def _check_arguments(
    model: nn.Module,
    tau: float,
    action: Action,
    every: int,
    horizon: int | None,
    optimizer: Optimizer | None,
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module")
    if isinstance(tau, bool) or not (
        isinstance(tau, (int, float, np.floating)) and 0 < tau < math.inf
    ):
        raise InputError(f"tau is {tau!r}; it must be a positive, finite number")
    for name, count in (("every", every), ("horizon", 1 if horizon is None else horizon)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{name} is {count!r}; give a number of steps, at least 1")
    if action not in ("warn", "clip") and not callable(action):
        raise InputError(f"action is {action!r}; use 'warn', 'clip' or a function")
    if optimizer is not None:
        parameters = set(model.parameters())
        if not any(p in parameters for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                "the optimiser holds no parameter of the model; pass the one that trains it, and"
                " guard the model after it has been sharded or moved"
            )
    if action != "clip":
        return
    if optimizer is None:
        raise InputError("action='clip' rescales weights after a step; pass optimizer=")
    if optimizer in _clipping:
        raise InputError(
            "after the steps of this optimiser another guard clips already, and two would clip"
            " twice; end that one with remove(), or use action='warn'"
        )
    # behind a norm, logits do not follow the weights
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _NORMALISING_MODULES and not isinstance(module, nn.Identity):
            raise InputError(
                f"{name} normalises queries or keys, so rescaling their weights does not change"
                " the logits; use action='warn'"
            )


def _several_processes() -> bool:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return there and torch.distributed.get_world_size() > 1


def _join_passes(layers: list[list[tuple[Tensor, Tensor]]]) -> list[list[float]]:
    """Per head of all layers its two maxima and two means over the passes of the step and over
    processes.
    """
    device = layers[0][0][0].device  # layers of one model may lie on several
    maxima = [torch.stack([largest for largest, _ in passes]).amax(dim=0) for passes in layers]
    means = [torch.stack([mean for _, mean in passes]).mean(dim=0) for passes in layers]
    largest = torch.cat([maximum.to(device) for maximum in maxima], dim=1)
    average = torch.cat([mean.to(device) for mean in means], dim=1)
    if _several_processes():
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        torch.distributed.all_reduce(average)
        average /= torch.distributed.get_world_size()
    statistics: list[list[float]] = torch.cat([largest, average]).T.tolist()
    return statistics


def _pressure(products: Tensor, logits: Tensor, softcap: float | None, tau: float) -> Tensor:
    r"""The size ``s'`` of products that asks for the factor :math:`\tau/s'` on them.

    A factor :math:`g` acts on products :math:`s` before the soft cap :math:`c` and the bias
    :math:`b`. Without a cap, :math:`g s+b\le\tau` asks for :math:`g\le\tau/(s/(1-b/\tau))`. With
    one, :math:`c\tanh(g s/c)\le\tau-b` asks for :math:`g\le c\,\mathrm{artanh}((\tau-b)/c)/s`,
    and for nothing where :math:`\tau-b\ge c`.
    """
    capped = products if softcap is None else softcap * torch.tanh(products / softcap)
    room = tau - (logits - capped)
    if softcap is None:
        return torch.where(room > 0, products * tau / room, products)
    reach = softcap * torch.atanh((room / softcap).clamp(1e-6, 1 - 1e-6))
    return torch.where(room >= softcap, -torch.inf, products * tau / reach)


def _measure_call(call: AttentionCall, tau: float) -> tuple[Tensor, Tensor]:
    r"""Per head of one call, ``(2, heads)``: the largest logit and the largest that a factor on
    keys and queries has to bring to tau; and the means of margin and entropy over queries.

    The two largest differ where the model caps products, or adds a bias: see :func:`_pressure`.
    """
    B, H, Tq, _ = call.q.shape
    # heads of a group share their keys
    q, k = call.q.float(), call.k.float()  # sixteen bits are what the pass has, not what we add
    k = k.repeat_interleave(H // k.shape[1], dim=1)
    has_bias = call.softcap is not None or (call.mask is not None and call.mask.dtype != torch.bool)
    largest = torch.full((2, H), -torch.inf, device=q.device)
    sums, counts = torch.zeros((2, H), device=q.device), torch.zeros((2, H), device=q.device)
    # a block of queries at a time, so that no T x T matrix is held
    for block in query_blocks(Tq, B * H * k.shape[2]):
        rows = torch.arange(block.start, block.stop, device=q.device)
        products = call.scale * (q[:, :, block] @ k.mT)
        logits = call.logits(products, rows)
        pressure = None
        if has_bias:
            # masks of some models are finite: what is this low counts as hidden
            hidden = logits <= 0.5 * torch.finfo(torch.float32).min
            logits = logits.masked_fill(hidden, -torch.inf)
            pressure = _pressure(products, logits, call.softcap, tau)
            pressure = pressure.masked_fill(hidden, -torch.inf)
        # of queries that see no key: not a number
        queries = logit_statistics(logits, sinks=call.sinks)
        peaks = [queries.peak, queries.peak if pressure is None else pressure.amax(dim=-1)]
        largest = torch.maximum(largest, torch.stack([peak.amax(dim=(0, 2)) for peak in peaks]))
        has_key = queries.peak != -torch.inf
        counted = torch.stack([has_key & queries.margin.isfinite(), has_key])
        values = torch.stack([queries.margin, queries.entropy])
        sums += torch.where(counted, values, 0.0).sum(dim=(1, 3))
        counts += counted.sum(dim=(1, 3))
    return largest, sums / counts.clamp(min=1)


def _warning_text(trouble: list[HeadMetrics], tau: float, fast: float) -> str:
    """The warning: the head that reaches tau first, how it grows, and what to do."""
    # the one that reaches tau first speaks for all
    worst = max(trouble, key=lambda head: -head.steps_to_tau)
    when = (
        f"is beyond tau = {tau:g}"
        if worst.steps_to_tau == 0
        else f"reaches tau = {tau:g} in about {worst.steps_to_tau:.0f} steps"
    )
    others = {1: "", 2: ", and 1 other head"}.get(
        len(trouble), f", and {len(trouble) - 1} other heads"
    )
    where = f" ({worst.name})" if worst.name else ""
    lower = "lower the rate of query and key weights, or use action='clip'"
    turns = f"its direction turns by {worst.turning:.2g} radians while logits grow e-fold"
    if not math.isfinite(worst.largest):
        kind = "its weights or inputs hold NaN or infinity; go back to an earlier checkpoint"
    elif worst.state == "saturating":
        pace = (
            "how fast its norm grows is not known yet"
            if math.isnan(worst.pace)
            else f"its norm adds {worst.pace:.2g} nats a step, in healthy networks below {fast:g}"
        )
        kind = f"saturation: {turns}, which is settled; {pace}; {lower}"
    elif worst.state == "unread":
        kind = f"its query and key weights were not found, so its direction is not known; {lower}"
    elif worst.state == "unstable":
        kind = f"instability: {turns}, so it has not settled; {lower}"
    else:
        kind = f"too few records to tell saturation from instability, or no growth; {lower}"
    return (
        f"attention logits grow: head {worst.head} of layer {worst.layer}{where} has a"
        f" largest logit of {worst.largest:.3g}, which {when}{others}; {kind}"
    )
