"""Observes every attention of a model while it runs, however the model computes it.

Three ways lead to a call:

* Hugging Face's registry of attention functions hands over queries, keys, mask, scaling, soft cap
  and sinks (:mod:`attsvm.transformers.registered_attention`).
* A torch function mode sees each call of ``scaled_dot_product_attention`` that Python code makes.
  ``torch.nn.MultiheadAttention`` calls it from a function in which such modes are off, so that
  function is replaced while it runs.
* Where a model multiplies by hand, the mode follows products of queries and keys to their softmax
  (:mod:`attsvm.transformers.score_tracing`).

Hooks on all modules say inside which one a call is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attsvm.transformers.score_tracing import ScoreTracer

LinearMap = tuple[Tensor, Tensor | None, Tensor]
"""Weight ``(out, in)``, bias and input ``(B, T, in)`` of a linear map."""

_FUSED_ATTENTION = nn.functional.scaled_dot_product_attention


@dataclass(frozen=True, eq=False)
class AttentionCall:
    r"""One attention: softmax of :math:`c\tanh(s\,q^\top k/c)+b` over keys and sinks.

    Attributes:
        number: of the layer: that of its block in the model, see :class:`CallObserver`.
        name: the module inside which it was made.
        q, k: ``(B, heads, q, d)`` and ``(B, key heads, T, d)``.
        mask: ``(B, heads, q, T)``, true on visible keys or added to logits, axes of size one where
            it is shared; ``None`` where there is none.
        causal: whether keys later than the query are hidden, both counted from 0.
        scale: factor :math:`s` of the products of keys and queries.
        maps: of queries and keys, where the call itself knows them.
        softcap: bound :math:`c` of the products; ``None`` where there is none.
        sinks: ``(heads,)``, logits that take attention and give no value; ``None`` without.
        is_difference: the module subtracts the second half of its heads from the first, as a
            differential transformer does.
    """

    number: int
    name: str
    q: Tensor
    k: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    maps: tuple[LinearMap, LinearMap] | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    is_difference: bool = False

    def logits(self, products: Tensor, rows: Tensor) -> Tensor:
        """Logits ``(B, heads, rows, T)`` of these queries from their scaled products with keys."""
        logits = products
        # the cap acts on products alone, before anything is added or hidden
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(products / self.softcap)
        # the fused function counts both from the first row and column
        if self.causal:
            later = torch.arange(logits.shape[-1], device=logits.device) > rows[:, None]
            logits = logits.masked_fill(later, -torch.inf)
        if self.mask is None:
            return logits
        mask = self.mask[:, :, rows] if self.mask.shape[2] > 1 else self.mask
        return logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask


class CallObserver:
    """Calls ``on_call`` at every attention of ``model`` inside ``with``.

    A layer has the number of its block in the stack in which the first attention is, as in
    ``layers.3.self_attn``. Where that is taken already (cross attention of the block, a module that
    runs several times) or the block is of another stack (a decoder after its encoder), it has the
    next number that is free, so numbers follow the forward pass.

    Args:
        model: the module.
        on_call: called before the attention is computed, without gradients.
        inside_pass: ``with`` is entered and left by hooks of ``model``, inside a pass of it. torch
            goes through the hooks of a module that fails, so the model gets none then.

    Attributes:
        unknown: modules with a softmax that looks like attention and is not followed.
        running: whether it is inside ``with``.
    """

    def __init__(
        self,
        model: nn.Module,
        on_call: Callable[[AttentionCall], None],
        inside_pass: bool = False,
    ) -> None:
        self._model, self._on_call, self._inside_pass = model, on_call, inside_pass
        self._modules: list[tuple[str, nn.Module]] = []  # those that are running
        self.tracer = ScoreTracer(self._report_traced, self._modules)
        self._mode = _InterceptingMode(self)
        self._hooks: list[Any] = []
        self._first_stack: str | None = None
        self._numbers: set[int] = set()
        self._previous: tuple[str, Tensor, Tensor] | None = None
        self._suspended = 0
        self.unknown: list[str] = []
        self.running = False

    def __enter__(self) -> CallObserver:
        self._previous, self._suspended, self.running = None, 0, True
        self._modules.clear()
        self._numbers = set()
        # which module is running: calls themselves do not say who makes them
        for name, module in self._model.named_modules():
            if self._inside_pass and module is self._model:
                self._modules.append((name, module))
                continue
            self._hooks.append(module.register_forward_pre_hook(self._enter_module(name)))
            self._hooks.append(module.register_forward_hook(self._leave_module, always_call=True))
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._previous, self.running = [], None, False
        self.tracer.clear()

    @property
    def observes(self) -> bool:
        """Whether calls are reported: not inside an attention that has been reported already."""
        return self._suspended == 0

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block whose calls are parts of one that has been reported."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1

    def report(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
        maps: tuple[LinearMap, LinearMap] | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Hand on one call; see :class:`AttentionCall`."""
        q, k = q.detach(), k.detach()
        name = self._modules[-1][0] if self._modules else ""
        # a difference of two softmaxes is called twice, with halves of the values
        if self._previous is not None and _same_attention(self._previous, name, q, k):
            return
        self._previous = name, q, k
        if q.dim() == 3:  # (heads, T, d) without a batch
            q, k = q[None], k[None]
        call = AttentionCall(
            self._number(name),
            name,
            q,
            k,
            None if mask is None else mask.detach()[(None,) * (4 - mask.dim())],
            causal,
            float(q.shape[-1] ** -0.5 if scale is None else scale),
            maps,
            softcap,
            None if sinks is None else sinks.detach(),
            # the name that the paper's code and others give to its factors
            bool(self._modules) and hasattr(self._modules[-1][1], "lambda_q1"),
        )
        # what is done with a call are no calls of the model: the mode is off meanwhile
        with torch.no_grad(), torch._C.DisableTorchFunction():
            self._on_call(call)

    def _report_traced(self, q: Tensor, k: Tensor, mask: Tensor | None, scale: float) -> None:
        self.report(q, k, mask, False, scale)

    def _number(self, name: str) -> int:
        """The number of the layer whose attention is this module."""
        stack, block = _block_of(name)
        # the first attention names the stack whose numbers count
        if self._first_stack is None:
            self._first_stack = stack
        if stack != self._first_stack or block is None or block in self._numbers:
            block = max(self._numbers, default=-1) + 1
        self._numbers.add(block)
        return block

    def _enter_module(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            if not name:  # the model itself: a new forward pass
                self._numbers, self._previous = set(), None
            self._modules.append((name, module))

        return hook

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        # the module that is left now is the one in which the softmax was
        if self.tracer.has_unknown:
            self.unknown.append(self._modules[-1][0] if self._modules else "")
            self.tracer.has_unknown = False
        # of a model that was entered before its hooks there is nothing to leave
        if self._modules:
            self._modules.pop()
        self.tracer.leave_module()


def _same_attention(previous: tuple[str, Tensor, Tensor], name: str, q: Tensor, k: Tensor) -> bool:
    """Whether a call has the queries and keys of the one before it, in the same module."""
    old_name, old_q, old_k = previous
    return name == old_name and all(
        old.data_ptr() == new.data_ptr() and old.shape == new.shape
        for old, new in ((old_q, q), (old_k, k))
    )


def _block_of(name: str) -> tuple[str, int | None]:
    """Stack and number of the block that holds a module; no number where none is in its name."""
    words = name.split(".")
    for depth, word in enumerate(words):
        if word.isdigit():
            return ".".join(words[:depth]), int(word)
    return name, None


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
        # inside an attention that has been reported, its parts are no calls of their own
        if not self._observer.observes:
            return func(*args, **kwargs)
        if func is _FUSED_ATTENTION:
            self._observer.report(*_bind_fused(*args, **kwargs))
            return func(*args, **kwargs)
        if func is nn.functional.multi_head_attention_forward:
            return self._run_multi_head(*args, **kwargs)
        # anything else may be a step of an attention by hand; nearly all calls are none
        if not self._observer.tracer.follows(func):
            return func(*args, **kwargs)
        self._observer.tracer.before(func, args, kwargs)
        result = func(*args, **kwargs)
        self._observer.tracer.after(func, args, kwargs, result)
        return result

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
            self._observer.report(*_bind_fused(*inner, **options), maps)
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
) -> tuple[Tensor, Tensor, Tensor | None, bool, float | None]:
    return query, key, attn_mask, is_causal, scale


def _multi_head_maps(arguments: Mapping[str, Any]) -> tuple[LinearMap, LinearMap]:
    """The maps to queries and keys of a call of ``multi_head_attention_forward``."""
    # one matrix for queries, keys and values, or one for each where widths differ
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
