r"""Logits that grow: a watch over training that tells saturation from trouble, and can stop it.

The theory separates two growths of attention logits. In the first the direction of
:math:`W=W_K^\top W_Q` has settled and its norm grows: attention saturates on the tokens that it
selects, and nothing is wrong. In the second the direction still moves while logits grow: the
softmax turns into an ever harder maximum of something that has not been learned, and the loss is
about to jump. :class:`LogitGuard` measures both on a pass now and then. With ``action="clip"`` it
rescales the query and key weights of a head whose largest logit is :math:`S>\tau` by
:math:`\sqrt{\tau/S}` after the optimiser's step (QK-clip, Kimi Team, *Kimi K2: Open Agentic
Intelligence*, 2025).
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.errors import InputError
from attsvm.probe.watching import Call, Watch

_KEPT = 8  # records that the exponent of growth is fitted to
_BLOCK = 1 << 22  # logits computed at a time

_QUERIES = ("q_proj", "query", "q_lin", "wq", "W_Q", "q")
_KEYS = ("k_proj", "key", "k_lin", "wk", "W_K", "k")
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv", "in_proj")
_NORMALISED = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm")


@dataclass(frozen=True)
class HeadMetrics:
    """What is known of one head at the latest record.

    Attributes:
        layer, head: numbers.
        name: the module.
        largest: the largest logit of the pass.
        margin: mean distance between the largest and the second logit of a query.
        entropy: mean entropy of attention in nats.
        exponent: of growth, the slope of ``log largest`` against ``log step`` over the latest
            records; NaN before there are three.
        turned: how far the direction of the weights moved since the last record, one minus the
            cosine; NaN where query and key weights were not found.
        steps_to_tau: steps until ``largest`` reaches tau if it goes on like this; 0 beyond it,
            ``inf`` where it does not grow.
        state: ``quiet``, ``saturating`` (grows, direction settled) or ``unstable`` (grows, and the
            direction moves).
    """

    layer: int
    head: int
    name: str
    largest: float
    margin: float
    entropy: float
    exponent: float
    turned: float
    steps_to_tau: float
    state: Literal["quiet", "saturating", "unstable"]


class LogitWarning(UserWarning):
    """Attention logits of a head have reached tau, or are about to while its direction moves."""


class LogitGuard:
    """Watch the attention logits of a model in training; warn, or clip.

    Every ``every``-th forward pass in training mode is measured: one product of keys and queries
    more for that pass, and nothing on the others. The guard is a hook of the model and of the
    optimiser, so it works in any loop, under Trainer, Lightning and data-parallel wrappers (with
    :mod:`torch.distributed` the largest logit is that of all processes).

    Args:
        model: any module whose attention is torch's fused one.
        tau: the logit that no head should reach.
        action: ``"warn"``, ``"clip"`` or a function of the metrics of the heads in trouble.
        every: passes between two measurements; every pass with ``action="clip"`` costs more and
            clips sooner.
        optimizer: after whose step weights are clipped; needed for ``"clip"``.
        horizon: steps ahead for which an unstable head is announced.

    Raises:
        InputError: a tau or a count that is not positive, ``"clip"`` without an optimiser, or for a
            model that normalises queries and keys (its logits do not follow their weights).
    """

    def __init__(
        self,
        model: nn.Module,
        tau: float = 100.0,
        action: Literal["warn", "clip"] | Callable[[list[HeadMetrics]], None] = "warn",
        every: int = 50,
        optimizer: Optimizer | None = None,
        horizon: int = 200,
    ) -> None:
        if not (tau > 0 and math.isfinite(tau)):
            raise InputError(f"tau is {tau}; it must be positive and finite")
        if every < 1 or horizon < 1:
            raise InputError(f"every is {every} and horizon {horizon}; both must be at least 1")
        if action == "clip" and optimizer is None:
            raise InputError("action='clip' rescales weights after a step; pass optimizer=")
        if action not in ("warn", "clip") and not callable(action):
            raise InputError(f"action is {action!r}; use 'warn', 'clip' or a function")
        self.tau, self.action, self.every, self.horizon = tau, action, every, horizon
        self.steps = 0
        self._model = model
        self._passes = 0
        self._measured = False
        self._heads: dict[tuple[int, int], _Track] = {}
        self._warned: set[tuple[int, int]] = set()
        self._parts: dict[str, _Weights | None] = {}
        self._watch = Watch(model, self._see)
        self._hooks = [
            model.register_forward_pre_hook(self._before, prepend=True),
            model.register_forward_hook(self._after, always_call=True),
        ]
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_post_hook(self._stepped))
        if action == "clip":
            for name, module in model.named_modules():
                if name.rpartition(".")[2] in _NORMALISED and not isinstance(module, nn.Identity):
                    self.remove()
                    raise InputError(
                        f"{name} normalises queries or keys, so rescaling their weights does not"
                        " change the logits; use action='warn'"
                    )

    def remove(self) -> None:
        """Take all hooks off the model and the optimiser."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def metrics(self) -> list[HeadMetrics]:
        """The latest record of every head, layer by layer; empty before the first one."""
        return [
            track.metrics(layer, head, self.tau)
            for (layer, head), track in sorted(self._heads.items())
        ]

    def state_dict(self) -> dict[str, Any]:
        """Counters and records, for a checkpoint."""
        tracks = {
            f"{layer}.{head}": (track.name, list(track.records))
            for (layer, head), track in self._heads.items()
        }
        return {"steps": self.steps, "passes": self._passes, "heads": tracks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; directions are compared anew from the next record on."""
        self.steps, self._passes = int(state["steps"]), int(state["passes"])
        self._heads = {}
        for key, (name, records) in state["heads"].items():
            layer, head = (int(part) for part in key.split("."))
            track = _Track(name)
            track.records.extend(tuple(record) for record in records)
            self._heads[layer, head] = track

    def _before(self, module: nn.Module, args: Any) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        self._measured = self._passes % self.every == 0
        self._passes += 1
        if self._measured:
            self._watch.start()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._watch.running:
            self._watch.stop()
            self._judge()

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.action == "clip" and self._measured:
            for (layer, head), track in self._heads.items():
                largest = track.records[-1][1] if track.records else 0.0
                if largest > self.tau:
                    self._clip(layer, head, track, math.sqrt(self.tau / largest))
        self._measured = False

    def _see(self, call: Call) -> None:
        with torch.no_grad():
            largest, margin, entropy = _measured(call)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        weights = self._weights(call.name, call.q.shape[1], call.k.shape[1], call.q.shape[3])
        step = self.steps if self.steps else self._passes - 1
        for head in range(call.q.shape[1]):
            track = self._heads.setdefault((call.number, head), _Track(call.name))
            direction = None if weights is None else weights.of(head)
            track.record(
                step, float(largest[head]), float(margin[head]), float(entropy[head]), direction
            )

    def _judge(self) -> None:
        trouble = []
        for each in self.metrics():
            key = (each.layer, each.head)
            near = each.state == "unstable" and each.steps_to_tau <= self.horizon
            if each.largest > self.tau or near:
                if key not in self._warned:
                    trouble.append(each)
                    self._warned.add(key)
            elif each.largest < 0.5 * self.tau:
                self._warned.discard(key)
        if not trouble or self.action == "clip":
            return
        if callable(self.action):
            self.action(trouble)
            return
        worst = max(trouble, key=lambda each: each.largest)
        when = (
            f"is beyond tau = {self.tau:g}"
            if worst.largest > self.tau
            else f"reaches tau = {self.tau:g} in about {worst.steps_to_tau:.0f} steps"
        )
        others = f", and {len(trouble) - 1} other heads" if len(trouble) > 1 else ""
        warnings.warn(
            f"attention logits grow: head {worst.head} of layer {worst.layer} ({worst.name}) has a"
            f" largest logit of {worst.largest:.3g}, which {when}{others}; lower the learning rate"
            " or use action='clip'",
            LogitWarning,
            stacklevel=2,
        )

    def _weights(self, name: str, heads: int, groups: int, d: int) -> _Weights | None:
        if name not in self._parts:
            module = self._model.get_submodule(name)
            self._parts[name] = _find(module, heads, groups, d)
        return self._parts[name]

    def _clip(self, layer: int, head: int, track: _Track, factor: float) -> None:
        weights = self._parts.get(track.name)
        if weights is None:
            raise InputError(
                f"the query and key weights of {track.name} were not found, so its logits cannot be"
                " clipped; use action='warn'"
            )
        weights.scale(head, factor)


class _Track:
    """The records of one head: step, largest logit, margin, entropy; and how far it turned."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: deque[tuple[float, ...]] = deque(maxlen=_KEPT)
        self.turned = float("nan")
        self._last: tuple[Tensor, Tensor] | None = None

    def record(
        self,
        step: int,
        largest: float,
        margin: float,
        entropy: float,
        direction: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.records.append((float(step), largest, margin, entropy))
        if direction is not None:
            q, k = direction
            if self._last is not None:
                both = _product(q, k, *self._last)
                sizes = _product(q, k, q, k) * _product(*self._last, *self._last)
                self.turned = float(1.0 - both / sizes.sqrt()) if sizes > 0 else float("nan")
            self._last = (q.clone(), k.clone())

    def metrics(self, layer: int, head: int, tau: float) -> HeadMetrics:
        step, largest, margin, entropy = self.records[-1]
        exponent = self._exponent()
        remaining = float("inf")
        if largest >= tau:
            remaining = 0.0
        elif exponent > 0 and largest > 0 and step > 0:
            factor = (tau / largest) ** min(1.0 / exponent, 1e3) if exponent > 1e-3 else math.inf
            remaining = step * (factor - 1.0)
        state: Literal["quiet", "saturating", "unstable"] = "quiet"
        if exponent > 0.1:
            state = "unstable" if not self.turned <= _SETTLED else "saturating"
        return HeadMetrics(
            layer,
            head,
            self.name,
            largest,
            margin,
            entropy,
            exponent,
            self.turned,
            remaining,
            state,
        )

    def _exponent(self) -> float:
        points = [(math.log(r[0]), math.log(r[1])) for r in self.records if r[0] > 0 and r[1] > 0]
        if len(points) < 3:
            return float("nan")
        x = torch.tensor([p[0] for p in points], dtype=torch.float64)
        y = torch.tensor([p[1] for p in points], dtype=torch.float64)
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / (x * x).sum()) if float((x * x).sum()) > 0 else float("nan")


_SETTLED = 0.01
"""One minus the cosine between two records below which a direction has settled (8 degrees)."""


def _product(q: Tensor, k: Tensor, other_q: Tensor, other_k: Tensor) -> Tensor:
    r""":math:`\\langle W_K^\\top W_Q,V_K^\\top V_Q\\rangle` from products of the head's size."""
    return ((k @ other_k.mT) * (q @ other_q.mT)).sum()


def _measured(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Per head: the largest logit, the mean margin, the mean entropy."""
    B, H, Tq, _ = call.q.shape
    T = call.k.shape[2]
    k = call.k.repeat_interleave(H // call.k.shape[1], dim=1)
    step = max(1, _BLOCK // max(B * H * T, 1))
    largest = torch.full((H,), -torch.inf, device=call.q.device)
    margin = torch.zeros(H, device=call.q.device)
    entropy = torch.zeros_like(margin)
    for start in range(0, Tq, step):
        rows = torch.arange(start, min(start + step, Tq), device=call.q.device)
        logits = (call.scale * (call.q[:, :, rows] @ k.mT)).float()
        logits = call.masked(logits, rows)
        two = logits.topk(min(2, T), dim=-1).values
        largest = torch.maximum(largest, two[..., 0].amax(dim=(0, 2)))
        gap = (two[..., 0] - two[..., -1]).nan_to_num(0.0, posinf=0.0)
        margin += gap.mean(dim=0).sum(dim=-1)
        share = torch.softmax(logits, dim=-1)
        entropy += torch.special.entr(share).sum(dim=-1).mean(dim=0).sum(dim=-1)
    return largest, margin / Tq, entropy / Tq


class _Weights:
    """The rows of query and key weights (and biases) that belong to each head."""

    def __init__(
        self,
        queries: list[tuple[Tensor, int, int]],
        keys: list[tuple[Tensor, int, int]],
        heads: int,
        groups: int,
        d: int,
    ) -> None:
        self.queries, self.keys, self.heads, self.groups, self.d = queries, keys, heads, groups, d

    def of(self, head: int) -> tuple[Tensor, Tensor]:
        """Query and key weights of a head, ``(d, width)`` each."""
        group = head * self.groups // self.heads
        return self._rows(self.queries, head)[0], self._rows(self.keys, group)[0]

    def scale(self, head: int, factor: float) -> None:
        """Multiply the logits of a head by ``factor`` squared: half in its queries, half in its
        keys; all of it in the queries where several heads share the keys.
        """
        shared = self.groups < self.heads
        with torch.no_grad():
            for rows in self._rows(self.queries, head):
                rows.mul_(factor**2 if shared else factor)
            if not shared:
                for rows in self._rows(self.keys, head):
                    rows.mul_(factor)

    def _rows(self, parts: list[tuple[Tensor, int, int]], head: int) -> list[Tensor]:
        found = []
        for tensor, axis, start in parts:
            found.append(tensor.detach().narrow(axis, start + head * self.d, self.d))
        return [
            each.mT if axis == 1 else each for each, (_, axis, _) in zip(found, parts, strict=True)
        ]


def _find(module: nn.Module, heads: int, groups: int, d: int) -> _Weights | None:
    """Query and key weights of an attention module, by the names in use."""
    own = dict(module.named_parameters())

    def parts(prefix: str, start: int) -> list[tuple[Tensor, int, int]]:
        weight, shift = own[f"{prefix}.weight"], own.get(f"{prefix}.bias")
        owner = module.get_submodule(prefix)
        axis = 0 if isinstance(owner, nn.Linear) else 1
        found = [(weight.data, axis, start)]
        return found if shift is None else [*found, (shift.data, 0, start)]

    for q in _QUERIES:
        for k in _KEYS:
            if f"{q}.weight" in own and f"{k}.weight" in own:
                return _Weights(parts(q, 0), parts(k, 0), heads, groups, d)
    for fused in _FUSED:
        if f"{fused}.weight" in own:
            return _Weights(parts(fused, 0), parts(fused, heads * d), heads, groups, d)
    if "in_proj_weight" in own:
        weight, shift = own["in_proj_weight"], own.get("in_proj_bias")
        both = [
            [(weight.data, 0, start)] + ([] if shift is None else [(shift.data, 0, start)])
            for start in (0, heads * d)
        ]
        return _Weights(both[0], both[1], heads, groups, d)
    return None
