"""Seeing every fused attention call of a model while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Map = tuple[Tensor, Tensor | None, Tensor]
"""Weight ``(out, in)``, bias and input ``(B, T, in)`` of a linear map."""

_FUSED = nn.functional.scaled_dot_product_attention


@dataclass(frozen=True, eq=False)
class Call:
    """One call of ``scaled_dot_product_attention``.

    Attributes:
        number: its place in the forward pass.
        name: the module inside which it was made.
        q, k, v: ``(B, heads, q, d)``, ``(B, key heads, T, d)`` and ``(B, key heads, T, values)``.
        mask: as it was given; ``None`` where there was none.
        causal: whether later keys are hidden.
        scale: what products are multiplied with.
        maps: of queries and keys, where the call itself knows them.
    """

    number: int
    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    maps: tuple[Map, Map] | None

    def masked(self, logits: Tensor, rows: Tensor) -> Tensor:
        """``(B, heads, rows, T)`` logits of these queries with the mask applied."""
        if self.causal:
            later = torch.arange(logits.shape[-1], device=logits.device) > rows[:, None]
            logits = logits.masked_fill(later, -torch.inf)
        if self.mask is None:
            return logits
        own = self.mask[:, :, rows] if self.mask.shape[2] > 1 else self.mask
        return logits.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else logits + own


class Watch:
    """Calls ``see`` at every fused attention of ``model`` inside ``with``.

    Args:
        model: the module.
        see: called before the attention is computed, without gradients.
    """

    def __init__(self, model: nn.Module, see: Callable[[Call], None]) -> None:
        self._model, self._see = model, see
        self._mode = _Mode(self)
        self._hooks: list[Any] = []
        self.path: list[str] = []
        self.calls = 0
        self.running = False

    def __enter__(self) -> Watch:
        self.path, self.calls, self.running = [], 0, True
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._enters(name)))
            self._hooks.append(module.register_forward_hook(self._leaves, always_call=True))
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.running = [], False

    def _enters(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            if not name:
                self.calls = 0
            self.path.append(name)

        return hook

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.path:
            self.path.pop()

    def seen(self, maps: tuple[Map, Map] | None, *args: Any, **kwargs: Any) -> None:
        """One call with these arguments."""
        query, key, value, mask, causal, scale = _arguments(*args, **kwargs)
        q, k, v = query.detach(), key.detach(), value.detach()
        if query.dim() == 3:  # (heads, T, d) without a batch
            q, k, v = q[None], k[None], v[None]
        call = Call(
            self.calls,
            self.path[-1] if self.path else "",
            q,
            k,
            v,
            None if mask is None else mask.detach()[(None,) * (4 - mask.dim())],
            causal,
            float(q.shape[-1] ** -0.5 if scale is None else scale),
            maps,
        )
        self.calls += 1
        with torch.no_grad():
            self._see(call)


class _Mode(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func is _FUSED:
            self._watch.seen(None, *args, **kwargs)
        if func is nn.functional.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        return func(*args, **kwargs)

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """``torch.nn.MultiheadAttention``: a function of Python, inside which this mode is off, and
        which multiplies by hand when it is asked for attention weights.
        """
        forward = nn.functional.multi_head_attention_forward
        given = inspect.signature(forward).bind(*args, **kwargs)
        given.apply_defaults()
        maps = _multi_head_maps(given.arguments)

        def watched(*inner: Any, **options: Any) -> Tensor:
            self._watch.seen(maps, *inner, **options)
            return _FUSED(*inner, **options)

        asked = given.arguments["need_weights"]
        given.arguments["need_weights"] = False
        functions: Any = nn.functional
        functions.scaled_dot_product_attention = watched
        try:
            found = forward(*given.args, **given.kwargs)
        finally:
            functions.scaled_dot_product_attention = _FUSED
        return forward(*args, **kwargs) if asked else found


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool, float | None]:
    return query, key, value, attn_mask, is_causal, scale


def _multi_head_maps(given: Mapping[str, Any]) -> tuple[Map, Map]:
    """The maps to queries and keys of a call of ``multi_head_attention_forward``."""
    E = given["embed_dim_to_check"]
    weight, shift = given["in_proj_weight"], given["in_proj_bias"]
    weights = (
        (given["q_proj_weight"], given["k_proj_weight"])
        if given["use_separate_proj_weight"]
        else (weight[:E], weight[E : 2 * E])
    )
    inputs = [
        each.detach().unsqueeze(1) if each.dim() == 2 else each.detach()
        for each in (given["query"], given["key"])
    ]
    shifts = (None, None) if shift is None else (shift[:E].detach(), shift[E : 2 * E].detach())
    query, key = (
        (one.detach(), moved, rows.transpose(0, 1))
        for one, moved, rows in zip(weights, shifts, inputs, strict=True)
    )
    return query, key
