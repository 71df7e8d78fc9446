"""Observes every fused attention call of a model while it runs.

A torch function mode sees each call of ``scaled_dot_product_attention`` that Python code makes, and
hooks on all modules say inside which one it is made. ``torch.nn.MultiheadAttention`` calls it from
a function in which such modes are off, so that function is replaced while it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LinearMap = tuple[Tensor, Tensor | None, Tensor]
"""Weight ``(out, in)``, bias and input ``(B, T, in)`` of a linear map."""

_FUSED_ATTENTION = nn.functional.scaled_dot_product_attention


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of ``scaled_dot_product_attention``.

    Attributes:
        number: of the call in the forward pass.
        name: the module inside which it was made.
        q, k, v: ``(B, heads, q, d)``, ``(B, key heads, T, d)`` and ``(B, key heads, T, values)``.
        mask: the mask of the call; ``None`` where there was none.
        causal: whether later keys are hidden.
        scale: factor of the products of keys and queries.
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
    maps: tuple[LinearMap, LinearMap] | None

    def masked(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Logits ``(B, heads, rows, T)`` of these queries with the mask applied."""
        if self.causal:
            later = torch.arange(logits.shape[-1], device=logits.device) > rows[:, None]
            logits = logits.masked_fill(later, -torch.inf)
        if self.mask is None:
            return logits
        mask = self.mask[:, :, rows] if self.mask.shape[2] > 1 else self.mask
        return logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask


class CallObserver:
    """Calls ``on_call`` at every fused attention of ``model`` inside ``with``.

    Args:
        model: the module.
        on_call: called before the attention is computed, without gradients.
    """

    def __init__(self, model: nn.Module, on_call: Callable[[AttentionCall], None]) -> None:
        self._model, self._on_call = model, on_call
        self._mode = _InterceptingMode(self)
        self._hooks: list[Any] = []
        self.path: list[str] = []
        self.calls = 0
        self.running = False

    def __enter__(self) -> CallObserver:
        self.path, self.calls, self.running = [], 0, True
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._enter_module(name)))
            self._hooks.append(module.register_forward_hook(self._leave_module, always_call=True))
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.running = [], False

    def _enter_module(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            if not name:  # the model itself: a new forward pass
                self.calls = 0
            self.path.append(name)

        return hook

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.path:
            self.path.pop()

    def report(self, maps: tuple[LinearMap, LinearMap] | None, *args: Any, **kwargs: Any) -> None:
        """Hand on one call with these arguments."""
        query, key, value, mask, causal, scale = _bind_fused(*args, **kwargs)
        q, k, v = query.detach(), key.detach(), value.detach()
        if query.dim() == 3:  # (heads, T, d) without a batch
            q, k, v = q[None], k[None], v[None]
        call = AttentionCall(
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
            self._on_call(call)


class _InterceptingMode(TorchFunctionMode):
    def __init__(self, observer: CallObserver) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func is _FUSED_ATTENTION:
            self._observer.report(None, *args, **kwargs)
        if func is nn.functional.multi_head_attention_forward:
            return self._run_multi_head(*args, **kwargs)
        return func(*args, **kwargs)

    def _run_multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function behind ``torch.nn.MultiheadAttention``, inside which this mode is off,
        and which multiplies by hand when it is asked for attention weights.

        1. Run it without attention weights, with the fused attention replaced by one that reports.
        2. Where attention weights were asked for, run it again as it was called.
        """
        forward = nn.functional.multi_head_attention_forward
        call = inspect.signature(forward).bind(*args, **kwargs)
        call.apply_defaults()
        maps = _multi_head_maps(call.arguments)

        def reporting_attention(*inner: Any, **options: Any) -> Tensor:
            self._observer.report(maps, *inner, **options)
            return _FUSED_ATTENTION(*inner, **options)

        need_weights = call.arguments["need_weights"]
        call.arguments["need_weights"] = False
        # 1.
        functions: Any = nn.functional
        functions.scaled_dot_product_attention = reporting_attention
        try:
            output = forward(*call.args, **call.kwargs)
        finally:
            functions.scaled_dot_product_attention = _FUSED_ATTENTION
        # 2.
        return forward(*args, **kwargs) if need_weights else output


def _bind_fused(
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


def _multi_head_maps(arguments: Mapping[str, Any]) -> tuple[LinearMap, LinearMap]:
    """The maps to queries and keys of a call of ``multi_head_attention_forward``."""
    E = arguments["embed_dim_to_check"]
    weight, bias = arguments["in_proj_weight"], arguments["in_proj_bias"]
    if arguments["use_separate_proj_weight"]:
        W_Q, W_K = arguments["q_proj_weight"], arguments["k_proj_weight"]
    else:
        W_Q, W_K = weight[:E], weight[E : 2 * E]
    b_Q, b_K = (None, None) if bias is None else (bias[:E].detach(), bias[E : 2 * E].detach())
    # inputs are (T, B, width) here, or (T, width) without a batch
    queries, keys = (
        x.detach().unsqueeze(1) if x.dim() == 2 else x.detach()
        for x in (arguments["query"], arguments["key"])
    )
    return (
        (W_Q.detach(), b_Q, queries.transpose(0, 1)),
        (W_K.detach(), b_K, keys.transpose(0, 1)),
    )
