r"""Follows products of queries and keys to their softmax, in models that multiply by hand.

A model that computes :math:`\mathrm{softmax}(s\,q^\top k+b)` with its own operations calls a
product of queries and keys, then functions that keep its size (scaling, a bias, a mask, a change of
type or shape), then softmax. The tracer sees all of them as calls of torch functions. The argument
of softmax is exact, whatever the model adds; what the scaled product does not explain of it is the
bias, or hides a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}
_FIRST_STEPS = _PRODUCTS | {"softmax"}
_MULTIPLICATIONS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply"}
_DIVISIONS = {"div", "__truediv__", "div_", "__itruediv__", "__idiv__", "true_divide", "divide"}
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads")

Report = Callable[[Tensor, Tensor, Tensor | None, float], None]
"""Takes queries ``(B, heads, q, d)``, keys ``(B, key heads, T, d)``, mask and scale."""


@dataclass(frozen=True, eq=False)
class _Scores:
    """A tensor that was made from products of queries and keys.

    Attributes:
        tensor: the tensor, held so that its identity is not used again.
        q, k: ``(..., q, d)`` and ``(..., T, d)``.
        scale: factor of the products in it.
        depth: number of modules that were running when it was made.
    """

    tensor: Tensor
    q: Tensor
    k: Tensor
    scale: float
    depth: int = 0


class ScoreTracer:
    """Reports every softmax of scaled products of queries and keys.

    1. A product of two stacks of matrices is remembered, with its factors.
    2. So is every result of the same size that is made from it; multiplications by a number are
       counted in its scale.
    3. A softmax over the last axis of such a tensor is an attention.

    Args:
        report: called with queries, keys, mask and scale before the softmax is computed.
        modules: those that are running, by name, outermost first; the observer keeps them.

    Attributes:
        has_unknown: whether there was a softmax over heads, queries and something else.
    """

    def __init__(self, report: Report, modules: list[tuple[str, nn.Module]]) -> None:
        self._report, self._modules = report, modules
        self._scores: dict[int, _Scores] = {}
        self.has_unknown = False

    def clear(self) -> None:
        """Forget all products."""
        self._scores = {}

    def leave_module(self) -> None:
        """Forget products that were made two modules deeper: a module that multiplies may hand its
        product to the one around it, no further.
        """
        if not self._scores:
            return
        deepest = len(self._modules) + 1
        self._scores = {
            key: scores for key, scores in self._scores.items() if scores.depth <= deepest
        }

    def follows(self, func: Any) -> bool:
        """Whether a call may be a product, made from one, or a softmax."""
        return bool(self._scores) or getattr(func, "__name__", "") in _FIRST_STEPS

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """See a call that is about to be made."""
        if getattr(func, "__name__", "") != "softmax":
            return
        logits = args[0] if args else kwargs.get("input")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        scores = self._scores.get(id(logits))
        # 3.
        if isinstance(logits, Tensor) and scores is not None and dim in (-1, logits.dim() - 1):
            with torch.no_grad():
                self._report_softmax(logits.detach(), scores)
            self.clear()
        # heads of texts, queries and something that is no product of theirs: windows, samples
        elif isinstance(logits, Tensor) and logits.dim() > 3:
            self.has_unknown = True

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """See a call that was made."""
        name = getattr(func, "__name__", "")
        if not isinstance(result, Tensor) or result.dim() < 3:
            return
        # 1.
        if name in _PRODUCTS:
            scores = _product(name, args, kwargs, result)
            if scores is not None:
                self._scores[id(result)] = replace(scores, depth=len(self._modules))
            return
        # 2.
        arguments = (*args, *kwargs.values())
        sources = [
            self._scores[id(x)]
            for x in arguments
            if isinstance(x, Tensor) and id(x) in self._scores
        ]
        # content comes first in a sum; a result of another size is no longer the scores
        if sources and sources[0].tensor.numel() == result.numel():
            scale = sources[0].scale * _factor(name, args)
            self._scores[id(result)] = replace(sources[0], tensor=result, scale=scale)

    def _report_softmax(self, logits: Tensor, scores: _Scores) -> None:
        """Report an attention with these logits ``(B, heads, q, T)`` or ``(B heads, q, T)``."""
        q, k, scores_by_head = (self._with_heads(x.detach()) for x in (scores.q, scores.k, logits))
        # heads that do not divide into groups: the axes are not what they seem
        if q is None or k is None or scores_by_head is None or q.shape[1] % k.shape[1]:
            return
        if len(k) != len(q):  # keys that all texts share
            k = k.expand(len(q), -1, -1, -1)
        self._report(q, k, _mask_of(scores_by_head, q, k, scores.scale), scores.scale)

    def _with_heads(self, x: Tensor) -> Tensor | None:
        """The tensor with an axis of heads; ``None`` where their number is not known."""
        if x.dim() == 4:
            return x
        # three axes are texts times heads: some module around knows how many heads
        for _, module in reversed(self._modules):
            for attribute in _HEAD_COUNTS:
                heads = getattr(module, attribute, None)
                if x.dim() == 3 and isinstance(heads, int) and heads > 0 and len(x) % heads == 0:
                    return x.reshape(-1, heads, *x.shape[1:])
        return None


def _product(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
) -> _Scores | None:
    """A product as scores; ``None`` where it is none of two stacks of matrices."""
    scale = 1.0
    # the left factor has a row per query, the right one a column per key
    if name == "einsum":
        factors = _einsum_factors(*args)
        if factors is None:
            return None
        q, k = factors
    elif name == "baddbmm":
        # a bias, and alpha times a product: the bias is found at the softmax
        operands = [*args[1:3], kwargs.get("batch1"), kwargs.get("batch2")]
        left, right, *_ = (x for x in operands if isinstance(x, Tensor))
        q, k, scale = left, right.mT, float(kwargs.get("alpha", 1.0))
    else:
        left, right = (*args, *kwargs.values())[:2]
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            return None
        # a weight has two axes: that is a linear map, not an attention
        if min(left.dim(), right.dim()) < 3 or left.dim() != right.dim():
            return None
        q, k = left, right.mT
    if result.shape[-2:] != (q.shape[-2], k.shape[-2]):
        return None
    return _Scores(result, q, k, scale)


def _einsum_factors(equation: Any, *operands: Any) -> tuple[Tensor, Tensor] | None:
    """Queries and keys of a product such as ``ibnd,jbnd->bnij``, features last; ``None`` where it
    contracts none or several axes.
    """
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    left, _, right = inputs.partition(",")
    contracted = (set(left) & set(right)) - set(output)
    if len(contracted) != 1 or len(output) < 3 or "." in equation:
        return None
    # texts and heads first, then queries or keys, then the feature that is summed over
    feature, *batch = *contracted, *output[:-2]
    orders = ["".join([*batch, output[-2], feature]), "".join([*batch, output[-1], feature])]
    if sorted(orders[0]) != sorted(left) or sorted(orders[1]) != sorted(right):
        return None
    q, k = (
        operand.permute([axes.index(axis) for axis in order])
        for operand, axes, order in zip(operands, (left, right), orders, strict=True)
    )
    return q, k


def _factor(name: str, args: Sequence[Any]) -> float:
    """The number by which a function multiplies; 1 where it does something else."""
    if name not in _MULTIPLICATIONS | _DIVISIONS or len(args) < 2:
        return 1.0
    numbers = [
        float(x)
        for x in args[:2]
        if isinstance(x, (int, float)) or (isinstance(x, Tensor) and x.numel() == 1)
    ]
    if not numbers:
        return 1.0
    return numbers[0] if name in _MULTIPLICATIONS else 1.0 / numbers[0]


def _mask_of(
    logits: Tensor, q: Tensor, k: Tensor, scale: float, lowest: float = -5e3
) -> Tensor | None:
    """The mask that turns scaled products into these logits; ``None`` where none is needed.

    Args:
        logits: ``(B, heads, q, T)``.
        q: ``(B, heads, q, d)``.
        k: ``(B, key heads, T, d)``.
        scale: factor of their products.
        lowest: term from which a key counts as hidden: models by hand add ``-1e4`` or less.
    """
    # what the model has added to its scaled products, whatever it was
    keys = k.float().repeat_interleave(logits.shape[1] // k.shape[1], dim=1)
    products = scale * (q.float() @ keys.mT)
    bias = logits.float() - products
    hidden = (bias <= lowest) | (logits <= 0.5 * torch.finfo(logits.dtype).min)
    rest = bias.masked_fill(hidden, 0.0)
    # what rounding leaves is no bias: products are rounded in the precision of their factors, even
    # where softmax is computed in a finer one
    size = products.masked_fill(hidden, 0.0).abs().amax()
    eps = max(torch.finfo(dtype).eps for dtype in (logits.dtype, q.dtype, k.dtype))
    if bool(rest.abs().amax() > 16 * eps * size):
        return rest.masked_fill(hidden, -torch.inf)
    return ~hidden if bool(hidden.any()) else None
