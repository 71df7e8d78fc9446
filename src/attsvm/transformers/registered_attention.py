"""Attention of Hugging Face models through their own registry of attention functions.

Most models of transformers call whatever function ``config._attn_implementation`` names in the
registry ``ALL_ATTENTION_FUNCTIONS``. While a model is observed the name is one of ours: the
function registered there reports queries, keys, mask, scaling, soft cap and sinks, and calls the
function that the model has without us. So the model computes what it computes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.transformers.attention_calls import CallObserver

_PREFIX = "attsvm-"
_observers: list[CallObserver] = []  # those inside `observed_registry`, outermost first


@contextmanager
def observed_registry(model: nn.Module, observer: CallObserver) -> Iterator[None]:
    """Report every attention that ``model`` calls through the registry to ``observer``.

    1. Register an observed twin of the model's implementation, fused or eager.
    2. Name it in the configuration of every part of the model that asks the registry.
    3. Afterwards, put the names back.
    """
    # 1. once for all models; the registry is that of transformers, if anything has loaded it
    configs = _configs_that_ask(model)
    if configs:
        _register()
    # 2.
    before = [(config, config._attn_implementation_internal) for config in configs]
    for config, implementation in before:
        # of two observed models inside each other, the inner one finds our name
        name = "eager" if str(implementation).removeprefix(_PREFIX) == "eager" else "sdpa"
        config._attn_implementation_internal = _PREFIX + name
    _observers.append(observer)
    # the encoder of torch has a path of its own, in which nothing is called
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        # 3.
        torch.backends.mha.set_fastpath_enabled(fast)
        _observers.remove(observer)
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _configs_that_ask(model: nn.Module) -> list[Any]:
    """The configurations of the parts of a model whose code asks the registry, each once."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        implementation = getattr(config, "_attn_implementation_internal", None)
        code = _code_of(module)
        # an eager function of another name is the model's own, and is traced by hand
        has_twin = implementation != "eager" or "eager_attention_forward" in code
        if implementation is not None and "ALL_ATTENTION_FUNCTIONS" in code and has_twin:
            configs[id(config)] = config
    return list(configs.values())


def _code_of(module: nn.Module) -> dict[str, Any]:
    """The names in the file that defines a module."""
    source = sys.modules.get(type(module).__module__)
    return {} if source is None else vars(source)


def _register() -> None:
    from transformers.modeling_utils import AttentionInterface

    masks: Any = None
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

        masks = AttentionMaskInterface
    except ImportError:  # before 4.53 models make their masks themselves
        pass
    for name in ("sdpa", "eager"):
        AttentionInterface.register(_PREFIX + name, partial(_observed_attention, name))
        if masks is not None:
            masks.register(_PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])


def _observed_attention(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Report an attention, then compute it as the model does without us."""
    # the innermost block: the others have been told of the whole pass
    observer = _observers[-1]
    function = _own_function(implementation, module, kwargs)
    if observer.observes:
        observer.report(
            query,
            key,
            _full_mask(attention_mask, query, key, kwargs.get("position_bias")),
            _is_causal(implementation, module, query, attention_mask, kwargs),
            kwargs.get("scaling"),
            softcap=kwargs.get("softcap"),
            sinks=_sinks(module, kwargs),
        )
    with observer.suspended():
        return function(module, query, key, value, attention_mask, *args, **kwargs)


def _own_function(
    implementation: str, module: nn.Module, kwargs: dict[str, Any]
) -> Callable[..., Any]:
    code = _code_of(module)
    if implementation == "eager" and "eager_attention_forward" in code:
        return code["eager_attention_forward"]
    return code["ALL_ATTENTION_FUNCTIONS"]["sdpa"]


def _is_causal(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    mask: Tensor | None,
    kwargs: dict[str, Any],
) -> bool:
    """Whether the fused function hides later keys; eager ones know nothing but the mask."""
    if implementation == "eager" or mask is not None or query.shape[2] == 1:
        return False
    # a call may say it; else its module does, and decoders are the default
    causal = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if causal is None else causal)


def _full_mask(
    mask: Tensor | None, query: Tensor, key: Tensor, position_bias: Tensor | None
) -> Tensor | None:
    """The mask with the bias of relative positions, and cut to the keys that there are."""
    # masks of some models reach over room that a cache has left
    if mask is not None and mask.dim() == 4:
        mask = mask[..., : key.shape[2]]
    if position_bias is None:
        return mask
    if mask is None:
        return position_bias
    # a bias is added, so keys that a boolean mask hides get the lowest one
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, -torch.inf)
    return position_bias + mask


def _sinks(module: nn.Module, kwargs: dict[str, Any]) -> Tensor | None:
    # handed over as s_aux by newer versions; older ones read the module
    sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
    return sinks if isinstance(sinks, Tensor) else None
