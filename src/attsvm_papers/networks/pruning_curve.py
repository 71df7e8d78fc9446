r"""What a trained model loses when every query keeps a few tokens of its attention.

With attention weights :math:`p_t` of a query and a set :math:`S` of :math:`k` keys that it keeps,
its output becomes :math:`\sum_{t\in S}p_tv_t/\sum_{t\in S}p_t`, in every head of every layer at
once and without retraining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.probe.capture import fused
from attsvm.probe.logits import blocks
from attsvm.probe.watching import Call, Watch

Metric = Callable[[nn.Module, Any], float]
Rule = Callable[[Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class PruningCurve:
    """The metric of a model whose queries keep ``k`` tokens each.

    Attributes:
        k: tokens that are kept, ``(n,)``; a query that sees fewer keeps all of them.
        whole: the metric of the model as it is.
        top: ``(n,)``, where the tokens with the most attention are kept.
        random: ``(n,)``, where tokens drawn at random are.
        nearest: ``(n,)``, where those at the nearest positions are.
        outside: ``(n,)``, the share of attention outside the top ``k``, mean over layers, heads
            and queries.
    """

    k: tuple[int, ...]
    whole: float
    top: FloatArray
    random: FloatArray
    nearest: FloatArray
    outside: FloatArray

    def __str__(self) -> str:
        lines = [f"all tokens: {self.whole:.4f}"]
        lines += ["   k       top    random   nearest   mass outside"]
        for row in zip(self.k, self.top, self.random, self.nearest, self.outside, strict=True):
            lines.append("{:4d}{:10.4f}{:10.4f}{:10.4f}{:14.4f}".format(*row))
        return "\n".join(lines)


def pruning_curve(
    model: nn.Module,
    batches: Iterable[Any],
    k: Sequence[int] = (1, 2, 4, 8),
    metric: Metric | None = None,
    *,
    seed: int = 0,
) -> PruningCurve:
    """The loss of ``model`` where each query of every head keeps ``k`` tokens of its attention,
    renormalised, without retraining.

    Beside the tokens with the most attention stand two nulls: ``k`` random ones of those that the
    query sees, and the ``k`` at the nearest positions (in a causal model the query's own and those
    before it). A head that only copies its neighbour loses nothing with the nearest ones either.

    The model runs ``1 + 3 n`` times over the batches, in evaluation mode; its attention has to be
    one that :func:`attsvm.probe.capture` sees. Matrices of queries and keys are computed some
    queries at a time.

    Args:
        model: a Hugging Face model, ``torch.nn.MultiheadAttention`` inside or any other whose
            attention is torch's fused one.
        batches: of equal size, where the metric is a mean over a batch.
        k: numbers of tokens.
        metric: ``metric(model, batch)``, a number per batch, which is averaged. By default the loss
            that Hugging Face models return for a batch with ``labels``, and for a tensor of token
            numbers ``(B, T)`` the loss of the next token.
        seed: of the random tokens.

    Raises:
        InputError: no batches, ``k`` that are not positive whole numbers, a batch whose loss is
            not known, a model whose attention was never seen.
    """
    known, sizes = list(batches), tuple(k)
    if not known:
        raise InputError("there are no batches; give at least one")
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise InputError(f"k is {k!r}; give numbers of tokens, each at least 1")
    value = metric or _loss
    mass = _Mass(sizes)
    with _evaluating(model), fused(model):

        def mean(see: Callable[[Call], Tensor | None]) -> float:
            found = []
            for batch in known:
                mass.start(batch)
                with Watch(model, see):
                    found.append(float(value(model, batch)))
            return sum(found) / len(found)

        whole = mean(mass.see)
        if not mass.queries:
            raise InputError(
                f"no attention of {type(model).__name__} was seen; use a model whose attention is"
                " torch's scaled_dot_product_attention"
            )
        top, random, nearest = (
            torch.tensor([mean(_Pruned(n, rule, seed)) for n in sizes], dtype=torch.float64).numpy()
            for rule in (_top, _random, _nearest)
        )
    outside: FloatArray = (mass.outside / mass.queries).numpy()
    return PruningCurve(sizes, whole, top, random, nearest, outside)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients while the block lasts; every module's mode is left as
    found.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _loss(model: nn.Module, batch: Any) -> float:
    if isinstance(batch, Mapping):
        loss = getattr(model(**batch), "loss", None)
        if loss is not None:
            return float(loss)
    elif isinstance(batch, Tensor) and batch.dim() == 2 and not batch.is_floating_point():
        logits = model(batch[:, :-1])
        return float(nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
    raise InputError(
        "the loss of a batch is not known; give token numbers (B, T), a batch with labels for a"
        " Hugging Face model, or metric="
    )


def _logits(call: Call) -> Iterator[tuple[Tensor, Tensor]]:
    """Some queries at a time: their places ``(q,)``, and logits ``(B, heads, q, T)`` with minus
    infinity at hidden keys.
    """
    (B, H, Tq, _), T = call.q.shape, call.k.shape[2]
    keys = call.k.float().repeat_interleave(H // call.k.shape[1], dim=1)
    for some in blocks(Tq, B * H * T):
        rows = torch.arange(some.start, some.stop, device=call.q.device)
        logits = call.masked(call.scale * (call.q[:, :, some].float() @ keys.mT), rows)
        # a mask that is added hides with the smallest number of its type
        yield rows, logits.masked_fill(logits < -1e30, -torch.inf)


class _Mass:
    """Sums, over layers, heads and queries, the attention outside the top tokens."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._present: Tensor | None = None
        self.outside = torch.zeros(len(sizes), dtype=torch.float64)
        self.queries = 0

    def start(self, batch: Any) -> None:
        """A new batch; queries at its padding do not count."""
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        self._present = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def see(self, call: Call) -> None:
        """One call of attention."""
        (B, H, Tq, _), T = call.q.shape, call.k.shape[2]
        for rows, logits in _logits(call):
            weights = logits.softmax(dim=-1).nan_to_num(0.0)
            best = weights.topk(min(max(self._sizes), T), dim=-1).values.double().cumsum(dim=-1)
            kept = torch.ones(B, len(rows), device=best.device, dtype=torch.bool)
            if self._present is not None and self._present.shape == (B, Tq):
                kept = self._present[:, rows].to(kept)
            for i, size in enumerate(self._sizes):
                outside = (1 - best[..., min(size, T) - 1]).clamp(min=0.0)
                self.outside[i] += (outside * kept[:, None]).sum().cpu()
            self.queries += H * int(kept.sum())


