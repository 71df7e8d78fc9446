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

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.base.errors import InputError
from attsvm.transformers.capture import fused
from attsvm.transformers.growth import LOW, Growth, HeadMetrics, Record, wait
from attsvm.transformers.head_weights import Clip, HeadWeights, find, products
from attsvm.transformers.logits import blocks, firmness
from attsvm.transformers.watching import Call, Watch

_NORMALISED = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm")

_NOT_THE_USER = ("attsvm", "torch", "transformers", "accelerate", "lightning", "pytorch_lightning")

Action = Literal["warn", "clip"] | Callable[[list[HeadMetrics]], None]


FAST = 1.5
"""Nats per step. Healthy networks without normalised queries and keys stay below one, whatever the
size of their logits; those that break are beyond it some 90 steps before (docs/guard.md)."""


class LogitWarning(UserWarning):
    """Attention logits of a head run away: they grow fast, and have reached tau or are about to."""


def in_trouble(head: HeadMetrics, tau: float, horizon: int) -> bool:
    """Whether a head is warned of: its norm raises its largest logit by more than :data:`FAST`, or
    it is not known by how much; and that logit is beyond tau, or the head is unstable, has passed
    the share :data:`LOW` of tau, and reaches tau within the horizon.
    """
    soon = head.steps_to_tau <= horizon and head.largest >= LOW * tau
    close = (soon and head.state == "unstable") or not head.largest <= tau
    return close and not head.pace <= FAST


