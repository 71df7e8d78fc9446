"""Recordings from activations that another tool has kept, under TransformerLens' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, IntArray
from attsvm.transformers.capture import MOST_QUERIES, Attended, Layer, Projection, Recording, spread

_INPUTS = ("ln1.hook_normalized", "hook_resid_pre")
_HIDDEN = -1e4  # scores at which a key counts as hidden
_CLOSE = 1e-3  # of the largest entry: products in float32, weights on inputs against kept queries


def from_cache(
    cache: Mapping[str, Any],
    tokens: ArrayLike | Tensor | None = None,
    *,
    attention_mask: ArrayLike | Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    model: Any = None,
    most_queries: int | None = MOST_QUERIES,
) -> Recording:
    r"""What :func:`~attsvm.transformers.capture` would have kept, from a cache of activations.

    Every name that ends in ``hook_q`` or ``hook_rot_q`` and its keys make a layer, in the order of
    the cache: ``blocks.3.attn.hook_q`` and ``blocks.3.attn.hook_k``, ``(B, T, heads, d)`` each, the
    ``B`` left out for one text. With ``blocks.3.attn.hook_attn_scores``, ``(B, heads, q, T)``, what
    queries see, and what else was added to logits, is read from there.

    Args:
        cache: TransformerLens' ``ActivationCache``, or a dictionary of tensors or arrays.
        tokens: ``(B, T)`` numbers of the tokens, for their names.
        attention_mask: ``(B, T)``, zero for padding.
        causal: where there are no scores, whether queries see no later key.
        scale: what products of keys and queries are multiplied with; the model's own, or
            :math:`1/\sqrt d`, when left out.
        model: with ``blocks[n].attn.W_Q``, ``W_K`` and ``b_Q`` as TransformerLens has them; that of
            the cache when left out. With it, and ``ln1.hook_normalized`` or ``hook_resid_pre``,
            weights can be compared with max-margin solutions.
        most_queries: queries kept per text and layer, spread evenly over it; ``None`` for all.

    Raises:
        InputError: a cache without queries or keys, arrays that do not fit together or hold NaN.

    Example:
        >>> import numpy as np
        >>> from attsvm.transformers import audit, from_cache
        >>> rng = np.random.default_rng(0)
        >>> shape = (1, 12, 2, 4)  # one text of 12 tokens, two heads
        >>> names = ("blocks.0.attn.hook_q", "blocks.0.attn.hook_k")
        >>> recording = from_cache({name: rng.normal(size=shape) for name in names})
        >>> [head.head for head in audit(recording, norms=[]).heads]
        [0, 1]
    """
    model = getattr(cache, "model", None) if model is None else model
    if scale is None:
        scale = getattr(getattr(model, "cfg", None), "attn_scale", None)
        scale = None if scale is None else 1.0 / scale  # TransformerLens divides
    places = _places(cache)
    mask = None if attention_mask is None else _tensor(attention_mask, 2).bool()
    recording = Recording()
    if tokens is not None:
        numbers = _tensor(tokens, 2)
        present = torch.ones_like(numbers, dtype=torch.bool) if mask is None else mask
        recording.tokens = [row[own].numpy() for row, own in zip(numbers, present, strict=True)]
    for number, (name, rotated) in enumerate(places.items()):
        q, k = (_heads(cache, f"{name}.hook_{rotated}{letter}") for letter in "qk")
        if len(q) != len(k) or q.shape[3] != k.shape[3] or q.shape[2] % k.shape[2]:
            raise InputError(
                f"{name} has queries {tuple(q.shape)} and keys {tuple(k.shape)}; they must have the"
                " same texts and width, and query heads a multiple of key heads"
            )
        cross = "cross" in name or q.shape[1] != k.shape[1]
        scores = _scores(cache, name, q, k)
        layer = Layer(
            number,
            name,
            list(range(q.shape[2])),
            cross,
            not cross and (causal or scores is not None),
        )
        s = float(q.shape[3] ** -0.5 if scale is None else scale)
        kept = []
        for b in range(len(q)):
            own, sees = (
                np.flatnonzero(mask[b].numpy())
                if mask is not None and mask.shape[1] == length
                else np.arange(length)
                for length in (q.shape[1], k.shape[1])
            )
            rows = own[spread(len(own), most_queries)]
            kept.append((rows, sees))
            seen = np.ones((len(rows), len(sees)), dtype=np.bool_)
            shift, queries, keys = None, q[b, rows].transpose(0, 1), k[b, sees].transpose(0, 1)
            if scores is not None:
                seen, shift = _shown(scores[b][:, rows][:, :, sees], queries, keys, s)
            elif layer.causal:
                seen = sees <= rows[:, None]
            stands = rows if cross else np.searchsorted(sees, rows)
            layer.causal &= not (seen & (np.arange(len(sees)) > stands[:, None])).any()
            layer.texts.append(Attended(queries, keys, stands, seen, shift, s, b, len(own)))
        if not rotated and model is not None:
            layer.projection = _projection(cache, model, layer, q, k, kept)
        recording.layers.append(layer)
    return recording


def _places(cache: Mapping[str, Any]) -> dict[str, str]:
    """The modules that have queries and keys, and what their names begin with after rotation."""
    names = list(cache.keys())
    found = {}
    for name in names:
        place, hook, _ = name.rpartition(".hook_q")
        if hook and f"{place}.hook_k" in cache:
            both = f"{place}.hook_rot_q" in cache and f"{place}.hook_rot_k" in cache
            found[place] = "rot_" if both else ""
    if not found:
        some = ", ".join(map(str, names[:3])) or "nothing"
        raise InputError(
            f"the cache has no queries and keys (it holds {some}); keep names such as"
            " blocks.0.attn.hook_q and blocks.0.attn.hook_k"
        )
    return found


def _tensor(value: Any, dim: int) -> Tensor:
    """With so many axes, the first of them texts."""
    found = torch.as_tensor(value).detach().cpu()
    return found[None] if found.dim() == dim - 1 else found


def _heads(cache: Mapping[str, Any], name: str) -> Tensor:
    """``(B, T, heads, d)``."""
    found = _tensor(cache[name], 4)
    if found.dim() != 4 or not found.is_floating_point():
        raise InputError(
            f"{name} has shape {tuple(found.shape)} and dtype {found.dtype}; it must be numbers"
            " (texts, tokens, heads, features)"
        )
    if not found.isfinite().all():
        raise InputError(f"{name} holds NaN or infinity; run the model again")
    return found


def _scores(cache: Mapping[str, Any], name: str, q: Tensor, k: Tensor) -> Tensor | None:
    """``(B, heads, q, T)`` logits, where the cache has them."""
    key = f"{name}.hook_attn_scores"
    if key not in cache:
        return None
    found = _tensor(cache[key], 4)
    wanted = (len(q), q.shape[2], q.shape[1], k.shape[1])
    if found.shape != wanted:
        raise InputError(f"{key} has shape {tuple(found.shape)}; with these queries it is {wanted}")
    return found


def _shown(
    scores: Tensor, queries: Tensor, keys: Tensor, scale: float
) -> tuple[BoolArray, Tensor | None]:
    """Which keys these queries see, ``(q, T)``, and what was added to their logits."""
    hidden = ~(scores > _HIDDEN).any(dim=0)
    products = scale * queries @ keys.repeat_interleave(len(queries) // len(keys), dim=0).mT
    shift = (scores - products).masked_fill(hidden, 0.0)
    none = bool(shift.abs().max() <= _CLOSE * products.abs().max())
    return (~hidden).numpy(), None if none else shift


def _projection(
    cache: Mapping[str, Any],
    model: Any,
    layer: Layer,
    q: Tensor,
    k: Tensor,
    kept: list[tuple[IntArray, IntArray]],
) -> Projection | None:
    """The maps of ``model.blocks[n].attn`` where they give the queries and keys of the cache."""
    block = layer.name.rpartition(".")[0]
    try:
        attn = model.blocks[layer.number].attn
        W_Q, W_K = (_tensor(each, 3).double() for each in (attn.W_Q, attn.W_K))
        b_Q, b_K = (_tensor(each, 2).double() for each in (attn.b_Q, attn.b_K))
    except (AttributeError, IndexError, TypeError):
        return None
    repeats = len(W_K) // k.shape[2]  # TransformerLens repeats the keys that heads share
    W_K, b_K = W_K[::repeats], b_K[::repeats]
    for name in (f"{block}.{each}" for each in _INPUTS):
        if name not in cache:
            continue
        x = _tensor(cache[name], 3).double()
        if x.shape[:2] == q.shape[:2] and _gives(x, W_Q, b_Q, q) and _gives(x, W_K, b_K, k):
            return Projection(
                W_K.repeat_interleave(len(W_Q) // len(W_K), dim=0).mT.flatten(0, 1).numpy(),
                W_Q.mT.flatten(0, 1).numpy(),
                b_Q.flatten().numpy(),
                [each[sees].numpy() for each, (_, sees) in zip(x, kept, strict=True)],
                [each[rows].numpy() for each, (rows, _) in zip(x, kept, strict=True)],
            )
    return None


def _gives(x: Tensor, W: Tensor, b: Tensor, wanted: Tensor) -> bool:
    if x.shape[-1] != W.shape[1] or W.shape[::2] != wanted.shape[2:]:
        return False
    moved = torch.einsum("btw,hwd->bthd", x, W) + b
    return bool((moved - wanted).abs().max() <= _CLOSE * wanted.abs().max())