class _Pruned:
    """Attention of which every query keeps the keys with the largest number that ``rule`` gives to
    them, of the shape of the logits ``(B, heads, q, T)``.
    """

    def __init__(self, size: int, rule: Rule, seed: int) -> None:
        self._size, self._rule = size, rule
        self._draw = torch.Generator().manual_seed(seed)

    def __call__(self, call: Call) -> Tensor:
        values = call.v.float().repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)
        parts = []
        for rows, logits in _logits(call):
            score = self._rule(rows, logits, self._draw).masked_fill(
                logits == -torch.inf, -torch.inf
            )
            best = score.topk(min(self._size, logits.shape[-1]), dim=-1).indices
            kept = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, best, True)
            weights = logits.masked_fill(~kept, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
            parts.append(weights @ values)
        return torch.cat(parts, dim=2).to(call.q.dtype)


def _top(rows: Tensor, logits: Tensor, draw: torch.Generator) -> Tensor:
    return logits


def _random(rows: Tensor, logits: Tensor, draw: torch.Generator) -> Tensor:
    return torch.rand(logits.shape, generator=draw).to(logits)


def _nearest(rows: Tensor, logits: Tensor, draw: torch.Generator) -> Tensor:
    keys = torch.arange(logits.shape[-1], device=logits.device)
    return -(keys - rows[:, None]).abs().to(logits).expand_as(logits)