class LogitGuard:
    """Watch the attention logits of a model in training; warn, or clip.

    Of one optimiser step in ``every`` all passes in training mode with gradients are measured: one
    product of keys and queries more, and nothing on other steps. While logits grow so fast that
    they would double before that (:meth:`Growth.room`), and after the first measurement, the next
    one comes sooner, after a fifth of ``every`` at the least. Passes for evaluation never count.
    The guard is a hook of the model and of the optimiser, so it works in any loop, with gradient
    accumulation, several passes per step, ``torch.compile`` (measured passes run without it),
    ``DistributedDataParallel`` and ``fully_shard``. With :mod:`torch.distributed` the largest logit
    is that of all processes, which must take the same steps and hold the same heads.

    It keeps one copy of the query and key weights, to see their direction move.

    Args:
        model: any module whose attention is torch's fused one; a Hugging Face model with another
            implementation runs measured passes with ``sdpa``.
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

    Attributes:
        steps: optimiser steps so far.
        measured: steps before the latest measurement; -1 before the first one.

    Raises:
        InputError: a tau or a count that is not positive, an unknown action, ``"clip"`` without an
            optimiser or for a model that normalises queries and keys (its logits do not follow
            their weights), an optimiser that holds no parameter of the model; at the first
            measurement, a model without attention; at a clip, weights that were not found.

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
    ) -> None:
        _check(model, tau, action, every, horizon, optimizer)
        if by_hand and optimizer is None:
            raise InputError("by_hand=True has no passes to count steps by; pass optimizer=")
        self.tau, self.action, self.every = tau, action, every
        self.horizon = 4 * every if horizon is None else horizon
        self.steps, self.measured = 0, -1
        self._next = 0
        self._model = model
        self._seen: dict[int, _Seen] = {}
        self._heads: dict[tuple[int, int], Growth] = {}
        self._warned: set[tuple[int, int]] = set()
        self._found: dict[_Shape, HeadWeights | None] = {}
        self._last: dict[_Shape, tuple[Tensor, Tensor | None, Tensor]] = {}
        self._watch = Watch(model, self._see)
        self._clip = Clip(model)
        self._open = ExitStack()
        self._started = False
        self._ends_with_pass = optimizer is None
        self._hooks: list[Any] = []
        if not by_hand:
            self._hooks = [
                model.register_forward_pre_hook(self._before, prepend=True),
                model.register_forward_hook(self._after, always_call=True),
            ]
        if optimizer is not None:
            if shorten and action == "clip":
                self._hooks.append(optimizer.register_step_pre_hook(self._steps))
            self._hooks.append(optimizer.register_step_post_hook(self._stepped))

    def __repr__(self) -> str:
        action = self.action if isinstance(self.action, str) else "a function"
        told = f"LogitGuard({type(self._model).__name__}, tau={self.tau:g}, action={action!r}"
        heads = self.metrics()
        if not heads:
            return f"{told}, every={self.every}): nothing measured in {self.steps} steps"
        worst = max(heads, key=lambda each: each.largest)
        return (
            f"{told}, every={self.every}): {len(heads)} heads at step {self.measured}, largest"
            f" logit {worst.largest:.3g} (layer {worst.layer}, head {worst.head}, {worst.state})"
        )

    def remove(self) -> None:
        """Take all hooks off the model and the optimiser."""
        self.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def metrics(self) -> list[HeadMetrics]:
        """The latest record of every head, layer by layer; empty before the first one."""
        return [
            track.metrics(layer, head, self.tau)
            for (layer, head), track in sorted(self._heads.items())
        ]

    def summary(self) -> dict[str, float]:
        """Four numbers for a training log; empty before the first record."""
        heads = self.metrics()
        if not heads:
            return {}
        return {
            "guard/largest_logit": max(each.largest for each in heads),
            "guard/steps_to_tau": min(each.steps_to_tau for each in heads),
            "guard/saturating": float(sum(each.state == "saturating" for each in heads)),
            "guard/unstable": float(sum(each.state == "unstable" for each in heads)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Steps, records, warnings and factors in plain numbers and lists, for a checkpoint."""
        return {
            "steps": self.steps,
            "measured": self.measured,
            "next": self._next,
            "warned": sorted(list(key) for key in self._warned),
            "shrunk": {name: each.tolist() for name, each in self._clip.shrunk.items()},
            "heads": [
                [*key, track.name, [list(record) for record in track.records]]
                for key, track in self._heads.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; directions are compared anew from the next record on."""
        self.steps, self.measured = int(state["steps"]), int(state.get("measured", -1))
        self._next = int(state.get("next", 0))  # not in states of older versions
        self._warned = {(layer, head) for layer, head in state["warned"]}
        self._clip.shrunk = {
            name: torch.tensor(each, dtype=torch.float64) for name, each in state["shrunk"].items()
        }
        self._heads = {
            (layer, head): Growth(name, [Record(*record) for record in records])
            for layer, head, name, records in state["heads"]
        }
        self._last = {}

    def start(self) -> None:
        """Measure until :meth:`stop` if this step is one that is measured; the hook of the model
        calls both around every pass in training.
        """
        if self._watch.running or self.steps < self._next:
            return
        self._started = True
        self._open.enter_context(fused(self._model))
        try:
            self._open.enter_context(torch.compiler.set_stance("force_eager"))
        except RuntimeError as error:
            self._open.close()
            raise InputError(
                f"{type(self._model).__name__} runs inside torch.compile, where nothing can be"
                " measured; guard the compiled model, LogitGuard(torch.compile(model))"
            ) from error
        self._open.enter_context(self._watch)

    def stop(self) -> None:
        """End what :meth:`start` began."""
        self._open.close()

    def _before(self, module: nn.Module, args: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self.start()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        counted = module.training and torch.is_grad_enabled()
        self.stop()
        if counted and output is not None and self._ends_with_pass:  # None: the pass failed
            self._end_step()

    def _steps(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            self._clip.before_step()

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            self._clip.after_step()
        self._end_step()

    def _see(self, call: Call) -> None:
        shape = _Shape(call.name, call.q.shape[1], call.q.shape[3])
        seen = self._seen.setdefault(call.number, _Seen(shape, []))
        with torch.autocast(call.q.device.type, enabled=False):
            seen.passes.append(_measured(call, self.tau))

    def _end_step(self) -> None:
        started, self._started = self._started, False
        if started and not self._seen:
            raise InputError(
                f"no attention of {type(self._model).__name__} was seen in a training pass; guard a"
                " model whose attention is torch's scaled_dot_product_attention"
            )
        if self._seen:
            kinds = {each.passes[0][0].device.type for each in self._seen.values()}
            with torch.no_grad(), torch.autocast(kinds.pop(), enabled=False):
                self._record()
        self.steps += 1

    def _record(self) -> None:
        """Join the passes of this step and of all processes, judge the heads, and act."""
        seen, self._seen = dict(sorted(self._seen.items())), {}
        joined = iter(_joined([each.passes for each in seen.values()]))
        shapes = dict.fromkeys(each.shape for each in seen.values())  # in one order everywhere
        moved = {shape: self._moved(shape) for shape in shapes}
        for layer, (shape, _) in seen.items():
            for head, (norm, turned) in enumerate(moved[shape]):
                peak, pressure, margin, entropy = next(joined)
                track = self._heads.setdefault((layer, head), Growth(shape.name))
                track.records.append(Record(self.steps, peak, margin, entropy, norm, turned))
                if self.action == "clip" and self.tau < pressure < math.inf:
                    weights = self._found[shape]
                    if weights is None:
                        raise InputError(
                            f"the query and key weights of {shape.name} were not found among the"
                            " trained matrices of the model, so its logits cannot be clipped; use"
                            " action='warn'"
                        )
                    self._clip.head(weights, head, self.tau / pressure)
        self.measured = self.steps
        self._next = self.steps + self._wait()
        self._clip.apply()
        self._judge()

    def _wait(self) -> int:
        """Steps to the next measurement; benchmarks/guard.py measures at equal distances."""
        return wait(self._heads.values(), self.tau, self.every)

    def _moved(self, shape: _Shape) -> list[tuple[float, float]]:
        """Per head the norm of the weights, and one minus the cosine to the last record's; NaN
        where they are not known.
        """
        if shape not in self._found:
            self._found[shape] = find(self._model, *shape)
        weights, unknown = self._found[shape], [math.nan] * shape.heads
        if weights is None:
            return list(zip(unknown, unknown, strict=True))
        now = weights.of(self._model)
        square = products(*now, *now)
        before, self._last[shape] = self._last.get(shape), (*now, square)
        turned = unknown
        if before is not None:
            queries, keys, size = before
            turned = (1.0 - products(*now, queries, keys) / (square * size).sqrt()).tolist()
        return list(zip(square.sqrt().tolist(), turned, strict=True))

    def _judge(self) -> None:
        trouble = []
        for key, track in sorted(self._heads.items()):
            if track.records[-1].largest < LOW * self.tau:  # whatever its growth
                self._warned.discard(key)
                continue
            each = track.metrics(*key, self.tau)
            if in_trouble(each, self.tau, self.horizon):
                if key not in self._warned:
                    trouble.append(each)
                    self._warned.add(key)
            elif each.largest < 0.5 * self.tau:
                self._warned.discard(key)
        if not trouble or self.action == "clip":
            return
        if callable(self.action):
            self.action(trouble)
        elif not _several_processes() or torch.distributed.get_rank() == 0:
            warnings.warn(_sentence(trouble, self.tau), LogitWarning, _level())


def _level() -> int:
    """How many calls above :meth:`LogitGuard._judge`, which is 1, the user's own line is."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    return level


class _Shape(NamedTuple):
    """A module that attends, and with what: several layers may share it with its weights."""

    name: str
    heads: int
    d: int


class _Seen(NamedTuple):
    """What one layer did in this step: per pass ``(2, heads)`` maxima and ``(2, heads)`` means."""

    shape: _Shape
    passes: list[tuple[Tensor, Tensor]]


def _check(
    model: nn.Module,
    tau: float,
    action: Action,
    every: int,
    horizon: int | None,
    optimizer: Optimizer | None,
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module")
    if not (isinstance(tau, (int, float)) and tau > 0 and math.isfinite(tau)):
        raise InputError(f"tau is {tau}; it must be a positive, finite number")
    for name, count in (("every", every), ("horizon", 1 if horizon is None else horizon)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{name} is {count!r}; give a number of steps, at least 1")
    if action not in ("warn", "clip") and not callable(action):
        raise InputError(f"action is {action!r}; use 'warn', 'clip' or a function")
    if optimizer is not None:
        own = set(model.parameters())
        if not any(p in own for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                "the optimiser holds no parameter of the model; pass the one that trains it, and"
                " guard the model after it has been sharded or moved"
            )
    if action != "clip":
        return
    if optimizer is None:
        raise InputError("action='clip' rescales weights after a step; pass optimizer=")
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _NORMALISED and not isinstance(module, nn.Identity):
            raise InputError(
                f"{name} normalises queries or keys, so rescaling their weights does not change"
                " the logits; use action='warn'"
            )


def _several_processes() -> bool:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return there and torch.distributed.get_world_size() > 1


def _joined(layers: list[list[tuple[Tensor, Tensor]]]) -> list[list[float]]:
    """Per head of all layers its two maxima and two means over the passes of the step and over
    processes.
    """
    device = layers[0][0][0].device  # layers of one model may lie on several
    peaks = [torch.stack([peak for peak, _ in passes]).amax(dim=0) for passes in layers]
    averages = [torch.stack([mean for _, mean in passes]).mean(dim=0) for passes in layers]
    largest, means = (
        torch.cat([each.to(device) for each in both], dim=1) for both in (peaks, averages)
    )
    if _several_processes():
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        torch.distributed.all_reduce(means)
        means /= torch.distributed.get_world_size()
    found: list[list[float]] = torch.cat([largest, means]).T.tolist()
    return found


def _measured(call: Call, tau: float) -> tuple[Tensor, Tensor]:
    r"""Per head of one call, ``(2, heads)``: the largest logit and the largest that a factor on
    keys and queries has to bring to tau; and the means of margin and entropy over queries.

    The two largest differ where the model adds a bias :math:`b` to products :math:`s`: a factor
    :math:`g` acts on the products alone, and :math:`g s+b\le\\tau` asks for
    :math:`g\le\\tau/(s/(1-b/\\tau))`.
    """
    B, H, Tq, _ = call.q.shape
    q, k = call.q.float(), call.k.float()  # sixteen bits are what the pass has, not what we add
    k = k.repeat_interleave(H // k.shape[1], dim=1)
    adds = call.mask is not None and call.mask.dtype != torch.bool
    largest = torch.full((2, H), -torch.inf, device=q.device)
    sums, numbers = torch.zeros((2, H), device=q.device), torch.zeros((2, H), device=q.device)
    for some in blocks(Tq, B * H * k.shape[2]):
        rows = torch.arange(some.start, some.stop, device=q.device)
        scaled = call.scale * (q[:, :, some] @ k.mT)
        logits = call.masked(scaled, rows)
        pressing = None
        if adds:
            hidden = logits <= 0.5 * torch.finfo(torch.float32).min
            logits = logits.masked_fill(hidden, -torch.inf)
            room = 1.0 - (logits - scaled) / tau
            pressing = torch.where(room > 0, scaled / room, scaled).masked_fill(hidden, -torch.inf)
        firm = firmness(logits)  # of queries that see no key: not a number
        most = firm.peak if pressing is None else pressing.amax(dim=-1)
        top = torch.stack([each.amax(dim=(0, 2)) for each in (firm.peak, most)])
        largest = torch.maximum(largest, top)
        counts = firm.peak != -torch.inf
        kept = torch.stack([counts & firm.margin.isfinite(), counts])
        sums += torch.where(kept, torch.stack([firm.margin, firm.entropy]), 0.0).sum(dim=(1, 3))
        numbers += kept.sum(dim=(1, 3))
    return largest, sums / numbers.clamp(min=1)


def _sentence(trouble: list[HeadMetrics], tau: float) -> str:
    worst = max(trouble, key=lambda each: -each.steps_to_tau)
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
    if worst.state == "saturating":
        pace = (
            "how fast its norm grows is not known yet"
            if math.isnan(worst.pace)
            else f"its norm adds {worst.pace:.2g} nats a step, in healthy networks below {FAST:g}"
        )
        kind = f"saturation: {turns}, which is settled; {pace}; {lower}"
    elif worst.state == "unstable" and math.isnan(worst.turning):
        kind = f"its query and key weights were not found, so its direction is not known; {lower}"
    elif worst.state == "unstable":
        kind = f"instability: {turns}, so it has not settled; {lower}"
    else:
        kind = f"too few records to tell saturation from instability, or no growth; {lower}"
    return (
        f"attention logits grow: head {worst.head} of layer {worst.layer}{where} has a"
        f" largest logit of {worst.largest:.3g}, which {when}{others}; {kind}"
    )
